//! Whether content needs something that is lost: then a writer looks it up and stores it again, which heals every file that shares it.

use dedupfs_base::Result;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

use super::Deduplicator;

impl Deduplicator {
    /// Whether any of these chunks may be lost. Without I/O.
    pub(super) fn may_lack<'f>(&self, chunks: impl IntoIterator<Item = &'f Fingerprint>) -> bool {
        self.log.has_doubt() || self.indexes.chunks.may_have_lost(chunks)
    }

    /// Whether a chunk or node, or anything below it, may be lost. Without losses it reads nothing; otherwise the recipe nodes below.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn may_lack_below(&self, reference: &Reference) -> Result<bool> {
        if self.log.has_doubt() {
            return Ok(true);
        }
        if !self.indexes.have_losses() {
            return Ok(false);
        }
        let mut left = vec![*reference];
        while let Some(reference) = left.pop() {
            match reference {
                Reference::Chunk(child) if self.indexes.chunks.may_have_lost([&child.fingerprint]) => return Ok(true),
                Reference::Chunk(_) => {}
                Reference::Node { child, .. } if self.indexes.nodes.may_have_lost([&child.fingerprint]) => {
                    return Ok(true);
                }
                Reference::Node { child, .. } => {
                    left.extend(self.nodes.node_of(&child.fingerprint, child.hint)?.references())
                }
            }
        }
        Ok(false)
    }
}
