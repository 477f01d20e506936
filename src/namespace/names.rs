//! Making and removing names.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, ReadOnly, Result};
use dedupfs_service::{FileKind, Ino, InodeFlags, Timestamp};
use dedupfs_store::recipe::Root;
use dedupfs_store::waiting;
use dedupfs_sync::MutexGuard;

use super::draft::Draft;
use super::inode::{Entry, Inode};
use super::versions::{FIRST_VERSION, is_frozen};
use super::{LINKS_MAX, NAME_BYTES_MAX, Namespace, SYMLINK_BYTES_MAX, attributes};

/// The inode that [`Namespace::make`] creates. Mode and group are final: the caller has applied umask, ACLs and setgid.
#[derive(Clone, Debug)]
pub struct NewInode {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits (0o7777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Target of a symbolic link; for symbolic links only.
    pub symlink_target: Option<Vec<u8>>,
    /// Initial extended attributes (ACLs), set in the same step.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Flags inherited from the directory.
    pub flags: InodeFlags,
    /// All its times, and its parent's mtime and ctime.
    pub now: Timestamp,
}

/// Checks that an entry may have this name.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(EngineError::NotFound),
        b"." | b".." => Err(EngineError::Invalid("\".\" and \"..\" are not entries")),
        _ if name.len() > NAME_BYTES_MAX => Err(EngineError::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(EngineError::Invalid("a name with a slash or a NUL")),
        _ => Ok(()),
    }
}

/// Sets the times of a directory whose content changed.
pub(super) fn touch(directory: &mut Inode, now: Timestamp) {
    directory.mtime = now;
    directory.ctime = now;
}

/// Counts a new subdirectory of a directory.
pub(super) fn gain_subdirectory(directory: &mut Inode) -> Result<()> {
    if directory.nlink >= LINKS_MAX {
        return Err(EngineError::TooManyLinks);
    }
    directory.nlink += 1;
    Ok(())
}

impl Namespace {
    /// Starts a mutation: takes the lock and returns an empty draft.
    pub(super) fn begin(&self) -> Result<(MutexGuard<'_, ()>, Draft<'_>)> {
        self.health.check()?;
        Ok((waiting::lock(&self.mutation), Draft::new(self)))
    }

    /// As [`begin`](Self::begin), for a change that empties a directory: closed trees permit it.
    pub(super) fn begin_emptying(&self) -> Result<(MutexGuard<'_, ()>, Draft<'_>)> {
        self.begin().map(|(lock, draft)| (lock, draft.may_empty()))
    }

    /// Returns a cookie that was never used.
    pub(super) fn new_cookie(&self) -> u64 {
        self.next_cookie.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns an inode with one link and a number that was never used.
    pub(super) fn new_inode(&self, new: &NewInode) -> Inode {
        let target = new.symlink_target.as_deref();
        let mut inode = Inode {
            ino: self.next_ino.fetch_add(1, Ordering::Relaxed),
            generation: self.writer_epoch(),
            kind: new.kind,
            mode: new.mode & 0o7777,
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size_bytes: target.map_or(0, |target| target.len() as u64),
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            root: Root::Empty,
            parent: 0,
            xattr_count: new.xattrs.len() as u32,
            symlink_target: target.map(Arc::from),
            flags: 0,
            data_bytes: 0,
        };
        inode.set_chattr_flags(new.flags);
        inode
    }

    /// Creates an inode under a new name.
    pub fn make(&self, parent: Ino, name: &[u8], new: &NewInode) -> Result<Inode> {
        check_name(name)?;
        check_new(new)?;
        if self.next_ino.load(Ordering::Relaxed) >= FIRST_VERSION - 1 {
            return Err(EngineError::Invalid("all inode numbers are used up: copy the pool into a new one"));
        }
        let (_lock, mut draft) = self.begin()?;
        let directory = draft.directory(parent)?;
        if self.entry(parent, name)?.is_some() {
            return Err(EngineError::Exists);
        }
        directory.check_takes_entries()?;
        directory.size_bytes += 1;
        touch(directory, new.now);
        if new.kind == FileKind::Directory {
            gain_subdirectory(directory)?;
        }
        let mut inode = self.new_inode(new);
        if new.kind == FileKind::Directory {
            inode.nlink = 2;
            inode.parent = parent;
        }
        let entry = Entry { ino: inode.ino, kind: inode.kind, cookie: self.new_cookie() };
        draft.name(parent, &Arc::from(name), None, Some(entry));
        for (name, value) in &new.xattrs {
            draft.xattr(inode.ino, Arc::from(&**name), Some(Arc::from(&**value)));
        }
        draft.create(inode.clone());
        draft.apply();
        Ok(inode)
    }

    /// Gives an inode another name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Inode> {
        check_name(name)?;
        let (_lock, mut draft) = self.begin()?;
        let directory = draft.directory(parent)?;
        if self.entry(parent, name)?.is_some() {
            return Err(EngineError::Exists);
        }
        directory.check_takes_entries()?;
        if is_frozen(ino) {
            return Err(ReadOnly::Frozen.into());
        }
        let inode = draft.inode(ino)?;
        match inode {
            Inode { kind: FileKind::Directory, .. } => return Err(EngineError::NotPermitted),
            Inode { nlink: 0, .. } => return Err(EngineError::NotFound),
            Inode { nlink: LINKS_MAX.., .. } => return Err(EngineError::TooManyLinks),
            _ => {}
        }
        inode.check_unprotected()?;
        inode.nlink += 1;
        inode.ctime = now;
        let after = inode.clone();
        let directory = draft.directory(parent)?;
        directory.size_bytes += 1;
        touch(directory, now);
        let entry = Entry { ino, kind: after.kind, cookie: self.new_cookie() };
        draft.name(parent, &Arc::from(name), None, Some(entry));
        draft.apply();
        Ok(after)
    }

    /// Removes a name of anything but a directory; returns the inode afterwards. Without a name the inode is an orphan
    /// until [`drop_orphan`](Self::drop_orphan).
    pub fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<Inode> {
        self.remove(parent, name, now, |entry, _| match entry.kind {
            FileKind::Directory => Err(EngineError::IsDirectory),
            _ if is_frozen(entry.ino) => Err(ReadOnly::Frozen.into()),
            _ => Ok(()),
        })
    }

    /// Removes an empty directory; returns its inode afterwards, an orphan.
    pub fn remove_directory(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<Inode> {
        self.remove(parent, name, now, |entry, inode| match (entry.kind, inode.size_bytes) {
            (FileKind::Directory, 0) if !is_frozen(inode.ino) => Ok(()),
            (FileKind::Directory, _) => Err(EngineError::NotEmpty),
            _ => Err(EngineError::NotDirectory),
        })
    }

    pub(super) fn remove(
        &self,
        parent: Ino,
        name: &[u8],
        now: Timestamp,
        check: impl FnOnce(&Entry, &Inode) -> Result<()>,
    ) -> Result<Inode> {
        check_name(name)?;
        let (_lock, mut draft) = self.begin_emptying()?;
        draft.directory(parent)?;
        let entry = self.entry(parent, name)?.ok_or(EngineError::NotFound)?;
        draft.check_gives(parent, entry.ino)?;
        check(&entry, draft.inode(entry.ino)?)?;
        let after = draft.drop_link(entry.ino, now)?;
        let directory = draft.directory(parent)?;
        directory.size_bytes = directory.size_bytes.saturating_sub(1);
        touch(directory, now);
        if entry.kind == FileKind::Directory {
            directory.nlink = directory.nlink.saturating_sub(1);
        }
        draft.name(parent, &Arc::from(name), Some(entry), None);
        draft.apply();
        self.watching.end(entry.ino);
        Ok(after)
    }
}

fn check_new(new: &NewInode) -> Result<()> {
    match (&new.symlink_target, new.kind) {
        (Some(target), FileKind::Symlink) if target.is_empty() => return Err(EngineError::NotFound),
        (Some(target), FileKind::Symlink) if target.len() > SYMLINK_BYTES_MAX => return Err(EngineError::NameTooLong),
        (Some(_), FileKind::Symlink) => {}
        (None, FileKind::Symlink) => return Err(EngineError::Invalid("a symbolic link without a target")),
        (Some(_), _) => return Err(EngineError::Invalid("a link target for something else")),
        (None, _) => {}
    }
    for (position, (name, value)) in new.xattrs.iter().enumerate() {
        attributes::check_xattr(name, value)?;
        if new.xattrs.iter().take(position).any(|(earlier, _)| earlier == name) {
            return Err(EngineError::Invalid("an extended attribute given twice"));
        }
    }
    Ok(())
}
