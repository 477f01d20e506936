//! Lost content within frozen trees: the files that need it, and the directories of which entries are lost.
//!
//! A tree is judged from the bottom up with a stack of its own, because directories nest deeper than the machine's
//! stack allows. A node that several trees share is judged once. Then only what is affected is walked for names, in each
//! version, until there are names enough; the rest is counted from the judgement.
//!
//! Memory: 64 bytes for each tree node met, one frame for each node on the way down, the names.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_content::{AnyView, NodeReader};
use dedupfs_namespace::{FIRST_LINKED_PLACE, Inode, version_of};
use dedupfs_service::Ino;
use dedupfs_store::Fingerprint;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::{Child, Reference, Root};
use dedupfs_store::tree::{self, Attributes, Content, Entry};

use super::{Affected, LEFT_OUT, PATH_BYTES_MAX};

/// A finding within a frozen tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Its inode number.
    pub(super) ino: Ino,
    /// Paths from the top of the tree; empty for the top itself.
    pub(super) paths: Vec<Vec<u8>>,
    /// Content of a file; [`Root::Empty`] if only attributes are lost.
    pub(super) root: Root,
    /// Of a directory: number of entries in it and below it that are lost.
    pub(super) lost_entries: u64,
}

/// The judgement of trees, one after another.
pub(super) struct Trees<'a, 'l> {
    nodes: &'a NodeReader,
    affected: &'a Affected<'l>,
    judged: HashMap<Fingerprint, Verdict>,
    names_left: usize,
}

/// The judgement of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Verdict {
    /// Findings among its entries, and below them.
    findings: u64,
    /// Entries of its own directory are lost: they are in it, or in a node below it.
    is_torn: bool,
    /// It cannot be read.
    is_lost: bool,
}

impl Verdict {
    const LOST: Self = Self { findings: 0, is_torn: true, is_lost: true };

    fn is_sound(self) -> bool {
        self.findings == 0 && !self.is_torn
    }

    fn plus(self, other: Self) -> Self {
        let findings = self.findings.saturating_add(other.findings);
        Self { findings, is_torn: self.is_torn || other.is_torn, ..self }
    }
}

/// A node on the way down.
struct Frame {
    fingerprint: Fingerprint,
    node: Arc<tree::Node>,
    left: Vec<Reference>,
}

/// An affected node to walk for names.
struct Walk {
    path: Vec<u8>,
    level: u8,
    child: Child,
    /// Number of entries in it and below it, as its parent says.
    entries: u64,
    /// Inode number of its first entry.
    first: Ino,
    /// Inode number of the directory.
    directory: Ino,
}

/// The findings of one version, each inode once.
struct Findings {
    found: Vec<Found>,
    places: HashMap<Ino, usize>,
    names_left: usize,
    /// There were more names.
    is_full: bool,
}

impl Findings {
    /// Adds a finding, or adds to the one of the same inode: a file with several names, a directory with several lost
    /// nodes.
    fn add(&mut self, ino: Ino, path: &[u8], root: Root, lost_entries: u64) {
        let known = self.places.get(&ino).and_then(|&at| self.found.get_mut(at));
        if let Some(found) = known {
            found.lost_entries = found.lost_entries.saturating_add(lost_entries);
            if found.paths.last().is_some_and(|last| last == path) {
                return;
            }
        }
        let Some(left) = self.names_left.checked_sub(1) else {
            self.is_full = true;
            return;
        };
        self.names_left = left;
        match self.places.get(&ino).and_then(|&at| self.found.get_mut(at)) {
            Some(found) => found.paths.push(path.to_vec()),
            None => {
                self.places.insert(ino, self.found.len());
                self.found.push(Found { ino, paths: vec![path.to_vec()], root, lost_entries });
            }
        }
    }
}

impl<'a, 'l> Trees<'a, 'l> {
    /// Prepares the judgement. All versions together get at most `names_max` names.
    pub(super) fn new(nodes: &'a NodeReader, affected: &'a Affected<'l>, names_max: usize) -> Self {
        Self { nodes, affected, judged: HashMap::new(), names_left: names_max }
    }

    /// Returns findings in the tree of a version, as long as there are names left, and the number of all. Files with
    /// several names are counted by name if not all are returned.
    pub(super) fn find(&mut self, version: &Inode) -> (Vec<Found>, u64) {
        let Root::Tree { level, child } = version.root else { return (Vec::new(), 0) };
        let verdict = self.judge(level, &child);
        if verdict.is_sound() {
            return (Vec::new(), 0);
        }
        let (found, places) = (Vec::new(), HashMap::new());
        let mut findings = Findings { found, places, names_left: self.names_left, is_full: false };
        self.names(version.ino, level, &child, &mut findings);
        self.names_left = findings.names_left;
        let found = findings.found.len() as u64;
        let all = verdict.findings.saturating_add(u64::from(verdict.is_torn));
        (findings.found, if findings.is_full { all.max(found) } else { found })
    }

    fn verdict_on(&self, reference: &Reference) -> Option<Verdict> {
        let is_affected = match reference {
            Reference::Chunk(child) => self.affected.lost.chunks.contains(&child.fingerprint),
            Reference::Node { level, child } if !Node::is_tree(*level) => self.affected.node(&child.fingerprint),
            Reference::Node { child, .. } => return self.judged.get(&child.fingerprint).copied(),
        };
        Some(Verdict { findings: u64::from(is_affected), ..Verdict::default() })
    }

    /// Whether content, or a set of attributes, is affected.
    fn needs(&self, root: &Root) -> bool {
        let verdict = root.reference().and_then(|reference| self.verdict_on(&reference));
        verdict.is_some_and(|verdict| !verdict.is_sound())
    }

    fn judge(&mut self, level: u8, child: &Child) -> Verdict {
        let mut stack = Vec::new();
        let top = Reference::Node { level, child: *child };
        self.enter(&top, &mut stack);
        while let Some(frame) = stack.last_mut() {
            if let Some(reference) = frame.left.pop() {
                self.enter(&reference, &mut stack);
            } else if let Some(frame) = stack.pop() {
                let verdict = self.verdict_of(&frame.node);
                self.judged.insert(frame.fingerprint, verdict);
            }
        }
        self.verdict_on(&top).unwrap_or(Verdict::LOST)
    }

    /// Puts a node on the stack, unless its verdict is known.
    fn enter(&mut self, reference: &Reference, stack: &mut Vec<Frame>) {
        if self.verdict_on(reference).is_some() {
            return;
        }
        // Only tree nodes have no verdict yet.
        let Reference::Node { level, child } = reference else { return };
        let fingerprint = child.fingerprint;
        match self.read(*level, child) {
            Some(node) => stack.push(Frame { fingerprint, left: node.references(), node }),
            None => drop(self.judged.insert(fingerprint, Verdict::LOST)),
        }
    }

    /// Reads a node past the cache of readers; `None` if it is lost, or not as its parent says.
    fn read(&self, level: u8, child: &Child) -> Option<Arc<tree::Node>> {
        if self.affected.unreadable.contains(&child.fingerprint) {
            return None;
        }
        match self.nodes.node_of(&child.fingerprint, child.hint) {
            Ok(AnyView::Tree(node)) if node.level() == level && node.rows() == child.len_bytes => Some(node),
            _ => None,
        }
    }

    /// Judges a node whose children are judged.
    fn verdict_of(&self, node: &tree::Node) -> Verdict {
        let of_child = |level: u8, child: &Child| {
            let verdict = self.verdict_on(&Reference::Node { level, child: *child }).unwrap_or(Verdict::LOST);
            Verdict { is_lost: false, ..verdict }
        };
        match node {
            tree::Node::Leaf(entries) => {
                let findings = entries.iter().map(|entry| self.findings_of(entry));
                Verdict { findings: findings.fold(0, u64::saturating_add), ..Verdict::default() }
            }
            tree::Node::List { level, parts } => parts
                .iter()
                .map(|part| of_child(level.saturating_sub(1), &part.child))
                .fold(Verdict::default(), Verdict::plus),
            tree::Node::Links(_) => Verdict::default(),
            tree::Node::Top(top) => {
                let findings = self.findings_of(&top.entry);
                // Lost links are a finding of the uppermost directory.
                let has_own = self.has_own(&top.entry);
                let links = top.links.map(|(level, child)| of_child(level, &child)).unwrap_or_default();
                Verdict { findings: findings - u64::from(has_own), is_torn: has_own || links.is_torn, is_lost: false }
            }
        }
    }

    /// Number of findings of an entry, and below it.
    fn findings_of(&self, entry: &Entry) -> u64 {
        let below = match &entry.content {
            Content::Directory(directory) => directory
                .root
                .and_then(|(level, child)| self.verdict_on(&Reference::Node { level, child }))
                .map_or(0, |verdict| verdict.findings),
            _ => 0,
        };
        below.saturating_add(u64::from(self.has_own(entry)))
    }

    /// Whether an entry itself is a finding.
    fn has_own(&self, entry: &Entry) -> bool {
        let is_affected = match &entry.content {
            Content::File { root, .. } => self.needs(root),
            Content::Directory(directory) => directory
                .root
                .and_then(|(level, child)| self.verdict_on(&Reference::Node { level, child }))
                .is_some_and(|verdict| verdict.is_torn),
            _ => false,
        };
        is_affected || self.has_lost_attributes(entry)
    }

    fn has_lost_attributes(&self, entry: &Entry) -> bool {
        matches!(&entry.attributes, Attributes::Stored(root) if self.needs(root))
    }

    /// Walks what is affected, until there are no names left.
    fn names(&self, version: Ino, level: u8, child: &Child, findings: &mut Findings) {
        let mut work = vec![Walk {
            path: Vec::new(),
            level,
            child: *child,
            entries: u64::MAX,
            first: version,
            directory: version,
        }];
        while let Some(walk) = work.pop() {
            let verdict = self.judged.get(&walk.child.fingerprint).copied().unwrap_or(Verdict::LOST);
            if verdict.is_sound() {
                continue;
            }
            if findings.is_full {
                return;
            }
            let node = if verdict.is_lost { None } else { self.read(walk.level, &walk.child) };
            match node.as_deref() {
                None => findings.add(walk.directory, &walk.path, Root::Empty, walk.entries),
                Some(tree::Node::Leaf(entries)) => self.entries(&walk, entries, &mut work, findings),
                Some(tree::Node::Top(top)) => {
                    if let Some((level, child)) = top.links {
                        // Without its link nobody can tell how many names a file has.
                        let (entries, path) = (child.len_bytes, Vec::new());
                        work.push(Walk { path, level, child, entries, first: version, directory: version });
                    }
                    self.entries(&walk, std::slice::from_ref(&top.entry), &mut work, findings);
                }
                Some(tree::Node::List { level, parts }) => {
                    let mut first = walk.first;
                    for part in parts {
                        let of_links = *level > tree::LINKS_LEVEL;
                        work.push(Walk {
                            path: walk.path.clone(),
                            level: level.saturating_sub(1),
                            child: part.child,
                            entries: if of_links { part.child.len_bytes } else { part.below.entries },
                            first,
                            directory: walk.directory,
                        });
                        first = first.saturating_add(part.below.entries);
                    }
                }
                Some(tree::Node::Links(_)) => {}
            }
        }
    }

    fn entries(&self, walk: &Walk, entries: &[Entry], work: &mut Vec<Walk>, findings: &mut Findings) {
        let mut ino = walk.first;
        for entry in entries {
            let path = join(&walk.path, &entry.name);
            let own = match entry.link {
                Some(link) => version_of(walk.first) + FIRST_LINKED_PLACE + link % FIRST_LINKED_PLACE,
                None => ino,
            };
            match &entry.content {
                Content::File { root, .. } if self.needs(root) => findings.add(own, &path, *root, 0),
                _ if self.has_lost_attributes(entry) => findings.add(own, &path, Root::Empty, 0),
                _ => {}
            }
            if let Content::Directory(directory) = &entry.content
                && let Some((level, child)) = directory.root
            {
                let (entries, first) = (directory.below.entries, ino.saturating_add(1));
                work.push(Walk { path, level, child, entries, first, directory: ino });
            }
            ino = ino.saturating_add(entry.sums().map_or(1, |sums| sums.entries));
        }
    }
}

/// Of a path that is too long only the last names are told.
fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let path = if path.len() >= PATH_BYTES_MAX { LEFT_OUT } else { path };
    let separator: &[u8] = if path.is_empty() || name.is_empty() { b"" } else { b"/" };
    [path, separator, name].concat()
}
