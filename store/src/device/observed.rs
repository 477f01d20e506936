//! A device under observation: a test's [`Observer`] sees every operation of another device and decides when, how often
//! and whether it happens.
//!
//! Queries (length, space, existence, allocated bytes) are not shown. Cost: one virtual call for each operation.

use std::sync::Arc;

use super::{Device, DeviceFile, Entry, OpenMode, Space};
use crate::error::{Result, StoreError};

/// One operation, about to happen. Files go by the name under which they were opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named after the operations of Device and DeviceFile, and their arguments")]
pub enum Call<'a> {
    Open { path: &'a str, mode: OpenMode },
    Remove { path: &'a str },
    Rename { from: &'a str, to: &'a str },
    CreateDirectory { path: &'a str },
    List { path: &'a str },
    SyncDirectory { path: &'a str },
    Read { path: &'a str, offset: u64, len_bytes: usize },
    ReadAlong { path: &'a str, offset: u64, len_bytes: usize, along_bytes: u64 },
    Write { path: &'a str, offset: u64, len_bytes: usize },
    Sync { path: &'a str },
    SetLen { path: &'a str, len_bytes: u64 },
    Punch { path: &'a str, offset: u64, len_bytes: u64 },
}

impl<'a> Call<'a> {
    /// Path, offset and number of bytes of a read of either kind.
    pub fn read(&self) -> Option<(&'a str, u64, usize)> {
        match *self {
            Self::Read { path, offset, len_bytes } | Self::ReadAlong { path, offset, len_bytes, .. } => {
                Some((path, offset, len_bytes))
            }
            _ => None,
        }
    }

    /// Whether the operation changes the device or makes changes durable.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Open { mode, .. } => matches!(mode, OpenMode::CreateOrWrite | OpenMode::CreateNew),
            Self::List { .. } | Self::Read { .. } | Self::ReadAlong { .. } => false,
            _ => true,
        }
    }
}

/// Controls the operations of an [`ObservedDevice`].
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// Called in place of an operation; `perform` does it. If it is not called, the operation does not happen and its
    /// caller gets this function's result. An open that was not performed is always an error; a list is empty.
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}

/// A device under observation; clones share the observer.
#[derive(Clone, Debug)]
pub struct ObservedDevice {
    inner: Arc<dyn Device>,
    observer: Arc<dyn Observer>,
}

impl ObservedDevice {
    /// Puts `inner` under observation.
    pub fn new(inner: Arc<dyn Device>, observer: Arc<dyn Observer>) -> Self {
        Self { inner, observer }
    }

    fn around(&self, call: &Call<'_>, mut perform: impl FnMut() -> Result<()>) -> Result<()> {
        self.observer.around(call, &mut perform)
    }
}

impl Device for ObservedDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        let mut opened = None;
        self.around(&Call::Open { path, mode }, || {
            opened = Some(self.inner.open(path, mode)?);
            Ok(())
        })?;
        let inner = opened.ok_or_else(|| StoreError::NotFound { path: path.to_owned() })?;
        Ok(Arc::new(ObservedFile { inner, observer: self.observer.clone(), path: path.to_owned() }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.around(&Call::Remove { path }, || self.inner.remove(path))
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        self.inner.remove_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.around(&Call::Rename { from, to }, || self.inner.rename(from, to))
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.around(&Call::Rename { from, to }, || self.inner.rename_absent(from, to))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.around(&Call::CreateDirectory { path }, || self.inner.create_directory(path))
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.around(&Call::List { path }, || {
            entries = self.inner.list(path)?;
            Ok(())
        })?;
        Ok(entries)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.around(&Call::SyncDirectory { path }, || self.inner.sync_directory(path))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.inner.exists(path)
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
    }

    fn disk_space(&self) -> Result<Space> {
        self.inner.disk_space()
    }

    fn filesystem_id(&self) -> Option<u64> {
        self.inner.filesystem_id()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[derive(Debug)]
struct ObservedFile {
    inner: Arc<dyn DeviceFile>,
    observer: Arc<dyn Observer>,
    path: String,
}

impl DeviceFile for ObservedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut len_bytes = 0;
        let call = Call::Read { path: &self.path, offset, len_bytes: buffer.len() };
        self.observer.around(&call, &mut || {
            len_bytes = self.inner.read_at(buffer, offset)?;
            Ok(())
        })?;
        Ok(len_bytes)
    }

    fn read_along(&self, buffer: &mut [u8], offset: u64, along_bytes: u64) -> Result<usize> {
        let mut len_bytes = 0;
        let call = Call::ReadAlong { path: &self.path, offset, len_bytes: buffer.len(), along_bytes };
        self.observer.around(&call, &mut || {
            len_bytes = self.inner.read_along(buffer, offset, along_bytes)?;
            Ok(())
        })?;
        Ok(len_bytes)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let call = Call::Write { path: &self.path, offset, len_bytes: buffer.len() };
        self.observer.around(&call, &mut || self.inner.write_at(buffer, offset))
    }

    fn sync(&self) -> Result<()> {
        self.observer.around(&Call::Sync { path: &self.path }, &mut || self.inner.sync())
    }

    fn reread(&self) -> Result<()> {
        self.observer.around(&Call::Sync { path: &self.path }, &mut || self.inner.reread())
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.observer.around(&Call::SetLen { path: &self.path, len_bytes }, &mut || self.inner.set_len(len_bytes))
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let call = Call::Punch { path: &self.path, offset, len_bytes };
        self.observer.around(&call, &mut || self.inner.punch(offset, len_bytes))
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.inner.allocated_bytes()
    }
}

#[cfg(test)]
#[path = "observed_tests.rs"]
mod tests;
