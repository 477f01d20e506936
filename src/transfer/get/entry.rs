//! Copies the entries of a directory of the pool, except directories, to a disk.

use std::ffi::CStr;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use dedupfs_namespace::is_frozen;
use dedupfs_service::{
    Attributes, Caller, Errno as PoolErrno, FileKind, FileService, Handle, Ino, OpenOptions, SeekTarget,
};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::crew::BUFFER_BYTES;
use super::super::disk::{self, Place};
use super::super::tally::{Outcome, Trouble, reading_pool, writing, writing_attributes};
use super::window::CANNOT_READ;
use super::{Directory, Get};
use crate::service::CAPABILITY_XATTR;

/// Set-user-ID and set-group-ID.
const RIGHTS_OF_ANOTHER: u16 = 0o6000;
/// In a file longer than this, holes are searched even if its attributes show none.
const ALWAYS_SOUGHT_BYTES: u64 = 1 << 30;
const CANNOT_LOOK: &str = "cannot look at it";

pub(super) const CANNOT_MAKE: &str = "cannot make the file";
pub(super) const CANNOT_WRITE: &str = "cannot write the file";

/// The superuser.
const READER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Only the owner can read a file until it is complete.
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

impl Get<'_> {
    pub(super) fn entry(
        &self,
        (directory, to): (&Arc<Directory>, &OwnedFd),
        (ino, name): (Ino, &CStr),
        buffer: &mut Vec<u8>,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let seen = match self.service.attributes(ino) {
            Err(PoolErrno::ENOENT) => None,
            seen => Some(seen.map_err(reading_pool(CANNOT_LOOK))?),
        };
        // Without a name an inode exists only until the last user forgets it.
        let attributes = match seen.filter(|seen| seen.nlink > 0) {
            Some(attributes) => attributes,
            None => match self.successor(directory.ino, ino, name)? {
                Some(attributes) => attributes,
                // Removed since it was listed.
                None => return Ok(()),
            },
        };
        let at = (to, name);
        if attributes.nlink <= 1 {
            return match self.is_planned(&attributes) {
                true => self.plan(Some(directory), name, attributes),
                false => self.make(at, attributes, buffer, path),
            };
        }
        let link = |first: &PathBuf| {
            let top = self.top.get().ok_or_else(|| Trouble::One("cannot link it".to_owned()))?;
            match rustix::fs::linkat(top, first, at.0, name, AtFlags::empty()) {
                Ok(()) => {
                    self.tally.hard_link();
                    Ok(true)
                }
                // If a link is impossible, the file is copied.
                Err(
                    Errno::MLINK
                    | Errno::NAMETOOLONG
                    | Errno::NOENT
                    | Errno::PERM
                    | Errno::ACCESS
                    | Errno::XDEV
                    | Errno::OPNOTSUPP,
                ) => Ok(false),
                Err(errno) => Err(writing("cannot link it")(errno)),
            }
        };
        let copy = || {
            self.make(at, attributes, buffer, path)?;
            Ok(path().components().skip(1).collect())
        };
        self.several_names.with(attributes.ino, attributes.nlink.into(), link, copy)
    }

    /// Whether the content of this entry is restored in the order of the pool's disk: the file cannot change, and has one name.
    pub(super) fn is_planned(&self, attributes: &Attributes) -> bool {
        attributes.kind == FileKind::Regular
            && attributes.nlink <= 1
            && attributes.size_bytes > 0
            && is_frozen(attributes.ino)
    }

    /// Returns the inode that has taken the name of one that is gone: programs replace files by renaming others over them.
    fn successor(&self, directory: Ino, gone: Ino, name: &CStr) -> Outcome<Option<Attributes>> {
        match self.service.lookup(directory, name.to_bytes()) {
            Ok(attributes) => {
                self.service.forget(attributes.ino, 1);
                if attributes.ino == gone {
                    return Err(reading_pool(CANNOT_LOOK)(PoolErrno::ENOENT));
                }
                Ok(Some(attributes))
            }
            Err(PoolErrno::ENOENT) => Ok(None),
            Err(errno) => Err(reading_pool(CANNOT_LOOK)(errno)),
        }
    }

    /// Copies an entry that is not a directory.
    pub(super) fn make(
        &self,
        (parent, name): (&OwnedFd, &CStr),
        attributes: Attributes,
        buffer: &mut Vec<u8>,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let cannot = "cannot make it";
        match attributes.kind {
            FileKind::Regular => return self.make_file((parent, name), attributes, buffer, path),
            FileKind::Directory => return Err(Trouble::One("became a directory".to_owned())),
            FileKind::Symlink => {
                let target = self.service.read_link(attributes.ino).map_err(reading_pool("cannot read the link"))?;
                rustix::fs::symlinkat(&*target, parent, name).map_err(writing(cannot))?;
            }
            kind => {
                let number = disk::decode_device(attributes.rdev);
                rustix::fs::mknodat(parent, name, disk::file_type(kind), PRIVATE_FILE, number)
                    .map_err(writing(cannot))?;
            }
        }
        self.tally.other();
        self.attributes(Place::Named(parent.as_fd(), name), attributes, true, path)
    }

    /// Copies a regular file with its content. A file that cannot be read to its end is removed again.
    fn make_file(
        &self,
        (parent, name): (&OwnedFd, &CStr),
        attributes: Attributes,
        buffer: &mut Vec<u8>,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let ino = attributes.ino;
        let how = OpenOptions { read: true, no_access_time: true, ..OpenOptions::default() };
        let opened = self.service.open(READER, ino, how).map_err(reading_pool("cannot open it"))?;
        // The inode exists while it is open.
        let look = || self.service.attributes(ino).map_err(reading_pool(CANNOT_LOOK));
        let mut is_same = true;
        let outcome = look().and_then(|before| {
            let to = create(parent, name)?;
            let copied = self.content((before, opened.handle), &to, buffer).and_then(|bytes| {
                // Read the attributes after the content: a program that changed meanwhile must not get the rights of its old version.
                let after = look()?;
                let of = |seen: &Attributes| (seen.size_bytes, seen.mtime, seen.mode, seen.uid, seen.gid);
                is_same = of(&after) == of(&before);
                self.attributes(Place::Open(to.as_fd()), after, is_same, path)?;
                close(to)?;
                Ok(bytes)
            });
            if copied.is_err() {
                // Half a file would be taken for a whole one.
                let _removed = rustix::fs::unlinkat(parent, name, AtFlags::empty());
            }
            copied
        });
        self.service.release(ino, opened.handle);
        self.tally.file(outcome?);
        if !is_same {
            let what = "changed while it was copied: it may be neither as it was nor as it is";
            self.tally.problem(&path(), what.to_owned());
        }
        Ok(())
    }

    /// Copies all content except holes; returns the bytes copied.
    fn content(&self, (of, handle): (Attributes, Handle), to: &OwnedFd, buffer: &mut Vec<u8>) -> Outcome<u64> {
        // A damaged record may claim that a file has no holes. Copying them would take forever.
        let has_holes = of.blocks.saturating_mul(512) < of.size_bytes || of.size_bytes > ALWAYS_SOUGHT_BYTES;
        let cannot_read = || reading_pool(CANNOT_READ);
        let (mut offset, mut bytes) = (0, 0);
        while offset < of.size_bytes {
            let mut end = of.size_bytes;
            if has_holes {
                match self.service.seek(of.ino, handle, offset, SeekTarget::Data) {
                    Ok(data) => offset = data,
                    // Only a hole is left.
                    Err(PoolErrno::ENXIO) => break,
                    Err(errno) => return Err(cannot_read()(errno)),
                }
                let hole = self.service.seek(of.ino, handle, offset, SeekTarget::Hole).map_err(cannot_read())?;
                end = hole.min(of.size_bytes);
            }
            while offset < end {
                self.tally.go_on()?;
                let len = (end - offset).min(BUFFER_BYTES as u64) as u32;
                buffer.clear();
                self.service.read(of.ino, handle, offset, len, buffer).map_err(cannot_read())?;
                if buffer.is_empty() {
                    return Err(Trouble::One("became shorter while it was copied".to_owned()));
                }
                write_at(to, buffer, offset)?;
                offset += buffer.len() as u64;
                bytes += buffer.len() as u64;
                self.tally.content(buffer.len());
            }
        }
        if has_holes {
            rustix::fs::ftruncate(to, of.size_bytes).map_err(writing(CANNOT_WRITE))?;
        }
        Ok(bytes)
    }

    /// Sets owner, extended attributes, mode and times. Unless `lends_rights`, leaves out set-ID bits and capabilities. Attributes that the
    /// disk does not take are reported.
    pub(super) fn attributes(
        &self,
        to: Place<'_>,
        mut attributes: Attributes,
        lends_rights: bool,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        if !lends_rights {
            attributes.mode &= !RIGHTS_OF_ANOTHER;
        }
        let tell = |outcome: Outcome<()>| match outcome {
            Err(Trouble::One(what)) => {
                self.tally.problem(&path(), what);
                Ok(())
            }
            outcome => outcome,
        };
        let owner = to.set_owner(&mut attributes);
        let has_owner = owner.is_ok();
        tell(owner.map_err(writing_attributes("cannot give it its owner")))?;
        if self.top.get().is_none() {
            tell(to.clear_inherited().map_err(writing_attributes("cannot take inherited access lists away")))?;
        }
        let names = self.service.xattr_names(attributes.ino);
        let names = match names.map_err(reading_pool("cannot read extended attributes")) {
            Ok(names) => names,
            Err(trouble) => {
                tell(Err(trouble))?;
                Vec::new()
            }
        };
        for name in names {
            // A capability would lend the rights of the wrong owner.
            if name == CAPABILITY_XATTR && !(has_owner && lends_rights) {
                continue;
            }
            let value = self.service.xattr(attributes.ino, &name);
            let set = value.map_err(reading_pool("cannot read an extended attribute")).and_then(|value| {
                let Some(c_name) = disk::c_name(&name) else { return Ok(()) };
                match to.set_xattr(&c_name, &value) {
                    Err(Errno::PERM | Errno::OPNOTSUPP) if disk::is_optional(&name) => Ok(()),
                    set => set.map_err(writing_attributes("the disk does not take an extended attribute")),
                }
            });
            tell(set.map_err(|trouble| match trouble {
                Trouble::One(what) => Trouble::One(format!("{what} ({})", name.escape_ascii())),
                other => other,
            }))?;
        }
        tell(to.set_attributes(&attributes).map_err(writing_attributes("cannot set mode and times")))
    }
}

/// Makes a file that only its owner can read.
pub(super) fn create(parent: &OwnedFd, name: &CStr) -> Outcome<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, PRIVATE_FILE).map_err(writing(CANNOT_MAKE))
}

pub(super) fn write_at(to: &OwnedFd, bytes: &[u8], mut offset: u64) -> Outcome<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::pwrite(to, rest, offset).map_err(writing(CANNOT_WRITE))?;
        if written == 0 {
            return Err(Trouble::One(CANNOT_WRITE.to_owned()));
        }
        rest = rest.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// Closes a file: some filesystems write only now.
pub(super) fn close(to: OwnedFd) -> Outcome<()> {
    // SAFETY: the descriptor is owned here, and nobody uses it afterwards.
    let closed = unsafe { rustix::io::try_close(to.into_raw_fd()) };
    closed.map_err(writing(CANNOT_WRITE))
}
