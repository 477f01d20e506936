//! The two indexes of a pool: their places on the meta root, sizes and options.

use dedupfs_base::Result;
use dedupfs_index::{Index, IndexOptions};
use dedupfs_namespace::IndexSide;
use dedupfs_store::ContainerKind;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::{PoolProperties, Superblock};

use crate::config::{Fingerprints, MemoryPlan};

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

/// Bounds the numbers of chunks and nodes in the pool before anything is opened. An index that cannot be read counts as empty here;
/// opening it reports the error.
pub(crate) fn fingerprints_at_most(device: &dyn Device, superblock: &Superblock) -> Fingerprints {
    let of = |directory, kind| {
        let cells = tanker_cells(&superblock.properties, kind);
        Index::cells_at_most(device, directory, &superblock.pool, cells).unwrap_or(0)
    };
    let most =
        |name: fn(IndexSide) -> &'static str, kind| of(name(IndexSide::A), kind).max(of(name(IndexSide::B), kind));
    Fingerprints { chunks: most(chunk_index, ContainerKind::Data), nodes: most(recipe_index, ContainerKind::Recipe) }
}

const fn divisor(kind: ContainerKind) -> u32 {
    match kind {
        ContainerKind::Data => 1,
        ContainerKind::Recipe => RECIPE_TANKER_DIVISOR,
    }
}

fn tanker_cells(properties: &PoolProperties, kind: ContainerKind) -> u32 {
    properties.tanker_cells.div_ceil(divisor(kind)).max(TANKER_CELLS_MIN)
}

/// Returns the options of the chunk or recipe index for this memory plan. Open tankers have the shares of their sizes.
pub(crate) fn index_options(properties: &PoolProperties, memory: &MemoryPlan, kind: ContainerKind) -> IndexOptions {
    IndexOptions {
        cache_bytes: memory.by_number(kind, memory.bucket_cache_bytes),
        filter_bytes: memory.by_number(kind, memory.filter_bytes),
        locality_bytes: if kind == ContainerKind::Data { memory.locality_bytes } else { 0 },
        open_bytes: MemoryPlan::share_of(kind, memory.open_bytes),
        cells_per_tanker: tanker_cells(properties, kind),
        buckets_per_tanker: properties.tanker_buckets.div_ceil(divisor(kind)),
    }
}

/// Bytes of the indexes on the side that does not count.
pub(crate) fn unused_bytes(device: &dyn Device, used: IndexSide) -> Result<u64> {
    let [chunks, nodes] = both(used.other());
    Ok(Index::disk_bytes(device, chunks)? + Index::disk_bytes(device, nodes)?)
}
