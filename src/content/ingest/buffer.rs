//! Batch buffers that are used again. One gauge counts the memory of all buffers, used or kept: the budget of open files rests on it.

use std::ops::Deref;
use std::sync::Arc;

use dedupfs_base::{Gauge, Hold};

use crate::free_list::FreeList;

/// A pool that keeps some unused buffers.
#[derive(Debug)]
pub struct BatchPool {
    free: FreeList<Vec<u8>>,
    kept_max: usize,
    full_bytes: usize,
    memory: Arc<Gauge>,
    /// The memory of the buffers in `free`.
    kept: Hold,
}

impl BatchPool {
    /// Makes a pool of buffers that grow to `full_bytes` each. It keeps at most `kept_max` unused ones. `memory` counts
    /// them all.
    #[must_use]
    pub fn new(kept_max: usize, full_bytes: usize, memory: Arc<Gauge>) -> Arc<Self> {
        let kept = memory.hold(0, 0);
        Arc::new(Self { free: FreeList::default(), kept_max, full_bytes, memory, kept })
    }

    /// Returns an empty buffer.
    pub(crate) fn take(self: &Arc<Self>) -> PooledBuffer {
        let bytes = self.free.take().unwrap_or_default();
        let held = self.memory.hold(bytes.capacity() as u64, 0);
        self.kept.release(bytes.capacity() as u64);
        PooledBuffer { bytes, held, pool: self.clone() }
    }

    /// Frees the unused buffers. Returns whether there were any.
    pub fn trim(&self) -> bool {
        self.free_all(self.free.trim())
    }

    /// The same, if no buffer was taken since the last call.
    pub fn trim_if_idle(&self) -> bool {
        self.free_all(self.free.trim_if_idle())
    }

    fn free_all(&self, free: Vec<Vec<u8>>) -> bool {
        self.kept.release(free.iter().map(|bytes| bytes.capacity() as u64).sum());
        !free.is_empty()
    }
}

/// A buffer that returns to its pool.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    bytes: Vec<u8>,
    /// The memory of its capacity.
    held: Hold,
    pool: Arc<BatchPool>,
}

impl PooledBuffer {
    /// Adds bytes at the end.
    pub(crate) fn extend_from_slice(&mut self, data: &[u8]) {
        let needed_bytes = self.bytes.len() + data.len();
        if needed_bytes > self.bytes.capacity() {
            let grown_bytes = needed_bytes.max(2 * self.bytes.capacity());
            // Doubling alone could give a full buffer twice the memory it needs.
            let is_large = grown_bytes > self.pool.full_bytes / 2;
            let wanted_bytes = if is_large { needed_bytes.max(self.pool.full_bytes) } else { grown_bytes };
            self.bytes.reserve_exact(wanted_bytes - self.bytes.len());
            self.held.set(self.bytes.capacity() as u64);
        }
        self.bytes.extend_from_slice(data);
    }

    /// Keeps the first `len_bytes`.
    pub(crate) fn truncate(&mut self, len_bytes: usize) {
        self.bytes.truncate(len_bytes);
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        // Small files use small buffers. Kept, they would make the next large file grow them step by step.
        if self.bytes.capacity() < self.pool.full_bytes / 2 {
            return;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let keeping = |bytes: &Vec<u8>| self.pool.kept.add(bytes.capacity() as u64);
        self.pool.free.put(bytes, self.pool.kept_max, keeping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memory_of_buffers_is_counted() {
        let memory = Arc::<Gauge>::default();
        let pool = BatchPool::new(1, 1000, memory.clone());
        let (mut one, mut other, mut small) = (pool.take(), pool.take(), pool.take());
        one.extend_from_slice(&[1; 600]);
        one.extend_from_slice(&[1; 300]);
        other.extend_from_slice(&[1; 900]);
        small.extend_from_slice(&[1; 10]);
        assert_eq!(memory.bytes(), 1000 + 1000 + 10);
        drop((one, other, small));
        assert_eq!(memory.bytes(), 1000, "one is kept");
        assert!(!pool.trim_if_idle(), "it was used a moment ago");
        assert_eq!(memory.bytes(), 1000);
        let again = pool.take();
        assert_eq!((memory.bytes(), again.len()), (1000, 0));
        drop(again);
        assert!(!pool.trim_if_idle() && pool.trim_if_idle());
        assert_eq!(memory.bytes(), 0);
    }
}
