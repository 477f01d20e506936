//! Freeing recipe nodes that nothing refers to: claim, wait, recheck, free.

use dedupfs_store::{ContainerId, Fingerprint};

use super::{ReclaimReport, Reclaimer};
use crate::error::Result;
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
                // One that cannot be read cannot be freed: what its children count is not known.
                match self.dedup.nodes().node_of(&fingerprint, container) {
                    Ok(view) => freed += u64::from(self.dedup.free_node(view.level, fingerprint, container)?),
                    Err(error) => {
                        tracing::error!(%fingerprint, %container, %error, "a recipe node cannot be freed");
                    }
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
}
