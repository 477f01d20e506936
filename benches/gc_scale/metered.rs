//! Counts the reads and writes of a device.

use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, Observer};

/// Counts all reads and writes.
#[derive(Default, Debug)]
pub(crate) struct Meter {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Number of reads and writes, and their bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moved {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

impl Meter {
    /// Takes the counts since the last call.
    pub(crate) fn take(&self) -> Moved {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Moved {
            reads: take(&self.reads),
            read_bytes: take(&self.read_bytes),
            writes: take(&self.writes),
            written_bytes: take(&self.written_bytes),
        }
    }
}

impl Observer for Meter {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let (number, bytes, len_bytes) = match call {
            Call::Read { len_bytes, .. } | Call::ReadAlong { len_bytes, .. } => {
                (&self.reads, &self.read_bytes, *len_bytes)
            }
            Call::Write { len_bytes, .. } => (&self.writes, &self.written_bytes, *len_bytes),
            _ => return perform(),
        };
        number.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
        perform()
    }
}
