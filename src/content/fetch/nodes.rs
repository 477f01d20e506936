//! Reading recipe nodes and tree nodes: from the cache, else from their container, checked against their fingerprint.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_store::node::Node;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::{self, Child, Reference};
use dedupfs_store::{Fingerprint, StoreError, tree};
use dedupfs_sync::cache::{Cache, weighing};
use quick_cache::Weighter;

use super::Fetcher;
use crate::fingerprint::Fingerprinter;

/// A node with the end offset of each child.
#[derive(Debug)]
pub struct NodeView {
    /// 0: children are chunks; n: children are nodes of level n - 1.
    pub level: u8,
    children: Vec<Child>,
    ends: Vec<u64>,
}

impl NodeView {
    /// Makes a view of `node`.
    pub(crate) fn new(node: recipe::Node) -> Self {
        let ends = node
            .children
            .iter()
            .scan(0_u64, |end, child| {
                *end += child.len_bytes;
                Some(*end)
            })
            .collect();
        Self { level: node.level, children: node.children, ends }
    }

    /// The children in order.
    #[must_use]
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// Bytes of content.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the position of the child that covers `offset` within the node.
    pub(crate) fn position_at(&self, offset: u64) -> usize {
        self.ends.partition_point(|&end| end <= offset)
    }

    /// Returns the child at `position`, with its offset within the node.
    pub(crate) fn get(&self, position: usize) -> Option<(u64, &Child)> {
        let child = self.children.get(position)?;
        Some((self.ends.get(position)? - child.len_bytes, child))
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.children.len() * (size_of::<Child>() + 8) + 64) as u64
    }
}

/// A decoded node of either kind.
#[derive(Clone, Debug)]
pub enum AnyView {
    /// Of a recipe.
    Recipe(Arc<NodeView>),
    /// Of a frozen tree.
    Tree(Arc<tree::Node>),
}

impl AnyView {
    /// Makes a view of `node`.
    pub(crate) fn new(node: Node) -> Self {
        match node {
            Node::Recipe(node) => Self::Recipe(Arc::new(NodeView::new(node))),
            Node::Tree(node) => Self::Tree(Arc::new(node)),
        }
    }

    /// Its level.
    #[must_use]
    pub fn level(&self) -> u8 {
        match self {
            Self::Recipe(view) => view.level,
            Self::Tree(node) => node.level(),
        }
    }

    /// The stored chunks and nodes that it names, in order.
    #[must_use]
    pub fn references(&self) -> Vec<Reference> {
        match self {
            Self::Recipe(view) => recipe::references(view.level, &view.children).collect(),
            Self::Tree(node) => node.references(),
        }
    }

    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Recipe(view) => view.memory_bytes(),
            Self::Tree(node) => node.memory_bytes(),
        }
    }
}

#[derive(Clone)]
struct ByMemory;

impl Weighter<Fingerprint, AnyView> for ByMemory {
    fn weight(&self, _key: &Fingerprint, view: &AnyView) -> u64 {
        view.memory_bytes()
    }
}

/// Reads nodes through a cache bounded in bytes.
pub struct NodeReader {
    fetcher: Fetcher,
    fingerprinter: Fingerprinter,
    cache: Cache<Fingerprint, AnyView, ByMemory>,
}

impl NodeReader {
    /// Makes a reader of the recipe containers behind `fetcher`.
    pub(crate) fn new(fetcher: Fetcher, fingerprinter: Fingerprinter, cache_bytes: u64) -> Self {
        let expected = usize::try_from(cache_bytes / 16_384).unwrap_or(64).max(64);
        Self { fetcher, fingerprinter, cache: weighing(expected, cache_bytes, ByMemory) }
    }

    /// Returns the recipe node that `child` names; it must be of `level` and of the child's length.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged or do not match the fingerprint; I/O errors.
    pub fn node(&self, level: u8, child: &Child) -> Result<Arc<NodeView>> {
        match self.read(child)? {
            AnyView::Recipe(view) => check_shape(view, level, child),
            other => Err(misplaced(child, "a recipe node", other.level())),
        }
    }

    /// Returns the tree node that `child` names; it must be of `level` and have as many rows as the child says.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn tree_node(&self, level: u8, child: &Child) -> Result<Arc<tree::Node>> {
        match self.read(child)? {
            AnyView::Tree(node) if node.level() == level && node.rows() == child.len_bytes => Ok(node),
            other => Err(misplaced(child, &format!("a tree node of level {level}"), other.level())),
        }
    }

    fn read(&self, child: &Child) -> Result<AnyView> {
        if let Some(view) = self.cache.get(&child.fingerprint) {
            return Ok(view);
        }
        let _timed = profile::of(Component::Nodes);
        let bytes = self.fetcher.fetch(&child.fingerprint, child.hint, None)?;
        let view = self.decode(&child.fingerprint, &bytes).inspect_err(|_| self.fetcher.suspect(&child.fingerprint))?;
        self.cache.insert(child.fingerprint, view.clone());
        Ok(view)
    }

    /// Returns the node of this fingerprint, whose copy `hint` names; the shape is not checked. For counting the log,
    /// reclaiming and comparing.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn node_of(&self, fingerprint: &Fingerprint, hint: dedupfs_store::ContainerId) -> Result<AnyView> {
        if let Some(view) = self.cache.get(fingerprint) {
            return Ok(view);
        }
        let _timed = profile::of(Component::Nodes);
        let bytes = self.fetcher.fetch(fingerprint, hint, None)?;
        self.decode(fingerprint, &bytes)
    }

    /// Puts a node that was just stored into the cache: it will soon be counted and may be read.
    pub(crate) fn remember(&self, fingerprint: Fingerprint, view: AnyView) {
        self.cache.insert(fingerprint, view);
    }

    /// Removes a node from the cache: no container has a sound copy.
    pub(crate) fn forget(&self, fingerprint: &Fingerprint) {
        self.cache.remove(fingerprint);
    }

    /// Whether the node can be read without the disk, if its hint is right.
    pub(crate) fn is_cached(&self, child: &Child) -> bool {
        self.cache.peek(&child.fingerprint).is_some() || self.fetcher.is_cached(&child.fingerprint, child.hint)
    }

    fn decode(&self, fingerprint: &Fingerprint, bytes: &[u8]) -> Result<AnyView> {
        let node = Node::decode(bytes)?;
        let found = self.fingerprinter.of(&node.identity_bytes());
        if found != *fingerprint {
            return Err(StoreError::corrupt("recipe node", fingerprint, found).into());
        }
        Ok(AnyView::new(node))
    }
}

fn check_shape(view: Arc<NodeView>, level: u8, child: &Child) -> Result<Arc<NodeView>> {
    if view.level != level || view.len_bytes() != child.len_bytes {
        let expected = format!("level {level} and {} bytes", child.len_bytes);
        let found = format!("level {} and {} bytes", view.level, view.len_bytes());
        return Err(StoreError::corrupt(format!("recipe node {}", child.fingerprint), expected, found).into());
    }
    Ok(view)
}

fn misplaced(child: &Child, expected: &str, level: u8) -> dedupfs_base::EngineError {
    let expected = format!("{expected} and length {}", child.len_bytes);
    StoreError::corrupt(format!("node {}", child.fingerprint), expected, format!("one of level {level}")).into()
}
