//! A device that adds up the time of its reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedupfs_store::Result;
use dedupfs_store::device::{Device, DeviceFile, Entry, OpenMode, Space};

/// A device that measures its reads. Its clones share the time.
#[derive(Clone, Debug)]
pub(crate) struct TimedDevice {
    inner: Arc<dyn Device>,
    read_ns: Arc<AtomicU64>,
}

impl TimedDevice {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, read_ns: Arc::default() }
    }

    /// Returns the time in reads since the last call, of all threads together.
    pub(crate) fn take_read_time(&self) -> Duration {
        Duration::from_nanos(self.read_ns.swap(0, Ordering::Relaxed))
    }
}

impl Device for TimedDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(TimedFile { inner, read_ns: self.read_ns.clone() }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.inner.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename_absent(from, to)
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.inner.create_directory(path)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.inner.list(path)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.inner.sync_directory(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.inner.exists(path)
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[derive(Debug)]
struct TimedFile {
    inner: Arc<dyn DeviceFile>,
    read_ns: Arc<AtomicU64>,
}

impl DeviceFile for TimedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let started = Instant::now();
        let read = self.inner.read_at(buffer, offset);
        self.read_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        read
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.inner.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.inner.set_len(len_bytes)
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.inner.punch(offset, len_bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.inner.allocated_bytes()
    }
}
