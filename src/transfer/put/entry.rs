//! Copies the entries of a directory, except directories, into the pool.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use dedupfs_service::{
    AttributeChanges, Errno as PoolErrno, FileKind, FileService, Ino, NodeContent, OpenOptions, WriteFlags, XattrMode,
};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::super::crew::Space;
use super::super::disk::{self, Place, XattrSpace};
use super::super::tally::{Outcome, Trouble, reading, writing_pool, writing_pool_attributes};
use super::content::{ContentSink, Source};
use super::{Directory, Put, Spot, Version, device_number, version};

impl Put<'_> {
    pub(super) fn entry(
        &self,
        (directory, above): (&Directory, &OwnedFd),
        name: &CStr,
        space: &mut Space,
    ) -> Outcome<()> {
        let spot = Spot { parent: directory.ino, above: Some(directory), name };
        let seen = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        let seen = seen.map_err(reading("cannot look at it"))?;
        // A device must not be opened: opening may act on it.
        if disk::kind_of(&seen) != Some(FileKind::Regular) {
            let make = || self.new_node(spot, above.as_fd(), &seen, &mut space.xattrs);
            return self.with_names(spot, &seen, make);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = rustix::fs::openat(above, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        if disk::kind_of(&stat) != Some(FileKind::Regular) {
            return Err(became_another());
        }
        self.with_names(spot, &stat, || self.new_file(spot, from.as_fd(), &stat, space))
    }

    /// Makes a new inode, or only another name if the inode has been copied already.
    fn with_names(&self, spot: Spot<'_>, stat: &Stat, make: impl FnOnce() -> Outcome<Ino>) -> Outcome<()> {
        if stat.st_nlink <= 1 {
            return make().map(drop);
        }
        let link = |(ino, copied): &(Ino, Version)| {
            // Another file may have the number of one that was removed meanwhile.
            if *copied != version(stat) {
                return Ok(false);
            }
            match self.service.link(*ino, spot.parent, spot.name.to_bytes()) {
                Ok(_) => {
                    self.service.forget(*ino, 1);
                    self.tally.hard_link();
                    Ok(true)
                }
                Err(PoolErrno::EMLINK | PoolErrno::ENOENT) => Ok(false),
                Err(errno) => Err(writing_pool(self.core, "cannot link it")(errno)),
            }
        };
        let copy = || Ok((make()?, version(stat)));
        self.several_names.with((stat.st_dev, stat.st_ino), stat.st_nlink, link, copy)
    }

    /// Copies an entry that is neither a directory nor a regular file.
    fn new_node(&self, spot: Spot<'_>, from: BorrowedFd<'_>, stat: &Stat, space: &mut XattrSpace) -> Outcome<Ino> {
        let target;
        let number = device_number(stat, self.options)?;
        let content = match disk::kind_of(stat) {
            Some(FileKind::Symlink) => {
                let read = rustix::fs::readlinkat(from, spot.name, Vec::new());
                target = read.map_err(reading("cannot read the link"))?;
                NodeContent::Symlink(target.to_bytes())
            }
            Some(FileKind::CharDevice) => NodeContent::CharDevice(number),
            Some(FileKind::BlockDevice) => NodeContent::BlockDevice(number),
            Some(FileKind::Fifo) => NodeContent::Fifo,
            Some(FileKind::Socket) => NodeContent::Socket,
            _ => return Err(became_another()),
        };
        let made = self.service.make(self.writer, spot.node(0o600), content);
        let ino = made.map_err(writing_pool(self.core, "cannot make it"))?.ino;
        self.service.forget(ino, 1);
        self.tally.other();
        self.attributes(Place::Named(from, spot.name), ino, stat, space, &|| spot.path())?;
        Ok(ino)
    }

    /// Copies a regular file with its content. A file that cannot be read to its end is removed again.
    pub(super) fn new_file(
        &self,
        spot: Spot<'_>,
        from: BorrowedFd<'_>,
        stat: &Stat,
        space: &mut Space,
    ) -> Outcome<Ino> {
        let service = self.service;
        let how = OpenOptions { write: true, ..OpenOptions::default() };
        let created = service.create(self.writer, spot.node(0o600), how);
        let (attributes, opened) = created.map_err(writing_pool(self.core, "cannot make the file"))?;
        let (ino, handle) = (attributes.ino, opened.handle);
        if spot.above.is_none() {
            self.is_made.store(true, Ordering::Relaxed);
        }
        let source = Source { from, stat, is_pseudo: spot.is_pseudo(), path: &|| spot.path() };
        let mut writing = Writing { put: self, ino, handle };
        let copied = source.copy(self.tally, &mut space.content, &mut writing).and_then(|bytes| {
            self.attributes(Place::Open(from), ino, stat, &mut space.xattrs, &|| spot.path())?;
            service.flush(ino, handle).map_err(writing_pool(self.core, "cannot write the file"))?;
            Ok(bytes)
        });
        service.release(ino, handle);
        if copied.is_err()
            && let Err(errno) = service.unlink(spot.parent, spot.name.to_bytes())
        {
            tracing::debug!(%errno, "a file that was copied in part stays");
        }
        service.forget(ino, 1);
        self.tally.file(copied?);
        if !rustix::fs::fstat(from).is_ok_and(|now| version(&now) == version(stat)) {
            self.tally.problem(
                &spot.path(),
                "changed while it was copied: it may be neither as it was nor as it is".to_owned(),
            );
        }
        Ok(ino)
    }

    /// Copies extended attributes (access lists among them), then owner, mode and times. Attributes that the pool does not take are
    /// reported.
    pub(super) fn attributes(
        &self,
        from: Place<'_>,
        ino: Ino,
        stat: &Stat,
        space: &mut XattrSpace,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let set = |name: &CStr, value: &[u8]| {
            let is_optional = disk::is_optional(name.to_bytes());
            if is_optional && self.options.owner.is_some() {
                return Ok(());
            }
            let set = match self.service.set_xattr(self.writer, ino, name.to_bytes(), value, XattrMode::Any) {
                Err(PoolErrno::EOPNOTSUPP) if is_optional => Ok(()),
                set => set,
            };
            match set.map_err(writing_pool_attributes(self.core, "the pool does not take the extended attribute")) {
                Err(Trouble::One(what)) => {
                    self.tally.problem(&path(), format!("{what} ({})", name.to_string_lossy()));
                    Ok(())
                }
                set => set,
            }
        };
        match from.for_each_xattr(space, |errno| reading("cannot read extended attributes")(errno), set) {
            Err(Trouble::One(what) | Trouble::Unreadable(what)) => self.tally.problem(&path(), what),
            outcome => outcome?,
        }
        let mut changes = disk::changes_of(stat);
        if let Some(owner) = &self.options.owner {
            let (uid, gid, mode) = owner.of_copy(stat.st_uid, stat.st_gid, (stat.st_mode & 0o7777) as u16);
            (changes.uid, changes.gid, changes.mode) = (Some(uid), Some(gid), Some(mode));
        }
        if disk::kind_of(stat) == Some(FileKind::Symlink) {
            changes.mode = None;
        }
        let changed = self.service.set_attributes(self.writer, ino, changes);
        changed.map_err(writing_pool(self.core, "the pool does not take owner, mode and times")).map(drop)
    }
}

fn became_another() -> Trouble {
    Trouble::One("became something else while it was looked at".to_owned())
}

/// A file of the pool that is being written.
struct Writing<'a> {
    put: &'a Put<'a>,
    ino: Ino,
    handle: u64,
}

impl ContentSink for Writing<'_> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let Self { put, ino, handle } = *self;
        let written = put.service.write(put.writer, ino, handle, offset, bytes, WriteFlags::default());
        written.map_err(writing_pool(put.core, "cannot write the file")).map(drop)
    }

    fn extend_to(&mut self, size_bytes: u64) -> Outcome<()> {
        let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
        let changed = self.put.service.set_attributes(self.put.writer, self.ino, changes);
        changed.map_err(writing_pool(self.put.core, "cannot write the file")).map(drop)
    }
}
