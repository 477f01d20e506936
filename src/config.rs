//! Every limit of the engine in one place: unit in the name, default, reason.
//!
//! `--memory` is divided by [`MemoryPlan`]; everything else is a constant.

use std::time::Duration;

/// Bytes of one KiB.
pub const KIB: u64 = 1024;
/// Bytes of one MiB.
pub const MIB: u64 = 1024 * KIB;

/// Default of `--memory`: the bound of all caches and buffers together.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 * MIB;
/// Least `--memory`: below it the write path could not hold one segment per worker.
pub const MEMORY_BYTES_MIN: u64 = 128 * MIB;

/// What a file closed without fsync may lose in a crash (durability contract, DESIGN section 5).
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Changes of a file that stays open without fsync become part of a commit after this time.
pub const PUBLISH_AFTER: Duration = Duration::from_secs(30);
/// Memory of namespace changes that start a commit early, in parts of `--memory`; twice as much makes who changes names wait.
pub const PENDING_SHARE: u64 = 16;
/// The same at most: bounds the commit's length, too.
pub const PENDING_BYTES_MAX: u64 = 32 * MIB;
/// Memory of one change of the namespace, about.
pub const PENDING_OPERATION_BYTES: u64 = 512;
/// Changes of the indexes that may be under way however small tankers are: fewer would make commits of single files.
pub const PENDING_CHANGES_MIN: u64 = 8192;
/// Rows of the greatest size that may be durable and not counted yet: with as much, no round is begun. One for who reclaims, one for
/// those who write meanwhile; what is not counted when the power fails is counted by the next mount.
pub const BACKLOG_ROWS: u64 = 2;
/// Bytes of memory for each change of such a row, at most, with which no round is begun: an operation of the log, or a chunk's entry,
/// takes some 70.
pub const BACKLOG_BYTES_PER_CHANGE: u64 = 128;
/// Log operations applied to the indexes since their checkpoint that start the next one: bounds replay at mount.
pub const CHECKPOINT_CHANGES: u64 = 2_000_000;

/// Sequential bytes of a file gathered before they are handed to a worker. Waking another core costs 50 us
/// (MEASURED), so a hand-off must be worth hundreds.
pub const BATCH_BYTES: usize = 1 << 20;
/// A batch below this is fingerprinted where it is: handing it over would take longer.
pub const INLINE_BATCH_BYTES: usize = 256 << 10;
/// Batches of one file in flight before its writer waits.
pub const BATCHES_IN_FLIGHT_MAX: usize = 8;
/// The same once half of the memory of open files is in use: one is filled while another is fingerprinted.
pub const BATCHES_IN_FLIGHT_MIN: usize = 2;
/// Unused batch buffers kept, in parts of the memory of open files.
pub const BATCH_BUFFERS_KEPT_SHARE: u64 = 2;

/// Mean bytes of file content that one recipe segment covers (Batch section 3; about 512 chunks of 8 KiB).
pub const SEGMENT_TARGET_BYTES: u64 = 4 * MIB;
/// A segment is not cut before this.
pub const SEGMENT_MIN_BYTES: u64 = MIB;
/// A segment is always cut here: bounds the memory of one segment.
pub const SEGMENT_MAX_BYTES: u64 = 8 * MIB;
/// Entries of one segment at most (many small zero runs between chunks could exceed the byte rule's sense).
pub const SEGMENT_ENTRIES_MAX: usize = 8192;
/// A run of zeros of at least this length stands beside segments, not inside: a hole.
pub const HOLE_CUT_BYTES: u64 = MIB;
/// A gap of at least this length in a sequential write is kept as a run of zeros without chunking it.
pub const GAP_AS_ZEROS_BYTES: u64 = 64 * KIB;
/// Holes are shown in multiples of this: the largest block size that programs which look for holes count on.
pub const HOLE_UNIT_BYTES: u64 = 4 * KIB;

/// Children of a list node: at least, on average, at most.
pub const LIST_CHILDREN_MIN: usize = 64;
/// See [`LIST_CHILDREN_MIN`].
pub const LIST_CHILDREN_MEAN: usize = 256;
/// See [`LIST_CHILDREN_MIN`].
pub const LIST_CHILDREN_MAX: usize = 1024;

/// Memory of randomly written bytes that one file keeps before they are merged into its recipe, or half of the memory of open files.
pub const DIRTY_FILE_BYTES_MAX: u64 = 64 * MIB;
/// Memory of a randomly written extent besides its bytes: its place in the file's list, and what the allocator rounds up.
pub const DIRTY_EXTENT_OVERHEAD_BYTES: u64 = 96;
/// Chunks that a file held before, kept as a first guess at what is written over them: with a mean of 8 KiB those of 256 MiB.
pub const BLOCK_INDEX_CHUNKS_MAX: usize = 32_768;
/// Randomly written bytes gathered into one extent.
pub const DIRTY_EXTENT_BYTES_MAX: usize = 1 << 20;
/// Largest file: offsets are signed in the kernel, recipes are not the limit.
pub const FILE_BYTES_MAX: u64 = 1 << 60;
/// A shorter part of a file is copied by reading and writing it: sharing it would describe whole segments anew, again and again.
pub const CLONE_BYTES_MIN: u64 = MIB;
/// Bytes of one clone at most: what the kernel can be told of, in whole pages.
pub const CLONE_BYTES_MAX: u64 = (1 << 32) - 4096;

/// Bytes that a sequential reader is kept ahead.
pub const PREFETCH_BYTES: u64 = 16 * MIB;

/// Raw bytes of a data region: chunks compressed together (MEASURED: 128 KiB gives most of the ratio).
pub const DATA_REGION_BYTES: u32 = 256 * 1024;
/// Raw bytes of a region of recipe nodes.
pub const RECIPE_REGION_BYTES: u32 = 128 * 1024;
/// Containers open at once for each kind: writing processes beyond this share.
pub const OPEN_CONTAINERS_MAX: usize = 16;

/// How long closing a pool waits for requests that hang, on a disk that does not answer perhaps.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(30);
/// How long publishing at intervals waits for a file that is busy; the next interval tries again.
pub const PUBLISH_PATIENCE: Duration = Duration::from_secs(1);
/// A namespace up to this size is compacted when its pool is closed, which then takes some 0.1 s.
pub const COMPACT_ON_CLOSE_BYTES_MAX: u64 = 8 * MIB;

/// Items of an export gathered before they are compressed and written as a frame.
pub const EXPORT_FRAME_BYTES: usize = 1 << 20;
/// A frame of an export has at most this, packed or not: what is gathered, one more item, and what zstd may add.
pub const EXPORT_FRAME_BYTES_MAX: usize = 2 << 20;
/// Changed keys sorted and looked up at a time: bounds memory (some 5 MiB).
pub const EXPORT_KEYS_AT_ONCE: usize = 50_000;
/// What changed is exported at least this often: what a lost meta root costs.
pub const EXPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The log of an export may have this many bytes, or as many as its base, before a new base is written.
pub const EXPORT_LOG_BYTES_MIN: u64 = 8 * MIB;
/// Beyond this and some 250 bytes for each inode, reclaiming writes a new base.
pub const EXPORT_SMALL_BYTES: u64 = 64 * KIB;
/// A first base of a namespace up to this size is written at once (a second or two); that of a larger one in the background.
pub const EXPORT_AT_ONCE_BYTES_MAX: u64 = 64 * MIB;
/// Exports that fail in a row for lack of space before the export is given up: bounds what waits in the namespace.
pub const EXPORT_FAILURES_MAX: u32 = 10;
/// Tries to make a failed export anew that fail in a row before no export is made until the next mount.
pub const EXPORT_ANEW_MAX: u32 = 3;

/// Keys of a log that the verification of an export holds at a time; of a longer log it takes several passes. Some 20 MiB.
pub const EXPORT_VERIFY_KEYS: u64 = 400_000;
/// Bytes of an export that the verification behind a mount reads in a second at most, as the monthly scrub does.
pub const EXPORT_VERIFY_BYTES_PER_S: u64 = 50_000_000;
/// The verification of the export behind a mount begins so long after it: what is mounted for a moment is left alone.
pub const EXPORT_VERIFY_AFTER: Duration = Duration::from_secs(5);

/// Kept free on the data root: reclaiming copies live chunks before it frees. Less on small disks, down to what one step takes.
pub const DATA_RESERVE_BYTES: u64 = 64 * MIB;
/// Kept free on the meta root for commits and steps of reclaiming, besides what a checkpoint of the indexes takes. Less on small disks.
pub const META_RESERVE_BYTES: u64 = 64 * MIB;
/// Of sealed tankers, kept free for writing them again without their removed cells: chunks of a container lie in few tankers,
/// and reclaiming takes fewer containers at a time when space is short.
pub const INDEX_REWRITE_BYTES_MAX: u64 = 256 * MIB;
/// A root this full is warned of.
pub const SPACE_LOW_PERCENT: u64 = 85;
/// A root this full is warned of again.
pub const SPACE_URGENT_PERCENT: u64 = 95;
/// A warning is given again only after the root was less full than its mark by more than this.
pub const SPACE_HYSTERESIS_PERCENT: u64 = 2;
/// How long a reading of free space may be trusted.
pub const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Containers whose live share is below this may be emptied by default: the emptiest first, and no more than are needed.
pub const RECLAIM_THRESHOLD_PERCENT: u8 = 90;
/// Garbage that stays by default, in percent of what is alive: the last of it costs the most.
pub const RECLAIM_LEAVE_PERCENT: u8 = 5;
/// Share of the time that reclaiming works while clients are active, by default.
pub const RECLAIM_SHARE_PERCENT: u8 = 50;
/// Bytes of emptied containers that wait for a checkpoint of the indexes at most: until then they and what was copied out of them
/// are both there. A 32nd of the pool, within these bounds.
pub const RECLAIM_WAITING_BYTES: std::ops::RangeInclusive<u64> = 16 * MIB..=1 << 30;
/// Tries to read a chunk whose container moved meanwhile.
pub const READ_RETRIES: usize = 4;

/// Fingerprints from which on filters of 48 bits pay (see `docs/decisions/0010`): with 24, false reads would cost more.
const FINE_FILTERS_FROM: u64 = 72 << 20;

/// How `--memory` is divided. The sum of the parts is the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// The bound of all parts together.
    pub total_bytes: u64,
    /// Raw bytes between writers and the disk.
    pub in_flight_bytes: u64,
    /// Decompressed regions kept for readers.
    pub region_cache_bytes: u64,
    /// Tables of contents of containers.
    pub table_cache_bytes: u64,
    /// Decoded recipe nodes.
    pub node_cache_bytes: u64,
    /// Open tankers of both indexes, what is staged and patched, and what sealing needs.
    pub open_bytes: u64,
    /// Buckets of sealed tankers, both indexes.
    pub bucket_cache_bytes: u64,
    /// Bloom filters of sealed tankers, both indexes: 3 MiB for each million fingerprints keep lookups of new chunks from
    /// reading anything.
    pub filter_bytes: u64,
    /// Fingerprints of whole containers, index of chunks.
    pub locality_bytes: u64,
    /// What open files hold: runs that are being written, random writes, lists of pieces.
    pub files_bytes: u64,
    /// Pages of the namespace store.
    pub namespace_cache_bytes: u64,
}

impl MemoryPlan {
    /// Divides `total_bytes` (at least [`MEMORY_BYTES_MIN`]) for a pool of so many fingerprints.
    ///
    /// 30% are for open tankers: some 260 bytes for each fingerprint of a tanker that fills. The filters get what keeps lookups
    /// of new chunks from reading anything, 3 bytes for each fingerprint, or 6 from [`FINE_FILTERS_FROM`] on, and half as many again for
    /// what comes, between 10% and 35%. The others share the rest.
    #[must_use]
    pub fn new(total_bytes: u64, fingerprints: u64) -> Self {
        let total_bytes = total_bytes.max(MEMORY_BYTES_MIN);
        let percent = total_bytes / 100;
        let open_bytes = 30 * percent;
        let expected = fingerprints.saturating_mul(3) / 2;
        let bytes_each = if expected < FINE_FILTERS_FROM { 3 } else { 6 };
        let filter_bytes = expected.saturating_mul(bytes_each).clamp(10 * percent, 35 * percent);
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
        }
    }

    /// Changes of the namespace in memory that start a commit early.
    #[must_use]
    pub fn pending_operations_max(&self) -> usize {
        let bytes = (self.total_bytes / PENDING_SHARE).min(PENDING_BYTES_MAX);
        usize::try_from(bytes / PENDING_OPERATION_BYTES).unwrap_or(usize::MAX)
    }

    /// The parts with their names: their sum is at most the whole.
    #[must_use]
    pub const fn parts(&self) -> [(&'static str, u64); 10] {
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

const _: () = assert!(SEGMENT_MIN_BYTES < SEGMENT_TARGET_BYTES && SEGMENT_TARGET_BYTES < SEGMENT_MAX_BYTES);
const _: () = assert!(LIST_CHILDREN_MIN < LIST_CHILDREN_MEAN && LIST_CHILDREN_MEAN < LIST_CHILDREN_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_never_exceed_the_whole() {
        for total_bytes in [0, MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT, 3_000_000_001, 64 << 30] {
            for fingerprints in [0, 1, 1 << 20, 1 << 27, u64::MAX] {
                let plan = MemoryPlan::new(total_bytes, fingerprints);
                let sum: u64 = plan.parts().iter().map(|(_, bytes)| bytes).sum();
                assert!(sum <= plan.total_bytes && sum > plan.total_bytes / 100 * 99, "{plan:?}");
                assert!(plan.parts().iter().all(|(_, bytes)| *bytes > MIB), "{plan:?}");
            }
        }
    }
}
