//! Changing inodes: attributes, content, extended attributes, and dropping orphans.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino, Timestamp, XattrMode};
use dedupfs_store::LogOp;
use dedupfs_store::recipe::Root;
use dedupfs_sync::canary::{Canary, is_planted};

use super::inode::Inode;
use super::{NAME_BYTES_MAX, Namespace, XATTR_VALUE_BYTES_MAX, XATTRS_MAX};

/// Checks that an extended attribute may have this name and value.
pub(super) fn check_xattr(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(EngineError::Invalid("an attribute name without bytes or with a NUL"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(EngineError::AttributeNameTooLong);
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(EngineError::AttributeTooLong);
    }
    Ok(())
}

/// Whether an update kept to the fields that [`Namespace::update`] may change.
fn is_update_allowed(before: &Inode, after: &Inode) -> bool {
    let size_may_change = before.kind == FileKind::Regular;
    before.ino == after.ino
        && before.generation == after.generation
        && before.kind == after.kind
        && before.nlink == after.nlink
        && before.root == after.root
        && before.parent == after.parent
        && before.xattr_count == after.xattr_count
        && before.symlink_target == after.symlink_target
        && after.mode <= 0o7777
        && (size_may_change || (before.size_bytes == after.size_bytes && before.data_bytes == after.data_bytes))
}

/// Whether this is what the removal of a tree does: reading its directories, and letting its owner write to them.
fn is_part_of_emptying(before: &Inode, after: &Inode) -> bool {
    let is_opened = before.is_directory() && after.mode == 0o700;
    let kept = |inode: &Inode| (inode.uid, inode.gid, inode.flags, inode.mtime);
    kept(before) == kept(after) && (before.mode == after.mode || is_opened)
}

impl Namespace {
    /// Changes attributes. `change` runs under the mutation lock: it must be short and must not call the namespace. It
    /// must not change identity, kind, links, content or extended attributes (`Invalid`).
    pub fn update(&self, ino: Ino, change: &mut dyn FnMut(&mut Inode)) -> Result<Inode> {
        let (_lock, mut draft) = self.begin_emptying()?;
        let inode = draft.inode(ino)?;
        let before = inode.clone();
        change(inode);
        if !is_part_of_emptying(&before, inode) {
            self.watching.check(ino)?;
        }
        if !is_update_allowed(&before, inode) {
            return Err(EngineError::Invalid("an attribute update changed more than attributes"));
        }
        let after = inode.clone();
        draft.apply();
        Ok(after)
    }

    /// Gives a regular file new content, and logs that a file refers to the new root and no longer to the old one.
    /// `times` derives mtime and ctime from the inode before the change. It runs under the mutation lock, with the same
    /// duties as the argument of [`update`](Self::update).
    pub fn set_root(
        &self,
        ino: Ino,
        root: Root,
        size_bytes: u64,
        data_bytes: u64,
        times: &mut dyn FnMut(&Inode) -> (Timestamp, Timestamp),
    ) -> Result<Inode> {
        root.check()?;
        let (_lock, mut draft) = self.begin()?;
        let inode = draft.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(EngineError::IsDirectory),
            _ => return Err(EngineError::Invalid("only regular files have content")),
        }
        let old = std::mem::replace(&mut inode.root, root);
        inode.size_bytes = size_bytes;
        inode.data_bytes = data_bytes;
        (inode.mtime, inode.ctime) = times(inode);
        let after = inode.clone();
        if old != root {
            // In this order, so that the count of shared content never reaches zero.
            draft.log_root(LogOp::RootAdded, root);
            if !is_planted(Canary::ReplacedNotDropped) {
                draft.log_root(LogOp::RootDropped, old);
            }
        }
        draft.apply();
        Ok(after)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, now: Timestamp) -> Result<Inode> {
        check_xattr(name, value)?;
        let (_lock, mut draft) = self.begin()?;
        let exists = self.xattr(ino, name)?.is_some();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(EngineError::Exists),
            (XattrMode::Replace, false) => return Err(EngineError::NoAttribute),
            _ => {}
        }
        let inode = draft.inode(ino)?;
        if !exists && inode.xattr_count >= XATTRS_MAX {
            return Err(EngineError::NoSpace);
        }
        inode.xattr_count += u32::from(!exists);
        inode.ctime = now;
        let after = inode.clone();
        draft.xattr(ino, Arc::from(name), Some(Arc::from(value)));
        draft.apply();
        Ok(after)
    }

    /// Removes an extended attribute; `NoAttribute` if it does not exist.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<Inode> {
        let (_lock, mut draft) = self.begin()?;
        self.xattr(ino, name)?.ok_or(EngineError::NoAttribute)?;
        let inode = draft.inode(ino)?;
        inode.xattr_count = inode.xattr_count.saturating_sub(1);
        inode.ctime = now;
        let after = inode.clone();
        draft.xattr(ino, Arc::from(name), None);
        draft.apply();
        Ok(after)
    }

    /// Removes an inode without a name and its extended attributes, and logs that a file no longer refers to its root.
    pub fn drop_orphan(&self, ino: Ino) -> Result<()> {
        let (_lock, mut draft) = self.begin_emptying()?;
        let inode = draft.inode(ino)?;
        if inode.nlink > 0 {
            return Err(EngineError::Invalid("an inode with a name cannot be dropped"));
        }
        let root = inode.root;
        for name in self.xattr_names(ino)? {
            draft.xattr(ino, Arc::from(name), None);
        }
        draft.remove(ino)?;
        draft.orphan(ino, false);
        if !is_planted(Canary::OrphanNotDropped) {
            draft.log_root(LogOp::RootDropped, root);
        }
        draft.apply();
        Ok(())
    }
}
