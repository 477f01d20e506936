//! Building a frozen tree from its entries, in the order of a walk: each directory before its entries, names ascending.
//!
//! Leaves are stored as soon as they end, so memory is bounded by the open directories on the way: a leaf and a few
//! lists each.

mod cut;
mod levels;
mod links;
#[cfg(test)]
mod sizes_tests;
mod stored;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Deduplicator, Pin, RootPin, StreamId};
use dedupfs_namespace::FIRST_LINKED_PLACE;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::tree::{Attributes, Content, Directory, Entry, LEAF_LEVEL, LIST_LEVEL_MAX, Node, Top};

use cut::{CutRule, CutRules};
use levels::{Levels, Uppermost};
pub(crate) use links::FileId;
use links::Links;
use stored::Nodes;

/// Keeps content from being reclaimed until a stored node refers to it.
#[derive(Clone, Debug)]
pub(crate) enum Keep {
    /// Of a subdirectory.
    Node(#[expect(dead_code, reason = "it only lives")] Arc<Pin>),
    /// Of a file, or of extended attributes. Several names share it.
    Root(Arc<RootPin>),
}

impl Keep {
    /// What keeps a root.
    pub(crate) fn into_root(self) -> Option<Arc<RootPin>> {
        match self {
            Self::Root(pin) => Some(pin),
            Self::Node(_) => None,
        }
    }
}

/// A directory whose entries are being added.
#[derive(Clone)]
struct Building {
    name: Vec<u8>,
    cut: CutRule,
    leaf: Vec<Entry>,
    /// What keeps the content of the leaf.
    keep: Vec<Keep>,
    levels: Levels,
    subdirectories: u64,
    last_name: Vec<u8>,
}

impl Building {
    fn new(name: Vec<u8>, rules: &CutRules) -> Self {
        let levels = Levels::new(LEAF_LEVEL, LIST_LEVEL_MAX, rules.list);
        Self {
            name,
            cut: rules.leaf,
            leaf: Vec::new(),
            keep: Vec::new(),
            levels,
            subdirectories: 0,
            last_name: Vec::new(),
        }
    }

    fn add(&mut self, nodes: &Nodes<'_>, entry: Entry, keep: impl IntoIterator<Item = Keep>) -> Result<()> {
        if entry.name <= self.last_name {
            return Err(EngineError::Internal("the names of a directory do not ascend"));
        }
        self.last_name.clone_from(&entry.name);
        self.subdirectories += u64::from(entry.is_directory());
        self.leaf.push(entry);
        self.keep.extend(keep);
        if self.cut.ends_behind(0, self.leaf.len(), &self.last_name) {
            self.end_leaf(nodes)?;
        }
        Ok(())
    }

    fn end_leaf(&mut self, nodes: &Nodes<'_>) -> Result<()> {
        if self.leaf.is_empty() {
            return Ok(());
        }
        let leaf = nodes.store(Node::Leaf(std::mem::take(&mut self.leaf)))?;
        self.keep.clear();
        self.levels.add(nodes, leaf)
    }

    fn finish(mut self, nodes: &Nodes<'_>) -> Result<(Directory, Option<Arc<Pin>>)> {
        self.end_leaf(nodes)?;
        let subdirectories = self.subdirectories;
        Ok(match self.levels.finish(nodes)? {
            Some(Uppermost { level, child, below, pin }) => {
                (Directory { root: Some((level, child)), subdirectories, below }, Some(pin))
            }
            None => (Directory { root: None, subdirectories, below: Default::default() }, None),
        })
    }
}

/// The attributes of an inode, for an entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryAttributes {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime_secs: i64,
    pub(crate) mtime_nanos: u32,
    pub(crate) flags: u32,
    pub(crate) attributes: Attributes,
}

impl EntryAttributes {
    /// Takes them from an entry.
    pub(crate) fn of(entry: &Entry) -> Self {
        let Entry { mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, .. } = entry.clone();
        Self { mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes }
    }

    fn entry(self, name: Vec<u8>, link: Option<u64>, content: Content) -> Entry {
        let Self { mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes } = self;
        Entry { name, mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, link, content }
    }
}

/// A finished tree.
pub(crate) struct Built {
    /// Root of the version's inode.
    pub(crate) root: Root,
    /// Keeps the top until the version is named.
    pub(crate) pin: Arc<Pin>,
    /// Its uppermost entry.
    pub(crate) entry: Entry,
    /// Sums over everything below the uppermost entry.
    pub(crate) totals: Totals,
}

impl Built {
    /// Fingerprint of its top.
    pub(crate) fn top(&self) -> Fingerprint {
        self.root.reference().map_or(Fingerprint::ZERO, |reference| reference.fingerprint())
    }
}

/// Sums that the builder gathers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Totals {
    /// Entries, the uppermost one not included.
    pub(crate) entries: u64,
    /// Regular files.
    pub(crate) files: u64,
    /// Lengths of regular files.
    pub(crate) logical_bytes: u64,
    /// Bytes of regular files that are no holes.
    pub(crate) data_bytes: u64,
    /// Files that lost further names, because there are too many files with several names.
    pub(crate) unlinked: u64,
    /// Tree nodes, known ones included.
    pub(crate) nodes: u64,
}

/// Builds one tree.
pub(crate) struct TreeBuilder<'a> {
    nodes: Nodes<'a>,
    rules: CutRules,
    /// Open directories, the uppermost first.
    ways: Vec<Building>,
    links: Links,
    totals: Totals,
}

impl<'a> TreeBuilder<'a> {
    /// Begins a tree. Its nodes go to the open recipe container of `stream`.
    pub(crate) fn new(dedup: &'a Deduplicator, stream: StreamId) -> Self {
        let nodes = Nodes::new(dedup, stream);
        Self { nodes, rules: CutRules::CHOSEN, ways: Vec::new(), links: Links::default(), totals: Totals::default() }
    }

    /// Number of directories that have begun and not ended.
    pub(crate) fn depth(&self) -> usize {
        self.ways.len()
    }

    /// Begins a directory; the first one is the uppermost, and its name does not count.
    pub(crate) fn begin_directory(&mut self, name: &[u8]) {
        self.ways.push(Building::new(name.to_vec(), &self.rules));
    }

    /// Adds anything but a directory to the innermost directory. `file` tells files with several names apart. `keep`
    /// is held until the leaf is stored; content that it does not hold must be referred to for as long.
    ///
    /// # Errors
    /// Those of storing nodes; names that do not ascend.
    pub(crate) fn add(
        &mut self,
        name: &[u8],
        attributes: EntryAttributes,
        file: Option<FileId>,
        content: Content,
        keep: impl IntoIterator<Item = Keep>,
    ) -> Result<()> {
        self.count(&content)?;
        let link = file.and_then(|file| {
            let ways = &self.ways;
            let number = self.links.number(file, || {
                let mut path: Vec<&[u8]> = ways.iter().skip(1).map(|way| way.name.as_slice()).collect();
                path.push(name);
                path.join(&b'/')
            });
            self.totals.unlinked += u64::from(number.is_none());
            number
        });
        let way = self.ways.last_mut().ok_or(EngineError::Internal("an entry outside of a directory"))?;
        way.add(&self.nodes, attributes.entry(name.to_vec(), link, content), keep)
    }

    /// Adds an entry of another tree to the innermost directory, if it is a directory with everything below it. That tree must be held,
    /// and neither the entry nor one below it may have several names. Files below it are not in the totals.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub(crate) fn add_entry(&mut self, entry: Entry) -> Result<()> {
        self.count(&entry.content)?;
        if let Content::Directory(Directory { below, .. }) = entry.content {
            self.totals.entries = self.totals.entries.saturating_add(below.entries);
            self.totals.logical_bytes = self.totals.logical_bytes.saturating_add(below.bytes);
        }
        let way = self.ways.last_mut().ok_or(EngineError::Internal("an entry outside of a directory"))?;
        way.add(&self.nodes, entry, None)
    }

    fn count(&mut self, content: &Content) -> Result<()> {
        self.totals.entries += 1;
        if self.totals.entries >= FIRST_LINKED_PLACE {
            return Err(EngineError::Invalid("more than 2^35 entries in one version"));
        }
        if let Content::File { root, data_bytes } = content {
            self.totals.files += 1;
            self.totals.logical_bytes = self.totals.logical_bytes.saturating_add(root.len_bytes());
            self.totals.data_bytes = self.totals.data_bytes.saturating_add(*data_bytes);
        }
        Ok(())
    }

    /// Ends the innermost directory, which is not the uppermost, and adds it to its parent.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub(crate) fn end_directory(
        &mut self,
        attributes: EntryAttributes,
        keep: impl IntoIterator<Item = Keep>,
    ) -> Result<()> {
        const NONE: EngineError = EngineError::Internal("a directory ends that did not begin");
        let mut way = self.ways.pop().ok_or(NONE)?;
        let name = std::mem::take(&mut way.name);
        let (directory, pin) = way.finish(&self.nodes)?;
        let content = Content::Directory(directory);
        self.count(&content)?;
        let parent = self.ways.last_mut().ok_or(NONE)?;
        let keep = keep.into_iter().chain(pin.map(Keep::Node));
        parent.add(&self.nodes, attributes.entry(name, None, content), keep)
    }

    /// Stores what there is so far as a tree of its own, and goes on. Directories that have not ended get `attributes`,
    /// and the entries that they have. There must be one.
    ///
    /// Cost: a leaf and some lists for each of these directories, and the table of links.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub(crate) fn so_far(&mut self, attributes: &EntryAttributes) -> Result<Built> {
        let (nodes, rules, ways, totals) = (self.nodes.clone(), self.rules, self.ways.clone(), self.totals);
        // The table may be large, so it is lent.
        let mut copy = TreeBuilder { nodes, rules, ways, links: std::mem::take(&mut self.links), totals };
        let ended = (1..copy.depth()).try_for_each(|_| copy.end_directory(attributes.clone(), None));
        let built = ended.and_then(|()| copy.end(attributes.clone()));
        self.links = copy.links;
        built
    }

    /// Number of rows that [`so_far`](Self::so_far) stores at most, those of lists not counted.
    pub(crate) fn open_rows(&self) -> usize {
        self.ways.iter().map(|way| way.leaf.len() + 1).sum::<usize>() + self.links.len()
    }

    /// Ends the uppermost directory, and the tree.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub(crate) fn finish(mut self, attributes: EntryAttributes) -> Result<Built> {
        self.end(attributes)
    }

    fn end(&mut self, attributes: EntryAttributes) -> Result<Built> {
        let way = self.ways.pop().filter(|_| self.ways.is_empty());
        let way = way.ok_or(EngineError::Internal("a tree ends within a directory"))?;
        let (directory, pin) = way.finish(&self.nodes)?;
        let links = self.links.store(&self.nodes, &self.rules)?;
        let (links, _links_pin): (Option<(u8, Child)>, Option<Arc<Pin>>) =
            links.map(|links| ((links.level, links.child), links.pin)).unzip();
        let entry = attributes.entry(Vec::new(), None, Content::Directory(directory));
        let top = self.nodes.store(Node::Top(Box::new(Top { entry: entry.clone(), links })))?;
        drop(pin);
        self.totals.nodes = self.nodes.count.get();
        let root = Root::Tree { level: top.level, child: top.part.child };
        Ok(Built { root, pin: top.pin, entry, totals: self.totals })
    }
}
