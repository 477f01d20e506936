//! Emptying containers: claim, wait, copy the living forward, commit, free.

use std::collections::{HashMap, HashSet};

use dedupfs_index::Index;
use dedupfs_store::{ContainerId, StoreError};

use super::{ReclaimOptions, ReclaimReport, Reclaimer};
use crate::containers::{ContainerStore, RECLAIM_STREAM};
use crate::error::{EngineError, Result};
use crate::namespace::{ContainerRecord, LogOp};
use crate::pool::Progress;

/// Containers emptied between two commits: bounds what a crash repeats and what is occupied twice.
const CONTAINERS_AT_ONCE: usize = 64;

/// Bytes that copying what is alive in a container takes at most, about: it compresses as it did.
fn copy_bytes(record: &ContainerRecord, live_bytes: u64) -> u64 {
    const PADDING_BYTES: u64 = 64 << 10;
    if live_bytes == 0 {
        return 0;
    }
    let share = u128::from(record.used_bytes) * u128::from(live_bytes) / u128::from(record.chunk_bytes.max(1));
    // Chunks of one region can compress less well than the mean.
    let likely = u64::try_from(share).unwrap_or(u64::MAX).saturating_mul(3) / 2;
    likely.min(live_bytes + live_bytes / 8) + PADDING_BYTES
}

/// What is emptied between two commits: first all that is dead, which frees space without taking any; then as many, emptiest
/// first, as fit into `room_bytes`. None if not even one fits.
fn batch<'v>(victims: &'v [ContainerId], room_bytes: u64, cost: &dyn Fn(&ContainerId) -> u64) -> &'v [ContainerId] {
    let most = victims.get(..CONTAINERS_AT_ONCE).unwrap_or(victims);
    let dead = most.iter().take_while(|id| cost(id) == 0).count();
    let mut left_bytes = Some(room_bytes);
    let mut fits = |id: &ContainerId| {
        left_bytes = left_bytes.and_then(|left| left.checked_sub(cost(id)));
        left_bytes.is_some()
    };
    let count = if dead > 0 { dead } else { most.iter().take_while(|id| fits(id)).count() };
    most.get(..count).unwrap_or_default()
}

/// How emptying one container went.
enum Emptied {
    /// So many cells no longer name it.
    Of(u64),
    /// It cannot be read; what was moved until then is moved.
    Unreadable(EngineError),
}

/// What the index places in one container.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Content {
    /// Uncompressed bytes that something refers to.
    pub live_bytes: u64,
    /// Cells, referred to or not.
    pub cells: u64,
}

impl Reclaimer<'_> {
    /// What the index places in each container.
    pub(super) fn contents(&self, recipe: bool) -> Result<HashMap<ContainerId, Content>> {
        let mut contents: HashMap<ContainerId, Content> = HashMap::new();
        self.index(recipe).for_each(&mut |_, cell| {
            let content = contents.entry(cell.location.container).or_default();
            content.cells += 1;
            // A node without references counts as alive: an open file may hold it, else it was freed before.
            if cell.references > 0 || recipe {
                content.live_bytes += u64::from(cell.location.len_bytes);
            }
            Ok(())
        })?;
        Ok(contents)
    }

    /// Containers that are closed. One that is still written will be sealed sooner or later; one that a crash left open
    /// is closed for good.
    pub(super) fn closed_containers(&self, recipe: bool) -> Vec<ContainerRecord> {
        let store = self.store(recipe);
        let mut records = store.containers();
        records.retain(|record| store.is_closed(record.id));
        records
    }

    /// Of `closed`, those whose live share is below the threshold, emptiest first; those without anything alive, and damaged
    /// ones, always.
    /// And the garbage in the others.
    pub(super) fn victims(
        closed: &[ContainerRecord],
        live_bytes: &dyn Fn(ContainerId) -> u64,
        options: &ReclaimOptions,
    ) -> (Vec<ContainerId>, u64) {
        let mut victims = Vec::new();
        let mut garbage_left_bytes = 0;
        for record in closed {
            let live_bytes = live_bytes(record.id);
            let below =
                u128::from(live_bytes) * 100 < u128::from(record.chunk_bytes) * u128::from(options.threshold_percent);
            if live_bytes == 0 || below || record.damaged {
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
        if self.control.is_stopped() {
            return Ok(());
        }
        // The list first: what is closed later could not be in the contents.
        let closed = self.closed_containers(recipe);
        self.committer.settle()?;
        let contents = self.contents(recipe)?;
        let live_bytes = |id| contents.get(&id).map_or(0, |content| content.live_bytes);
        let (victims, garbage_left_bytes) = Self::victims(&closed, &live_bytes, options);
        report.garbage_left_bytes += garbage_left_bytes;
        progress.start(if recipe { "emptying recipe containers" } else { "emptying containers" }, victims.len() as u64);
        let copy_bytes: HashMap<ContainerId, u64> =
            closed.iter().map(|record| (record.id, copy_bytes(record, live_bytes(record.id)))).collect();
        let mut rest = victims.as_slice();
        while !rest.is_empty() && !self.control.is_stopped() {
            let cost = |id: &ContainerId| copy_bytes.get(id).copied().unwrap_or(0);
            let batch = batch(rest, self.space.step_bytes(recipe)?, &cost);
            if batch.is_empty() {
                // The others have more alive: what is left of the space would be used up without freeing anything.
                tracing::warn!(
                    containers = rest.len(),
                    "no space to empty these: delete more, or free space on the disk"
                );
                report.containers_without_space += rest.len() as u64;
                break;
            }
            self.empty_batch(recipe, batch, &contents, report)?;
            progress.advance(batch.len() as u64);
            rest = rest.get(batch.len()..).unwrap_or_default();
        }
        progress.finish();
        Ok(())
    }

    fn empty_batch(
        &self,
        recipe: bool,
        batch: &[ContainerId],
        contents: &HashMap<ContainerId, Content>,
        report: &mut ReclaimReport,
    ) -> Result<()> {
        self.dedup.claim_containers(batch.iter().copied());
        self.dedup.barrier();
        self.committer.settle()?;
        let mut emptied = Vec::with_capacity(batch.len());
        let mut unread = HashSet::new();
        for &container in batch {
            if self.control.is_stopped() {
                break;
            }
            let cells = contents.get(&container).map_or(0, |content| content.cells);
            // Nothing that anybody needs lies there, and nothing is lost that might: it is freed without reading it, whether
            // it can be read or not.
            if cells == 0 && !self.namespace.has_losses() {
                emptied.push(container);
                unread.insert(container);
                continue;
            }
            match self.empty_one(recipe, container, report) {
                // While files need what no container seems to have, it may lie where this table cannot be read now.
                Ok(Emptied::Of(handled)) if handled >= cells && !self.namespace.has_losses() => emptied.push(container),
                // The table shows less than the index placed here: writers have stored the rest again meanwhile, or the
                // table is not whole.
                Ok(Emptied::Of(handled)) => match self.store(recipe).verify(container) {
                    Ok(()) => emptied.push(container),
                    Err(error) => {
                        tracing::error!(%container, handled, cells, %error, "a container is kept: it cannot be read");
                        report.containers_damaged += 1;
                    }
                },
                // Damaged, or the disk does not give it: one container costs the run nothing but that container.
                Ok(Emptied::Unreadable(error)) => {
                    tracing::error!(%container, %error, "a container is kept: it cannot be read");
                    report.containers_damaged += 1;
                }
                Err(error) => return Err(error),
            }
            self.committer.pace()?;
        }
        // The copies and removals become durable, and the log that might still read these containers superfluous.
        self.committer.checkpoint()?;
        // What was found lost meanwhile may lie in what was not read.
        if self.namespace.has_losses() {
            emptied.retain(|container| !unread.contains(container));
        }
        self.committer.remove_containers(emptied.clone());
        self.committer.settle()?;
        // Their slots are free once the export on the data root does not name them any more.
        self.committer.export()?;
        self.dedup.release_containers();
        report.containers_freed += emptied.len() as u64;
        Ok(())
    }

    /// Copies what is alive forward and removes what is dead.
    ///
    /// # Errors
    /// The index cannot be read, or the copies cannot be written: what concerns more than this container.
    fn empty_one(&self, recipe: bool, container: ContainerId, report: &mut ReclaimReport) -> Result<Emptied> {
        let store = self.store(recipe);
        let table = match store.table(container) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(Emptied::Of(0)),
            Err(error) => return Ok(Emptied::Unreadable(error)),
        };
        let mut seen = HashSet::with_capacity(table.entries.len());
        let (mut handled, mut has_lost) = (0, false);
        for entry in &table.entries {
            let fingerprint = entry.fingerprint;
            if !seen.insert(fingerprint) {
                continue;
            }
            let Some(cell) = self.index(recipe).get(&fingerprint)? else { continue };
            if cell.location.container != container {
                // It could not be read when the index was made anew; this may be the only copy.
                has_lost |= cell.location.is_lost() && cell.references > 0;
                continue;
            }
            if cell.references == 0 && !recipe {
                self.namespace.log(LogOp::ChunkRemoved { fingerprint, container });
                report.chunks_removed += 1;
                handled += 1;
                continue;
            }
            self.dedup.wait_for_room()?;
            let data = match store.read_chunk(container, &fingerprint, Some(entry.len_bytes)) {
                Ok(Some(data)) => data,
                Ok(None) => {
                    let what = format!("container {container}");
                    return Ok(Emptied::Unreadable(StoreError::corrupt(what, fingerprint, "no such chunk").into()));
                }
                Err(error) => return Ok(Emptied::Unreadable(error)),
            };
            if self.dedup.copy_forward(recipe, RECLAIM_STREAM, container, fingerprint, &data)? {
                report.chunks_moved += 1;
                report.moved_bytes += data.len() as u64;
            }
            handled += 1;
        }
        if has_lost {
            let (what, expected) = (format!("container {container}"), "nothing that the index calls lost");
            let found = "such: back the same data up again, or run `dedupfs fsck --rebuild-index`";
            return Ok(Emptied::Unreadable(StoreError::corrupt(what, expected, found).into()));
        }
        Ok(Emptied::Of(handled))
    }

    pub(super) fn store(&self, recipe: bool) -> &ContainerStore {
        if recipe { self.recipes } else { self.data }
    }

    pub(super) fn index(&self, recipe: bool) -> &Index {
        if recipe { self.recipe_index } else { self.chunk_index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_go_first_and_then_what_fits() {
        let ids: Vec<ContainerId> = (1..200).map(ContainerId).collect();
        let cost = |id: &ContainerId| if id.0 <= 3 { 0 } else { id.0 };
        assert_eq!(batch(&ids, 0, &cost).len(), 3, "what is dead needs no room");
        let living = &ids[3..];
        assert_eq!(batch(living, 3, &cost).len(), 0);
        assert_eq!(batch(living, 4 + 5 + 5, &cost).len(), 2);
        assert_eq!(batch(living, u64::MAX, &cost).len(), CONTAINERS_AT_ONCE);
        assert!(batch(&[], 10, &cost).is_empty());
        assert_eq!(batch(&ids[..2], 0, &|_| 0).len(), 2);
    }
}
