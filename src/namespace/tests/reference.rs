//! The simplest possible namespace: the reference of the model test.
//!
//! Inodes are keyed by the numbers that the real namespace gave. A name has an *identity*, which a directory stream may
//! show once. It changes when the name is created again, but not when the name gets another inode.

use std::collections::BTreeMap;

use super::*;

pub(super) type Checked<T> = std::result::Result<T, &'static str>;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: FileKind,
    pub(super) nlink: u32,
    pub(super) root: Root,
    pub(super) parent: Ino,
    /// Name -> (inode, identity).
    pub(super) children: BTreeMap<Vec<u8>, (Ino, u64)>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) nodes: BTreeMap<Ino, Node>,
    pub(super) log: Vec<LogOp>,
    identities: u64,
}

impl Reference {
    pub(super) fn new() -> Self {
        let mut reference = Self { nodes: BTreeMap::new(), log: Vec::new(), identities: 0 };
        reference.insert(ROOT_INO, FileKind::Directory, ROOT_INO);
        reference
    }

    fn insert(&mut self, ino: Ino, kind: FileKind, parent: Ino) {
        let is_directory = kind == FileKind::Directory;
        let (children, xattrs) = Default::default();
        let (nlink, parent) = if is_directory { (2, parent) } else { (1, 0) };
        self.nodes.insert(ino, Node { kind, nlink, root: Root::Empty, parent, children, xattrs });
    }

    fn identity(&mut self) -> u64 {
        self.identities += 1;
        self.identities
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("a child exists")
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.nodes[&ino].kind == FileKind::Directory
    }

    fn check_directory(&self, ino: Ino) -> Checked<()> {
        match self.nodes.get(&ino) {
            None => Err("NotFound"),
            Some(node) if node.kind != FileKind::Directory => Err("NotDirectory"),
            Some(node) if node.nlink == 0 => Err("NotFound"),
            Some(_) => Ok(()),
        }
    }

    fn child(&self, parent: Ino, name: &[u8]) -> Option<(Ino, u64)> {
        self.nodes[&parent].children.get(name).copied()
    }

    pub(super) fn can_make(&self, parent: Ino, name: &[u8]) -> Checked<()> {
        self.check_directory(parent)?;
        if self.child(parent, name).is_some() { Err("Exists") } else { Ok(()) }
    }

    pub(super) fn make(&mut self, parent: Ino, name: &[u8], kind: FileKind, ino: Ino) {
        assert!(!self.nodes.contains_key(&ino), "number {ino} given twice");
        let identity = self.identity();
        self.insert(ino, kind, parent);
        let parent = self.node(parent);
        parent.children.insert(name.to_vec(), (ino, identity));
        parent.nlink += u32::from(kind == FileKind::Directory);
    }

    pub(super) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Checked<()> {
        self.can_make(parent, name)?;
        match self.nodes.get(&ino) {
            None => return Err("NotFound"),
            Some(node) if node.kind == FileKind::Directory => return Err("NotPermitted"),
            Some(node) if node.nlink == 0 => return Err("NotFound"),
            Some(_) => {}
        }
        let identity = self.identity();
        self.node(ino).nlink += 1;
        self.node(parent).children.insert(name.to_vec(), (ino, identity));
        Ok(())
    }

    pub(super) fn remove(&mut self, parent: Ino, name: &[u8], wants_directory: bool) -> Checked<()> {
        self.check_directory(parent)?;
        let (ino, _) = self.child(parent, name).ok_or("NotFound")?;
        match (wants_directory, self.is_directory(ino)) {
            (true, false) => return Err("NotDirectory"),
            (false, true) => return Err("IsDirectory"),
            (true, true) if !self.nodes[&ino].children.is_empty() => return Err("NotEmpty"),
            _ => {}
        }
        self.node(parent).children.remove(name);
        self.node(parent).nlink -= u32::from(wants_directory);
        self.lose_name(ino);
        Ok(())
    }

    fn lose_name(&mut self, ino: Ino) {
        let node = self.node(ino);
        node.nlink = if node.kind == FileKind::Directory { 0 } else { node.nlink - 1 };
    }

    fn is_below(&self, directory: Ino, ancestor: Ino) -> bool {
        let mut at = directory;
        loop {
            if at == ancestor {
                return true;
            }
            if at == ROOT_INO {
                return false;
            }
            at = self.nodes[&at].parent;
        }
    }

    /// Renames. `whiteout` returns the number that the real namespace gave the whiteout.
    pub(super) fn rename(
        &mut self,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: impl FnOnce() -> Ino,
    ) -> Checked<()> {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err("Invalid");
        }
        self.check_directory(parent)?;
        self.check_directory(to_parent)?;
        let (ino, identity) = self.child(parent, name).ok_or("NotFound")?;
        let target = self.child(to_parent, to_name);
        if flags.no_replace && target.is_some() {
            return Err("Exists");
        }
        if flags.exchange && target.is_none() {
            return Err("NotFound");
        }
        if target.is_some_and(|(target, _)| target == ino) {
            return Ok(());
        }
        if self.is_directory(ino) && self.is_below(to_parent, ino) {
            return Err("Invalid");
        }
        match target {
            Some((other, other_identity)) if flags.exchange => {
                if self.is_directory(other) && self.is_below(parent, other) {
                    return Err("Invalid");
                }
                self.node(parent).children.insert(name.to_vec(), (other, identity));
                self.node(to_parent).children.insert(to_name.to_vec(), (ino, other_identity));
                self.moved(other, to_parent, parent);
            }
            Some((other, other_identity)) => {
                match (self.is_directory(ino), self.is_directory(other)) {
                    (true, false) => return Err("NotDirectory"),
                    (false, true) => return Err("IsDirectory"),
                    (true, true) if !self.nodes[&other].children.is_empty() => return Err("NotEmpty"),
                    (true, true) => self.node(to_parent).nlink -= 1,
                    _ => {}
                }
                self.lose_name(other);
                self.node(parent).children.remove(name);
                self.node(to_parent).children.insert(to_name.to_vec(), (ino, other_identity));
            }
            None => {
                let fresh = self.identity();
                self.node(parent).children.remove(name);
                self.node(to_parent).children.insert(to_name.to_vec(), (ino, fresh));
            }
        }
        self.moved(ino, parent, to_parent);
        if flags.whiteout {
            let left = whiteout();
            self.insert(left, FileKind::CharDevice, parent);
            self.node(parent).children.insert(name.to_vec(), (left, identity));
        }
        Ok(())
    }

    fn moved(&mut self, ino: Ino, from: Ino, to: Ino) {
        if self.is_directory(ino) {
            self.node(from).nlink -= 1;
            self.node(to).nlink += 1;
            self.node(ino).parent = to;
        }
    }

    fn log_root(&mut self, op: fn(Root) -> LogOp, root: Root) {
        if root != Root::Empty {
            self.log.push(op(root));
        }
    }

    pub(super) fn set_root(&mut self, ino: Ino, root: Root) -> Checked<()> {
        let node = self.nodes.get_mut(&ino).ok_or("NotFound")?;
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err("IsDirectory"),
            _ => return Err("Invalid"),
        }
        let old = std::mem::replace(&mut node.root, root);
        if old != root {
            self.log_root(LogOp::RootAdded, root);
            self.log_root(LogOp::RootDropped, old);
        }
        Ok(())
    }

    pub(super) fn drop_orphan(&mut self, ino: Ino) -> Checked<()> {
        let node = self.nodes.get(&ino).ok_or("NotFound")?;
        if node.nlink > 0 {
            return Err("Invalid");
        }
        let root = node.root;
        self.nodes.remove(&ino);
        self.log_root(LogOp::RootDropped, root);
        Ok(())
    }

    pub(super) fn orphans(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.nlink == 0).map(|(&ino, _)| ino).collect()
    }
}
