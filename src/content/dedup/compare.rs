//! Finds under the byte compare filter: no place is used before it was read and found equal, even if another writer has
//! just made it. A node counts as known only if it reads as it was written. Damaged chunks are stored again, and the
//! index follows when the new place is committed.
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
use dedupfs_index::filter::{CompareFilter, Verdict};
use dedupfs_store::node::Node as AnyNode;
use dedupfs_store::recipe::{Child, Node};
use dedupfs_store::{ContainerId, Fingerprint, LogOp, StoreError, tree};

use super::finds::Finds;
use super::{Deduplicator, Own, Pin, Section, SegmentEntry};
use crate::containers::StreamId;
use crate::fetch::{AnyView, NodeView};

/// Whether a stored node is this one, and no other node of its fingerprint. Hints may differ.
fn shows(view: &NodeView, node: &Node) -> bool {
    let name = |child: &Child| (child.fingerprint, child.len_bytes);
    view.level == node.level && view.children().iter().map(name).eq(node.children.iter().map(name))
}

/// Reads and compares each find, with the chain's own filter.
pub(super) struct Comparing(pub(super) CompareFilter);

impl Finds for Comparing {
    /// Compares a known node, and writes it again if it is damaged.
    ///
    /// # Errors
    /// `Collision` if other content has its fingerprint or that of one of its chunks; errors of reading and storing.
    fn node(
        &self,
        dedup: &Deduplicator,
        section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        mut node: Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        let stored = dedup.stored_node(&node, &found.0)?;
        let children = stored.as_ref().map_or(&[][..], |view| view.children());
        let misleads = if node.level == 0 {
            self.place_segment(dedup, stream, entries, &mut node.children, children)?
        } else {
            // The children of a list have been compared.
            let mut pairs = children.iter().zip(&node.children);
            pairs.try_fold(false, |misleads, (old, new)| Ok::<_, EngineError>(misleads || dedup.is_older(old, new)?))?
        };
        if stored.is_some() && !misleads {
            return Ok(found);
        }
        dedup.write_again(section, stream, AnyNode::Recipe(node), found)
    }

    /// Compares a known tree node, and writes it again if it is damaged.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    fn tree_node(
        &self,
        dedup: &Deduplicator,
        section: &Section<'_>,
        stream: StreamId,
        node: tree::Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        match dedup.readable(&found.0)? {
            Some(AnyView::Tree(stored)) if stored.without_hints() == node.without_hints() => Ok(found),
            Some(_) => Err(collision(&found.0)),
            None => dedup.write_again(section, stream, AnyNode::Tree(node), found),
        }
    }

    /// Seldom reads from disk: only for a chunk stored a while ago, which was compared before and is damaged or claimed.
    fn chunk(&self, print: &Fingerprint, data: &[u8], location: Location) -> Result<Option<ContainerId>> {
        Ok(self.0.compare(print, data, location.container())?.place.map(|place| place.container()))
    }

    fn repeated(&self, print: &Fingerprint, first: &[u8], data: &[u8]) -> Result<()> {
        if first == data {
            return Ok(());
        }
        Err(StoreError::Collision { fingerprint: print.to_string(), place: "the same write".to_owned() }.into())
    }
}

impl Comparing {
    /// Places the chunks of a segment that is `stored` with these children. Returns whether damaged chunks were found.
    fn place_segment(
        &self,
        dedup: &Deduplicator,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        children: &mut [Child],
        stored: &[Child],
    ) -> Result<bool> {
        let looked_up = dedup.look_up(entries, &Own::default())?;
        let mut damage_seen = looked_up.damage_seen;
        for (&(at, entry), verdict) in looked_up.chunks.iter().zip(&looked_up.verdicts) {
            let hint = stored.get(at).map_or(ContainerId::NONE, |child| child.hint);
            damage_seen |= match verdict {
                Verdict::BuiltIn => false,
                Verdict::Existing(location) if hint == ContainerId::NONE || hint == location.container() => false,
                Verdict::Existing(_) => {
                    self.0.compare(&entry.child.fingerprint, entry.data.unwrap_or_default(), hint)?.damage_seen
                }
                _ => true,
            };
        }
        dedup.place(stream, &looked_up, children)?;
        Ok(damage_seen)
    }
}

impl Deduplicator {
    /// Returns the recipe node as a reader gets it; `None` if it is damaged.
    fn stored_node(&self, node: &Node, child: &Child) -> Result<Option<Arc<NodeView>>> {
        match self.readable(child)? {
            Some(AnyView::Recipe(view)) if shows(&view, node) => Ok(Some(view)),
            Some(_) => Err(collision(child)),
            None => Ok(None),
        }
    }

    /// Returns the node as a reader gets it; `None` if it is damaged.
    fn readable(&self, child: &Child) -> Result<Option<AnyView>> {
        match self.nodes.node_of(&child.fingerprint, child.hint) {
            Ok(view) => Ok(Some(view)),
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
        node: AnyNode,
        (child, pin): (Child, Pin),
    ) -> Result<(Child, Pin)> {
        let fingerprint = child.fingerprint;
        let bytes = node.encode();
        let _exclusive = self.lock_store();
        let containers = self.stores.recipes.append(stream, &[(fingerprint, &bytes)])?;
        let container = containers.first().copied().unwrap_or(ContainerId::NONE);
        let location = Location::new(container, bytes.len() as u32);
        self.nodes.remember(fingerprint, AnyView::new(node));
        self.log.log(LogOp::NodeMoved { fingerprint, container, len_bytes: location.len_bytes() });
        self.indexes.nodes.stage(&fingerprint, location);
        Ok((Child { hint: container, ..child }, pin))
    }
}

fn collision(child: &Child) -> EngineError {
    let (fingerprint, place) = (child.fingerprint.to_string(), format!("recipe container {}", child.hint));
    StoreError::Collision { fingerprint, place }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_node_of_one_fingerprint_is_not_taken_for_the_same() {
        let child = |print: u8, len_bytes, hint| Child {
            fingerprint: Fingerprint([print; 32]),
            len_bytes,
            hint: ContainerId(hint),
        };
        let node = |level, children: &[Child]| Node { level, children: children.to_vec() };
        let (first, second) = (child(1, 1000, 1), child(2, 2000, 2));
        let view = NodeView::new(node(0, &[first, second]));
        assert!(shows(&view, &node(0, &[child(1, 1000, 7), second])));
        for other in [
            node(1, &[first, second]),
            node(0, &[first, child(3, 2000, 2)]),
            node(0, &[first, child(2, 2001, 2)]),
            node(0, &[second, first]),
            node(0, &[first]),
            node(0, &[first, second, second]),
        ] {
            assert!(!shows(&view, &other), "{other:?}");
        }
    }
}
