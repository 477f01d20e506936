//! Copies the entries of a directory, except directories, into the pool.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use dedupfs_service::{
    AttributeChanges, Errno as PoolErrno, FileKind, FileService, Ino, NodeContent, OpenOptions, WriteFlags, XattrMode,
};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::super::crew::Space;
use super::super::disk::{self, Place, XattrSpace};
use super::super::tally::{Outcome, Trouble, reading, writing_pool, writing_pool_attributes};
use super::{Directory, Put, Spot, Version, version};

/// Limit of bytes copied beyond the size that a file had when it was opened: some files report no size, and some have no end.
const BEYOND_SIZE_BYTES_MAX: u64 = 16 << 20;

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
        let number = || {
            let number = disk::encode_device(stat.st_rdev);
            number.ok_or_else(|| Trouble::One("a device with a number that does not fit".to_owned()))
        };
        let is_device = matches!(disk::kind_of(stat), Some(FileKind::CharDevice | FileKind::BlockDevice));
        if is_device && self.options.owner.is_some() {
            return Err(Trouble::One("only the superuser makes devices".to_owned()));
        }
        let content = match disk::kind_of(stat) {
            Some(FileKind::Symlink) => {
                let read = rustix::fs::readlinkat(from, spot.name, Vec::new());
                target = read.map_err(reading("cannot read the link"))?;
                NodeContent::Symlink(target.to_bytes())
            }
            Some(FileKind::CharDevice) => NodeContent::CharDevice(number()?),
            Some(FileKind::BlockDevice) => NodeContent::BlockDevice(number()?),
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
        let copied = self.content((ino, handle), from, (stat, spot), &mut space.content).and_then(|bytes| {
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

    /// Copies all content except holes; returns the bytes copied.
    fn content(
        &self,
        to: (Ino, u64),
        from: BorrowedFd<'_>,
        (stat, spot): (&Stat, Spot<'_>),
        buffer: &mut [u8],
    ) -> Outcome<u64> {
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if spot.is_pseudo() && size_bytes > BEYOND_SIZE_BYTES_MAX {
            return Err(Trouble::One("a view of the kernel, larger than any file of its kind: left out".to_owned()));
        }
        let limit = size_bytes.saturating_add(BEYOND_SIZE_BYTES_MAX);
        let has_holes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < size_bytes;
        let cannot_read = |errno: Errno| match reading("cannot read it")(errno) {
            // The kernel refuses to show some of its files; that says nothing about a disk.
            Trouble::Unreadable(what) if spot.is_pseudo() => Trouble::One(what),
            trouble => trouble,
        };
        let (mut offset, mut copied_bytes) = (0, 0);
        loop {
            let mut end = u64::MAX;
            if has_holes {
                match next_data(from, offset)? {
                    Some(range) => (offset, end) = (range.start, range.end),
                    None => break,
                }
            }
            while offset < end {
                self.tally.go_on()?;
                let len = buffer.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
                let space = buffer.get_mut(..len).unwrap_or_default();
                let read = rustix::io::pread(from, &mut *space, offset).map_err(cannot_read)?;
                let bytes = space.get(..read).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(copied_bytes);
                }
                let written = self.service.write(self.writer, to.0, to.1, offset, bytes, WriteFlags::default());
                written.map_err(writing_pool(self.core, "cannot write the file"))?;
                self.tally.content(read);
                offset += read as u64;
                copied_bytes += read as u64;
                if offset >= limit {
                    let what = format!("goes on behind the {size_bytes} bytes that it had: cut at {offset}");
                    self.tally.problem(&spot.path(), what);
                    return Ok(copied_bytes);
                }
            }
        }
        if offset < size_bytes {
            let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
            let changed = self.service.set_attributes(self.writer, to.0, changes);
            changed.map_err(writing_pool(self.core, "cannot write the file"))?;
        }
        Ok(copied_bytes)
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

/// Returns the range of data at or behind `offset`; `None` if only a hole is left.
fn next_data(from: BorrowedFd<'_>, offset: u64) -> Outcome<Option<std::ops::Range<u64>>> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..u64::MAX)),
        Err(errno) => return Err(reading("cannot read it")(errno)),
    };
    let end = rustix::fs::seek(from, SeekFrom::Hole(start)).map_err(reading("cannot read it"))?;
    Ok(Some(start..end.max(start + 1)))
}
