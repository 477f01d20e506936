//! Creating, linking, renaming and removing names.

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{Inode, NewInode, is_frozen};
use dedupfs_service::{Caller, FileKind, Ino, InodeFlags, NewNode, NodeContent, RenameFlags, acl};
use dedupfs_sync::canary::{Canary, is_planted};

use super::{Service, now};
use crate::durability::space::Demand;

const SETGID: u16 = 0o2000;

impl Service {
    /// Creates an inode with a name. Applies umask or default ACL, and the group of a setgid directory.
    pub(super) fn make_node(&self, caller: Caller, node: NewNode<'_>, content: NodeContent<'_>) -> Result<Inode> {
        let _pass = self.core.begin_change()?;
        let target_bytes = if let NodeContent::Symlink(target) = &content { target.len() } else { 0 };
        let _room = self.admit(Demand::change(target_bytes as u64))?;
        let namespace = &self.core.namespace;
        let parent = namespace.inode_shared(node.parent)?.ok_or(EngineError::NotFound)?;
        let (kind, rdev, target) = match content {
            NodeContent::Regular => (FileKind::Regular, 0, None),
            NodeContent::Directory => (FileKind::Directory, 0, None),
            NodeContent::Symlink(target) => (FileKind::Symlink, 0, Some(target.to_vec())),
            NodeContent::CharDevice(number) => (FileKind::CharDevice, number, None),
            NodeContent::BlockDevice(number) => (FileKind::BlockDevice, number, None),
            NodeContent::Fifo => (FileKind::Fifo, 0, None),
            NodeContent::Socket => (FileKind::Socket, 0, None),
        };
        let default_acl = match parent.xattr_count {
            0 => None,
            _ => namespace.xattr(node.parent, acl::DEFAULT_XATTR)?,
        };
        let inherited = acl::inherit(default_acl.as_deref(), node.mode & 0o7777, node.umask, kind)
            .map_err(|_| EngineError::Invalid("a damaged default access list"))?;
        let mut mode = if kind == FileKind::Symlink { 0o777 } else { inherited.mode };
        let mut gid = caller.gid;
        if parent.mode & SETGID != 0 {
            gid = parent.gid;
            if kind == FileKind::Directory {
                mode |= SETGID;
            }
        }
        let access = inherited.access.map(|value| (acl::ACCESS_XATTR.to_vec(), value));
        let default = inherited.default.map(|value| (acl::DEFAULT_XATTR.to_vec(), value));
        let flags = match kind {
            FileKind::Regular | FileKind::Directory => parent.chattr_flags().inherited(),
            _ => InodeFlags::default(),
        };
        let new = NewInode {
            kind,
            mode,
            uid: caller.uid,
            gid,
            rdev,
            symlink_target: target,
            xattrs: access.into_iter().chain(default).collect(),
            flags,
            now: now(),
        };
        let inode = namespace.make(node.parent, node.name, &new)?;
        self.core.relieve()?;
        Ok(inode)
    }

    pub(super) fn link_target(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?.ok_or(EngineError::NotFound)?;
        let target = inode.symlink_target.as_ref().ok_or(EngineError::Invalid("not a symbolic link"))?.to_vec();
        self.note_node_access(ino);
        Ok(target)
    }

    pub(super) fn remove_name(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        let inode = self.core.namespace.unlink(parent, name, now())?;
        self.removed(&inode)
    }

    pub(super) fn remove_empty_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        let inode = match self.core.namespace.remove_directory(parent, name, now()) {
            Err(EngineError::NotEmpty) if self.may_forget(parent, name)? => {
                self.core.namespace.forget_version(parent, name, now())?
            }
            removed => removed?,
        };
        self.removed(&inode)
    }

    /// Removes the name of a version, which the kernel must not know.
    pub(crate) fn forget_version(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        self.removed(&self.core.namespace.forget_version(parent, name, now())?)
    }

    pub(super) fn rename_name(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        if flags.exchange && self.is_of_freeze(from)? {
            self.exchange_frozen(from, to)?;
            return self.core.relieve();
        }
        let renamed = self.core.namespace.rename(from.0, from.1, to.0, to.1, flags, now())?;
        match &renamed.replaced {
            Some(replaced) => self.removed(replaced),
            None => self.core.relieve(),
        }
    }

    pub(super) fn link_name(&self, ino: Ino, to_parent: Ino, to_name: &[u8]) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.admit(Demand::change(0))?;
        self.core.namespace.link(ino, to_parent, to_name, now())?;
        self.core.relieve()
    }

    /// Handles an inode that lost a name. Without names it is dropped as soon as nobody uses it.
    fn removed(&self, inode: &Inode) -> Result<()> {
        if inode.nlink == 0 {
            self.collect(inode.ino);
        }
        self.core.relieve()
    }

    /// Drops the inode if it has no name, is not open, and is unknown to the kernel.
    pub(crate) fn collect(&self, ino: Ino) {
        // Called after each removal of a name, handle or kernel reference: the last of these calls finds the inode unused. Most calls
        // find a name and return at once.
        let is_orphan = || {
            if self.lookups.knows(ino) && !(is_frozen(ino) && is_planted(Canary::HeldVersionDropped)) {
                return Ok(false);
            }
            let inode = self.core.namespace.inode_shared(ino)?;
            Ok::<_, EngineError>(inode.is_some_and(|inode| inode.nlink == 0))
        };
        if is_orphan().is_ok_and(|is_orphan| !is_orphan) {
            return;
        }
        self.files.if_closed(ino, || {
            // On a read-only pool the inode stays in the table of orphans, and the next mount drops it. Checked with the pass held: a
            // later pause waits for the pass.
            let pass = self.core.gate.enter_to_publish();
            if pass.is_err() || self.core.gate.is_paused() {
                return;
            }
            let dropped = is_orphan().and_then(|is_orphan| match is_orphan {
                true => self.core.namespace.drop_orphan(ino),
                false => Ok(()),
            });
            if let Err(error) = dropped {
                // It stays in the table of orphans, and the next mount drops it.
                tracing::warn!(ino, %error, "a removed inode could not be dropped yet");
            }
        });
    }
}
