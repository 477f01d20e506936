//! Copies of recipe containers on the data root, each at its address on the meta root.
//!
//! A slot has at most one user among all containers that the last durable export names and all that exist: a removed container keeps
//! its slot until a durable export no longer names it. So a copy needs no address of its own, and no needed copy is overwritten.
//!
//! Only bytes recorded since the last export are copied: every byte of a recipe is written exactly once more.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::ContainerStore;
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::{ContainerRecord, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};

/// Directory of the copies.
pub(super) const DIRECTORY: &str = "export/recipes";
/// Bytes copied at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// Returns the path of a slot file.
pub(super) fn path(directory: &str, file: u32) -> String {
    format!("{directory}/{file:06}.slots")
}

/// The copies of one pool's recipe containers.
pub(super) struct Mirror {
    device: Arc<dyn Device>,
    slot_bytes: u32,
    /// Slot files written and not synced.
    unsynced: BTreeMap<u32, Arc<dyn DeviceFile>>,
}

impl Mirror {
    pub(super) fn new(device: Arc<dyn Device>, slot_bytes: u32) -> Self {
        Self { device, slot_bytes, unsynced: BTreeMap::new() }
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
                let file = self.device.open_surely(&path, OpenMode::CreateOrWrite)?;
                self.device.sync_directory(DIRECTORY)?;
                file
            }
            opened => opened?,
        };
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
