//! Opens, rebuilds and clears away the indexes of a pool.

use std::sync::Arc;

use dedupfs_index::{Index, IndexOptions};
use dedupfs_store::StoreError;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::{PoolProperties, Superblock};

use super::open::OpenOptions;
use super::progress::Progress;
use crate::check::{BuildPlace, RebuildReport, Rebuilder};
use crate::config::MemoryPlan;
use crate::containers::ContainerStore;
use crate::error::Result;
use crate::fingerprint::Fingerprinter;
use crate::namespace::{IndexSide, Namespace};

/// Directory of the chunk index of a side.
pub(super) const fn chunk_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/chunks",
        IndexSide::B => "index/chunks.b",
    }
}

/// Directory of the recipe index of a side.
pub(super) const fn recipe_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/recipes",
        IndexSide::B => "index/recipes.b",
    }
}

const fn both(side: IndexSide) -> [&'static str; 2] {
    [chunk_index(side), recipe_index(side)]
}

/// Recipe tankers are smaller than chunk tankers by this factor. There are some hundred chunks for each node, and a filter should not
/// be sized for fingerprints that never come.
const RECIPE_TANKER_DIVISOR: u32 = 16;

/// Least number of cells in a tanker.
const TANKER_CELLS_MIN: u32 = 64;

/// Bounds the number of chunks in the pool before anything is opened. An index that cannot be read counts as empty here; opening it
/// reports the error.
pub(super) fn chunks_at_most(device: &dyn Device, superblock: &Superblock) -> u64 {
    let cells = superblock.properties.tanker_cells;
    let of = |side| Index::cells_at_most(device, chunk_index(side), &superblock.pool, cells).unwrap_or(0);
    of(IndexSide::A).max(of(IndexSide::B))
}

/// Returns the options of the chunk or recipe index for this memory plan. There are some hundred chunks for each node.
pub(super) fn index_options(properties: &PoolProperties, memory: &MemoryPlan, recipe: bool) -> IndexOptions {
    let (share, of) = if recipe { (1, 8) } else { (7, 8) };
    let divisor = if recipe { RECIPE_TANKER_DIVISOR } else { 1 };
    IndexOptions {
        cache_bytes: memory.bucket_cache_bytes / of * share,
        filter_bytes: memory.filter_bytes / of * share,
        locality_bytes: if recipe { 0 } else { memory.locality_bytes },
        open_bytes: memory.open_bytes / of * share,
        cells_per_tanker: properties.tanker_cells.div_ceil(divisor).max(TANKER_CELLS_MIN),
        buckets_per_tanker: properties.tanker_buckets.div_ceil(divisor),
    }
}

/// The inputs of an index rebuild.
pub(super) struct Rebuild<'a> {
    pub(super) options: &'a OpenOptions,
    pub(super) fingerprinter: &'a Fingerprinter,
    pub(super) progress: &'a dyn Progress,
}

/// The sources from which the indexes of a pool are opened or rebuilt.
pub(super) struct IndexSources<'a> {
    pub(super) device: &'a Arc<dyn Device>,
    pub(super) superblock: &'a Superblock,
    pub(super) memory: &'a MemoryPlan,
    pub(super) namespace: &'a Namespace,
    pub(super) data: &'a Arc<ContainerStore>,
    pub(super) recipes: &'a Arc<ContainerStore>,
}

impl IndexSources<'_> {
    fn options(&self, recipe: bool) -> IndexOptions {
        index_options(&self.superblock.properties, self.memory, recipe)
    }

    /// Names the missing slot files that container records point into.
    fn missing_files(&self) -> Vec<String> {
        [self.data.missing_files(), self.recipes.missing_files()].concat()
    }

    /// Opens the indexes that count: chunks, then nodes.
    pub(super) fn open(&self) -> Result<(Index, Index)> {
        let side = self.namespace.index_side();
        let open = |directory: &str, recipe| {
            Index::open(self.device, directory, &self.superblock.pool, self.options(recipe))
                .map_err(|error| index_advice(directory, error, &self.missing_files()))
        };
        Ok((open(chunk_index(side), false)?, open(recipe_index(side), true)?))
    }

    /// Rebuilds both indexes on the other side, which counts from then on.
    pub(super) fn rebuild(&self, rebuild: &Rebuild<'_>) -> Result<(Index, Index, RebuildReport)> {
        let used = self.namespace.index_side();
        // The side in use must not keep rebuild progress: after a switch and back, a later rebuild would take it for its own.
        for directory in both(used) {
            Index::forget_progress(&**self.device, directory)?;
        }
        let side = used.other();
        let rebuilder = Rebuilder {
            device: self.device,
            pool: &self.superblock.pool,
            side,
            chunks: BuildPlace { directory: chunk_index(side), options: self.options(false) },
            nodes: BuildPlace { directory: recipe_index(side), options: self.options(true) },
            namespace: self.namespace,
            data: self.data,
            recipes: self.recipes,
            fingerprinter: rebuild.fingerprinter,
            // A quarantined copy must not be taken for good because a table names it.
            read_data: rebuild.options.rebuild_reads_data || self.namespace.has_losses(),
            progress: rebuild.progress,
        };
        rebuilder.run()
    }
}

/// Removes index files that do not count: replaced indexes, and rebuilds left half done. Files that cannot be removed only cost space.
/// Returns the number of files removed.
pub(super) fn clear_away(device: &dyn Device, used: IndexSide) -> u64 {
    let clear = || {
        let (mut files, mut bytes) = (0, 0);
        for directory in both(used.other()) {
            let removed = Index::remove(device, directory)?;
            files += removed.files;
            bytes += removed.bytes;
        }
        for directory in both(used) {
            Index::forget_progress(device, directory)?;
        }
        dedupfs_store::Result::Ok((files, bytes))
    };
    match clear() {
        Ok((0, _)) => 0,
        Ok((files, bytes)) => {
            tracing::info!(files, bytes, "removed an index that was replaced, or whose rebuild was not finished");
            files
        }
        Err(error) => {
            tracing::warn!(%error, "an index that does not count cannot be removed");
            0
        }
    }
}

/// Removes the files of an unfinished checkpoint. Files that cannot be removed only cost space, and the next checkpoint tries again.
/// Returns the number of files removed.
pub(super) fn remove_leftovers(indexes: [&Index; 2]) -> u64 {
    let remove = |index: &Index| {
        index.remove_leftovers().map_or_else(
            |error| {
                tracing::warn!(%error, "files of an unfinished checkpoint cannot be removed");
                0
            },
            |removed| removed.files,
        )
    };
    indexes.into_iter().map(remove).sum()
}

/// Bytes of the indexes on the side that does not count.
pub(super) fn unused_bytes(device: &dyn Device, used: IndexSide) -> Result<u64> {
    let [chunks, nodes] = both(used.other());
    Ok(Index::disk_bytes(device, chunks)? + Index::disk_bytes(device, nodes)?)
}

/// Adds advice to an index error. The index is never the only copy: it can always be rebuilt from the containers that are there. The
/// rebuild gives up the content of the `missing` files.
pub(super) fn index_advice(directory: &str, error: StoreError, missing: &[String]) -> StoreError {
    let advice = if missing.is_empty() {
        "nothing is lost: make it anew with `dedupfs fsck --rebuild-index POOL`".to_owned()
    } else {
        give_up_advice(missing)
    };
    advised(format!("the index in {directory}"), "a sound index", error, &advice)
}

/// Adds advice to an error of the log replay. The last writes, which no checkpoint holds yet, cannot be counted from the containers.
pub(super) fn replay_advice(error: StoreError, missing: &[String]) -> StoreError {
    let advice = if missing.is_empty() {
        "files that need this cannot be read there; no other file is lost. `dedupfs fsck --rebuild-index POOL` makes the index anew from \
         the rest and tells how much is missing; backing the same data up again heals the files"
            .to_owned()
    } else {
        give_up_advice(missing)
    };
    advised("the end of the operations log".to_owned(), "content that can be read and counted", error, &advice)
}

fn give_up_advice(missing: &[String]) -> String {
    format!(
        "{} is missing, and containers are recorded in it: put it back first, and make the index anew with `dedupfs fsck \
         --rebuild-index POOL`. If it cannot be put back, the same command gives up what it held: files that need it stay damaged \
         until the same data is backed up again. Mount with `-o ro` to copy out what can be read",
        missing.join(", ")
    )
}

/// Adds advice to damage of derived data; returns other errors unchanged.
fn advised(what: String, expected: &str, error: StoreError, advice: &str) -> StoreError {
    match error {
        StoreError::Corrupt { .. } | StoreError::NotFound { .. } => {
            StoreError::Corrupt { what, expected: expected.to_owned(), found: format!("{error}; {advice}") }
        }
        other => other,
    }
}
