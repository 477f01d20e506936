//! Counters of one [`ContainerStore`] since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ContainerStore;

#[derive(Default)]
pub(super) struct Counters {
    pub(super) appended_chunks: AtomicU64,
    pub(super) appended_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) region_hits: AtomicU64,
    pub(super) region_reads: AtomicU64,
    pub(super) table_reads: AtomicU64,
    pub(super) lookups: AtomicU64,
    pub(super) prefetched_regions: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) syncs: AtomicU64,
}

/// Figures of a store; counters start at zero when it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContainerStats {
    /// Containers known, open ones included.
    pub containers: u64,
    /// Containers that still take chunks.
    pub filling: u64,
    /// Raw bytes being compressed, frames not written, and memory of open containers beyond the usual.
    pub in_flight_bytes: u64,
    /// Bytes of decompressed regions and of tables in the caches, of all stores that share them.
    pub region_cache_bytes: u64,
    pub table_cache_bytes: u64,
    pub(crate) appended_chunks: u64,
    /// Raw bytes appended.
    pub(crate) appended_bytes: u64,
    /// Compressed bytes written.
    pub written_bytes: u64,
    /// Syncs of container files.
    pub syncs: u64,
    /// Chunks read whose region was in the cache.
    pub region_hits: u64,
    /// Regions that readers loaded by themselves. A wait for a region that another thread loads counts neither here nor as a hit.
    pub region_reads: u64,
    /// Tables of closed containers read from disk.
    pub table_reads: u64,
    /// Chunks that readers looked up in the index one by one: no hint, note or lookup ahead led to them.
    pub lookups: u64,
    /// Regions read from disk ahead of readers.
    pub prefetched_regions: u64,
    /// Compressed bytes read from disk.
    pub read_bytes: u64,
}

impl ContainerStore {
    /// Counts a chunk that a reader looks up in the index.
    pub(crate) fn count_lookup(&self) {
        self.shared.counters.lookups.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counters {
    /// Returns the counters; the other figures are zero.
    pub(super) fn snapshot(&self) -> ContainerStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ContainerStats {
            appended_chunks: get(&self.appended_chunks),
            appended_bytes: get(&self.appended_bytes),
            written_bytes: get(&self.written_bytes),
            syncs: get(&self.syncs),
            region_hits: get(&self.region_hits),
            region_reads: get(&self.region_reads),
            table_reads: get(&self.table_reads),
            lookups: get(&self.lookups),
            prefetched_regions: get(&self.prefetched_regions),
            read_bytes: get(&self.read_bytes),
            ..ContainerStats::default()
        }
    }
}
