//! Flags that protect inodes (chattr): who may set them, and what they refuse. What they refuse of names is the
//! namespace's business, in the same step as the change itself.
//!
//! Content that was taken before a file became immutable is still published. What changes content asks for the flags with the
//! content locked, and so are they set: when they are, whoever waited for room, or for the file, finds them.

use dedupfs_fuse::service::{AttributeChanges, Caller, FileKind, Ino, InodeFlags, OpenOptions};
use dedupfs_store::waiting;

use super::clone::Held;
use super::{Service, now};
use crate::error::{EngineError, Result};
use crate::namespace::Inode;

fn permitted(is_permitted: bool) -> Result<()> {
    if is_permitted { Ok(()) } else { Err(EngineError::NotPermitted) }
}

/// Whether it can be opened so.
pub(super) fn check_open(inode: &Inode, how: OpenOptions) -> Result<()> {
    permitted(inode.chattr_flags().admit(how))
}

/// Whether these attributes can be changed.
pub(super) fn check_change(inode: &Inode, changes: &AttributeChanges) -> Result<()> {
    permitted(inode.chattr_flags().admit_change(changes))
}

/// Whether bytes can be written at `offset`: what an append-only file has stays, also if its handle is older than the flag.
pub(super) fn check_write(inode: &Inode, offset: u64, size_bytes: u64) -> Result<()> {
    let flags = inode.chattr_flags();
    permitted(!flags.immutable && (!flags.append_only || offset >= size_bytes))
}

/// Whether space can be allocated, or a hole made.
pub(super) fn check_allocate(inode: &Inode, only_allocates: bool) -> Result<()> {
    let flags = inode.chattr_flags();
    permitted(!flags.immutable && (!flags.append_only || only_allocates))
}

impl Service {
    pub(super) fn inode_flags(&self, ino: Ino) -> Result<InodeFlags> {
        Ok(self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?.chattr_flags())
    }

    pub(super) fn change_flags(&self, caller: Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(EngineError::NotSupported);
        }
        // As the kernel has checked, but for kernels that leave it to the filesystem.
        let protection = |flags: InodeFlags| (flags.immutable, flags.append_only);
        let may_others = caller.uid == inode.uid && protection(flags) == protection(inode.chattr_flags());
        permitted(caller.uid == 0 || may_others)?;
        {
            // Held, so that whoever opens it meanwhile locks the same content.
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
