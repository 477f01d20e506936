//! Opens, rebuilds and clears away the indexes of a pool.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::{Fingerprinter, Stores};
use dedupfs_index::{Index, IndexOptions};
use dedupfs_namespace::{IndexSide, Namespace};
use dedupfs_store::device::Device;
use dedupfs_store::superblock::Superblock;
use dedupfs_store::{ContainerKind, StoreError};

use super::open::OpenOptions;
use crate::config::{Fingerprints, MemoryPlan};
use crate::durability::indexes::{both, chunk_index, index_options, recipe_index};
use crate::progress::Progress;
use crate::upkeep::check::{BuildPlace, RebuildReport, Rebuilder};

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
    pub(super) stores: &'a Stores,
}

impl IndexSources<'_> {
    fn options(&self, kind: ContainerKind) -> IndexOptions {
        index_options(&self.superblock.properties, self.memory, kind)
    }

    /// Names the missing slot files that container records point into.
    fn missing_files(&self) -> Vec<String> {
        [self.stores.data.missing_files(), self.stores.recipes.missing_files()].concat()
    }

    /// Opens the indexes that count: chunks, then nodes.
    pub(super) fn open(&self) -> Result<(Index, Index)> {
        let side = self.namespace.index_side();
        let open = |directory: &str, kind| {
            Index::open(self.device, directory, &self.superblock.pool, self.options(kind))
                .map_err(|error| index_advice(directory, error, &self.missing_files()))
        };
        Ok((open(chunk_index(side), ContainerKind::Data)?, open(recipe_index(side), ContainerKind::Recipe)?))
    }

    /// Rebuilds both indexes on the other side, which counts from then on.
    ///
    /// Filters have room for the fingerprints that the containers name, also if that takes from caches, which have no work meanwhile.
    pub(super) fn rebuild(&self, rebuild: &Rebuild<'_>) -> Result<RebuildReport> {
        let fingerprints = Fingerprints { chunks: self.stores.data.chunks(), nodes: self.stores.recipes.chunks() };
        let memory = MemoryPlan::new(self.memory.total_bytes, fingerprints);
        // A rebuild counts nodes one by one, as it does chunks.
        let open_bytes = |kind| memory.by_number(kind, memory.open_bytes);
        let options = |kind| IndexOptions {
            open_bytes: open_bytes(kind),
            ..index_options(&self.superblock.properties, &memory, kind)
        };
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
            chunks: BuildPlace { directory: chunk_index(side), options: options(ContainerKind::Data) },
            nodes: BuildPlace { directory: recipe_index(side), options: options(ContainerKind::Recipe) },
            namespace: self.namespace,
            stores: self.stores,
            fingerprinter: rebuild.fingerprinter,
            // A quarantined copy must not be taken for good because a table names it.
            read_data: rebuild.options.rebuild_reads_data || self.namespace.has_losses(),
            // Read-only, the new index lies in memory.
            with_guides: !rebuild.options.read_only,
            progress: rebuild.progress,
        };
        let (_, _, report) = rebuilder.run()?;
        Ok(report)
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
