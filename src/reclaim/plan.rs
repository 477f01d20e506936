//! What reclaiming would do, computed from the indexes and the recipes that would be freed. Changes nothing.

use std::collections::{HashMap, HashSet};

use dedupfs_store::{ContainerId, Fingerprint};

use super::{ReclaimOptions, ReclaimReport, Reclaimer};
use crate::error::Result;

/// References that would go.
#[derive(Default)]
struct Gone {
    nodes: HashMap<Fingerprint, u32>,
    chunks: HashMap<Fingerprint, u32>,
}

impl Reclaimer<'_> {
    pub(super) fn plan(&self, options: &ReclaimOptions, report: &mut ReclaimReport) -> Result<()> {
        let mut gone = Gone::default();
        let freed = self.nodes_to_free(&mut gone)?;
        report.nodes_freed = freed.len() as u64;
        let mut dead_chunks: HashMap<ContainerId, u64> = HashMap::new();
        let mut live_chunks: HashMap<ContainerId, (u64, u64)> = HashMap::new();
        self.chunk_index.for_each(&mut |fingerprint, cell| {
            if cell.references > gone.chunks.get(&fingerprint).copied().unwrap_or(0) {
                let live = live_chunks.entry(cell.location.container).or_default();
                live.0 += u64::from(cell.location.len_bytes);
                live.1 += 1;
            } else {
                *dead_chunks.entry(cell.location.container).or_default() += 1;
            }
            Ok(())
        })?;
        let mut live_nodes: HashMap<ContainerId, (u64, u64)> = HashMap::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            if !freed.contains(&fingerprint) {
                let live = live_nodes.entry(cell.location.container).or_default();
                live.0 += u64::from(cell.location.len_bytes);
                live.1 += 1;
            }
            Ok(())
        })?;
        let mut expected_bytes = report.physical_before_bytes;
        for (recipe, live, dead) in [(false, live_chunks, dead_chunks), (true, live_nodes, HashMap::new())] {
            expected_bytes = expected_bytes.saturating_sub(self.plan_kind(recipe, &live, &dead, options, report));
        }
        report.physical_after_bytes = expected_bytes;
        Ok(())
    }

    /// Adds what emptying containers of this kind would do; returns the physical bytes it would free.
    fn plan_kind(
        &self,
        recipe: bool,
        live: &HashMap<ContainerId, (u64, u64)>,
        dead: &HashMap<ContainerId, u64>,
        options: &ReclaimOptions,
        report: &mut ReclaimReport,
    ) -> u64 {
        // A run seals what is open before it begins.
        let closed = self.store(recipe).containers();
        let live_bytes = |id| live.get(&id).map_or(0, |&(bytes, _)| bytes);
        let (mut victims, garbage_left_bytes) = Self::victims(&closed, &live_bytes, options);
        report.garbage_left_bytes += garbage_left_bytes;
        let planned = victims.len();
        victims.retain(|container| !self.would_be_kept(recipe, *container));
        report.containers_damaged += (planned - victims.len()) as u64;
        report.containers_freed += victims.len() as u64;
        let victims: HashSet<ContainerId> = victims.into_iter().collect();
        let mut freed_bytes = 0;
        for record in closed.iter().filter(|record| victims.contains(&record.id)) {
            let (bytes, chunks) = live.get(&record.id).copied().unwrap_or_default();
            report.chunks_moved += chunks;
            report.chunks_removed += dead.get(&record.id).copied().unwrap_or(0);
            report.moved_bytes += bytes;
            // What is copied forward compresses as it did before.
            let kept = u128::from(record.used_bytes) * u128::from(bytes) / u128::from(record.chunk_bytes.max(1));
            freed_bytes += u64::from(record.used_bytes).saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX));
        }
        freed_bytes
    }

    /// Whether a run would leave the container as it is: damaged, or with what the index calls lost and may be here alone.
    fn would_be_kept(&self, recipe: bool, container: ContainerId) -> bool {
        let store = self.store(recipe);
        let has_losses = self.namespace.has_losses();
        if !has_losses && !store.is_damaged(container) {
            return false;
        }
        let Ok(table) = store.table(container) else { return true };
        let is_lost = |fingerprint: &Fingerprint| {
            let cell = self.index(recipe).get(fingerprint);
            cell.map_or(true, |cell| cell.is_some_and(|cell| cell.location.is_lost() && cell.references > 0))
        };
        // While anything is lost, a run verifies what it empties; what reads well but for this is not looked for here.
        store.is_damaged(container) && store.verify(container).is_err()
            || has_losses && table.is_some_and(|table| table.entries.iter().any(|entry| is_lost(&entry.fingerprint)))
    }

    /// Nodes that nothing refers to, and those that only they refer to, and so on.
    fn nodes_to_free(&self, gone: &mut Gone) -> Result<HashSet<Fingerprint>> {
        let mut work = Vec::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            if cell.references == 0 && !self.dedup.pins().is_pinned(&fingerprint) {
                work.push((fingerprint, cell.location.container));
            }
            Ok(())
        })?;
        let mut freed = HashSet::new();
        while let Some((fingerprint, container)) = work.pop() {
            if !freed.insert(fingerprint) {
                continue;
            }
            let Ok(view) = self.dedup.nodes().node_of(&fingerprint, container) else {
                freed.remove(&fingerprint);
                continue;
            };
            for child in view.children().iter().filter(|child| !child.fingerprint.is_zero()) {
                if view.level == 0 {
                    *gone.chunks.entry(child.fingerprint).or_insert(0) += 1;
                    continue;
                }
                let dropped = gone.nodes.entry(child.fingerprint).or_insert(0);
                *dropped += 1;
                if let Some(cell) = self.recipe_index.committed(&child.fingerprint)?
                    && cell.references <= *dropped
                {
                    work.push((child.fingerprint, cell.location.container));
                }
            }
        }
        Ok(freed)
    }
}
