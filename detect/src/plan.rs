//! The memory of a round on one machine, and the sizes of buffers and partitions that follow.

use std::path::PathBuf;

pub use dedupfs_spool::PARTITIONS_MAX;
use dedupfs_spool::partitions_max;

use crate::{ASKED_AT_ONCE, Answer, Chunk, Numbered, Place};

/// Memory of a round that suits most machines.
pub const MEMORY_BYTES: u64 = 20 << 20;
/// Memory of a round at least. A plan with less gets this much.
pub const MEMORY_BYTES_MIN: u64 = 32 << 10;

/// Memory and room on disk of a round on one machine.
///
/// Of `memory_bytes`, by stages: (1) half is for the buffers of the `q` spools of asks; (2) half is for one partition of asks, a quarter for
/// the buffers of the spools by position, a fifth for a batch of chunks and answers; (3) half is for the records of one spool by position.
/// So the more partitions there are, the smaller are their buffers: `q` is the number of expected asks divided by the asks that fit into
/// half of the memory, with a quarter more because prefixes do not fall evenly; at most [`PARTITIONS_MAX`], and as many as get buffers of
/// a kilobyte. Room on disk: 56 bytes for each ask and 80 for each record.
///
/// A partition that does not fit is compared in parts. A chunk that is new may then be transferred once for each part, and no
/// more goes wrong: an estimate that is too small costs work, never memory.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The directory of the spools. They have no names there. In a directory in memory (tmpfs) they take memory.
    pub directory: PathBuf,
    /// Asks of this machine, or those that one machine compares: a guess.
    pub expected_asks: u64,
    /// Memory for buffers and one partition, bytes.
    pub memory_bytes: u64,
}

impl MemoryPlan {
    /// A plan with the usual memory.
    pub fn new(directory: impl Into<PathBuf>, expected_asks: u64) -> Self {
        Self { directory: directory.into(), expected_asks, memory_bytes: MEMORY_BYTES }
    }

    fn half(&self) -> usize {
        usize::try_from(self.memory_bytes.max(MEMORY_BYTES_MIN) / 2).unwrap_or(usize::MAX / 4)
    }

    /// Asks that are compared at once.
    pub(crate) fn asks_at_once(&self) -> usize {
        self.half() / size_of::<Numbered>()
    }

    /// Spools of asks.
    pub(crate) fn asks_partitions(&self) -> usize {
        let asks = self.expected_asks.saturating_add(self.expected_asks / 4);
        let wanted = asks.div_ceil(self.asks_at_once() as u64);
        usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, partitions_max(self.half()))
    }

    /// Memory for the buffers of the spools of asks, bytes.
    pub(crate) fn asks_buffers_bytes(&self) -> usize {
        self.half()
    }

    /// Chunks that the pool is asked for at once.
    pub(crate) fn chunks_at_once(&self) -> usize {
        (self.half() * 2 / 5 / (size_of::<Chunk>() + size_of::<Answer>())).clamp(1, ASKED_AT_ONCE)
    }

    /// Records that are put in order at once.
    pub(crate) fn places_at_once(&self) -> usize {
        self.half() / size_of::<Place>()
    }

    /// Spools by position for as many asks. With more than they can hold, their parts are spooled again.
    pub(crate) fn places_partitions(&self, asks: u64) -> usize {
        let wanted = asks.div_ceil(self.places_at_once() as u64);
        usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, partitions_max(self.places_buffers_bytes()))
    }

    /// Memory for the buffers of the spools by position, bytes.
    pub(crate) fn places_buffers_bytes(&self) -> usize {
        self.half() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dedupfs_spool::block_bytes;

    #[test]
    fn partitions_follow_the_expected_asks_and_have_a_bound() {
        let plan = |expected_asks| MemoryPlan::new("/", expected_asks);
        assert_eq!(plan(0).asks_partitions(), 1);
        assert_eq!(plan(150_000).asks_partitions(), 2);
        assert_eq!(plan(4_000_000).asks_partitions(), 27);
        assert_eq!(plan(u64::MAX).asks_partitions(), PARTITIONS_MAX);
        assert_eq!(plan(0).chunks_at_once(), ASKED_AT_ONCE);
    }

    #[test]
    fn the_parts_of_the_memory_are_no_more_than_the_memory() {
        for memory_bytes in [0, 100_000, 1 << 20, MEMORY_BYTES, 1 << 30] {
            for expected_asks in [0, 1_000_000, u64::MAX] {
                let plan = MemoryPlan { directory: "/".into(), expected_asks, memory_bytes };
                let all = memory_bytes.max(MEMORY_BYTES_MIN) as usize;
                let q = plan.asks_partitions();
                assert!(q * block_bytes(plan.asks_buffers_bytes(), q) <= all / 2);
                let v = plan.places_partitions(expected_asks);
                let batch = plan.chunks_at_once() * (size_of::<Chunk>() + size_of::<Answer>());
                let compared = plan.asks_at_once() * size_of::<Numbered>();
                assert!(v * block_bytes(plan.places_buffers_bytes(), v) + batch + compared <= all);
                assert!(plan.places_at_once() > 1 && plan.asks_at_once() > 1);
            }
        }
    }
}
