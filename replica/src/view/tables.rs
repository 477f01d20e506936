//! Tables of contents of a replica's containers on the reader's disk, so that an index is made without asking the store for each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs::{EngineError, Progress};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::objects::{Key, ObjectError};
use dedupfs_store::{ContainerKind, StoreError};
use dedupfs_sync::Mutex;

use crate::error::{ReplicaError, Result};
use crate::local::Local;
use crate::packs::{PACK_BYTES_MAX, PACKS, Pack, ROWS_WITHIN_BYTES, Row, rows_of};
use crate::parallel::for_each;
use crate::place::Replica;
use crate::state::State;
use crate::stored::Stored;

/// Directory of packs on the reader's disk.
const DIRECTORY: &str = "tables";
/// Beginning of the names of packs that were made here, of tables that no pack of the store has.
const OWN: &str = "own-";

/// Where a table lies on the reader's disk.
#[derive(Clone, Copy, Debug)]
struct TableAt {
    at: u32,
    len_bytes: u32,
    /// Index of the file, and where the table lies in it.
    file: u32,
    offset: u64,
}

/// The tables that are there.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    files: Vec<Arc<dyn DeviceFile>>,
    by_object: HashMap<Stored, TableAt>,
}

impl Tables {
    /// Opens the tables that an earlier call fetched. If there is a `state`, removes packs that have no table of it.
    pub(crate) fn open(replica: &Replica, device: &dyn Device, state: Option<&State>) -> Result<Self> {
        let mut tables = Self::default();
        device.create_directory(DIRECTORY)?;
        for entry in device.list(DIRECTORY)?.iter().filter(|entry| !entry.is_directory) {
            let path = format!("{DIRECTORY}/{}", entry.name);
            let is_of_state =
                |row: &Row| state.is_none_or(|state| state.stored.get(&row.stored.id) == Some(&row.stored));
            let is_needed = match tables.add(replica, device, &path, &is_of_state) {
                Ok(is_needed) => is_needed,
                // Its tables come from the store.
                Err(ReplicaError::Pool(EngineError::Store(
                    StoreError::Corrupt { .. } | StoreError::Unsupported { .. },
                ))) => false,
                Err(error) => return Err(error),
            };
            if !is_needed {
                let _stays = device.remove(&path);
            }
        }
        Ok(tables)
    }

    /// Fetches the tables of a state that are missing here: packs, and what no pack has.
    pub(crate) fn fetch(
        replica: &Replica,
        device: &dyn Device,
        state: &State,
        connections: usize,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut tables = Self::open(replica, device, Some(state))?;
        let there: HashSet<String> = device.list(DIRECTORY)?.into_iter().map(|entry| entry.name).collect();
        let mut packs = Vec::new();
        replica.objects.list(PACKS, None, &mut |key, head| {
            let name = key.as_str().strip_prefix(PACKS).unwrap_or_default();
            // Others are nobody's.
            let is_name = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_name && !there.contains(name) && head.len_bytes <= PACK_BYTES_MAX as u64 {
                packs.push((key, head.len_bytes));
            }
            Ok(())
        })?;
        progress.start("fetching tables of contents", packs.iter().map(|(_, len_bytes)| len_bytes).sum());
        let fetched = for_each(
            &packs,
            connections,
            progress,
            |(_, len_bytes)| *len_bytes,
            |(key, _)| fetch_pack(replica, device, key),
        );
        progress.finish();
        for path in fetched?.into_iter().flatten() {
            tables.add(replica, device, &path, &|_| true)?;
        }
        tables.fetch_missing(replica, device, state, connections, progress)?;
        Ok(tables)
    }

    /// Reads the tables that no pack has from the containers, and packs them here.
    fn fetch_missing(
        &mut self,
        replica: &Replica,
        device: &dyn Device,
        state: &State,
        connections: usize,
        progress: &dyn Progress,
    ) -> Result<()> {
        let is_missing = |local: &&Local| {
            let stored = state.stored.get(&local.id);
            local.kind == ContainerKind::Data
                && local.toc.is_some()
                && stored.is_some_and(|stored| !self.by_object.contains_key(stored))
        };
        let missing: Vec<&Local> = state.locals.by_id.values().filter(is_missing).collect();
        let own = Mutex::new((Pack::default(), Vec::new()));
        progress.start("reading tables of contents", missing.len() as u64);
        let read = for_each(
            &missing,
            connections,
            progress,
            |_| 1,
            |local| {
                let (Some(stored), Some((at, len_bytes))) = (state.stored.get(&local.id), local.toc) else {
                    return Ok(());
                };
                let mut table = Vec::new();
                let range = u64::from(at)..u64::from(at) + u64::from(len_bytes);
                match replica.objects.read(&stored.key()?, Some(range), &mut table) {
                    Ok(()) => {}
                    // The recovery tells what is lost.
                    Err(ObjectError::Absent { .. } | ObjectError::Damaged { .. }) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
                if table.len() != len_bytes as usize || at.saturating_add(len_bytes) > stored.used_bytes {
                    return Ok(());
                }
                let full = {
                    let (pack, _) = &mut *own.lock();
                    pack.push(*stored, at, &table);
                    pack.is_full().then(|| std::mem::take(pack))
                };
                if let Some(full) = full {
                    let path = keep(replica, device, &full)?;
                    own.lock().1.push(path);
                }
                Ok(())
            },
        );
        progress.finish();
        read?;
        let (pack, mut paths) = own.into_inner();
        if !pack.rows.is_empty() {
            paths.push(keep(replica, device, &pack)?);
        }
        paths.iter().try_for_each(|path| self.add(replica, device, path, &|_| true).map(drop))
    }

    /// Adds the tables of a pack, if any is wanted; returns whether one is.
    fn add(
        &mut self,
        replica: &Replica,
        device: &dyn Device,
        path: &str,
        is_wanted: &dyn Fn(&Row) -> bool,
    ) -> Result<bool> {
        let file = device.open(path, OpenMode::Read)?;
        let mut head = vec![0; ROWS_WITHIN_BYTES.min(file.len()?) as usize];
        file.read_exact_at(&mut head, 0)?;
        let (rows, mut offset) = rows_of(&replica.format.pool, &head)?;
        if !rows.iter().any(is_wanted) {
            return Ok(false);
        }
        let number = self.files.len() as u32; // As many as there are packs.
        for row in rows {
            let place = TableAt { at: row.at, len_bytes: row.len_bytes, file: number, offset };
            self.by_object.insert(row.stored, place);
            offset += u64::from(row.len_bytes);
        }
        self.files.push(file);
        Ok(true)
    }

    /// Reads a part of a container from its table. `false`: it is not there. The reader checks the table, which has a checksum.
    pub(crate) fn read(&self, stored: &Stored, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(place) = self.by_object.get(stored) else { return false };
        let (start, end) = (u64::from(place.at), u64::from(place.at) + u64::from(place.len_bytes));
        if offset < start || offset + buffer.len() as u64 > end {
            return false;
        }
        let file = self.files.get(place.file as usize);
        file.is_some_and(|file| file.read_exact_at(buffer, place.offset + offset - start).is_ok())
    }
}

/// Fetches a pack; returns its path here, or nothing if it is damaged or gone: packs are hints.
fn fetch_pack(replica: &Replica, device: &dyn Device, key: &Key) -> Result<Option<String>> {
    let bytes = match replica.read(key) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(ReplicaError::Object(error @ ObjectError::Damaged { .. })) => {
            tracing::warn!(%error, "tables of contents are damaged: they are read from the containers");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if let Err(error) = Pack::decode(&replica.format.pool, &bytes) {
        tracing::warn!(%error, %key, "tables of contents are damaged: they are read from the containers");
        return Ok(None);
    }
    let name = key.as_str().strip_prefix(PACKS).unwrap_or_default();
    write(device, name, &bytes).map(Some)
}

/// Writes a pack that was made here.
fn keep(replica: &Replica, device: &dyn Device, pack: &Pack) -> Result<String> {
    let bytes = pack.encode(&replica.format.pool);
    write(device, &format!("{OWN}{}", blake3::hash(&bytes).to_hex()), &bytes)
}

fn write(device: &dyn Device, name: &str, bytes: &[u8]) -> Result<String> {
    device.replace_file(DIRECTORY, name, bytes)?;
    Ok(format!("{DIRECTORY}/{name}"))
}
