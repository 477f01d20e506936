//! Lost content within frozen trees: the files that need it, and the directories of which entries are lost.
//!
//! A tree is judged from the bottom up with a stack of its own, because directories nest deeper than the machine's
//! stack allows. A node that several trees share is judged once. Then only what is affected is walked for names.
//!
//! Memory: 40 bytes for each tree node met, one frame for each node on the way down.

use std::collections::HashMap;

use dedupfs_content::NodeReader;
use dedupfs_namespace::{FIRST_LINKED_PLACE, Inode, version_of};
use dedupfs_service::Ino;
use dedupfs_store::Fingerprint;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::{Child, Reference, Root};
use dedupfs_store::tree::{self, Attributes, Content, Entry};

use super::Affected;

/// A finding within a frozen tree.
pub(super) struct Found {
    /// Its inode number.
    pub(super) ino: Ino,
    /// Path from the top of the tree; empty for the top itself.
    pub(super) path: Vec<u8>,
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Sound,
    Affected,
    /// It cannot be read.
    Lost,
}

/// A node on the way down.
struct Frame {
    fingerprint: Fingerprint,
    is_affected: bool,
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

impl<'a, 'l> Trees<'a, 'l> {
    pub(super) fn new(nodes: &'a NodeReader, affected: &'a Affected<'l>) -> Self {
        Self { nodes, affected, judged: HashMap::new() }
    }

    /// Returns at most `limit` findings in the tree of a version, and the number of all.
    pub(super) fn find(&mut self, version: &Inode, limit: usize) -> (Vec<Found>, u64) {
        let Root::Tree { level, child } = version.root else { return (Vec::new(), 0) };
        match self.judge(level, &child) {
            Verdict::Sound => (Vec::new(), 0),
            Verdict::Lost => (vec![lost(version.ino, Vec::new(), u64::MAX)], 1),
            Verdict::Affected => self.names(version.ino, level, &child, limit),
        }
    }

    fn verdict_on(&self, reference: &Reference) -> Option<Verdict> {
        let is_affected = match reference {
            Reference::Chunk(child) => self.affected.lost.chunks.contains(&child.fingerprint),
            Reference::Node { level, child } if !Node::is_tree(*level) => self.affected.node(&child.fingerprint),
            Reference::Node { child, .. } => return self.judged.get(&child.fingerprint).copied(),
        };
        Some(if is_affected { Verdict::Affected } else { Verdict::Sound })
    }

    fn judge(&mut self, level: u8, child: &Child) -> Verdict {
        let mut stack = Vec::new();
        let mut last = self.enter(Reference::Node { level, child: *child }, &mut stack);
        while let Some(frame) = stack.last_mut() {
            frame.is_affected |= last.take().is_some_and(|verdict| verdict != Verdict::Sound);
            match frame.left.pop() {
                Some(reference) => last = self.enter(reference, &mut stack),
                None => {
                    let verdict = if frame.is_affected { Verdict::Affected } else { Verdict::Sound };
                    self.judged.insert(frame.fingerprint, verdict);
                    last = Some(verdict);
                    stack.pop();
                }
            }
        }
        last.unwrap_or(Verdict::Sound)
    }

    /// Returns the verdict if it is known, else puts the node on the stack.
    fn enter(&mut self, reference: Reference, stack: &mut Vec<Frame>) -> Option<Verdict> {
        if let Some(verdict) = self.verdict_on(&reference) {
            return Some(verdict);
        }
        let (fingerprint, hint) = (reference.fingerprint(), reference.child().hint);
        if !self.affected.unreadable.contains(&fingerprint)
            && let Ok(view) = self.nodes.node_of(&fingerprint, hint)
        {
            stack.push(Frame { fingerprint, is_affected: false, left: view.references() });
            return None;
        }
        self.judged.insert(fingerprint, Verdict::Lost);
        Some(Verdict::Lost)
    }

    fn names(&self, version: Ino, level: u8, child: &Child, limit: usize) -> (Vec<Found>, u64) {
        let (mut found, mut count) = (Vec::new(), 0);
        let mut add = |finding: Found| {
            count += 1;
            if found.len() < limit {
                found.push(finding);
            }
        };
        let mut work = vec![Walk {
            path: Vec::new(),
            level,
            child: *child,
            entries: u64::MAX,
            first: version,
            directory: version,
        }];
        while let Some(walk) = work.pop() {
            let verdict = self.judged.get(&walk.child.fingerprint).copied().unwrap_or(Verdict::Lost);
            if verdict == Verdict::Sound {
                continue;
            }
            let node = match verdict {
                Verdict::Affected => self.nodes.tree_node(walk.level, &walk.child).ok(),
                _ => None,
            };
            match node.as_deref() {
                None => add(lost(walk.directory, walk.path, walk.entries)),
                Some(tree::Node::Leaf(entries)) => self.entries(&walk, entries, &mut work, &mut add),
                Some(tree::Node::Top(top)) => {
                    self.entries(&walk, std::slice::from_ref(&top.entry), &mut work, &mut add);
                }
                Some(tree::Node::List { level, parts }) => {
                    let mut first = walk.first;
                    for part in parts {
                        work.push(Walk {
                            path: walk.path.clone(),
                            level: level.saturating_sub(1),
                            child: part.child,
                            entries: part.below.entries,
                            first,
                            directory: walk.directory,
                        });
                        first = first.saturating_add(part.below.entries);
                    }
                }
                Some(tree::Node::Links(_)) => {}
            }
        }
        (found, count)
    }

    fn entries(&self, walk: &Walk, entries: &[Entry], work: &mut Vec<Walk>, add: &mut dyn FnMut(Found)) {
        let mut ino = walk.first;
        for entry in entries {
            let path = join(&walk.path, &entry.name);
            let is_affected = |root: &Root| {
                let verdict = root.reference().and_then(|reference| self.verdict_on(&reference));
                verdict.is_some_and(|verdict| verdict != Verdict::Sound)
            };
            let own = match entry.link {
                Some(link) => version_of(walk.first) + FIRST_LINKED_PLACE + link,
                None => ino,
            };
            let attributes_lost = matches!(&entry.attributes, Attributes::Stored(root) if is_affected(root));
            match &entry.content {
                Content::File { root, .. } if is_affected(root) => {
                    add(Found { ino: own, path, root: *root, lost_entries: 0 });
                }
                Content::Directory(directory) if let Some((level, child)) = directory.root => {
                    if attributes_lost {
                        add(Found { ino: own, path: path.clone(), root: Root::Empty, lost_entries: 0 });
                    }
                    let entries = directory.below.entries;
                    work.push(Walk { path, level, child, entries, first: ino + 1, directory: ino });
                }
                _ if attributes_lost => add(Found { ino: own, path, root: Root::Empty, lost_entries: 0 }),
                _ => {}
            }
            ino = ino.saturating_add(entry.sums().map_or(1, |sums| sums.entries));
        }
    }
}

fn lost(ino: Ino, path: Vec<u8>, lost_entries: u64) -> Found {
    Found { ino, path, root: Root::Empty, lost_entries }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if path.is_empty() || name.is_empty() { b"" } else { b"/" };
    [path, separator, name].concat()
}
