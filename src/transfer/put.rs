//! A tree from a disk into the pool.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use dedupfs_fuse::service::{
    AttributeChanges, Caller, FileKind, FileService, Ino, NewNode, NodeContent, OpenOptions, WriteFlags, XattrMode,
};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::crew::{self, BATCH_FILES, Hand, Space};
use super::disk::{self, Place, XattrSpace};
use super::tally::{Outcome, Tally, Trouble, reading, writing_pool};
use super::{Result, TransferReport};
use crate::pool::{Core, Progress};
use crate::service::Service;

/// The superuser, as one writer whose files lie one behind the other.
const WRITER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Entries of a directory that are put in the order of their inodes, in which they lie on most disks. As many as fts(3) sorts.
const ENTRIES_SORTED: usize = 10_000;
const LISTING_BYTES: usize = 64 << 10;

/// What of a tree is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PutOptions {
    /// Leave out what is mounted within the tree, but for the empty directory.
    pub one_file_system: bool,
    /// Of what is mounted within the tree, leave this device out: the pool's own mount.
    pub leaves_out: Option<u64>,
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
    options: PutOptions,
    tally: &'a Tally<'a>,
    /// The disk on which the tree is.
    device: u64,
    /// Files of which further names are expected: their inodes in the pool, and how many names are to come. Held while such a file is
    /// copied, so that its next name finds it whole.
    several_names: Mutex<HashMap<(u64, u64), (Ino, u64)>>,
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
    options: PutOptions,
    from: OwnedFd,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let tally = Tally::new(progress);
    let staged = service.stage(into)?;
    let outcome = disk::c_name(name).ok_or(crate::EngineError::Invalid("a name with a zero byte")).map(|name| {
        put_all(core, service, options, &tally, from, (into, name));
    });
    let report = match outcome {
        Ok(()) => tally.finish(),
        Err(error) => Err(error.into()),
    };
    if report.is_err()
        && let Err(error) = service.remove_tree(into, name)
    {
        tracing::warn!(%error, "what was copied of a tree could not be removed");
    }
    drop(staged);
    report
}

fn put_all(
    core: &Core,
    service: &Service,
    options: PutOptions,
    tally: &Tally<'_>,
    from: OwnedFd,
    (into, name): (Ino, CString),
) {
    let stat = match rustix::fs::fstat(&from).map_err(reading("cannot look at it")) {
        Ok(stat) => stat,
        Err(trouble) => return tally.note_top(Err(trouble), &name),
    };
    let several_names = Mutex::default();
    let put = Put { core, service, options, tally, device: stat.st_dev, several_names };
    match disk::kind_of(&stat) {
        Some(FileKind::Directory) => {
            let walk = |hand: Hand<'_, Batch>| put.walk(from, stat, (into, name), hand);
            crew::run(tally, walk, |batch, space| put.batch(batch, space));
        }
        Some(FileKind::Regular) => {
            let spot = Spot { parent: into, above: None, name: &name };
            let made = put.new_file(spot, from.as_fd(), &stat, &mut Space::default());
            tally.note_top(made.map(drop), &name);
        }
        _ => tally.note_top(Err(Trouble::One("neither a directory nor a regular file".to_owned())), &name),
    }
}

impl Put<'_> {
    /// Goes through all directories, each behind its parent.
    fn walk(&self, from: OwnedFd, stat: Stat, (into, name): (Ino, CString), hand: Hand<'_, Batch>) {
        let mut space = XattrSpace::default();
        let top = match self.make_directory(Spot { parent: into, above: None, name: &name }) {
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
                    if self.is_wanted(&directory) {
                        self.list(&directory, &mut ways, hand);
                    }
                    self.leave(directory, &mut space);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(&name)),
            }
            self.leave(above, &mut space);
        }
    }

    fn is_wanted(&self, directory: &Directory) -> bool {
        let device = directory.stat.st_dev;
        device == self.device || (!self.options.one_file_system && self.options.leaves_out != Some(device))
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
        let mut several_names = self.several_names.lock();
        let key = (stat.st_dev, stat.st_ino);
        if let Some((ino, left)) = several_names.get_mut(&key) {
            let linked = self.service.link(*ino, spot.parent, spot.name.to_bytes());
            linked.map_err(writing_pool(self.core, "cannot link it"))?;
            self.service.forget(*ino, 1);
            self.tally.hard_link();
            *left -= 1;
            if *left == 0 {
                several_names.remove(&key);
            }
            return Ok(());
        }
        let ino = make()?;
        several_names.insert(key, (ino, stat.st_nlink - 1));
        Ok(())
    }

    /// Anything but a directory or a regular file.
    fn new_node(&self, spot: Spot<'_>, from: BorrowedFd<'_>, stat: &Stat, space: &mut XattrSpace) -> Outcome<Ino> {
        let target;
        let number = || {
            let number = disk::encode_device(stat.st_rdev);
            number.ok_or_else(|| Trouble::One("a device with a number that does not fit".to_owned()))
        };
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
        let copied = self.content((ino, handle), from, stat, &mut space.content).and_then(|()| {
            self.attributes(Place::Open(from), ino, stat, &mut space.xattrs, &|| spot.path())?;
            service.flush(ino, handle).map_err(writing_pool(self.core, "cannot write the file"))
        });
        service.release(ino, handle);
        if copied.is_err()
            && let Err(errno) = service.unlink(spot.parent, spot.name.to_bytes())
        {
            tracing::debug!(%errno, "a file that was copied in part stays");
        }
        service.forget(ino, 1);
        copied?;
        self.tally.file();
        let is_same = |now: &Stat| {
            let of = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
            of(now) == of(stat)
        };
        if !rustix::fs::fstat(from).is_ok_and(|now| is_same(&now)) {
            self.tally.problem(
                &spot.path(),
                "changed while it was copied: it may be neither as it was nor as it is".to_owned(),
            );
        }
        Ok(ino)
    }

    /// All that is no hole.
    fn content(&self, to: (Ino, u64), from: BorrowedFd<'_>, stat: &Stat, buffer: &mut [u8]) -> Outcome<()> {
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let has_holes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < size_bytes;
        let mut offset = 0;
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
                    return Ok(());
                }
                let written = self.service.write(WRITER, to.0, to.1, offset, bytes, WriteFlags::default());
                written.map_err(writing_pool(self.core, "cannot write the file"))?;
                self.tally.content(read);
                offset += read as u64;
            }
        }
        if offset < size_bytes {
            let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
            let changed = self.service.set_attributes(WRITER, to.0, changes);
            changed.map_err(writing_pool(self.core, "cannot write the file"))?;
        }
        Ok(())
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
            let set = self.service.set_xattr(WRITER, ino, name.to_bytes(), value, XattrMode::Any);
            match set.map_err(writing_pool(self.core, "the pool does not take the extended attribute")) {
                Err(Trouble::One(what)) => {
                    self.tally.problem(&path(), format!("{what} ({})", name.to_string_lossy()));
                    Ok(())
                }
                set => set,
            }
        };
        match from.for_each_xattr(space, |errno| reading("cannot read extended attributes")(errno), set) {
            Err(Trouble::One(what)) => self.tally.problem(&path(), what),
            outcome => outcome?,
        }
        let mut changes = disk::changes_of(stat);
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
