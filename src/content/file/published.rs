//! The chunks of published content, without a [`FileBody`](super::FileBody).

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::recipe::{Child, Reference, Root};

use super::body::FileContext;
use crate::recipe::tree::hole_child;

impl FileContext {
    /// Calls `visit(offset, chunk)` for all chunks and runs of zeros of the content, in order, until it returns `false`. Holds the
    /// recipe nodes of one path from the root.
    ///
    /// # Errors
    /// `Corrupt` if the recipe is damaged; I/O errors.
    pub fn for_each_chunk(&self, root: &Root, visit: &mut dyn FnMut(u64, &Child) -> bool) -> Result<()> {
        let mut to_visit = match root {
            Root::Tree { .. } => {
                return Err(StoreError::corrupt("content of a file", "a recipe", "a frozen tree").into());
            }
            Root::Zero { len_bytes } => vec![(None, hole_child(*len_bytes))],
            root => root.reference().into_iter().map(with_level).collect(),
        };
        let mut offset = 0_u64;
        while let Some((level, child)) = to_visit.pop() {
            let Some(level) = level.filter(|_| !child.fingerprint.is_zero()) else {
                if !visit(offset, &child) {
                    break;
                }
                offset = offset.saturating_add(child.len_bytes);
                continue;
            };
            let view = self.dedup().nodes().node(level, &child)?;
            let below = level.checked_sub(1);
            to_visit.extend(view.children().iter().rev().map(|child| (below, *child)));
        }
        Ok(())
    }
}

/// A node with its level; a chunk has none.
fn with_level(reference: Reference) -> (Option<u8>, Child) {
    match reference {
        Reference::Chunk(child) => (None, child),
        Reference::Node { level, child } => (Some(level), child),
    }
}
