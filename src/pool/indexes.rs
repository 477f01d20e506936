//! Where the indexes of a pool lie, and opening, rebuilding and clearing them away.

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

/// Where the index of chunks lies.
pub(super) const fn chunk_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/chunks",
        IndexSide::B => "index/chunks.b",
    }
}

/// Where the index of recipe nodes lies.
pub(super) const fn recipe_index(side: IndexSide) -> &'static str {
    match side {
        IndexSide::A => "index/recipes",
        IndexSide::B => "index/recipes.b",
    }
}

const fn both(side: IndexSide) -> [&'static str; 2] {
    [chunk_index(side), recipe_index(side)]
}

/// Tankers of recipe nodes are smaller than those of chunks by this: there are some hundred chunks for each node, and no filter
/// should be made for fingerprints that do not come.
const RECIPE_TANKER_DIVISOR: u32 = 16;

/// Fingerprints of a tanker at least.
const TANKER_CELLS_MIN: u32 = 64;

/// Chunks that a pool has at most, as far as can be told before anything is opened. An index that cannot be read is reported by
/// who opens it.
pub(super) fn chunks_at_most(device: &dyn Device, superblock: &Superblock) -> u64 {
    let cells = superblock.properties.tanker_cells;
    let of = |side| Index::cells_at_most(device, chunk_index(side), &superblock.pool, cells).unwrap_or(0);
    of(IndexSide::A).max(of(IndexSide::B))
}

/// The options of the index of chunks, or of recipe nodes, of a pool that divides memory like this. There are some hundred
/// chunks for each node.
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

/// How the index is made anew.
pub(super) struct Rebuild<'a> {
    pub(super) options: &'a OpenOptions,
    pub(super) fingerprinter: &'a Fingerprinter,
    pub(super) progress: &'a dyn Progress,
}

/// What the indexes of a pool are opened, or made anew, from.
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

    /// Files that containers are recorded in and that are not there.
    fn missing_files(&self) -> Vec<String> {
        [self.data.missing_files(), self.recipes.missing_files()].concat()
    }

    /// Opens the indexes that count: of chunks, of nodes.
    pub(super) fn open(&self) -> Result<(Index, Index)> {
        let side = self.namespace.index_side();
        let open = |directory: &str, recipe| {
            Index::open(self.device, directory, &self.superblock.pool, self.options(recipe))
                .map_err(|error| index_advice(directory, error, &self.missing_files()))
        };
        Ok((open(chunk_index(side), false)?, open(recipe_index(side), true)?))
    }

    /// Makes them anew, on the other side, which counts from then on.
    pub(super) fn rebuild(&self, rebuild: &Rebuild<'_>) -> Result<(Index, Index, RebuildReport)> {
        let used = self.namespace.index_side();
        // What is in use is nothing to go on from: were it to be replaced and found again, it would look like it.
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
            // What is quarantined must not be taken for good because a table names it.
            read_data: rebuild.options.rebuild_reads_data || self.namespace.has_losses(),
            progress: rebuild.progress,
        };
        rebuilder.run()
    }
}

/// Removes what does not count: indexes that were replaced, or half built beside those that are about to change. What cannot
/// be removed costs only its space. Returns how many files went.
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

/// Removes what a checkpoint that was not finished left. What cannot be removed costs only its space, and the next checkpoint
/// tries again. Returns how many files went.
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

/// Bytes of the indexes that do not count.
pub(super) fn unused_bytes(device: &dyn Device, used: IndexSide) -> Result<u64> {
    let [chunks, nodes] = both(used.other());
    Ok(Index::disk_bytes(device, chunks)? + Index::disk_bytes(device, nodes)?)
}

/// The index is never the only copy of anything: whatever is wrong with it, it can be made anew, from the files of containers that are
/// there. What lay in `missing` is given up by that.
pub(super) fn index_advice(directory: &str, error: StoreError, missing: &[String]) -> StoreError {
    let advice = if missing.is_empty() {
        "nothing is lost: make it anew with `dedupfs fsck --rebuild-index POOL`".to_owned()
    } else {
        give_up_advice(missing)
    };
    advised(format!("the index in {directory}"), "a sound index", error, &advice)
}

/// What was written last, and is not in the indexes' checkpoints, cannot be counted from the containers.
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

/// What is wrong with something that is derived, with what can be done; other errors as they are.
fn advised(what: String, expected: &str, error: StoreError, advice: &str) -> StoreError {
    match error {
        StoreError::Corrupt { .. } | StoreError::NotFound { .. } => {
            StoreError::Corrupt { what, expected: expected.to_owned(), found: format!("{error}; {advice}") }
        }
        other => other,
    }
}
