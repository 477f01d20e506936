//! A node of a recipe container: of a recipe or of a frozen tree. Its level tells which.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use crate::error::Result;
use crate::id::ContainerId;
use crate::recipe::{self, Reference, TREE_LEVELS};
use crate::tree;

/// A node of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A segment or list of a recipe.
    Recipe(recipe::Node),
    /// A node of a frozen tree.
    Tree(tree::Node),
}

impl Node {
    /// Whether a node of this level belongs to a frozen tree.
    #[must_use]
    pub fn is_tree(level: u8) -> bool {
        TREE_LEVELS.contains(&level)
    }

    /// Its level.
    #[must_use]
    pub const fn level(&self) -> u8 {
        match self {
            Self::Recipe(node) => node.level,
            Self::Tree(node) => node.level(),
        }
    }

    /// Its length, as a child has it: bytes of a recipe, rows of a tree node.
    ///
    /// # Errors
    /// The lengths of a recipe do not add up to a file.
    pub fn len_bytes(&self) -> Result<u64> {
        match self {
            Self::Recipe(node) => node.len_bytes(),
            Self::Tree(node) => Ok(node.rows()),
        }
    }

    /// The stored chunks and nodes that it names, in order.
    #[must_use]
    pub fn references(&self) -> Vec<Reference> {
        match self {
            Self::Recipe(node) => node.references().collect(),
            Self::Tree(node) => node.references(),
        }
    }

    /// Changes the hints of the references for which `now` returns a container. The node stays the same: its fingerprint
    /// covers no hint.
    pub fn renew_hints(&mut self, now: &dyn Fn(&Reference) -> Option<ContainerId>) {
        let references = self.references();
        let children = match self {
            Self::Recipe(node) => node.children.iter_mut().filter(|child| !child.is_zero()).collect(),
            Self::Tree(node) => node.children_mut(),
        };
        for (reference, child) in references.iter().zip(children) {
            child.hint = now(reference).unwrap_or(child.hint);
        }
    }

    /// The bytes that its fingerprint covers.
    #[must_use]
    pub fn identity_bytes(&self) -> Vec<u8> {
        match self {
            Self::Recipe(node) => node.identity_bytes(),
            Self::Tree(node) => node.identity_bytes(),
        }
    }

    /// Encodes it.
    /// Panics if it breaks an invariant: no decoder would accept its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Recipe(node) => node.encode(),
            Self::Tree(node) => node.encode(),
        }
    }

    /// Decodes and fully checks a node.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        // Both kinds begin with version and level.
        match bytes.get(1) {
            Some(&level) if Self::is_tree(level) => tree::Node::decode(bytes).map(Self::Tree),
            _ => recipe::Node::decode(bytes).map(Self::Recipe),
        }
    }
}

#[cfg(test)]
mod tests;
