//! Freeing recipe nodes that nothing refers to: claim, wait, recheck, free.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dedupfs_store::{ContainerId, Fingerprint};

use super::{Run, Stopped};
use crate::error::{EngineError, Result};
use crate::namespace::LogOp;

/// Nodes found by one scan of their index: bounds memory.
const NODES_AT_ONCE: usize = 100_000;
/// Nodes claimed together: a step, between two of which a run can be held or ended. Each begins and ends with a commit, so it should
/// not be too short, and nodes can be of one small file or of 4 MiB of content.
const NODES_OF_A_STEP: usize = 16_384;
/// Nodes claimed together at least, however few could be freed before.
const NODES_OF_A_STEP_MIN: usize = 1024;
/// After so long no more nodes are claimed, and after so long again no more of them are freed: the claims on the others end, and
/// they are the next step's.
const STEP_TIME: Duration = Duration::from_secs(2);
/// Nodes claimed or freed before it is looked whether the run is to be held or ended.
const NODES_BETWEEN_LOOKS: usize = 64;
/// Nodes that cannot be read and are told of one by one; the report has their number.
const TOLD_MAX: usize = 20;

/// What a step came to.
struct Step {
    /// So many nodes, from the first, were dealt with.
    nodes: usize,
    /// Whether any of them could be claimed.
    has_claimed: bool,
}

impl Run<'_> {
    /// Frees nodes level by level, until every node in the index is referred to (or pinned).
    pub(super) fn free_nodes(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        self.progress.start("freeing recipes", 0);
        let mut unreadable = HashSet::new();
        let mut stopped = None;
        // A disk that gives nothing any more is not asked for every node.
        while unreadable.len() < NODES_AT_ONCE && stopped.is_none() {
            // A node that is stored again must come to lie in another container than the copy that is freed, or the two
            // could not be told apart: so only nodes in containers that nothing is appended to any more are claimed.
            if !self.report.spared_open {
                core.recipes.seal_all();
            }
            core.committer.settle()?;
            let found = self.unreferenced(&mut unreadable)?;
            let mut has_claimed = false;
            let (mut rest, mut step_nodes) = (found.as_slice(), NODES_OF_A_STEP);
            while !rest.is_empty() {
                stopped = self.pace.between_steps();
                if stopped.is_some() {
                    break;
                }
                let step = rest.get(..step_nodes).unwrap_or(rest);
                let done = self.free_step(step, &mut unreadable)?;
                has_claimed |= done.has_claimed;
                rest = rest.get(done.nodes..).unwrap_or_default();
                // Claiming many more than there is time for is for nothing.
                step_nodes = (done.nodes * 2).clamp(NODES_OF_A_STEP_MIN, NODES_OF_A_STEP);
            }
            if !has_claimed {
                break;
            }
        }
        self.report.nodes_unreadable += unreadable.len() as u64;
        self.progress.finish();
        Ok(stopped)
    }

    /// Claims, rechecks and frees some nodes: as many from the first as there is time for.
    fn free_step(
        &mut self,
        nodes: &[(Fingerprint, ContainerId)],
        unreadable: &mut HashSet<Fingerprint>,
    ) -> Result<Step> {
        let core = self.core;
        if core.committer.is_held_up() {
            return Err(EngineError::NoSpace);
        }
        // Until what is claimed is freed, none of it may be lost and stored again: that counts its children once.
        let _losses = core.committer.hold_losses();
        let mut claimed = Vec::with_capacity(nodes.len());
        let mut done = Step { nodes: nodes.len(), has_claimed: false };
        let begun = Instant::now();
        for (number, &(fingerprint, container)) in nodes.iter().enumerate() {
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
        // Writers that found one of these before the claim are in a section until their reference is logged.
        core.dedup.barrier();
        core.committer.settle()?;
        core.committer.check_counts()?;
        let (begun, mut freed) = (Instant::now(), 0);
        for (at, (number, fingerprint, container)) in claimed.into_iter().enumerate() {
            if self.is_step_over(at, begun) {
                done.nodes = number;
                break;
            }
            // A lost one counts nothing.
            if container == ContainerId::NONE {
                freed += u64::from(core.dedup.free_node(0, fingerprint, container, 0)?);
                continue;
            }
            match core.dedup.nodes().node_of(&fingerprint, container) {
                Ok(view) => {
                    let children = view.children().len();
                    freed += u64::from(core.dedup.free_node(view.level, fingerprint, container, children)?);
                    core.committer.pace()?;
                }
                // What its children count is not known, so it stays; and it may be stored again.
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

    /// Whether a step that has dealt with so many nodes goes no further: at least some are always dealt with.
    fn is_step_over(&self, nodes: usize, begun: Instant) -> bool {
        let is_looked_at = nodes > 0 && nodes.is_multiple_of(NODES_BETWEEN_LOOKS);
        is_looked_at && (begun.elapsed() >= STEP_TIME || self.pace.is_urgent())
    }

    /// Makes the index forget chunks that are lost and that nothing refers to any more.
    pub(super) fn forget_lost_chunks(&mut self) -> Result<()> {
        if !self.core.namespace.has_losses() {
            return Ok(());
        }
        // Who found a chunk before it was quarantined has counted it by the time that this is taken. From then on writers store it again,
        // so nobody refers to it for the first time between the look at its count and the removal.
        let _losses = self.core.committer.hold_losses();
        self.core.committer.check_counts()?;
        let mut lost = Vec::new();
        self.core.chunk_index.for_each(&mut |fingerprint, cell| {
            if cell.references == 0 && cell.location.is_lost() {
                lost.push(fingerprint);
            }
            Ok(())
        })?;
        self.report.chunks_removed += lost.len() as u64;
        for fingerprint in lost {
            // One that was stored again meanwhile lies in a container, and stays.
            self.core.namespace.log(LogOp::ChunkRemoved { fingerprint, container: ContainerId::NONE });
            self.core.committer.pace()?;
        }
        Ok(())
    }

    /// Once everything that was lost was stored again or forgotten, writers need not look for it any more.
    pub(super) fn note_losses(&self) -> Result<()> {
        // Where counts are in doubt, what is lost is, too.
        if !self.core.namespace.has_losses() || self.core.namespace.has_doubt() {
            return Ok(());
        }
        let _losses = self.core.committer.hold_losses();
        let inconsistencies = self.core.committer.inconsistencies();
        let lost = self.core.chunk_index.lost() + self.core.recipe_index.lost();
        if lost > 0 {
            tracing::warn!(lost, "chunks and recipe nodes are lost: backing up the same data again heals the files");
            return Ok(());
        }
        if let Err(error) = self.core.namespace.set_losses(false) {
            tracing::warn!(%error, "nothing is lost any more, but that could not be noted; the next run notes it");
        }
        // Something that was counted meanwhile may be nowhere.
        if self.core.committer.inconsistencies() == inconsistencies {
            Ok(())
        } else {
            self.core.namespace.set_losses(true)
        }
    }

    /// Nodes that nothing refers to, as they lie on the disk: so each region is read once for all nodes in it.
    fn unreferenced(&self, unreadable: &mut HashSet<Fingerprint>) -> Result<Vec<(Fingerprint, ContainerId)>> {
        let mut candidates = Vec::new();
        self.core.recipe_index.for_each(&mut |fingerprint, cell| {
            let container = cell.location.container;
            // Its children's counts hold what it names, which nobody can tell any more.
            if cell.references == 0 && cell.location.is_bad() && unreadable.len() < NODES_AT_ONCE {
                unreadable.insert(fingerprint);
            }
            if cell.references == 0
                && candidates.len() < NODES_AT_ONCE
                && (container == ContainerId::NONE || self.core.recipes.is_closed(container))
                && !cell.location.is_bad()
                && !unreadable.contains(&fingerprint)
                && !self.core.dedup.pins().is_pinned(&fingerprint)
            {
                candidates.push((fingerprint, container));
            }
            Ok(())
        })?;
        candidates.sort_unstable_by_key(|(fingerprint, container)| (*container, *fingerprint));
        Ok(candidates)
    }
}
