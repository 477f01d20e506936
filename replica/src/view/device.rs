//! Roots of a pool whose containers lie in a replica. Their other files lie on the reader's disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::EngineError;
use dedupfs::export::{RECIPES_OF_DATA_ROOT, RECIPES_OF_META_ROOT};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, DeviceFile, Entry, OpenMode, Space};

use super::containers::Containers;
use super::slots::Slots;
use crate::error::ReplicaError;
use crate::stored::Stored;

/// A container in its slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Its position among the containers.
    position: u32,
    used_bytes: u32,
}

/// The slots of one file, by their number.
type FileSlots = BTreeMap<u32, Slot>;

/// Slot files by their path.
#[derive(Debug, Default)]
pub(crate) struct SlotFiles {
    by_path: BTreeMap<String, Arc<FileSlots>>,
    slot_bytes: u32,
}

impl SlotFiles {
    /// The files with recipes, as they lie on a meta root.
    pub(crate) fn of_meta_root(&self) -> Self {
        let recipes = self.by_path.iter().filter_map(|(path, slots)| {
            let name = path.strip_prefix(RECIPES_OF_DATA_ROOT)?;
            Some((format!("{RECIPES_OF_META_ROOT}{name}"), Arc::clone(slots)))
        });
        Self { by_path: recipes.collect(), slot_bytes: self.slot_bytes }
    }

    /// Lays out the containers of a state; returns their objects in the order of the disk.
    pub(crate) fn of(slots: Slots, slot_bytes: u32) -> (Self, Vec<Stored>) {
        let (mut objects, mut by_path) = (Vec::new(), BTreeMap::<String, FileSlots>::new());
        for (stored, address, path) in slots.into_rows() {
            // Fewer than 2^32: a row on the disk has 45 bytes, and all of them less than 1 GiB.
            let slot = Slot { position: objects.len() as u32, used_bytes: stored.used_bytes };
            by_path.entry(path).or_default().insert(address.slot, slot);
            objects.push(stored);
        }
        (
            Self { by_path: by_path.into_iter().map(|(path, slots)| (path, Arc::new(slots))).collect(), slot_bytes },
            objects,
        )
    }
}

/// The device. Slot files cannot be changed; all others can.
#[derive(Debug)]
pub(crate) struct ViewDevice {
    pub(crate) local: Arc<dyn Device>,
    pub(crate) files: SlotFiles,
    pub(crate) containers: Arc<Containers>,
}

impl ViewDevice {
    fn file(&self, path: &str) -> Option<SlotFile> {
        let slots = self.files.by_path.get(path)?;
        Some(SlotFile {
            path: path.to_owned(),
            slots: Arc::clone(slots),
            slot_bytes: self.files.slot_bytes.into(),
            containers: Arc::clone(&self.containers),
        })
    }
}

impl Device for ViewDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>, StoreError> {
        match self.file(path) {
            Some(file) if mode != OpenMode::CreateNew => Ok(Arc::new(file)),
            _ => self.local.open(path, mode),
        }
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        if self.files.by_path.contains_key(path) { Err(unchangeable(path)) } else { self.local.remove(path) }
    }

    fn remove_directory(&self, path: &str) -> Result<(), StoreError> {
        self.local.remove_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.local.rename(from, to)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.local.rename_absent(from, to)
    }

    fn create_directory(&self, path: &str) -> Result<(), StoreError> {
        self.local.create_directory(path)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.local.list(path)?;
        for file in self.files.by_path.keys() {
            let name =
                file.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')).filter(|name| !name.contains('/'));
            if let (Some(name), Some(opened)) = (name, self.file(file)) {
                let entry =
                    Entry { name: name.to_owned(), len_bytes: opened.len()?, is_directory: false, modified_secs: None };
                entries.push(entry);
            }
        }
        entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    fn sync_directory(&self, path: &str) -> Result<(), StoreError> {
        self.local.sync_directory(path)
    }

    fn exists(&self, path: &str) -> Result<bool, StoreError> {
        if self.files.by_path.contains_key(path) { Ok(true) } else { self.local.exists(path) }
    }

    fn space(&self) -> Result<Space, StoreError> {
        self.local.space()
    }

    fn filesystem_id(&self) -> Option<u64> {
        self.local.filesystem_id()
    }

    fn describe(&self) -> String {
        self.local.describe()
    }
}

/// A slot file of which the containers lie in the replica. All between them is zeros.
#[derive(Debug)]
struct SlotFile {
    path: String,
    slots: Arc<FileSlots>,
    slot_bytes: u64,
    containers: Arc<Containers>,
}

impl DeviceFile for SlotFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, StoreError> {
        let there = self.len()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (mut rest, mut at) = (buffer.get_mut(..there).unwrap_or_default(), offset);
        while !rest.is_empty() {
            let (number, within) = (at / self.slot_bytes, at % self.slot_bytes);
            let len = (self.slot_bytes - within).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(len as usize);
            self.read_slot(number, within, part)?;
            (rest, at) = (behind, at + len);
        }
        Ok(there)
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<(), StoreError> {
        Err(unchangeable(&self.path))
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(self.slots.keys().next_back().map_or(0, |last| (u64::from(*last) + 1) * self.slot_bytes))
    }

    fn set_len(&self, _: u64) -> Result<(), StoreError> {
        Err(unchangeable(&self.path))
    }

    fn punch(&self, _: u64, _: u64) -> Result<(), StoreError> {
        Err(unchangeable(&self.path))
    }

    fn allocated_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.slots.values().map(|slot| u64::from(slot.used_bytes)).sum())
    }

    fn describe(&self) -> String {
        format!("{} of the replica", self.path)
    }
}

impl SlotFile {
    fn read_slot(&self, number: u64, within: u64, part: &mut [u8]) -> Result<(), StoreError> {
        let slot = u32::try_from(number).ok().and_then(|number| self.slots.get(&number));
        let Some(slot) = slot.filter(|slot| within < slot.used_bytes.into()) else {
            part.fill(0);
            return Ok(());
        };
        let there = (u64::from(slot.used_bytes) - within).min(part.len() as u64) as usize;
        let (part, behind) = part.split_at_mut(there);
        behind.fill(0);
        self.containers.read(slot.position, within, part).map_err(|error| failed(&self.path, error))
    }
}

/// What is gone or damaged in the store is lost, and is told as damage: a recovery goes on without it. All else may pass.
fn failed(path: &str, error: ReplicaError) -> StoreError {
    match error {
        ReplicaError::Pool(EngineError::Store(error)) => error,
        error if error.is_damage() => StoreError::corrupt(path, "the content of the replica", error),
        error => StoreError::from_io("read from the replica", path, std::io::Error::other(error)),
    }
}

fn unchangeable(path: &str) -> StoreError {
    let error = std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, "it lies in a replica, which is only read");
    StoreError::from_io("change", path, error)
}
