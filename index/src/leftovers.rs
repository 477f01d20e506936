//! Indexes that are not in use: half built, or replaced by another.

use dedupfs_store::Result;
use dedupfs_store::device::Device;

use crate::index::Index;
use crate::manifest::Manifest;
use crate::names::{MANIFEST_NAME, join, may_be_there};
use crate::progress;

/// The number and size of removed files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Number of files.
    pub files: u64,
    /// Sum of their lengths.
    pub bytes: u64,
}

impl Index {
    /// Removes the index in `directory`, finished or not. It removes the manifest first, durably, so that an index
    /// exists as a whole or not at all.
    pub fn remove(device: &dyn Device, directory: &str) -> Result<Removed> {
        if !device.exists(directory)? {
            return Ok(Removed::default());
        }
        let mut entries = device.list(directory)?;
        entries.retain(|entry| !entry.is_directory && may_be_there(&entry.name));
        let (manifests, others): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.name == MANIFEST_NAME);
        for part in [manifests, others] {
            for entry in &part {
                device.remove(&join(directory, &entry.name))?;
            }
            if !part.is_empty() {
                device.sync_directory(directory)?;
            }
        }
        let bytes = entries.iter().map(|entry| entry.len_bytes).sum();
        Ok(Removed { files: entries.len() as u64, bytes })
    }

    /// Removes the files beside this index that an interrupted checkpoint, or one that could not tidy up, has left.
    /// These are the files that the manifest on disk does not name; it was made durable when the index was opened.
    ///
    /// # Errors
    /// I/O errors; remaining files cost only their space.
    pub fn remove_leftovers(&self) -> Result<Removed> {
        let _no_checkpoint = self.checkpointer.lock();
        self.remove_unnamed(&Manifest::read(&*self.device, &self.directory, &self.pool)?)
    }

    /// Removes the notes about building the index in `directory`: from now on it is in use.
    pub fn forget_progress(device: &dyn Device, directory: &str) -> Result<()> {
        if device.exists(directory)? { progress::remove_others(device, directory, None) } else { Ok(()) }
    }

    /// Bytes of all files of an index in `directory`, finished or not.
    pub fn disk_bytes(device: &dyn Device, directory: &str) -> Result<u64> {
        if !device.exists(directory)? {
            return Ok(0);
        }
        let entries = device.list(directory)?;
        Ok(entries.iter().filter(|entry| may_be_there(&entry.name)).map(|entry| entry.len_bytes).sum())
    }
}
