//! Storing tree nodes, each in a section of its own.

use std::cell::Cell;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Deduplicator, StreamId};
use dedupfs_store::tree::{Node, Part};

use super::levels::Stored;

/// Stores the nodes of one tree.
#[derive(Clone)]
pub(super) struct Nodes<'a> {
    dedup: &'a Deduplicator,
    stream: StreamId,
    /// Number of nodes of the tree so far, known ones included.
    pub(super) count: Cell<u64>,
}

impl<'a> Nodes<'a> {
    pub(super) const fn new(dedup: &'a Deduplicator, stream: StreamId) -> Self {
        Self { dedup, stream, count: Cell::new(0) }
    }

    /// Stores a node, unless it is known. Everything that it names must be pinned or counted.
    pub(super) fn store(&self, node: Node) -> Result<Stored> {
        self.dedup.wait_for_room()?;
        let (level, last_key) = (node.level(), node.last_key());
        let below = node.below().ok_or(EngineError::Invalid("a tree of more than 2^63 bytes or entries"))?;
        let section = self.dedup.enter();
        let (child, pin) = self.dedup.store_tree_node(&section, self.stream, node)?;
        self.count.set(self.count.get() + 1);
        Ok(Stored { level, part: Part { child, last_key, below }, pin: Arc::new(pin) })
    }
}
