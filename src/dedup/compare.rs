//! Known nodes under the byte compare filter: what is taken for known must read as what was written.
//!
//! A reader goes from the inode's hint to a node, from the node's hints to chunks, and asks the index only if something is not
//! where a hint says or cannot be read. So a known segment's chunks are compared where the index says, which is the
//! copy that reclaiming keeps, and at the segment's own hints. If one of them
//! leads to bytes that are something else, storing the chunk again is not enough: the segment is written again, too, with the
//! new hints and without counting anything (`NodeMoved`, as reclaiming does), and so is each list whose hint leads to a copy
//! of a node that was written again. Older files keep the old hints: where these lead to damage that is noticed, the index
//! has the sound copy; where it cannot be noticed, they stay what they were.
//!
//! Nodes that cannot be read are written again in the same way, with their count as it is.

use std::sync::Arc;

use dedupfs_index::Location;
use dedupfs_store::recipe::{Child, Node};
use dedupfs_store::{ContainerId, StoreError, waiting};

use super::place::Known;
use super::{Deduplicator, Pin, Section, SegmentEntry};
use crate::containers::StreamId;
use crate::error::{EngineError, Result};
use crate::namespace::LogOp;
use crate::recipe::NodeView;

impl Deduplicator {
    /// Compares a segment that is known with `entries`, and makes it whole if it is damaged.
    ///
    /// # Errors
    /// `Collision` if other content has its fingerprint or that of one of its chunks; errors of reading and storing.
    pub(super) fn compare_segment(
        &self,
        section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        mut node: Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        let stored = self.stored_node(&node, &found.0)?;
        let hints = stored.as_ref().map_or(&[][..], |view| view.children());
        let damage = self.place_chunks(stream, entries, &mut node.children, Known::Segment(hints))?;
        if stored.is_some() && !damage { Ok(found) } else { self.write_again(section, stream, node, found) }
    }

    /// As [`compare_segment`](Self::compare_segment) for a list, whose children have been compared.
    pub(super) fn compare_list(
        &self,
        section: &Section<'_>,
        stream: StreamId,
        node: Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        let misleads = match self.stored_node(&node, &found.0)? {
            None => true,
            Some(stored) => {
                let mut pairs = stored.children().iter().zip(&node.children);
                pairs.try_fold(false, |misleads, (old, new)| {
                    Ok::<_, EngineError>(misleads || self.is_older(old, new)?)
                })?
            }
        };
        if misleads { self.write_again(section, stream, node, found) } else { Ok(found) }
    }

    /// The node as a reader gets it; `None` if it is damaged.
    fn stored_node(&self, node: &Node, child: &Child) -> Result<Option<Arc<NodeView>>> {
        match self.nodes.node_of(&child.fingerprint, child.hint) {
            Ok(view) => {
                let name = |child: &Child| (child.fingerprint, child.len_bytes);
                let same =
                    view.level == node.level && view.children().iter().map(name).eq(node.children.iter().map(name));
                if same {
                    return Ok(Some(view));
                }
                let (fingerprint, place) = (child.fingerprint.to_string(), format!("recipe container {}", child.hint));
                Err(StoreError::Collision { fingerprint, place }.into())
            }
            Err(EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. }))) => {
                tracing::error!(node = %child.fingerprint, %error, "a recipe node cannot be read and is written again");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a hint leads to a readable copy of a node that is not the one which the index has.
    fn is_older(&self, hinted: &Child, found: &Child) -> Result<bool> {
        if hinted.hint == found.hint || hinted.hint == ContainerId::NONE {
            return Ok(false);
        }
        match self.recipes.read_chunk(hinted.hint, &hinted.fingerprint, None) {
            Ok(copy) => Ok(copy.is_some()),
            Err(EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Appends a node that the index has and that is pinned, and makes the index name the new copy.
    fn write_again(
        &self,
        _section: &Section<'_>,
        stream: StreamId,
        node: Node,
        (child, pin): (Child, Pin),
    ) -> Result<(Child, Pin)> {
        let fingerprint = child.fingerprint;
        let bytes = node.encode();
        let _exclusive = waiting::lock(&self.store_lock);
        let containers = self.recipes.append(stream, &[(fingerprint, &bytes)])?;
        let container = containers.first().copied().unwrap_or(ContainerId::NONE);
        let location = Location { container, len_bytes: bytes.len() as u32 };
        self.nodes.remember(fingerprint, Arc::new(NodeView::new(node)));
        self.namespace.log(LogOp::NodeMoved { fingerprint, container, len_bytes: location.len_bytes });
        self.recipe_index.stage(&fingerprint, location);
        Ok((Child { hint: container, ..child }, pin))
    }
}
