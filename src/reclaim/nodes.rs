//! Freeing recipe nodes that nothing refers to: claim, wait, recheck, free.

use dedupfs_store::{ContainerId, Fingerprint};

use super::{ReclaimReport, Reclaimer};
use crate::error::Result;
use crate::namespace::LogOp;
use crate::pool::Progress;

/// Nodes claimed at a time: bounds memory.
const NODES_AT_ONCE: usize = 100_000;

impl Reclaimer<'_> {
    /// Frees nodes level by level, until every node in the index is referred to (or pinned).
    pub(super) fn free_nodes(&self, report: &mut ReclaimReport, progress: &dyn Progress) -> Result<()> {
        progress.start("freeing recipes", 0);
        loop {
            // A node that is stored again must come to lie in another container than the copy that is freed, or the two
            // could not be told apart: so only nodes in containers that nothing is appended to any more are claimed.
            self.recipes.seal_all();
            self.committer.settle()?;
            let claimed = self.claim_unreferenced()?;
            if claimed.is_empty() {
                break;
            }
            // Writers that found one of these before the claim are in a section until their reference is logged.
            self.dedup.barrier();
            self.committer.settle()?;
            let mut freed = 0;
            for (fingerprint, container) in claimed {
                if self.is_still_garbage(&fingerprint, container)? {
                    // One that cannot be read cannot be freed: what its children count is not known.
                    let level = match self.dedup.nodes().node_of(&fingerprint, container) {
                        Ok(view) => view.level,
                        Err(error) => {
                            tracing::error!(%fingerprint, %container, %error, "a recipe node cannot be freed");
                            continue;
                        }
                    };
                    self.namespace.log(LogOp::NodeFreed { level, fingerprint, container });
                    freed += 1;
                }
            }
            report.nodes_freed += freed;
            progress.advance(freed);
            self.committer.settle()?;
            self.dedup.pins().release_claims();
            if freed == 0 {
                break;
            }
        }
        progress.finish();
        Ok(())
    }

    fn claim_unreferenced(&self) -> Result<Vec<(Fingerprint, ContainerId)>> {
        let mut claimed = Vec::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            let container = cell.location.container;
            if cell.references == 0
                && claimed.len() < NODES_AT_ONCE
                && self.recipes.is_closed(container)
                && self.dedup.pins().claim(fingerprint)
            {
                claimed.push((fingerprint, container));
            }
            Ok(())
        })?;
        Ok(claimed)
    }

    /// A claimed node is garbage if nothing refers to it still. If a writer has stored it again since the claim, its
    /// children were counted a second time, and the old copy's counts must go whatever refers to the new one.
    fn is_still_garbage(&self, fingerprint: &Fingerprint, container: ContainerId) -> Result<bool> {
        let Some(cell) = self.recipe_index.get(fingerprint)? else { return Ok(false) };
        let stored_again = cell.location.container != container;
        Ok(stored_again || cell.references == 0)
    }
}
