//! Freeing recipe nodes without references: claim, wait, recheck, free.

use std::collections::HashSet;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Cell;
use dedupfs_store::{ContainerId, Fingerprint, LogOp, OperationsLog, StoreError};
use dedupfs_sync::clock::Instant;

use super::{Run, Stopped};

/// Nodes that are found before they are freed: bounds memory. Fewer in tests, whose pools are small.
const NODES_AT_ONCE: usize = if cfg!(test) { 20 } else { 100_000 };
/// Nodes that cannot be read before no more are tried: the disk may fail altogether.
const UNREADABLE_MAX: usize = 100_000;
/// Nodes claimed together: a step. A run can be held or ended between steps. Each step begins and ends with a commit,
/// so it should not be too short. A node can be of one small file or of 8 MiB of content.
const NODES_OF_A_STEP: usize = 16_384;
/// Nodes claimed together at least, even if fewer were freed before.
const NODES_OF_A_STEP_MIN: usize = 1024;
/// Time after which a step claims no more nodes, and again, frees no more. The claims on the rest end, and the next
/// step takes them.
const STEP_TIME: Duration = Duration::from_secs(2);
/// Nodes claimed or freed between two checks whether the run is to be held or ended.
const NODES_BETWEEN_LOOKS: usize = 64;
/// Unreadable nodes that are logged one by one; the report has their number.
const TOLD_MAX: usize = 20;

/// A visit of all nodes without references. The next level is below it: nodes that lose their last reference by it.
#[derive(Default)]
struct Level {
    found: Vec<(ContainerId, Fingerprint)>,
    has_claimed: bool,
    stopped: Option<Stopped>,
    /// Bad copies that are known.
    quarantined: u64,
    /// Nodes of all levels that could not be read.
    unreadable: HashSet<Fingerprint>,
}

impl Level {
    fn goes_on(&self) -> bool {
        self.stopped.is_none() && self.unreadable.len() < UNREADABLE_MAX
    }
}

/// The result of a step.
struct Step {
    /// Nodes dealt with, from the first.
    nodes: usize,
    /// Whether any of them could be claimed.
    has_claimed: bool,
}

impl Run<'_> {
    /// Frees nodes level by level, until every node in the index has references (or pins). One that a checkpoint moves past the visit is left
    /// to the next level or run.
    ///
    /// Cost of a level: the counts of the index, and its buckets with such nodes.
    pub(super) fn free_nodes(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        self.progress.start("freeing recipes", 0);
        let mut level = Level { has_claimed: true, ..Level::default() };
        while level.goes_on() && level.has_claimed {
            (level.has_claimed, level.quarantined) = (false, 0);
            // A node that is stored again must lie in another container than the freed copy; otherwise the two could
            // not be told apart. So only nodes in closed containers are claimed.
            if !self.report.spared_open {
                core.stores.recipes.seal_all();
            }
            core.committer.settle()?;
            // By now everything that was logged is counted.
            if !self.has_dead_nodes() {
                break;
            }
            for part in core.indexes.nodes.parts() {
                level.stopped = self.pace.between_steps();
                if !level.goes_on() {
                    break;
                }
                let mut failure = None;
                let visited = core.indexes.nodes.for_each_unreferenced(part, &mut |fingerprint, cell| {
                    failure = self.consider(&mut level, fingerprint, cell).err();
                    let goes_on = failure.is_none() && level.goes_on();
                    // Nobody sees this error.
                    if goes_on { Ok(()) } else { Err(StoreError::Usage("the visit ends here".to_owned())) }
                });
                match failure {
                    Some(failure) => return Err(failure),
                    None if !level.goes_on() => break,
                    None => visited?,
                }
            }
            if level.stopped.is_none() {
                self.free_found(&mut level)?;
            }
        }
        self.report.nodes_unreadable += level.quarantined;
        self.report.nodes_unreadable += level.unreadable.len() as u64;
        self.progress.finish();
        Ok(level.stopped)
    }

    /// Whether the index has nodes without references. Lost ones are not in the garbage map.
    fn has_dead_nodes(&self) -> bool {
        let index = &self.core.indexes.nodes;
        index.occupied_total().dead_cells() > 0 || index.lost() > 0
    }

    /// Notes a node without references, if it may be claimed. Frees those that were found once there are enough.
    fn consider(&mut self, level: &mut Level, fingerprint: Fingerprint, cell: Cell) -> Result<()> {
        let container = cell.location.container();
        // A bad copy is unreadable: it still counts its children, and nobody can tell which they are.
        if cell.location.is_quarantined() {
            level.quarantined += 1;
            return Ok(());
        }
        let is_closed = container == ContainerId::NONE || self.core.stores.recipes.closed_record(container).is_some();
        if is_closed && !level.unreadable.contains(&fingerprint) && !self.core.dedup.is_pinned(&fingerprint) {
            level.found.push((container, fingerprint));
        }
        if level.found.len() >= NODES_AT_ONCE { self.free_found(level) } else { Ok(()) }
    }

    /// Frees the nodes that were found, in disk order, so that each region is read once for all its nodes.
    fn free_found(&mut self, level: &mut Level) -> Result<()> {
        let mut found = std::mem::take(&mut level.found);
        found.sort_unstable();
        // One that changes meanwhile is shown twice.
        found.dedup();
        let (mut rest, mut step_nodes) = (found.as_slice(), NODES_OF_A_STEP);
        while !rest.is_empty() {
            level.stopped = self.pace.between_steps();
            if level.stopped.is_some() {
                break;
            }
            let step = rest.get(..step_nodes).unwrap_or(rest);
            let done = self.free_step(step, &mut level.unreadable)?;
            level.has_claimed |= done.has_claimed;
            rest = rest.get(done.nodes..).unwrap_or_default();
            // Claims beyond the available time are wasted.
            step_nodes = (done.nodes * 2).clamp(NODES_OF_A_STEP_MIN, NODES_OF_A_STEP);
        }
        Ok(())
    }

    /// Claims, rechecks and frees as many nodes, from the first, as there is time for.
    fn free_step(
        &mut self,
        nodes: &[(ContainerId, Fingerprint)],
        unreadable: &mut HashSet<Fingerprint>,
    ) -> Result<Step> {
        let core = self.core;
        if core.committer.is_held_up() {
            return Err(EngineError::NoSpace);
        }
        // A claimed node must not be lost and stored again before it is freed: its children would not be counted again.
        let _losses = core.committer.hold_losses();
        let mut claimed = Vec::with_capacity(nodes.len());
        let mut done = Step { nodes: nodes.len(), has_claimed: false };
        let begun = Instant::now();
        for (number, &(container, fingerprint)) in nodes.iter().enumerate() {
            if self.is_step_over(number, begun) {
                done.nodes = number;
                break;
            }
            if core.dedup.claim_node(fingerprint, container)? {
                claimed.push((number, fingerprint, container));
            }
        }
        if claimed.is_empty() {
            return Ok(done);
        }
        done.has_claimed = true;
        // A writer that found one of these nodes before the claim is in a section until its reference is logged.
        core.dedup.barrier();
        core.committer.settle()?;
        core.committer.check_counts()?;
        let (begun, mut freed) = (Instant::now(), 0);
        for (at, (number, fingerprint, container)) in claimed.into_iter().enumerate() {
            if self.is_step_over(at, begun) {
                done.nodes = number;
                break;
            }
            // A lost node counts no children.
            if container == ContainerId::NONE {
                freed += u64::from(core.dedup.free_node(0, fingerprint, container, 0)?);
                continue;
            }
            match core.dedup.nodes().node_of(&fingerprint, container) {
                Ok(view) => {
                    let references = view.references().len();
                    freed += u64::from(core.dedup.free_node(view.level(), fingerprint, container, references)?);
                    core.committer.pace()?;
                }
                // Its children are unknown, so it stays, unless it was stored again.
                Err(error) => {
                    if !core.dedup.keep_unreadable_node(fingerprint, container)? {
                        if unreadable.len() < TOLD_MAX {
                            tracing::error!(%fingerprint, %container, %error, "a recipe node cannot be freed");
                        }
                        unreadable.insert(fingerprint);
                    }
                }
            }
        }
        self.report.nodes_freed += freed;
        self.progress.advance(freed);
        self.note(false);
        core.committer.settle()?;
        core.dedup.release_nodes();
        Ok(done)
    }

    /// Whether a step ends after dealing with `nodes` nodes: it always deals with some.
    fn is_step_over(&self, nodes: usize, begun: Instant) -> bool {
        let is_looked_at = nodes > 0 && nodes.is_multiple_of(NODES_BETWEEN_LOOKS);
        is_looked_at && (begun.elapsed() >= STEP_TIME || self.pace.is_urgent())
    }

    /// Makes the index forget lost chunks without references.
    pub(super) fn forget_lost_chunks(&mut self) -> Result<()> {
        if !self.core.namespace.has_losses() {
            return Ok(());
        }
        // A writer that found a chunk before its quarantine has been counted once this lock is held. After the
        // quarantine, writers store the chunk again. So no first reference can appear between the check of its count
        // and the removal.
        let _losses = self.core.committer.hold_losses();
        // As for containers: noted before everything logged is counted.
        let pinned = self.core.dedup.pinned_chunks();
        self.core.committer.settle()?;
        self.core.committer.check_counts()?;
        let mut lost = Vec::new();
        self.core.indexes.chunks.for_each_lost(&mut |fingerprint, cell| {
            // A pinned chunk will have a reference, and is needed then.
            if cell.references == 0 && !pinned.contains(&fingerprint) {
                lost.push(fingerprint);
            }
            Ok(())
        })?;
        self.report.chunks_removed += lost.len() as u64;
        for fingerprint in lost {
            // A chunk that was stored again has a container, and stays.
            self.core.namespace.log(LogOp::ChunkRemoved { fingerprint, container: ContainerId::NONE });
            self.core.committer.pace()?;
        }
        Ok(())
    }

    /// Clears the mark of losses once every lost chunk is stored again or forgotten: then writers need not look for
    /// them.
    pub(super) fn note_losses(&self) -> Result<()> {
        // If counts are in doubt, so is the number of losses.
        if !self.core.namespace.has_losses() || self.core.namespace.has_doubt() {
            return Ok(());
        }
        let _losses = self.core.committer.hold_losses();
        let inconsistencies = self.core.committer.inconsistencies();
        let lost = self.core.indexes.chunks.lost() + self.core.indexes.nodes.lost();
        if lost > 0 {
            tracing::warn!(lost, "chunks and recipe nodes are lost: backing up the same data again heals the files");
            return Ok(());
        }
        if let Err(error) = self.core.namespace.set_losses(false) {
            tracing::warn!(%error, "no losses are left, but this could not be recorded; the next run records it");
        }
        // A row counted in the meantime may have found a chunk without a place.
        if self.core.committer.inconsistencies() == inconsistencies {
            Ok(())
        } else {
            self.core.namespace.set_losses(true)
        }
    }
}
