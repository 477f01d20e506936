//! Emptying containers: claim, wait, copy the living forward, commit, free.

use std::collections::{HashMap, HashSet};

use dedupfs_store::{ContainerId, StoreError};

use super::{ReclaimOptions, ReclaimReport, Reclaimer};
use crate::containers::{ContainerStore, RECLAIM_STREAM};
use crate::error::{EngineError, Result};
use crate::namespace::LogOp;
use crate::pool::Progress;

/// Containers emptied between two commits: bounds what a crash repeats and what is occupied twice.
const CONTAINERS_AT_ONCE: usize = 64;

impl Reclaimer<'_> {
    /// Uncompressed bytes of each container's chunks that something refers to.
    pub(super) fn live_bytes(&self, recipe: bool) -> Result<HashMap<ContainerId, u64>> {
        let mut live: HashMap<ContainerId, u64> = HashMap::new();
        let index = if recipe { self.recipe_index } else { self.chunk_index };
        index.for_each(&mut |_, cell| {
            // A node without references is still counted: an open file may hold it, else it was freed before.
            if cell.references > 0 || recipe {
                *live.entry(cell.location.container).or_insert(0) += u64::from(cell.location.len_bytes);
            }
            Ok(())
        })?;
        Ok(live)
    }

    /// Containers whose live share is below the threshold, emptiest first; those without anything alive always.
    pub(super) fn victims(
        &self,
        recipe: bool,
        live: &HashMap<ContainerId, u64>,
        options: &ReclaimOptions,
    ) -> (Vec<ContainerId>, u64) {
        let mut victims = Vec::new();
        let mut garbage_left_bytes = 0;
        let store = self.store(recipe);
        for record in store.containers() {
            // One that is still written will be sealed sooner or later; one that a crash left open is closed for good.
            if !store.is_closed(record.id) {
                continue;
            }
            let live_bytes = live.get(&record.id).copied().unwrap_or(0);
            let below =
                u128::from(live_bytes) * 100 < u128::from(record.chunk_bytes) * u128::from(options.threshold_percent);
            if live_bytes == 0 || below {
                victims.push((live_bytes, record.id));
            } else {
                garbage_left_bytes += record.chunk_bytes.saturating_sub(live_bytes);
            }
        }
        victims.sort_unstable();
        (victims.into_iter().map(|(_, id)| id).collect(), garbage_left_bytes)
    }

    pub(super) fn empty_containers(
        &self,
        recipe: bool,
        options: &ReclaimOptions,
        report: &mut ReclaimReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        let live = self.live_bytes(recipe)?;
        let (victims, garbage_left_bytes) = self.victims(recipe, &live, options);
        report.garbage_left_bytes += garbage_left_bytes;
        progress.start(if recipe { "emptying recipe containers" } else { "emptying containers" }, victims.len() as u64);
        for batch in victims.chunks(CONTAINERS_AT_ONCE) {
            self.empty_batch(recipe, batch, report)?;
            progress.advance(batch.len() as u64);
        }
        progress.finish();
        Ok(())
    }

    fn empty_batch(&self, recipe: bool, batch: &[ContainerId], report: &mut ReclaimReport) -> Result<()> {
        self.dedup.claim_containers(batch.iter().copied());
        self.dedup.barrier();
        self.committer.settle()?;
        for &container in batch {
            self.empty_one(recipe, container, report)?;
        }
        // The copies and removals become durable, and the log that might still read these containers superfluous.
        self.committer.checkpoint()?;
        self.committer.remove_containers(batch.to_vec());
        self.committer.settle()?;
        self.dedup.release_containers();
        report.containers_freed += batch.len() as u64;
        Ok(())
    }

    fn empty_one(&self, recipe: bool, container: ContainerId, report: &mut ReclaimReport) -> Result<()> {
        let store = self.store(recipe);
        let index = if recipe { self.recipe_index } else { self.chunk_index };
        let Some(table) = store.table(container)? else { return Ok(()) };
        let mut seen = HashSet::with_capacity(table.entries.len());
        for entry in &table.entries {
            let fingerprint = entry.fingerprint;
            if !seen.insert(fingerprint) {
                continue;
            }
            let Some(cell) = index.get(&fingerprint)? else { continue };
            if cell.location.container != container {
                continue;
            }
            if cell.references == 0 && !recipe {
                self.namespace.log(LogOp::ChunkRemoved { fingerprint, container });
                report.chunks_removed += 1;
                continue;
            }
            self.dedup.wait_for_room()?;
            let data = store.read_chunk(container, &fingerprint, Some(entry.len_bytes))?.ok_or_else(|| {
                EngineError::from(StoreError::corrupt(format!("container {container}"), fingerprint, "no such chunk"))
            })?;
            if self.dedup.copy_forward(recipe, RECLAIM_STREAM, container, fingerprint, &data)? {
                report.chunks_moved += 1;
                report.moved_bytes += data.len() as u64;
            }
        }
        self.committer.relieve()
    }

    pub(super) fn store(&self, recipe: bool) -> &ContainerStore {
        if recipe { self.recipes } else { self.data }
    }
}
