//! Lists above leaves: parts are gathered level by level, and a level that is full becomes a node of the one above.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::Pin;
use dedupfs_store::recipe::Child;
use dedupfs_store::tree::{Below, Node, Part};

use super::cut::CutRule;
use super::stored::Nodes;

/// A stored node with everything that its parent says of it.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) level: u8,
    pub(super) part: Part,
    /// Keeps the node until its parent is stored.
    pub(super) pin: Arc<Pin>,
}

/// The levels above the leaves of one directory, or of the links.
#[derive(Clone)]
pub(super) struct Levels {
    leaf_level: u8,
    list_level_max: u8,
    cut: CutRule,
    /// Parts of each level that are in no node yet; the first are leaves.
    open: Vec<Vec<Stored>>,
}

/// The uppermost node.
pub(super) struct Uppermost {
    pub(super) level: u8,
    pub(super) child: Child,
    pub(super) below: Below,
    pub(super) pin: Arc<Pin>,
}

impl Levels {
    pub(super) const fn new(leaf_level: u8, list_level_max: u8, cut: CutRule) -> Self {
        Self { leaf_level, list_level_max, cut, open: Vec::new() }
    }

    /// Adds a leaf.
    pub(super) fn add(&mut self, nodes: &Nodes<'_>, leaf: Stored) -> Result<()> {
        self.push(0, leaf);
        for height in 0.. {
            let Some(parts) = self.open.get(height) else { return Ok(()) };
            let Some(last) = parts.last() else { return Ok(()) };
            if !self.cut.ends_behind(height, parts.len(), &last.part.last_key) {
                return Ok(());
            }
            self.raise(nodes, height)?;
        }
        Ok(())
    }

    fn push(&mut self, height: usize, stored: Stored) {
        if self.open.len() <= height {
            self.open.push(Vec::new());
        }
        if let Some(parts) = self.open.get_mut(height) {
            parts.push(stored);
        }
    }

    /// Makes a list of the parts at `height`.
    fn raise(&mut self, nodes: &Nodes<'_>, height: usize) -> Result<()> {
        let parts = self.open.get_mut(height).map(std::mem::take).unwrap_or_default();
        let level = u8::try_from(height).ok().and_then(|height| self.leaf_level.checked_add(height + 1));
        let level = level.filter(|level| *level <= self.list_level_max);
        let level = level.ok_or(EngineError::Internal("a directory has more levels than it can need"))?;
        let (parts, pins): (Vec<Part>, Vec<Arc<Pin>>) =
            parts.into_iter().map(|stored| (stored.part, stored.pin)).unzip();
        let list = nodes.store(Node::List { level, parts })?;
        drop(pins);
        self.push(height + 1, list);
        Ok(())
    }

    /// Ends the directory; `None` if it has no entries.
    pub(super) fn finish(mut self, nodes: &Nodes<'_>) -> Result<Option<Uppermost>> {
        for height in 0.. {
            let is_uppermost = self.open.iter().skip(height + 1).all(Vec::is_empty);
            let Some(parts) = self.open.get_mut(height) else { return Ok(None) };
            if is_uppermost && parts.len() <= 1 {
                return Ok(parts.pop().map(|stored| {
                    let Stored { level, part: Part { child, below, .. }, pin } = stored;
                    Uppermost { level, child, below, pin }
                }));
            }
            if !parts.is_empty() {
                self.raise(nodes, height)?;
            }
        }
        Ok(None)
    }
}
