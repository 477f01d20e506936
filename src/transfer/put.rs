//! A tree from a disk into the pool.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_fuse::service::{
    AttributeChanges, Caller, Errno as PoolErrno, FileKind, FileService, Ino, NewNode, NodeContent, OpenOptions,
    WriteFlags, XattrMode,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::crew::{self, BATCH_FILES, Hand, Space};
use super::disk::{self, Place, XattrSpace};
use super::several_names::SeveralNames;
use super::tally::{Outcome, Tally, Trouble, reading, writing_pool, writing_pool_attributes};
use super::{Result, TransferReport};
use crate::error::EngineError;
use crate::namespace::check_name;
use crate::pool::{Core, Progress};
use crate::service::Service;

/// The superuser, as one writer whose files lie one behind the other.
const WRITER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Entries of a directory that are put in the order of their inodes, in which they lie on most disks. As many as fts(3) sorts.
const ENTRIES_SORTED: usize = 10_000;
const LISTING_BYTES: usize = 64 << 10;

/// What of a tree is copied.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PutOptions {
    /// Leave out what is mounted within the tree, but for the empty directory.
    pub one_file_system: bool,
    /// Of what is mounted within the tree, leave this device out: the pool's own mount.
    pub leaves_out_device: Option<u64>,
    /// Leave out what is in these directories (device and inode): the pool's own roots.
    pub leaves_out_directories: Vec<(u64, u64)>,
    /// For whom it is copied, if that is not the superuser.
    pub owner: Option<Owner>,
}

/// An ordinary user: what they copy is theirs, as with `cp -a`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Further groups they are in: a file of one of those keeps it.
    pub groups: Vec<u32>,
}

impl Owner {
    /// Owner, group and mode of a copy: bits that lend the rights of others go.
    #[must_use]
    pub fn of_copy(&self, uid: u32, gid: u32, mode: u16) -> (u32, u32, u16) {
        let keeps_group = gid == self.gid || self.groups.contains(&gid);
        let lends = if uid == self.uid && keeps_group { 0 } else { 0o6000 };
        (self.uid, if keeps_group { gid } else { self.gid }, mode & !lends)
    }
}

/// A directory that is being copied. The last of its entries gives it its attributes.
struct Directory {
    from: OwnedFd,
    ino: Ino,
    name: CString,
    stat: Stat,
    above: Option<Arc<Directory>>,
}

impl Directory {
    fn path(&self, name: &CStr) -> PathBuf {
        let ways = std::iter::successors(Some(self), |directory| directory.above.as_deref());
        disk::path_below(ways.map(|directory| directory.name.to_bytes()), name.to_bytes())
    }
}

/// Where something is to be.
#[derive(Clone, Copy)]
struct Spot<'a> {
    parent: Ino,
    /// `None` for the top.
    above: Option<&'a Directory>,
    name: &'a CStr,
}

impl Spot<'_> {
    fn path(&self) -> PathBuf {
        match self.above {
            Some(directory) => directory.path(self.name),
            None => disk::path_of_top(self.name),
        }
    }

    fn node(&self, mode: u16) -> NewNode<'_> {
        NewNode { parent: self.parent, name: self.name.to_bytes(), mode, umask: 0 }
    }
}

/// Entries of one directory, none of them a directory.
struct Batch {
    directory: Arc<Directory>,
    names: Vec<CString>,
}

struct Put<'a> {
    core: &'a Core,
    service: &'a Service,
    options: &'a PutOptions,
    is_made: &'a AtomicBool,
    tally: &'a Tally<'a>,
    /// The disk on which the tree is.
    device: u64,
    /// The inodes in the pool, and the files as they were.
    several_names: SeveralNames<(u64, u64), (Ino, Version)>,
}

/// Whether a file is as it was: size and last change of content.
type Version = (i64, i64, u64);

fn version(stat: &Stat) -> Version {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// Removes what was copied, unless it is whole; also if a thread panics.
struct Unfinished<'a> {
    service: &'a Service,
    into: Ino,
    name: &'a [u8],
    /// The top was made here, and by nobody else.
    is_made: &'a AtomicBool,
    is_whole: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_whole || !self.is_made.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.service.remove_tree(self.into, self.name) {
            tracing::warn!(%error, "what was copied of a tree could not be removed");
        }
    }
}

/// Copies what `from` is, a directory with all below it or a regular file, to `name` in the directory `into` of the pool, which must be
/// empty; the kernel sees nothing of it before this returns.
///
/// What cannot be copied is in the report, and the rest is there. After an error nothing of the tree is left, if the pool can be
/// written.
///
/// # Errors
/// The pool takes no more, the disk fails for good, or `progress` is cancelled.
pub fn put(
    core: &Core,
    service: &Service,
    options: &PutOptions,
    from: OwnedFd,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    check_name(name)?;
    let c_name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
    let tally = Tally::new(progress);
    let is_made = AtomicBool::new(false);
    let staged = service.stage(into)?;
    // Dropped before the kernel can see into the directory.
    let mut unfinished = Unfinished { service, into, name, is_made: &is_made, is_whole: false };
    let several_names = SeveralNames::default();
    let put = Put { core, service, options, is_made: &is_made, tally: &tally, device: 0, several_names };
    put_all(put, from, into, c_name);
    // Whoever has gone meanwhile does not give it its name.
    tally.note(tally.go_on(), PathBuf::new);
    let report = tally.finish();
    unfinished.is_whole = report.is_ok();
    drop(unfinished);
    drop(staged);
    report
}

fn put_all(mut put: Put<'_>, from: OwnedFd, into: Ino, name: CString) {
    let tally = put.tally;
    let stat = match rustix::fs::fstat(&from).map_err(reading("cannot look at it")) {
        Ok(stat) => stat,
        Err(trouble) => return tally.note_top(Err(trouble), &name),
    };
    put.device = stat.st_dev;
    match disk::kind_of(&stat) {
        Some(FileKind::Directory) => {
            let again = from.try_clone();
            let walk = |hand: Hand<'_, Batch>| put.walk(from, stat, (into, name.clone()), hand);
            crew::run(tally, walk, |batch, space| put.batch(batch, space));
            // A disk that is gone gives an error for every file: what was copied until then is no backup.
            if tally.has_problems() {
                let is_there = again.map_err(|_| Errno::MFILE).and_then(|top| can_be_listed(&top));
                tally.note_top(is_there.map_err(reading("it cannot be read any more")), &name);
            }
        }
        Some(FileKind::Regular) => {
            let spot = Spot { parent: into, above: None, name: &name };
            let made = put.new_file(spot, from.as_fd(), &stat, &mut Space::default());
            tally.note_top(made.map(drop), &name);
        }
        _ => tally.note_top(Err(Trouble::One("neither a directory nor a regular file".to_owned())), &name),
    }
}

fn can_be_listed(directory: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::fstat(directory)?;
    rustix::fs::seek(directory, SeekFrom::Start(0))?;
    let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
    RawDir::new(directory, &mut space).next().transpose().map(drop)
}

impl Put<'_> {
    /// Goes through all directories, each behind its parent.
    fn walk(&self, from: OwnedFd, mut stat: Stat, (into, name): (Ino, CString), hand: Hand<'_, Batch>) {
        let mut space = XattrSpace::default();
        if self.options.owner.is_some() {
            // Its owner could not rename it otherwise.
            stat.st_mode |= 0o700;
        }
        if !self.is_wanted(&stat) {
            return self.tally.note_top(Err(Trouble::One("it is the pool itself".to_owned())), &name);
        }
        let top = match self.make_top(Spot { parent: into, above: None, name: &name }) {
            Ok(ino) => Arc::new(Directory { from, ino, name, stat, above: None }),
            Err(trouble) => return self.tally.note_top(Err(trouble), &name),
        };
        // What is still to come, the next one last.
        let mut ways: Vec<(Arc<Directory>, CString)> = Vec::new();
        self.list(&top, &mut ways, hand);
        self.leave(top, &mut space);
        while let Some((above, name)) = ways.pop() {
            match self.tally.go_on().and_then(|()| self.enter(&above, &name)) {
                Ok(directory) => {
                    let directory = Arc::new(directory);
                    if self.is_wanted(&directory.stat) {
                        self.list(&directory, &mut ways, hand);
                    }
                    self.leave(directory, &mut space);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(&name)),
            }
            self.leave(above, &mut space);
        }
    }

    fn make_top(&self, spot: Spot<'_>) -> Outcome<Ino> {
        let made = self.make_directory(spot);
        self.is_made.store(made.is_ok(), Ordering::Relaxed);
        made
    }

    fn is_wanted(&self, directory: &Stat) -> bool {
        let (device, options) = (directory.st_dev, self.options);
        let is_own = options.leaves_out_directories.contains(&(device, directory.st_ino));
        let is_on_it = device == self.device;
        !is_own && (is_on_it || (!options.one_file_system && options.leaves_out_device != Some(device)))
    }

    fn make_directory(&self, spot: Spot<'_>) -> Outcome<Ino> {
        let made = self.service.make(WRITER, spot.node(0o700), NodeContent::Directory);
        let ino = made.map_err(writing_pool(self.core, "cannot make the directory"))?.ino;
        self.service.forget(ino, 1);
        self.tally.directory();
        Ok(ino)
    }

    fn enter(&self, above: &Arc<Directory>, name: &CStr) -> Outcome<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = rustix::fs::openat(&above.from, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        let ino = self.make_directory(Spot { parent: above.ino, above: Some(above), name })?;
        Ok(Directory { from, ino, name: name.to_owned(), stat, above: Some(above.clone()) })
    }

    /// Hands the entries of a directory over, and notes its directories.
    fn list(&self, directory: &Arc<Directory>, ways: &mut Vec<(Arc<Directory>, CString)>, hand: Hand<'_, Batch>) {
        let first = ways.len();
        let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut listing = RawDir::new(&directory.from, &mut space);
        let mut entries: Vec<(u64, CString)> = Vec::new();
        let hand_over = |entries: &mut Vec<(u64, CString)>| {
            entries.sort_unstable();
            let mut names = entries.drain(..).map(|(_, name)| name).peekable();
            while names.peek().is_some() {
                hand(Batch { directory: directory.clone(), names: names.by_ref().take(BATCH_FILES).collect() });
            }
        };
        while let Some(entry) = listing.next() {
            let entry = match entry.map_err(reading("cannot list it")) {
                Ok(entry) => entry,
                Err(trouble) => {
                    self.tally.note(Err(trouble), || directory.path(c""));
                    break;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&directory.from, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => ways.push((directory.clone(), name.to_owned())),
                _ => entries.push((entry.ino(), name.to_owned())),
            }
            if entries.len() >= ENTRIES_SORTED {
                hand_over(&mut entries);
            }
        }
        hand_over(&mut entries);
        // As they are listed.
        if let Some(new) = ways.get_mut(first..) {
            new.reverse();
        }
    }

    /// The directory's attributes, if nobody works in it any more, and then of those above it.
    fn leave(&self, directory: Arc<Directory>, space: &mut XattrSpace) {
        let mut next = Some(directory);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            let path = || directory.path(c"");
            let from = Place::Open(directory.from.as_fd());
            let outcome = self.attributes(from, directory.ino, &directory.stat, space, &path);
            self.tally.note(outcome, path);
            next = directory.above;
        }
    }

    fn batch(&self, batch: Batch, space: &mut Space) {
        for name in &batch.names {
            let outcome = self.tally.go_on().and_then(|()| self.entry(&batch.directory, name, space));
            self.tally.note(outcome, || batch.directory.path(name));
        }
        self.leave(batch.directory, &mut space.xattrs);
    }

    fn entry(&self, directory: &Directory, name: &CStr, space: &mut Space) -> Outcome<()> {
        let spot = Spot { parent: directory.ino, above: Some(directory), name };
        let seen = rustix::fs::statat(&directory.from, name, AtFlags::SYMLINK_NOFOLLOW);
        let seen = seen.map_err(reading("cannot look at it"))?;
        // A device must not be opened to find out that it is one.
        if disk::kind_of(&seen) != Some(FileKind::Regular) {
            let make = || self.new_node(spot, directory.from.as_fd(), &seen, &mut space.xattrs);
            return self.with_names(spot, &seen, make);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from =
            rustix::fs::openat(&directory.from, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        if disk::kind_of(&stat) != Some(FileKind::Regular) {
            return Err(became_another());
        }
        self.with_names(spot, &stat, || self.new_file(spot, from.as_fd(), &stat, space))
    }

    /// Makes a new inode, or only a name if the inode is there.
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

    /// Anything but a directory or a regular file.
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
        let made = self.service.make(WRITER, spot.node(0o600), content);
        let ino = made.map_err(writing_pool(self.core, "cannot make it"))?.ino;
        self.service.forget(ino, 1);
        self.tally.other();
        self.attributes(Place::Named(from, spot.name), ino, stat, space, &|| spot.path())?;
        Ok(ino)
    }

    /// A regular file with its content; one that cannot be read to its end is not left there.
    fn new_file(&self, spot: Spot<'_>, from: BorrowedFd<'_>, stat: &Stat, space: &mut Space) -> Outcome<Ino> {
        let service = self.service;
        let how = OpenOptions { write: true, ..OpenOptions::default() };
        let created = service.create(WRITER, spot.node(0o600), how);
        let (attributes, opened) = created.map_err(writing_pool(self.core, "cannot make the file"))?;
        let (ino, handle) = (attributes.ino, opened.handle);
        if spot.above.is_none() {
            self.is_made.store(true, Ordering::Relaxed);
        }
        let copied = self.content((ino, handle), from, stat, &mut space.content).and_then(|bytes| {
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

    /// All that is no hole; returns its bytes.
    fn content(&self, to: (Ino, u64), from: BorrowedFd<'_>, stat: &Stat, buffer: &mut [u8]) -> Outcome<u64> {
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let has_holes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < size_bytes;
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
                let read = rustix::io::pread(from, &mut *space, offset).map_err(reading("cannot read it"))?;
                let bytes = space.get(..read).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(copied_bytes);
                }
                let written = self.service.write(WRITER, to.0, to.1, offset, bytes, WriteFlags::default());
                written.map_err(writing_pool(self.core, "cannot write the file"))?;
                self.tally.content(read);
                offset += read as u64;
                copied_bytes += read as u64;
            }
        }
        if offset < size_bytes {
            let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
            let changed = self.service.set_attributes(WRITER, to.0, changes);
            changed.map_err(writing_pool(self.core, "cannot write the file"))?;
        }
        Ok(copied_bytes)
    }

    /// Extended attributes, access lists among them, then owner, mode and times. What the pool does not keep is told.
    fn attributes(
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
            let set = match self.service.set_xattr(WRITER, ino, name.to_bytes(), value, XattrMode::Any) {
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
        let changed = self.service.set_attributes(WRITER, ino, changes);
        changed.map_err(writing_pool(self.core, "the pool does not take owner, mode and times")).map(drop)
    }
}

fn became_another() -> Trouble {
    Trouble::One("became something else while it was looked at".to_owned())
}

/// Where data is, at or behind `offset`; `None`: nothing but a hole is left.
fn next_data(from: BorrowedFd<'_>, offset: u64) -> Outcome<Option<std::ops::Range<u64>>> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that knows of no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..u64::MAX)),
        Err(errno) => return Err(reading("cannot read it")(errno)),
    };
    let end = rustix::fs::seek(from, SeekFrom::Hole(start)).map_err(reading("cannot read it"))?;
    Ok(Some(start..end.max(start + 1)))
}
