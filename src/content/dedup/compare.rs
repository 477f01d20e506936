//! Known nodes under the byte compare filter: a node counts as known only if it reads as it was written.
//!
//! A reader goes from the inode's hint to a node, and from the node's hints to chunks. It asks the index only if a hint
//! is wrong or a copy cannot be read. So a known segment's chunks are compared in two places: where the index places
//! them (the copy that reclaiming keeps), and at the segment's own hints.
//!
//! If a hint leads to other bytes, storing the chunk again is not enough. The segment is written again with the new
//! hints, and nothing is counted (`NodeMoved`, as reclaiming does). So is each list with a hint to the old copy of a
//! node that was written again. Older files keep the old hints. Where these lead to damage that a checksum finds, the
//! index has the sound copy; where no checksum finds it, those files stay damaged.
//!
//! Nodes that cannot be read are written again in the same way and keep their count.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Location;
use dedupfs_store::recipe::{Child, Node};
use dedupfs_store::{ContainerId, LogOp, StoreError, waiting};

use super::place::Foreknown;
use super::{Deduplicator, Pin, Section, SegmentEntry};
use crate::containers::StreamId;
use crate::fetch::NodeView;

impl Deduplicator {
    /// Compares a known segment with `entries`, and writes it again if it is damaged.
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
        let damage = self.place_chunks(stream, entries, &mut node.children, Foreknown::Segment(hints))?;
        if stored.is_some() && !damage { Ok(found) } else { self.write_again(section, stream, node, found) }
    }

    /// Like [`compare_segment`](Self::compare_segment), for a list whose children have been compared.
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

    /// Returns the node as a reader gets it; `None` if it is damaged.
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

    /// Whether a hint leads to a readable copy of a node other than the copy that the index names.
    fn is_older(&self, hinted: &Child, found: &Child) -> Result<bool> {
        if hinted.hint == found.hint || hinted.hint == ContainerId::NONE {
            return Ok(false);
        }
        match self.stores.recipes.read_chunk(hinted.hint, &hinted.fingerprint, None) {
            Ok(copy) => Ok(copy.is_some()),
            Err(EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Appends a pinned node that the index has, and makes the index name the new copy.
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
        let containers = self.stores.recipes.append(stream, &[(fingerprint, &bytes)])?;
        let container = containers.first().copied().unwrap_or(ContainerId::NONE);
        let location = Location::new(container, bytes.len() as u32);
        self.nodes.remember(fingerprint, Arc::new(NodeView::new(node)));
        self.log.log(LogOp::NodeMoved { fingerprint, container, len_bytes: location.len_bytes() });
        self.indexes.nodes.stage(&fingerprint, location);
        Ok((Child { hint: container, ..child }, pin))
    }
}
