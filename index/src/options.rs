//! The options and limits of an index, each with its unit and reason.

use dedupfs_store::{Fingerprint, Result, StoreError};

use crate::cell::{Cell, Entry, Location};
use crate::map::FingerprintMap;
use crate::open::Patch;

/// Most cells of one tanker: their positions are 32-bit numbers, and a tanker being rewritten is held in memory.
pub(crate) const CELLS_PER_TANKER_MAX: u32 = 1 << 26;

/// Most buckets of one tanker: a directory of 12 bytes each stays below a mebibyte.
pub(crate) const BUCKETS_PER_TANKER_MAX: u32 = 1 << 16;

/// Most bytes of a manifest: more than a million tankers.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of a progress file of building an index.
pub(crate) const PROGRESS_BYTES_MAX: u64 = 1 << 20;

/// Most inconsistencies that one report describes; it counts all of them.
pub(crate) const INCONSISTENCIES_MAX: usize = 10;

/// Bytes of one read or write of a whole file: large enough for the full speed of a disk, small against `--memory`.
pub(crate) const SEQUENTIAL_BYTES: usize = 1 << 20;

/// Bound of the bytes that a new tanker takes for each cell: the cell, its count, 6 bytes of a filter.
pub(crate) const WRITTEN_CELL_BYTES: u64 = 64;

/// Bound of the bytes that a new tanker takes beside its cells: directories and frames of each file.
pub(crate) const WRITTEN_FILES_BYTES: u64 = 64 << 10;

/// A rewritten tanker with fewer cells than its nominal number divided by this is dissolved into the open tanker: a
/// sparse tanker has as many files as a full one, and as long a directory (docs/decisions/0062).
pub(crate) const DISSOLVE_DIVISOR: u32 = 4;

/// Most bytes of memory that one cell of a tanker costs between the opening of the tanker and its sealing:
/// - 1.5 cells in the open tankers: a quarter of another tanker fills while this one is written, and a row is not cut
///   in two;
/// - 56 for the copy that is written, and 6 for the filter that is built from it;
/// - three eighths of a patch and of its copy: see [`IndexOptions::patches_max`];
/// - a quarter of a staged fingerprint.
const OPEN_BYTES_PER_CELL: u64 = {
    let cell = FingerprintMap::<Cell>::bytes_per_entry_max();
    let patch = FingerprintMap::<Patch>::bytes_per_entry_max() + size_of::<(Fingerprint, Patch)>();
    let staged = FingerprintMap::<Location>::bytes_per_entry_max();
    (cell * 3 / 2 + size_of::<Entry>() + 6 + patch * 3 / 8 + staged / 4) as u64
};

/// Most bytes of memory that one patch costs beyond those that come with a tanker's cells: one and a half patches with
/// their copies, because a row of half as many changes is not cut in two, half a staged fingerprint, and half a change
/// while its row is applied. Rows are bounded by the index of chunks alone: few changes of a row are of nodes.
const FURTHER_PATCH_BYTES: u64 = {
    let patch = FingerprintMap::<Patch>::bytes_per_entry_max() + size_of::<(Fingerprint, Patch)>();
    let staged = FingerprintMap::<Location>::bytes_per_entry_max();
    (patch * 3 / 2 + staged / 2 + APPLIED_CHANGE_BYTES / 2) as u64
};

/// Most patches beyond a quarter of a tanker's cells, for each of its cells. More would spare few reads, and hold applying
/// up while they are copied.
const FURTHER_PATCHES_PER_CELL_MAX: u64 = 2;

/// Bytes of memory for a change while it is applied: in a vector that grows by doubling, with its answers and its places
/// in the order of the files.
const APPLIED_CHANGE_BYTES: usize = 224;

/// Number of changes that are applied at a time, if a tanker needs all memory: 14 MiB beside it.
const CHANGES_AT_ONCE: u64 = 65_536;

/// Fewest cells of a sealed tanker, even with little memory: with fewer, files would be smaller than their directories.
const SEALED_CELLS_MIN: u64 = 16;

/// Shape and memory of an [`Index`](crate::Index).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// Cells of a tanker when it is sealed; later removals make it smaller. Fewer if `open_bytes` does not suffice.
    pub cells_per_tanker: u32,
    /// Buckets of one sealed tanker, a power of two. A bucket is the unit of reading and should be some 20 to 40 KiB.
    pub buckets_per_tanker: u32,
    /// Limit in bytes of the cache of buckets and counts.
    pub cache_bytes: u64,
    /// Limit in bytes of the open tankers and everything needed to seal them: some 260 for each cell of a tanker, and 390
    /// for each further patch.
    pub open_bytes: u64,
    /// Limit in bytes, at opening, of the filters of the sealed tankers: the Bloom filters of the newest, of which 3 MiB for
    /// each tanker of 2^20 cells give 24 bits for each cell, and those of guides to all others, up to 2.2 bytes for each cell. With
    /// less they become coarser, which costs false reads. With 0 every tanker is read.
    pub filter_bytes: u64,
    /// Limit in bytes of the locality cache: 54 for each fingerprint of a container, some 30 KiB for a container of 512
    /// chunks. A dozen containers for each concurrently written stream are plenty. Used only with
    /// [`set_container_tables`](crate::Index::set_container_tables).
    pub locality_bytes: u64,
}

impl Default for IndexOptions {
    /// MAD2's tanker of 2^20 fingerprints in 2048 buckets, 64 MiB of cached buckets, and of filters (some 20 tankers).
    fn default() -> Self {
        Self {
            cells_per_tanker: 1 << 20,
            buckets_per_tanker: 2048,
            cache_bytes: 64 << 20,
            open_bytes: 272 << 20,
            filter_bytes: 64 << 20,
            locality_bytes: 16 << 20,
        }
    }
}

impl IndexOptions {
    /// Cells of a tanker when it is sealed: from its shape, or fewer if memory is short.
    pub(crate) fn sealed_cells(&self) -> u64 {
        (self.open_bytes / OPEN_BYTES_PER_CELL).max(SEALED_CELLS_MIN).min(u64::from(self.cells_per_tanker))
    }

    /// Most cells of the open tankers: at this number applying must wait until a checkpoint is published.
    pub(crate) fn open_cells_max(&self) -> u64 {
        self.sealed_cells() * 5 / 4
    }

    /// Most patches: at half of it a checkpoint is due; at the limit applying must wait until one is published. A quarter
    /// of a tanker's cells, and more if there is memory that a full tanker does not need: the more changes are applied
    /// and written at a time, the fewer buckets are read and counts written for each.
    pub(crate) fn patches_max(&self) -> u64 {
        (self.sealed_cells() / 4).max(1) + self.further_patches()
    }

    fn further_patches(&self) -> u64 {
        let spare_bytes = self.open_bytes.saturating_sub(self.sealed_cells() * OPEN_BYTES_PER_CELL);
        (spare_bytes / FURTHER_PATCH_BYTES).min(FURTHER_PATCHES_PER_CELL_MAX * self.sealed_cells())
    }

    /// Most pending changes (staged, or logged and not applied). A row is never larger.
    pub(crate) fn pending_max(&self) -> u64 {
        (self.sealed_cells() / 8).max(1) + self.further_patches() / 2
    }

    /// Most changes of a row that give a new fingerprint its place. Applying waits between rows, so the open tankers
    /// exceed their limit by one row.
    pub(crate) fn pending_places_max(&self) -> u64 {
        (self.sealed_cells() / 8).max(1)
    }

    /// Number of changes that are applied at a time.
    pub(crate) fn changes_at_once(&self) -> u64 {
        CHANGES_AT_ONCE + self.further_patches() / 2
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (cells, buckets) = (self.cells_per_tanker, self.buckets_per_tanker);
        if cells == 0 || cells > CELLS_PER_TANKER_MAX {
            let message = format!("cells per tanker must be 1 to {CELLS_PER_TANKER_MAX}, not {cells}");
            return Err(StoreError::Usage(message));
        }
        if !buckets.is_power_of_two() || buckets > BUCKETS_PER_TANKER_MAX {
            let most = BUCKETS_PER_TANKER_MAX;
            let message = format!("buckets per tanker must be a power of two up to {most}, not {buckets}");
            return Err(StoreError::Usage(message));
        }
        Ok(())
    }
}
