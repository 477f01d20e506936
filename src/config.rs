//! Every limit of the engine in one place: unit in the name, default, reason.
//!
//! `--memory` is divided by [`MemoryPlan`]; everything else is a constant.

use std::time::Duration;

use dedupfs_store::ContainerKind;

/// Bytes of one KiB.
pub const KIB: u64 = 1024;
/// Bytes of one MiB.
pub const MIB: u64 = 1024 * KIB;

/// Default of `--memory`: the bound of all caches and buffers together.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 * MIB;
/// Smallest `--memory`: below it the write path could not hold one segment per worker.
pub const MEMORY_BYTES_MIN: u64 = 128 * MIB;

/// Longest loss in a crash for a file closed without fsync (the durability contract, docs/semantics.md).
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// A file that stays open without fsync has its changes published for a commit after this time.
pub(crate) const PUBLISH_AFTER: Duration = Duration::from_secs(30);
/// Share of `--memory` (its reciprocal) whose use by namespace changes starts a commit early. At twice as much, threads
/// that change names wait.
pub(crate) const PENDING_SHARE: u64 = 16;
/// Upper bound of that memory.
pub(crate) const PENDING_BYTES_MAX: u64 = 32 * MIB;
/// So many namespace changes start a commit, even if memory has room for more: a sync waits for shorter commits then. A
/// change that lies apart from others writes pages of the namespace for itself. A commit is longer only if more changes come
/// while the one before is written.
pub(crate) const ROUND_OPERATIONS: usize = 16_384;
/// Approximate memory of one namespace change.
pub(crate) const PENDING_OPERATION_BYTES: u64 = 512;
/// Index changes that may be under way even with small tankers. With fewer, single files would become commits.
pub(crate) const PENDING_CHANGES_MIN: u64 = 8192;
/// Bound of the backlog's memory, in bytes for each place of a row. A log operation or a chunk's entry takes some 70.
pub(crate) const BACKLOG_BYTES_PER_PLACE: u64 = 128;
/// Number of log operations applied since the last checkpoint that starts the next one: bounds replay at mount.
pub(crate) const CHECKPOINT_CHANGES: u64 = 2_000_000;

/// Share of the memory of open files (its reciprocal) for unused batch buffers.
pub(crate) const BATCH_BUFFERS_KEPT_SHARE: u64 = 2;

/// Memory of randomly written bytes that one file keeps before they are merged. Half of the memory of open files is a
/// limit, too.
pub(crate) const DIRTY_FILE_BYTES_MAX: u64 = 64 * MIB;
/// A shorter part of a file is cloned by reading and writing it: sharing it would describe whole segments again and
/// again.
pub(crate) const CLONE_BYTES_MIN: u64 = MIB;
/// Largest clone: the kernel's limit for one reply, in whole pages.
pub(crate) const CLONE_BYTES_MAX: u64 = (1 << 32) - 4096;

/// Raw bytes of a data region: chunks compressed together (MEASURED: 128 KiB gives most of the ratio).
pub const DATA_REGION_BYTES: u32 = 256 * 1024;
/// Raw bytes of a region of recipe nodes.
pub(crate) const RECIPE_REGION_BYTES: u32 = 128 * 1024;
/// Number of open containers for each kind, if memory has room for them. Further writing processes share them.
pub(crate) const OPEN_CONTAINERS_MAX: usize = 256;

/// Longest wait of closing a pool for hanging requests, for example on a disk that does not answer.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait of publishing at intervals for a busy file. The next interval tries again.
pub(crate) const PUBLISH_PATIENCE: Duration = Duration::from_secs(1);

/// Items of an export gathered before they are compressed and written as a frame.
pub(crate) const EXPORT_FRAME_BYTES: usize = 1 << 20;
/// Largest frame of an export, packed or not: the gathered items, one more item, and the overhead of zstd.
pub(crate) const EXPORT_FRAME_BYTES_MAX: usize = 2 << 20;
/// Number of changed keys that are sorted and looked up at a time: bounds memory (some 5 MiB).
pub(crate) const EXPORT_KEYS_AT_ONCE: usize = 50_000;
/// Longest time between exports: the changes that a lost meta root costs.
pub(crate) const EXPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The log of an export may grow to this size, or to that of its base, before a new base is written.
pub(crate) const EXPORT_LOG_BYTES_MIN: u64 = 8 * MIB;
/// Beyond this and some 250 bytes for each inode, reclaiming writes a new base.
pub(crate) const EXPORT_SMALL_BYTES: u64 = 64 * KIB;
/// The first base of a namespace up to this size is written at once (a second or two); that of a larger one in the
/// background.
pub(crate) const EXPORT_AT_ONCE_BYTES_MAX: u64 = 64 * MIB;
/// Number of consecutive exports that may fail for lack of space before the export is given up: bounds the changes kept
/// in the namespace.
pub(crate) const EXPORT_FAILURES_MAX: u32 = 10;
/// Number of consecutive tries to rewrite a failed export. After that no export is made until the next mount.
pub(crate) const EXPORT_ANEW_MAX: u32 = 3;

/// Keys of a log that the verification of an export aims to hold at a time. It holds twice as many at most, some 20 MiB. Few in tests, so
/// that short logs have several ranges.
pub(crate) const EXPORT_VERIFY_KEYS: u64 = if cfg!(test) { 32 } else { 200_000 };
/// Limit of the bytes of an export that the verification behind a mount reads in a second; the same as of the monthly
/// scrub.
pub(crate) const EXPORT_VERIFY_BYTES_PER_S: u64 = 50_000_000;
/// Delay after a mount before the verification of the export begins: short mounts are left alone.
pub(crate) const EXPORT_VERIFY_AFTER: Duration = Duration::from_secs(5);

/// Reserve on the data root: reclaiming copies live chunks before it frees. Less on small disks, down to the need of
/// one step.
pub const DATA_RESERVE_BYTES: u64 = 64 * MIB;
/// Reserve on the meta root for commits and steps of reclaiming, besides the need of an index checkpoint. Less on small
/// disks.
pub const META_RESERVE_BYTES: u64 = 64 * MIB;
/// Room reserved for rewriting sealed tankers without their removed cells. The chunks of a container lie in few
/// tankers, and reclaiming takes fewer containers at a time when space is short.
pub(crate) const INDEX_REWRITE_BYTES_MAX: u64 = 256 * MIB;
/// A warning is logged when a root is this full.
pub const SPACE_LOW_PERCENT: u64 = 85;
/// A second warning is logged when a root is this full.
pub const SPACE_URGENT_PERCENT: u64 = 95;
/// A warning is re-armed after the root is more than this below the mark.
pub(crate) const SPACE_HYSTERESIS_PERCENT: u64 = 2;
/// Longest age of a reading of free space.
pub(crate) const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes on the meta root that an entry of a frozen tree takes at most, usually: its row in a leaf, its share of lists and
/// padding, its cell in the index, and its note.
pub(crate) const ENTRY_META_BYTES: u64 = 1024;

/// Default: containers with a smaller live share may be emptied; the emptiest first, and no more than needed.
pub(crate) const RECLAIM_THRESHOLD_PERCENT: u8 = 90;
/// Default: garbage that stays, in percent of the live bytes. The last of it costs the most.
pub(crate) const RECLAIM_LEAVE_PERCENT: u8 = 5;
/// Default: share of the time that reclaiming works while clients are active.
pub const RECLAIM_SHARE_PERCENT: u8 = 50;
/// Upper bound of the bytes of emptied containers that wait for an index checkpoint: until then they and the copies of
/// their content both exist. A 32nd of the pool, within these bounds.
pub(crate) const RECLAIM_WAITING_BYTES: std::ops::RangeInclusive<u64> = 16 * MIB..=1 << 30;

/// Numbers of fingerprints in the indexes of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fingerprints {
    pub(crate) chunks: u64,
    pub(crate) nodes: u64,
}

/// A pool with fewer fingerprints says nothing about its files.
const FINGERPRINTS_TELLING: u64 = 1 << 20;
/// Parts of filters and buckets, both of which the two indexes share.
pub(crate) const INDEX_PARTS: u64 = 64;
/// Those for nodes: an eighth if files are large, some hundred chunks for each node; more if files have few chunks.
const NODE_PARTS: std::ops::RangeInclusive<u64> = 8..=40;

/// The division of `--memory`. The parts sum up to at most the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// The bound of all parts together.
    pub total_bytes: u64,
    /// Raw bytes between writers and the disk.
    pub in_flight_bytes: u64,
    /// Decompressed regions kept for readers.
    pub region_cache_bytes: u64,
    /// Tables of containers.
    pub table_cache_bytes: u64,
    /// Decoded recipe nodes.
    pub node_cache_bytes: u64,
    /// Open tankers of both indexes, staged and patched cells, and the memory of sealing.
    pub open_bytes: u64,
    /// Buckets of sealed tankers, both indexes.
    pub bucket_cache_bytes: u64,
    /// Bloom filters of sealed tankers, both indexes. 3 MiB for each million fingerprints keep lookups of new chunks
    /// from reading.
    pub filter_bytes: u64,
    /// Fingerprints of whole containers, index of chunks.
    pub locality_bytes: u64,
    /// Memory of open files: runs being written, dirty extents, lists of pieces.
    pub files_bytes: u64,
    /// Pages of the namespace store.
    pub namespace_cache_bytes: u64,
    /// Of [`INDEX_PARTS`] parts of filters and buckets, those for the index of nodes. Behind growth of filters alone, as
    /// wanted: no index gives anything back.
    pub node_parts: u64,
}

impl MemoryPlan {
    /// Divides `total_bytes` (at least [`MEMORY_BYTES_MIN`]) for a pool with these numbers of fingerprints.
    ///
    /// 30% go to open tankers: some 260 bytes for each fingerprint of a filling tanker. Filters get enough to keep
    /// lookups of new chunks from reading: 3 bytes for each fingerprint plus half as many for growth, between 10% and
    /// 35%. The other parts share the rest.
    pub(crate) fn new(total_bytes: u64, Fingerprints { chunks, nodes }: Fingerprints) -> Self {
        let fingerprints = chunks.saturating_add(nodes);
        let by_number = (u128::from(nodes) * u128::from(INDEX_PARTS)).div_ceil(u128::from(fingerprints.max(1)));
        let is_telling = fingerprints >= FINGERPRINTS_TELLING;
        let node_parts = if is_telling { by_number as u64 } else { 0 };
        let total_bytes = total_bytes.max(MEMORY_BYTES_MIN);
        let percent = total_bytes / 100;
        let open_bytes = 30 * percent;
        let filter_bytes = (fingerprints / 2).saturating_mul(9).clamp(10 * percent, 35 * percent);
        let rest = total_bytes - open_bytes - filter_bytes;
        let share = |parts: u64| rest / 66 * parts;
        Self {
            total_bytes,
            open_bytes,
            filter_bytes,
            in_flight_bytes: share(13),
            region_cache_bytes: share(15),
            table_cache_bytes: share(6),
            node_cache_bytes: share(5),
            bucket_cache_bytes: share(5),
            locality_bytes: share(2),
            files_bytes: share(15),
            namespace_cache_bytes: share(5),
            node_parts: node_parts.clamp(*NODE_PARTS.start(), *NODE_PARTS.end()),
        }
    }

    /// Returns the plan for a pool that has grown to these numbers of fingerprints since this plan was made. Filters take
    /// from the cache of regions, at most half of it: it can shrink at once, and still holds its largest entries. All other
    /// sizes stay.
    pub(crate) fn grown(&self, fingerprints: Fingerprints) -> Self {
        let wanted = Self::new(self.total_bytes, fingerprints);
        let taken = wanted.filter_bytes.saturating_sub(self.filter_bytes).min(self.region_cache_bytes / 2);
        Self {
            filter_bytes: self.filter_bytes + taken,
            region_cache_bytes: self.region_cache_bytes - taken,
            node_parts: wanted.node_parts,
            ..*self
        }
    }

    /// Returns how many bytes of a part that both kinds of containers use are for `kind`: 7/8 for data, 1/8 for recipes.
    pub(crate) const fn share_of(kind: ContainerKind, bytes: u64) -> u64 {
        match kind {
            ContainerKind::Data => bytes / 8 * 7,
            ContainerKind::Recipe => bytes / 8,
        }
    }

    /// Returns how many bytes of a part that both indexes use are for `kind`, by the numbers of fingerprints.
    pub(crate) const fn by_number(&self, kind: ContainerKind, bytes: u64) -> u64 {
        match kind {
            ContainerKind::Data => bytes / INDEX_PARTS * (INDEX_PARTS - self.node_parts),
            ContainerKind::Recipe => bytes / INDEX_PARTS * self.node_parts,
        }
    }

    /// Returns the bytes of the filters of chunks and of nodes.
    pub(crate) fn filter_shares(&self) -> [u64; 2] {
        [ContainerKind::Data, ContainerKind::Recipe].map(|kind| self.by_number(kind, self.filter_bytes))
    }

    /// Returns the number of uncommitted namespace changes that starts a commit early.
    pub(crate) fn pending_operations_max(&self) -> usize {
        let bytes = (self.total_bytes / PENDING_SHARE).min(PENDING_BYTES_MAX);
        usize::try_from(bytes / PENDING_OPERATION_BYTES).unwrap_or(usize::MAX)
    }

    /// Returns the parts with their names. They sum up to at most the whole.
    pub(crate) const fn parts(&self) -> [(&'static str, u64); 10] {
        [
            ("open tankers", self.open_bytes),
            ("filters", self.filter_bytes),
            ("on the way to disk", self.in_flight_bytes),
            ("regions", self.region_cache_bytes),
            ("open files", self.files_bytes),
            ("tables", self.table_cache_bytes),
            ("nodes", self.node_cache_bytes),
            ("buckets", self.bucket_cache_bytes),
            ("namespace", self.namespace_cache_bytes),
            ("locality", self.locality_bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_never_exceed_the_whole() {
        for total_bytes in [0, MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT, 3_000_000_001, 64 << 30] {
            for chunks in [0, 1, 1 << 20, 1 << 27, u64::MAX] {
                let plan = MemoryPlan::new(total_bytes, Fingerprints { chunks, nodes: chunks / 2 });
                let sum: u64 = plan.parts().iter().map(|(_, bytes)| bytes).sum();
                assert!(sum <= plan.total_bytes && sum > plan.total_bytes / 100 * 99, "{plan:?}");
                assert!(plan.parts().iter().all(|(_, bytes)| *bytes > MIB), "{plan:?}");
            }
        }
    }

    #[test]
    fn regression_filters_follow_the_growth_of_a_pool() {
        for total_bytes in [MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT, 3_000_000_001, 64 << 30] {
            let empty = MemoryPlan::new(total_bytes, Fingerprints::default());
            assert_eq!(empty.grown(Fingerprints::default()), empty);
            let mut before = empty;
            for chunks in [1 << 23, 1 << 25, 1 << 27, 1 << 34, u64::MAX] {
                let grown = empty.grown(Fingerprints { chunks, nodes: chunks / 2 });
                let sum = |plan: &MemoryPlan| plan.parts().iter().map(|(_, bytes)| bytes).sum::<u64>();
                assert_eq!(sum(&grown), sum(&empty), "{grown:?}");
                assert!(grown.filter_bytes >= before.filter_bytes, "{grown:?} behind {before:?}");
                before = grown;
            }
            assert_eq!(before.region_cache_bytes, empty.region_cache_bytes.div_ceil(2), "{before:?}");
        }
    }

    /// Nodes had an eighth always. In a pool of small files, where a third of all fingerprints are theirs, lookups of new ones read.
    #[test]
    fn regression_nodes_of_small_files_get_their_share_of_filters() {
        let parts = |chunks, nodes| MemoryPlan::new(1 << 30, Fingerprints { chunks, nodes }).node_parts;
        assert_eq!([parts(0, 0), parts(1000, 1000), parts(100 << 20, 1 << 20), parts(1 << 27, 0)], [8; 4]);
        assert_eq!(parts(2 << 20, 1 << 20), 22);
        assert_eq!([parts(1 << 20, 1 << 30), parts(0, u64::MAX)], [40; 2]);
        assert_eq!(parts(u64::MAX, u64::MAX), 40);
    }
}
