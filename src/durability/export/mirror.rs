//! Copies of recipe containers on the data root, each at its address on the meta root.
//!
//! A slot has at most one user among all containers that the last durable export names and all that exist: a removed container keeps
//! its slot until a durable export no longer names it. So a copy needs no address of its own, and no needed copy is overwritten.
//!
//! Only bytes recorded since the last export are copied: every byte of a recipe is written exactly once more.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::{ContainerStore, WholeContainer};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::{ContainerRecord, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};

/// Directory of the copies.
pub const DIRECTORY: &str = "export/recipes";
/// Bytes copied at a time.
const PIECE_BYTES: u32 = 1 << 20;
/// Bytes of a copy that are given up together if the device does not return them.
const READ_BYTES: usize = 64 << 10;

/// Returns the path of a slot file.
pub(super) fn path(directory: &str, file: u32) -> String {
    format!("{directory}/{file:06}.slots")
}

/// Reads the copy of a container, as far as the device has it; the rest is zeros, which fit no checksum. Whether these
/// bytes are of this container is for the caller to check. Returns false if there is no copy.
pub(super) fn read(device: &dyn Device, slot_bytes: u32, record: &ContainerRecord, into: &mut WholeContainer) -> bool {
    let Ok(file) = device.open(&path(DIRECTORY, record.address.file), OpenMode::Read) else { return false };
    let start = u64::from(record.address.slot) * u64::from(slot_bytes);
    let len = record.used_bytes.min(slot_bytes) as usize;
    into.bytes.clear();
    into.bytes.resize_zeroed(len);
    into.unread = None;
    // Bytes recorded since the last export are not there.
    let there = file.len().unwrap_or(0).saturating_sub(start).min(len as u64) as usize;
    let mut at = start;
    for piece in into.bytes.get_mut(..there).unwrap_or_default().chunks_mut(READ_BYTES) {
        if file.read_exact_at(piece, at).is_err() {
            piece.fill(0);
        }
        at += piece.len() as u64;
    }
    there > 0
}

/// The copies of one pool's recipe containers.
pub(super) struct Mirror {
    device: Arc<dyn Device>,
    slot_bytes: u32,
    /// Slot files written and not synced.
    unsynced: BTreeMap<u32, Arc<dyn DeviceFile>>,
    /// Whether the names of all files are durable: a process that was killed may have left one in memory only.
    are_names_synced: bool,
}

impl Mirror {
    pub(super) fn new(device: Arc<dyn Device>, slot_bytes: u32) -> Self {
        Self { device, slot_bytes, unsynced: BTreeMap::new(), are_names_synced: false }
    }

    fn offset(&self, address: SlotAddress) -> u64 {
        u64::from(address.slot) * u64::from(self.slot_bytes)
    }

    fn file(&mut self, number: u32) -> Result<Arc<dyn DeviceFile>> {
        if let Some(file) = self.unsynced.get(&number) {
            return Ok(file.clone());
        }
        let path = path(DIRECTORY, number);
        let file = match self.device.open_surely(&path, OpenMode::Write) {
            Err(StoreError::NotFound { .. }) => {
                self.device.create_directory(DIRECTORY)?;
                self.device.sync_directory(super::files::DIRECTORY)?;
                self.are_names_synced = false;
                self.device.open_surely(&path, OpenMode::CreateOrWrite)?
            }
            opened => opened?,
        };
        if !self.are_names_synced {
            self.device.sync_directory(DIRECTORY)?;
            self.are_names_synced = true;
        }
        self.unsynced.insert(number, file.clone());
        Ok(file)
    }

    /// Copies the recorded bytes of a container from `from_bytes` on; returns their number.
    pub(super) fn copy(&mut self, recipes: &ContainerStore, record: &ContainerRecord, from_bytes: u32) -> Result<u64> {
        let mut at = from_bytes;
        while at < record.used_bytes {
            let len = PIECE_BYTES.min(record.used_bytes - at);
            // Try twice: the error may pass, and bytes left out here stay missing until a verification finds them.
            let read = || recipes.recorded_bytes(record, at, len as usize);
            match read().or_else(|_| read()) {
                Ok(bytes) => {
                    let offset = self.offset(record.address) + u64::from(at);
                    self.file(record.address.file)?.write_at(&bytes, offset)?;
                }
                // The container was removed meanwhile and its slot cut off. A later group of this export records that.
                Err(_) if !recipes.is_known(record.id) => return Ok(u64::from(at - from_bytes)),
                // Unreadable bytes are missing from the copy as they are here; the rest is copied.
                Err(error) => tracing::error!(container = %record.id, %error, "a recipe cannot be exported"),
            }
            at += len;
        }
        Ok(u64::from(record.used_bytes.saturating_sub(from_bytes)))
    }

    /// Makes all copies durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        for file in self.unsynced.values() {
            if !is_planted(Canary::CopiesNotSynced) {
                file.sync()?;
            }
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Frees the space of a copy that no export names.
    pub(super) fn free(&self, address: SlotAddress) -> Result<()> {
        match self.device.open_surely(&path(DIRECTORY, address.file), OpenMode::Write) {
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(file) => {
                let offset = self.offset(address);
                let len_bytes = file.len()?.saturating_sub(offset).min(self.slot_bytes.into());
                if len_bytes == 0 { Ok(()) } else { Ok(file.punch(offset, len_bytes)?) }
            }
        }
    }

    /// Cuts off the bytes behind the last of the `kept` containers in each file; removes files without any.
    pub(super) fn trim<'a>(&mut self, kept: impl Iterator<Item = &'a ContainerRecord>) -> Result<()> {
        if !self.device.exists(DIRECTORY)? {
            return Ok(());
        }
        let mut ends: BTreeMap<String, u64> = BTreeMap::new();
        for record in kept {
            let end = ends.entry(path(DIRECTORY, record.address.file)).or_default();
            *end = (*end).max(self.offset(record.address) + u64::from(self.slot_bytes));
        }
        let mut removes = false;
        for entry in self.device.list(DIRECTORY)? {
            let path = format!("{DIRECTORY}/{}", entry.name);
            match ends.get(&path) {
                Some(&end) if entry.len_bytes > end => self.device.open_surely(&path, OpenMode::Write)?.set_len(end)?,
                Some(_) => {}
                None => {
                    self.unsynced.retain(|number, _| self::path(DIRECTORY, *number) != path);
                    match self.device.remove(&path) {
                        Ok(()) | Err(StoreError::NotFound { .. }) => removes = true,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        if removes { Ok(self.device.sync_directory(DIRECTORY)?) } else { Ok(()) }
    }

    /// Returns the physical bytes of all copies.
    pub(super) fn allocated_bytes(device: &dyn Device) -> Result<u64> {
        if !device.exists(DIRECTORY)? {
            return Ok(0);
        }
        let mut bytes = 0;
        for entry in device.list(DIRECTORY)? {
            match device.open(&format!("{DIRECTORY}/{}", entry.name), OpenMode::Read) {
                Ok(file) => bytes += file.allocated_bytes()?,
                // The export thread has removed the file since.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs_store::device::MemoryDevice;
    use dedupfs_store::{ContainerKind, ContainerRecord};

    use super::*;

    const SLOT_BYTES: u32 = 64 << 10;

    fn record(file: u32, slot: u32) -> ContainerRecord {
        ContainerRecord {
            id: dedupfs_store::ContainerId(u64::from(file) << 32 | u64::from(slot)),
            kind: ContainerKind::Recipe,
            address: SlotAddress { file, slot },
            used_bytes: SLOT_BYTES,
            toc: None,
            chunk_bytes: 0,
            chunks: 0,
            sealed: true,
            damaged: false,
        }
    }

    /// Makes two files with three full slots each.
    fn full() -> (MemoryDevice, Mirror) {
        let device = MemoryDevice::new();
        device.create_directory("export").unwrap();
        device.create_directory(DIRECTORY).unwrap();
        for number in 1..=2 {
            let file = device.open(&path(DIRECTORY, number), OpenMode::CreateNew).unwrap();
            file.write_at(&vec![1; 3 * SLOT_BYTES as usize], 0).unwrap();
        }
        (device.clone(), Mirror::new(Arc::new(device), SLOT_BYTES))
    }

    #[test]
    fn the_copy_in_one_slot_is_freed_and_no_other() {
        let (device, mirror) = full();
        mirror.free(SlotAddress { file: 1, slot: 1 }).unwrap();
        assert_eq!(Mirror::allocated_bytes(&device).unwrap(), 5 * u64::from(SLOT_BYTES));
        let bytes = device.read_file(&path(DIRECTORY, 1), 1 << 20).unwrap();
        let slots: Vec<_> = bytes.chunks(SLOT_BYTES as usize).map(|slot| slot.iter().all(|byte| *byte == 1)).collect();
        assert_eq!(slots, [true, false, true]);
        mirror.free(SlotAddress { file: 3, slot: 1 }).unwrap();
    }

    #[test]
    fn what_lies_behind_the_last_kept_copy_is_cut_off() {
        let (device, mut mirror) = full();
        mirror.trim([record(1, 0), record(1, 1)].iter()).unwrap();
        assert_eq!(device.read_file(&path(DIRECTORY, 1), 1 << 20).unwrap(), vec![1; 2 * SLOT_BYTES as usize]);
        assert!(!device.exists(&path(DIRECTORY, 2)).unwrap());
        mirror.trim([record(1, 2)].iter()).unwrap();
        assert_eq!(device.read_file(&path(DIRECTORY, 1), 1 << 20).unwrap().len(), 2 * SLOT_BYTES as usize);
    }
}
