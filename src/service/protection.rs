//! Flags that protect inodes (chattr): permission to set them, and the changes that they refuse. The namespace checks changes of names
//! itself, in the same step as the change.
//!
//! Content accepted before a file became immutable is still published. Changes of content check the flags with the content locked, and
//! the flags are set under the same lock: a request that waited for room or for the file sees the new flags.

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::Inode;
use dedupfs_service::{AttributeChanges, Caller, FileKind, Ino, InodeFlags, OpenOptions};
use dedupfs_store::waiting;

use super::clone::Held;
use super::{Service, now};

fn permitted(is_permitted: bool) -> Result<()> {
    if is_permitted { Ok(()) } else { Err(EngineError::NotPermitted) }
}

/// Checks that the inode can be opened like this.
pub(super) fn check_open(inode: &Inode, how: OpenOptions) -> Result<()> {
    permitted(inode.chattr_flags().admit(how))
}

/// Checks that these attributes can be changed.
pub(super) fn check_change(inode: &Inode, changes: &AttributeChanges) -> Result<()> {
    permitted(inode.chattr_flags().admit_change(changes))
}

/// Checks that bytes can be written at `offset`. An append-only file keeps its bytes, even from handles older than the flag.
pub(super) fn check_write(inode: &Inode, offset: u64, size_bytes: u64) -> Result<()> {
    let flags = inode.chattr_flags();
    permitted(!flags.immutable && (!flags.append_only || offset >= size_bytes))
}

/// Checks that space can be allocated, or a hole made.
pub(super) fn check_allocate(inode: &Inode, only_allocates: bool) -> Result<()> {
    let flags = inode.chattr_flags();
    permitted(!flags.immutable && (!flags.append_only || only_allocates))
}

impl Service {
    pub(super) fn inode_flags(&self, ino: Ino) -> Result<InodeFlags> {
        Ok(self.inode(ino)?.ok_or(EngineError::NotFound)?.chattr_flags())
    }

    pub(super) fn change_flags(&self, caller: Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(EngineError::NotSupported);
        }
        // The kernel checks this itself, except kernels that leave it to the filesystem.
        let protection = |flags: InodeFlags| (flags.immutable, flags.append_only);
        let may_others = caller.uid == inode.uid && protection(flags) == protection(inode.chattr_flags());
        permitted(caller.uid == 0 || may_others)?;
        {
            // The hold makes an open meanwhile share the same content lock.
            let _held = Held::new(self, ino);
            let file = self.files.file(ino);
            let _body = file.as_ref().map(|file| waiting::write(&file.body));
            self.core.namespace.update(ino, &mut |inode| {
                inode.set_chattr_flags(flags);
                inode.ctime = now();
            })?;
        }
        self.core.relieve()
    }
}
