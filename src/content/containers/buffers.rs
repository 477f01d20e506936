//! Buffers that are used again, and the bytes of a chunk as a reader gets them.
//!
//! The raw buffer of a region returns to its [`RegionPool`] when its last reader drops it.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use dedupfs_store::device::AlignedBuffer;

use super::WRITER_THREADS;
use crate::free_list::FreeList;

/// Write buffers kept at most: one for each writer thread, and as many for threads that write out or make room. A
/// fresh buffer has to be mapped and cleared.
const WRITE_BUFFERS_KEPT_MAX: usize = 2 * WRITER_THREADS;
/// Bytes of kept write buffers at most. The in-flight limit bounds them too; one buffer is always kept.
const WRITE_BUFFERS_KEPT_BYTES_MAX: u64 = 32 << 20;

/// Unused buffers of regions, all of one capacity.
pub(super) struct RegionPool {
    free: FreeList<Vec<u8>>,
    buffer_bytes: usize,
    kept_max: usize,
}

impl RegionPool {
    pub(super) fn new(buffer_bytes: usize, kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: FreeList::default(), buffer_bytes, kept_max })
    }

    /// Returns an empty buffer of at least `capacity_bytes`; if `is_scarce`, of no more.
    pub(super) fn take(&self, capacity_bytes: usize, is_scarce: bool) -> Vec<u8> {
        if capacity_bytes > self.buffer_bytes || (is_scarce && capacity_bytes < self.buffer_bytes) {
            return Vec::with_capacity(capacity_bytes);
        }
        self.free.take().unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes))
    }

    /// Frees the unused buffers if none was taken since the last call. Returns whether there were any.
    pub(super) fn trim_if_idle(&self) -> bool {
        !self.free.trim_if_idle().is_empty()
    }

    fn put(&self, mut buffer: Vec<u8>) {
        // Keep only buffers of the pool's own size: the buffer of a large chunk would pin its memory.
        if buffer.capacity() < self.buffer_bytes || buffer.capacity() > self.buffer_bytes.saturating_mul(2) {
            return;
        }
        buffer.clear();
        self.free.put(buffer, self.kept_max, |_| {});
    }
}

/// The decompressed bytes of one region, shared by its readers.
pub(crate) struct RegionBytes {
    bytes: Vec<u8>,
    pool: Option<Arc<RegionPool>>,
}

impl RegionBytes {
    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        Self { bytes, pool: None }
    }

    pub(super) fn pooled(bytes: Vec<u8>, pool: &Arc<RegionPool>) -> Self {
        Self { bytes, pool: Some(Arc::clone(pool)) }
    }
}

impl Deref for RegionBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for RegionBytes {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for RegionBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionBytes({} bytes)", self.bytes.len())
    }
}

/// The bytes of one chunk: a range of its region, which it keeps in memory. Cheap to clone.
#[derive(Clone)]
pub struct ChunkData {
    region: Arc<RegionBytes>,
    range: Range<usize>,
}

impl ChunkData {
    /// `None` if the range is not within the region.
    pub(super) fn new(region: Arc<RegionBytes>, start: usize, len_bytes: usize) -> Option<Self> {
        let range = start..start.checked_add(len_bytes)?;
        region.get(range.clone())?;
        Some(Self { region, range })
    }

    pub(super) fn copied(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { region: Arc::new(RegionBytes::owned(bytes)), range }
    }
}

impl Deref for ChunkData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // The range was checked when this was made, and a region never changes.
        self.region.get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for ChunkData {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ChunkData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkData({} bytes)", self.range.len())
    }
}

/// Aligned buffers in which frames are put together for one large write.
pub(super) struct WriteBuffers {
    free: FreeList<AlignedBuffer>,
    kept_bytes_max: usize,
}

impl WriteBuffers {
    /// Makes the pool of a store with this limit of bytes in flight.
    pub(super) fn new(in_flight_limit_bytes: u64) -> Self {
        let kept_bytes_max = WRITE_BUFFERS_KEPT_BYTES_MAX.min(in_flight_limit_bytes) as usize;
        Self { free: FreeList::default(), kept_bytes_max }
    }

    /// Frees the unused buffers if none was taken since the last call. Returns whether there were any.
    pub(super) fn trim_if_idle(&self) -> bool {
        !self.free.trim_if_idle().is_empty()
    }

    pub(super) fn take(&self, capacity_bytes: usize) -> AlignedBuffer {
        self.free.take().unwrap_or_else(|| AlignedBuffer::with_capacity(capacity_bytes))
    }

    pub(super) fn put(&self, mut buffer: AlignedBuffer) {
        buffer.clear();
        let kept_max = (self.kept_bytes_max / buffer.capacity().max(1)).clamp(1, WRITE_BUFFERS_KEPT_MAX);
        self.free.put(buffer, kept_max, |_| {});
    }
}
