//! Buffers that are used again, and the bytes of a chunk as a reader gets them.
//!
//! The first touch of fresh memory costs more than compressing it on a virtual machine (0.3 to 0.5 GB/s), so the raw buffer
//! of a region goes back to a [`BufferPool`] when its last reader lets go of it.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_store::device::aligned::AlignedBuffer;
use parking_lot::Mutex;

use super::WRITER_THREADS;

/// Staging buffers kept: one for each writer, and as many for who flushes or makes room. A fresh one has to be mapped and cleared.
const STAGING_KEPT_MAX: usize = 2 * WRITER_THREADS;
/// Bytes of them at most: fewer are kept of large containers, and no more than may be in flight, but one.
const STAGING_KEPT_BYTES_MAX: u64 = 32 << 20;

/// Free buffers of one capacity; bounded.
pub(super) struct BufferPool {
    free: Mutex<Vec<Vec<u8>>>,
    buffer_bytes: usize,
    kept_max: usize,
    /// Whether a buffer was taken since the last look.
    is_used: AtomicBool,
}

impl BufferPool {
    pub(super) fn new(buffer_bytes: usize, kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(Vec::new()), buffer_bytes, kept_max, is_used: AtomicBool::default() })
    }

    /// An empty buffer of at least `capacity_bytes`.
    pub(super) fn take(&self, capacity_bytes: usize) -> Vec<u8> {
        if capacity_bytes > self.buffer_bytes {
            return Vec::with_capacity(capacity_bytes);
        }
        self.is_used.store(true, Ordering::Relaxed);
        let reused = self.free.lock().pop();
        reused.unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes))
    }

    /// Frees the buffers that are kept, if none was taken since the last call; whether there were any.
    pub(super) fn trim_if_idle(&self) -> bool {
        !self.is_used.swap(false, Ordering::Relaxed) && !std::mem::take(&mut *self.free.lock()).is_empty()
    }

    fn put(&self, mut buffer: Vec<u8>) {
        // Only buffers of the pool's own size: a large chunk's buffer would pin its memory.
        if buffer.capacity() < self.buffer_bytes || buffer.capacity() > self.buffer_bytes.saturating_mul(2) {
            return;
        }
        buffer.clear();
        let mut free = self.free.lock();
        if free.len() < self.kept_max {
            free.push(buffer);
        }
    }
}

/// The decompressed bytes of one region, shared by its readers.
pub struct RegionBytes {
    bytes: Vec<u8>,
    pool: Option<Arc<BufferPool>>,
}

impl RegionBytes {
    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        Self { bytes, pool: None }
    }

    pub(super) fn pooled(bytes: Vec<u8>, pool: &Arc<BufferPool>) -> Self {
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

/// The bytes of one chunk: a range of its region, which stays in memory as long as this lives. Cheap to clone.
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
pub(super) struct StagingPool {
    free: Mutex<Vec<AlignedBuffer>>,
    kept_bytes_max: usize,
    /// Whether a buffer was taken since the last look.
    is_used: AtomicBool,
}

impl StagingPool {
    /// A pool of a store with so many bytes in flight at most.
    pub(super) fn new(in_flight_limit_bytes: u64) -> Self {
        let kept_bytes_max = STAGING_KEPT_BYTES_MAX.min(in_flight_limit_bytes) as usize;
        Self { free: Mutex::default(), kept_bytes_max, is_used: AtomicBool::default() }
    }

    /// Frees the buffers that are kept, if none was taken since the last call; whether there were any.
    pub(super) fn trim_if_idle(&self) -> bool {
        !self.is_used.swap(false, Ordering::Relaxed) && !std::mem::take(&mut *self.free.lock()).is_empty()
    }

    pub(super) fn take(&self, capacity_bytes: usize) -> AlignedBuffer {
        self.is_used.store(true, Ordering::Relaxed);
        let reused = self.free.lock().pop();
        reused.unwrap_or_else(|| AlignedBuffer::with_capacity(capacity_bytes))
    }

    pub(super) fn put(&self, mut buffer: AlignedBuffer) {
        buffer.clear();
        let kept_max = (self.kept_bytes_max / buffer.capacity().max(1)).clamp(1, STAGING_KEPT_MAX);
        let mut free = self.free.lock();
        if free.len() < kept_max {
            free.push(buffer);
        }
    }
}
