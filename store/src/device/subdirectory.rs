//! A directory of a device as a device of its own: a place to build files and then move them elsewhere.

use std::sync::Arc;

use super::{Device, DeviceFile, Entry, OpenMode, Space};
use crate::error::Result;

/// The part of a device below one directory.
#[derive(Clone, Debug)]
pub struct Subdirectory {
    device: Arc<dyn Device>,
    directory: String,
}

impl Subdirectory {
    /// Opens the part of `device` below `directory`, which is created durably if it is absent.
    pub fn create(device: Arc<dyn Device>, directory: &str) -> Result<Self> {
        device.create_directory(directory)?;
        let parent = directory.rsplit_once('/').map_or("", |(parent, _)| parent);
        device.sync_directory(parent)?;
        Ok(Self { device, directory: directory.to_owned() })
    }

    fn outer(&self, path: &str) -> String {
        if path.is_empty() { self.directory.clone() } else { format!("{}/{path}", self.directory) }
    }
}

impl Device for Subdirectory {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        self.device.open(&self.outer(path), mode)
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.device.remove(&self.outer(path))
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        self.device.remove_directory(&self.outer(path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.device.rename(&self.outer(from), &self.outer(to))
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.device.rename_absent(&self.outer(from), &self.outer(to))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.device.create_directory(&self.outer(path))
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.device.list(&self.outer(path))
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.device.sync_directory(&self.outer(path))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.device.exists(&self.outer(path))
    }

    fn space(&self) -> Result<Space> {
        self.device.space()
    }

    fn disk_space(&self) -> Result<Space> {
        self.device.disk_space()
    }

    fn filesystem_id(&self) -> Option<u64> {
        self.device.filesystem_id()
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.device.describe(), self.directory)
    }
}
