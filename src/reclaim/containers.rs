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
        // The list first: what is closed later could not be in the contents.
        let closed = self.closed_containers(recipe);
        self.committer.settle()?;
        let contents = self.contents(recipe)?;
        let live_bytes = |id| contents.get(&id).map_or(0, |content| content.live_bytes);
        let (victims, garbage_left_bytes) = Self::victims(&closed, &live_bytes, options);
        report.garbage_left_bytes += garbage_left_bytes;
        progress.start(if recipe { "emptying recipe containers" } else { "emptying containers" }, victims.len() as u64);
        for batch in victims.chunks(CONTAINERS_AT_ONCE) {
            self.empty_batch(recipe, batch, &contents, report)?;
            progress.advance(batch.len() as u64);
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
            self.committer.relieve()?;
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

    fn index(&self, recipe: bool) -> &Index {
        if recipe { self.recipe_index } else { self.chunk_index }
    }
}
