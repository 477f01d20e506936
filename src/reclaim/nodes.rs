//! Freeing recipe nodes that nothing refers to: claim, wait, recheck, free.

use std::collections::HashSet;

use dedupfs_store::{ContainerId, Fingerprint};

use super::{ReclaimReport, Reclaimer};
use crate::error::{EngineError, Result};
use crate::namespace::LogOp;
use crate::pool::Progress;

/// Nodes claimed at a time: bounds memory.
const NODES_AT_ONCE: usize = 100_000;
/// Nodes that cannot be read and are told of one by one; the report has their number.
const TOLD_MAX: usize = 20;

impl Reclaimer<'_> {
    /// Frees nodes level by level, until every node in the index is referred to (or pinned).
    pub(super) fn free_nodes(&self, report: &mut ReclaimReport, progress: &dyn Progress) -> Result<()> {
        progress.start("freeing recipes", 0);
        let mut unreadable = HashSet::new();
        // A disk that gives nothing any more is not asked for every node.
        while unreadable.len() < NODES_AT_ONCE && !self.control.is_stopped() {
            if self.committer.is_held_up() {
                return Err(EngineError::NoSpace);
            }
            // A node that is stored again must come to lie in another container than the copy that is freed, or the two
            // could not be told apart: so only nodes in containers that nothing is appended to any more are claimed.
            self.recipes.seal_all();
            self.committer.settle()?;
            // Until what is claimed is freed, none of it may be lost and stored again: that counts its children once.
            let _losses = self.committer.hold_losses();
            let claimed = self.claim_unreferenced(&mut unreadable)?;
            if claimed.is_empty() {
                break;
            }
            // Writers that found one of these before the claim are in a section until their reference is logged.
            self.dedup.barrier();
            self.committer.settle()?;
            let mut freed = 0;
            for (fingerprint, container) in claimed {
                if self.control.is_stopped() {
                    break;
                }
                // A lost one counts nothing.
                if container == ContainerId::NONE {
                    freed += u64::from(self.dedup.free_node(0, fingerprint, container, 0)?);
                    continue;
                }
                match self.dedup.nodes().node_of(&fingerprint, container) {
                    Ok(view) => {
                        let children = view.children().len();
                        freed += u64::from(self.dedup.free_node(view.level, fingerprint, container, children)?);
                        self.committer.pace()?;
                    }
                    // What its children count is not known, so it stays; and it may be stored again.
                    Err(error) => {
                        if !self.dedup.keep_unreadable_node(fingerprint, container)? {
                            if unreadable.len() < TOLD_MAX {
                                tracing::error!(%fingerprint, %container, %error, "a recipe node cannot be freed");
                            }
                            unreadable.insert(fingerprint);
                        }
                    }
                }
            }
            report.nodes_freed += freed;
            progress.advance(freed);
            self.committer.settle()?;
            self.dedup.release_nodes();
        }
        report.nodes_unreadable += unreadable.len() as u64;
        progress.finish();
        Ok(())
    }

    /// Makes the index forget chunks that are lost and that nothing refers to any more.
    pub(super) fn forget_lost_chunks(&self, report: &mut ReclaimReport) -> Result<()> {
        if !self.namespace.has_losses() {
            return Ok(());
        }
        let mut lost = Vec::new();
        self.chunk_index.for_each(&mut |fingerprint, cell| {
            if cell.references == 0 && cell.location.is_lost() {
                lost.push(fingerprint);
            }
            Ok(())
        })?;
        report.chunks_removed += lost.len() as u64;
        for fingerprint in lost {
            // One that was stored again meanwhile lies in a container, and stays.
            self.namespace.log(LogOp::ChunkRemoved { fingerprint, container: ContainerId::NONE });
            self.committer.pace()?;
        }
        Ok(())
    }

    /// Once everything that was lost was stored again or forgotten, writers need not look for it any more.
    pub(super) fn note_losses(&self) -> Result<()> {
        if !self.namespace.has_losses() {
            return Ok(());
        }
        let _losses = self.committer.hold_losses();
        let inconsistencies = self.committer.inconsistencies();
        let lost = self.chunk_index.lost() + self.recipe_index.lost();
        if lost > 0 {
            tracing::warn!(lost, "chunks and recipe nodes are lost: backing up the same data again heals the files");
            return Ok(());
        }
        if let Err(error) = self.namespace.set_losses(false) {
            tracing::warn!(%error, "nothing is lost any more, but that could not be noted; the next run notes it");
        }
        // Something that was counted meanwhile may be nowhere.
        if self.committer.inconsistencies() == inconsistencies { Ok(()) } else { self.namespace.set_losses(true) }
    }

    fn claim_unreferenced(&self, unreadable: &mut HashSet<Fingerprint>) -> Result<Vec<(Fingerprint, ContainerId)>> {
        let mut candidates = Vec::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            let container = cell.location.container;
            // Its children's counts hold what it names, which nobody can tell any more.
            if cell.references == 0 && cell.location.is_bad() && unreadable.len() < NODES_AT_ONCE {
                unreadable.insert(fingerprint);
            }
            if cell.references == 0
                && candidates.len() < NODES_AT_ONCE
                && (container == ContainerId::NONE || self.recipes.is_closed(container))
                && !cell.location.is_bad()
                && !unreadable.contains(&fingerprint)
                && !self.dedup.pins().is_pinned(&fingerprint)
            {
                candidates.push((fingerprint, container));
            }
            Ok(())
        })?;
        let mut claimed = Vec::with_capacity(candidates.len());
        for (fingerprint, container) in candidates {
            if self.dedup.claim_node(fingerprint, container)? {
                claimed.push((fingerprint, container));
            }
        }
        Ok(claimed)
    }
}
