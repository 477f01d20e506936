//! One mutation being prepared: its working copies, and their application in one step.
//!
//! A mutator holds the namespace's mutation lock, reads its inputs into a [`Draft`], changes the copies, and applies
//! all of them under the state lock at once. A mutator that fails has changed nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{Ino, Timestamp};
use dedupfs_store::recipe::Root;
use dedupfs_store::{LogOp, StoreError};

use super::Namespace;
use super::inode::{Entry, Inode};
use super::totals::Totals;

struct Touched {
    ino: Ino,
    before: Option<Arc<Inode>>,
    after: Option<Inode>,
}

struct NameChange {
    directory: Ino,
    name: Arc<[u8]>,
    old: Option<Entry>,
    new: Option<Entry>,
}

/// Inode, name, new value.
type XattrChange = (Ino, Arc<[u8]>, Option<Arc<[u8]>>);

/// The working copies of one mutation.
pub(super) struct Draft<'n> {
    namespace: &'n Namespace,
    /// Whether it may change inodes of a closed tree.
    may_empty: bool,
    inodes: Vec<Touched>,
    names: Vec<NameChange>,
    xattrs: Vec<XattrChange>,
    orphans: Vec<(Ino, bool)>,
    log: Vec<LogOp>,
}

impl<'n> Draft<'n> {
    pub(super) fn new(namespace: &'n Namespace) -> Self {
        let (names, xattrs, orphans, log) = Default::default();
        Self { namespace, may_empty: false, inodes: Vec::with_capacity(4), names, xattrs, orphans, log }
    }

    /// Lets the draft change inodes of a closed tree.
    pub(super) fn may_empty(mut self) -> Self {
        self.may_empty = true;
        self
    }

    /// Returns the working copy of an inode.
    pub(super) fn inode(&mut self, ino: Ino) -> Result<&mut Inode> {
        let position = match self.inodes.iter().position(|touched| touched.ino == ino) {
            Some(position) => position,
            None => {
                if !self.may_empty {
                    self.namespace.watching.check(ino)?;
                }
                let before = self.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
                self.inodes.push(Touched { ino, after: Some((*before).clone()), before: Some(before) });
                self.inodes.len() - 1
            }
        };
        self.inodes[position].after.as_mut().ok_or(EngineError::NotFound)
    }

    /// Returns the working copy of a directory in which names can be changed.
    pub(super) fn directory(&mut self, ino: Ino) -> Result<&mut Inode> {
        let inode = self.inode(ino)?;
        if !inode.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        if inode.nlink == 0 {
            return Err(EngineError::NotFound);
        }
        Ok(inode)
    }

    /// Checks that an entry may be removed from its directory.
    pub(super) fn check_gives(&mut self, directory: Ino, ino: Ino) -> Result<()> {
        self.inode(directory)?.check_unprotected()?;
        self.inode(ino)?.check_unprotected()
    }

    /// Adds a new inode.
    pub(super) fn create(&mut self, inode: Inode) {
        self.inodes.push(Touched { ino: inode.ino, before: None, after: Some(inode) });
    }

    pub(super) fn remove(&mut self, ino: Ino) -> Result<()> {
        self.inode(ino)?;
        self.inodes.iter_mut().filter(|touched| touched.ino == ino).for_each(|touched| touched.after = None);
        Ok(())
    }

    /// Records a changed name.
    pub(super) fn name(&mut self, directory: Ino, name: &Arc<[u8]>, old: Option<Entry>, new: Option<Entry>) {
        self.names.push(NameChange { directory, name: name.clone(), old, new });
    }

    /// Records a changed attribute.
    pub(super) fn xattr(&mut self, ino: Ino, name: Arc<[u8]>, value: Option<Arc<[u8]>>) {
        self.xattrs.push((ino, name, value));
    }

    /// Records that an inode became an orphan, or no longer is one.
    pub(super) fn orphan(&mut self, ino: Ino, is_orphan: bool) {
        self.orphans.push((ino, is_orphan));
    }

    /// Logs that a file refers to a root, or no longer does. Roots without references need no log entry.
    pub(super) fn log_root(&mut self, op: fn(Root) -> LogOp, root: Root) {
        if root.reference().is_some() {
            self.log.push(op(root));
        }
    }

    /// Removes one name from an inode: a file loses a link, a directory all links. An inode without links becomes an
    /// orphan.
    pub(super) fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<Inode> {
        let inode = self.inode(ino)?;
        // This inode has at least the name being removed. If the inode were dropped with it, any other name would be
        // left without an inode.
        if inode.nlink == 0 {
            let expected = "as many links as it has names (`dedupfs fsck --repair POOL` counts them anew)";
            return Err(StoreError::corrupt(format!("inode {ino}"), expected, "none").into());
        }
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink - 1 };
        inode.ctime = now;
        let after = inode.clone();
        if after.nlink == 0 {
            self.orphan(ino, true);
        }
        Ok(after)
    }

    /// Applies everything in one step.
    pub(super) fn apply(self) {
        let mut totals = Totals::default();
        for touched in &self.inodes {
            totals = touched.before.as_ref().map_or(totals, |before| totals.minus(&Totals::of(before)));
            totals = touched.after.as_ref().map_or(totals, |after| totals.plus(&Totals::of(after)));
            self.namespace.watching.note(touched.ino, touched.before.as_deref(), touched.after.as_ref());
        }
        self.xattrs.iter().for_each(|(ino, ..)| self.namespace.watching.note_any(*ino));
        self.names.iter().for_each(|change| self.namespace.watching.note_any(change.directory));
        let inodes: Vec<_> =
            self.inodes.into_iter().map(|touched| (touched.ino, touched.after.map(Arc::new))).collect();
        let mut state = self.namespace.state.write();
        let active = &mut state.active;
        let target_bytes = |inode: &Arc<Inode>| inode.symlink_target.as_ref().map_or(0, |target| target.len() as u64);
        active.value_bytes += inodes.iter().filter_map(|(_, inode)| inode.as_ref().map(target_bytes)).sum::<u64>();
        active.inodes.extend(inodes);
        for change in self.names {
            active.set_entry(change.directory, change.name, change.old, change.new);
        }
        for (ino, name, value) in self.xattrs {
            active.set_xattr(ino, name, value);
        }
        active.orphans.extend(self.orphans);
        // Each log entry changes one cell.
        self.namespace.logged_changes.fetch_add(self.log.len() as u64, Ordering::Relaxed);
        active.log.extend(self.log);
        active.totals = active.totals.plus(&totals);
    }
}
