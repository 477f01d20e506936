//! The two indexes of a pool: their places on the meta root, sizes and options.

use dedupfs_base::Result;
use dedupfs_index::{Index, IndexOptions};
use dedupfs_namespace::IndexSide;
use dedupfs_store::ContainerKind;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::{PoolProperties, Superblock};

use crate::config::MemoryPlan;

/// Directory of the chunk index of a side.
pub(crate) const fn chunk_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/chunks",
        IndexSide::B => "index/chunks.b",
    }
}

/// Directory of the recipe index of a side.
pub(crate) const fn recipe_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/recipes",
        IndexSide::B => "index/recipes.b",
    }
}

/// Both directories of a side.
pub(crate) const fn both(side: IndexSide) -> [&'static str; 2] {
    [chunk_index(side), recipe_index(side)]
}

/// Recipe tankers are smaller than chunk tankers by this factor. There are some hundred chunks for each node, and a filter should not
/// be sized for fingerprints that never come.
const RECIPE_TANKER_DIVISOR: u32 = 16;

/// Least number of cells in a tanker.
const TANKER_CELLS_MIN: u32 = 64;

/// Bounds the number of chunks in the pool before anything is opened. An index that cannot be read counts as empty here; opening it
/// reports the error.
pub(crate) fn chunks_at_most(device: &dyn Device, superblock: &Superblock) -> u64 {
    let cells = superblock.properties.tanker_cells;
    let of = |side| Index::cells_at_most(device, chunk_index(side), &superblock.pool, cells).unwrap_or(0);
    of(IndexSide::A).max(of(IndexSide::B))
}

/// Returns the options of the chunk or recipe index for this memory plan. There are some hundred chunks for each node.
pub(crate) fn index_options(properties: &PoolProperties, memory: &MemoryPlan, kind: ContainerKind) -> IndexOptions {
    let (share, of) = if kind == ContainerKind::Recipe { (1, 8) } else { (7, 8) };
    let divisor = if kind == ContainerKind::Recipe { RECIPE_TANKER_DIVISOR } else { 1 };
    IndexOptions {
        cache_bytes: memory.bucket_cache_bytes / of * share,
        filter_bytes: memory.filter_bytes / of * share,
        locality_bytes: if kind == ContainerKind::Recipe { 0 } else { memory.locality_bytes },
        open_bytes: memory.open_bytes / of * share,
        cells_per_tanker: properties.tanker_cells.div_ceil(divisor).max(TANKER_CELLS_MIN),
        buckets_per_tanker: properties.tanker_buckets.div_ceil(divisor),
    }
}

/// Bytes of the indexes on the side that does not count.
pub(crate) fn unused_bytes(device: &dyn Device, used: IndexSide) -> Result<u64> {
    let [chunks, nodes] = both(used.other());
    Ok(Index::disk_bytes(device, chunks)? + Index::disk_bytes(device, nodes)?)
}
