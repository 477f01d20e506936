//! Making the state of a commit on the reader's disk, and opening one that was made before.

use std::sync::Arc;

use dedupfs::export::RECIPES_OF_META_ROOT;
use dedupfs::recover::recover_on;
use dedupfs::{EngineError, OpenOptions, Progress};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, Subdirectory, remove_directories, remove_files_below};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::clock;

use super::ViewOptions;
use super::cache::Cache;
use super::containers::{Ahead, Containers};
use super::device::{SlotFiles, ViewDevice};
use super::slots::Slots;
use super::tables::Tables;
use crate::chain::Head;
use crate::error::{ReplicaError, Result};
use crate::place::Replica;
use crate::state::State;

pub(super) const STATE: &str = "state";
const STATES: &str = "states";
/// File of a view's meta root, with the address of the replica.
const VIEW_MARK: &str = "replica-view";
const FINDINGS: &str = "findings";
const FINDINGS_BYTES_MAX: u64 = 1 << 20;
/// A state with findings is made anew behind this time.
const LOOKED_AGAIN_SECS: u64 = 600;
/// Longest name of a state.
const NAME_BYTES_MAX: u64 = 64;
const CONNECTIONS_MAX: usize = 64;

/// Tells states apart: two writers may have made commits of one number.
pub(super) fn state_name(newest: &Head) -> String {
    let hash = newest.hash.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("{:016x}-{hash}", newest.commit.number)
}

/// The commit in the name of a state.
pub(super) fn commit_of(state: &str) -> Option<u64> {
    state.split_once('-').and_then(|(commit, _)| u64::from_str_radix(commit, 16).ok())
}

/// A state on the disk, open.
pub(super) struct Found {
    pub(super) parts: Parts,
    pub(super) findings: Vec<String>,
    pub(super) commit: u64,
    pub(super) written_secs: u64,
}

/// The open parts of a view.
pub(super) struct Parts {
    pub(super) meta: Arc<dyn Device>,
    pub(super) data: Arc<dyn Device>,
    pub(super) containers: Arc<Containers>,
    pub(super) ahead: Ahead,
}

/// The making of a state on a disk.
pub(super) struct Making<'a> {
    pub(super) replica: &'a Arc<Replica>,
    pub(super) disk: &'a Arc<dyn Device>,
    pub(super) options: ViewOptions,
    pub(super) progress: &'a dyn Progress,
    /// Name of the state.
    pub(super) name: String,
}

impl Making<'_> {
    fn connections(&self) -> usize {
        self.options.connections.min(CONNECTIONS_MAX)
    }

    pub(super) fn directory(&self, part: &str) -> String {
        format!("{STATES}/{}/{part}", self.name)
    }

    fn device(&self, part: &str) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Subdirectory::create(Arc::clone(self.disk), &self.directory(part))?))
    }

    /// Opens the state that an earlier call made, with its findings. `None` if there is none, or it cannot be used.
    pub(super) fn found(&self) -> Result<Option<Found>> {
        match self.disk.read_file(STATE, NAME_BYTES_MAX) {
            Ok(found) if found == self.name.as_bytes() => {}
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        match self.open_found() {
            Err(ReplicaError::Pool(EngineError::Store(
                error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. } | StoreError::Unsupported { .. }),
            ))) => {
                tracing::warn!(%error, "the view's files cannot be used: they are made anew");
                Ok(None)
            }
            opened => opened,
        }
    }

    fn open_found(&self) -> Result<Option<Found>> {
        let now_secs = clock::since_epoch().as_secs();
        let files = self.disk.list(&format!("{STATES}/{}", self.name))?;
        let findings = match files.iter().find(|file| file.name == FINDINGS) {
            None => Vec::new(),
            // What was missing may be back.
            Some(file) if file.modified_secs.is_none_or(|secs| secs.abs_diff(now_secs) > LOOKED_AGAIN_SECS) => {
                return Ok(None);
            }
            Some(_) => {
                let text = self.disk.read_file(&self.directory(FINDINGS), FINDINGS_BYTES_MAX)?;
                String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
            }
        };
        let (meta, local) = (self.device("pool")?, self.device("data")?);
        Superblock::read(&*meta, Role::Meta)?;
        let superblock = Superblock::read(&*local, Role::Data)?;
        let slots = Slots::load(&**self.disk, &self.directory("slots"), &superblock.pool)?;
        let tables = Tables::open(self.replica, &**self.disk, None)?;
        let (commit, written_secs) = (slots.commit, slots.written_secs);
        let parts = self.parts(meta, local, &superblock, slots, tables)?;
        Ok(Some(Found { parts, findings, commit, written_secs }))
    }

    fn parts(
        &self,
        meta: Arc<dyn Device>,
        local: Arc<dyn Device>,
        superblock: &Superblock,
        slots: Slots,
        tables: Tables,
    ) -> Result<Parts> {
        let cache = Cache::open(Arc::clone(self.disk), self.options.cache_bytes)?;
        let (files, rows) = SlotFiles::of(slots, superblock.properties.container_bytes);
        let connections = self.connections();
        let containers = Arc::new(Containers::new(Arc::clone(self.replica), cache, tables, rows, connections));
        let ahead = Ahead::start(&containers);
        let of_meta_root = files.of_meta_root();
        let over = |local, files| -> Arc<dyn Device> {
            Arc::new(ViewDevice { local, files, containers: Arc::clone(&containers) })
        };
        let (meta, data) = (over(meta, of_meta_root), over(local, files));
        Ok(Parts { meta, data, containers, ahead })
    }

    /// Makes the state of a commit, and removes earlier ones.
    pub(super) fn make(&self, newest: &Head) -> Result<Found> {
        let (disk, progress) = (&**self.disk, self.progress);
        match disk.remove(STATE) {
            Ok(()) | Err(StoreError::NotFound { .. }) => disk.sync_directory("")?,
            Err(error) => return Err(error.into()),
        }
        remove_files_below(disk, STATES)?;
        remove_directories(disk, STATES);
        let (meta, local) = (self.device("pool")?, self.device("data")?);
        progress.start("fetching names", 0);
        let state = State::place(self.replica, newest, &*local)?;
        progress.finish();
        let State { superblock, position, .. } = &state;
        dedupfs::export::make_count(&*local, &superblock.pool, position)?;
        superblock.write_new(&*local)?;
        let (slots, mut findings) = Slots::of(&state, &newest.commit);
        slots.save(disk, &self.directory("slots"), &superblock.pool)?;
        let connections = self.connections();
        let tables = Tables::fetch(self.replica, disk, &state, connections, progress)?;
        let superblock = superblock.clone();
        drop(state);
        let parts = self.parts(Arc::clone(&meta), local, &superblock, slots, tables)?;
        let options = OpenOptions { memory_bytes: self.options.memory_bytes, ..OpenOptions::default() };
        // Forced: a reader wants all that there is.
        let recovered = recover_on(&meta, &parts.data, b"../data".to_vec(), true, &options, progress);
        if let Some(error) = parts.containers.take_passing_error() {
            // The recovery took for lost what the store may give a moment later.
            return Err(error);
        }
        findings.extend(recovered?.restored.shortfall);
        // From now on they come as all content does, compared with their names.
        for entry in meta.list(RECIPES_OF_META_ROOT)? {
            meta.remove(&format!("{RECIPES_OF_META_ROOT}/{}", entry.name))?;
        }
        // The meta root is no pool by itself: its address tells what it is.
        meta.replace_file("", VIEW_MARK, self.replica.place.as_bytes())?;
        if !findings.is_empty() {
            disk.replace_file(&format!("{STATES}/{}", self.name), FINDINGS, findings.join("\n").as_bytes())?;
        }
        disk.replace_file("", STATE, self.name.as_bytes())?;
        let (commit, written_secs) = (newest.commit.number, newest.commit.written_secs);
        Ok(Found { parts, findings, commit, written_secs })
    }
}
