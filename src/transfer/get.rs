//! A tree out of the pool to a disk.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use dedupfs_fuse::service::{
    Attributes, Caller, Errno as PoolErrno, FileKind, FileService, Handle, Ino, OpenOptions, SeekTarget,
};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::crew::{self, BATCH_BYTES, BATCH_FILES, BUFFER_BYTES, Hand, Space};
use super::disk::{self, Place};
use super::several_names::SeveralNames;
use super::tally::{Outcome, Tally, Trouble, reading_pool, writing, writing_attributes};
use super::{Result, TransferError, TransferReport};
use crate::namespace::check_name;
use crate::pool::Progress;
use crate::service::{CAPABILITY_XATTR, Service};

/// The superuser.
const READER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Entries of a directory that are read at once.
const PAGE_ENTRIES: usize = 256;
/// What only its owner can get at until it is whole.
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A directory that is being made. The last of its entries gives it its attributes.
struct Directory {
    to: OwnedFd,
    ino: Ino,
    name: CString,
    attributes: Attributes,
    above: Option<Arc<Directory>>,
}

impl Directory {
    fn path(&self, name: &[u8]) -> PathBuf {
        let ways = std::iter::successors(Some(self), |directory| directory.above.as_deref());
        disk::path_below(ways.map(|directory| directory.name.to_bytes()), name)
    }
}

/// Entries of one directory, none of them a directory, as they were when it was listed.
struct Batch {
    directory: Arc<Directory>,
    entries: Vec<(Attributes, CString)>,
}

struct Get<'a> {
    service: &'a Service,
    tally: &'a Tally<'a>,
    /// Where the tree is to be.
    to: &'a OwnedFd,
    /// The tree's top: until it is whole, nobody but its owner can change the way from there to anything in it.
    top: OnceLock<OwnedFd>,
    /// The first name of each, as a path from the top.
    several_names: SeveralNames<Ino, PathBuf>,
}

/// Copies an inode of the pool, a directory with all below it or a regular file, to the new name `name` in the directory `to`.
///
/// What cannot be copied is in the report, and the rest is there, and durable: a file that is damaged is left out.
///
/// # Errors
/// The disk takes no more, the name is taken, or `progress` is cancelled; what was copied until then stays.
pub fn get(
    service: &Service,
    ino: Ino,
    (to, name): (OwnedFd, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let name = disk::c_name(name).ok_or(crate::EngineError::Invalid("a name with a zero byte"))?;
    let tally = Tally::new(progress);
    let (top, several_names) = (OnceLock::new(), SeveralNames::default());
    let get = Get { service, tally: &tally, to: &to, top, several_names };
    match service.attributes(ino).map_err(reading_pool("cannot look at it")) {
        Ok(attributes) if attributes.kind == FileKind::Directory => {
            let walk = |hand: Hand<'_, Batch>| get.walk(&name, attributes, hand);
            crew::run(&tally, walk, |batch, space| get.batch(batch, &mut space.content));
        }
        Ok(attributes) => {
            let path = || disk::path_of_top(&name);
            tally.note_top(get.make((&to, &name), attributes, &mut Space::default().content, &path), &name);
        }
        Err(trouble) => tally.note_top(Err(trouble), &name),
    }
    // Filesystems tell of what they could not write when it is synced, if at all.
    let synced = tally.go_on().and_then(|()| {
        rustix::fs::syncfs(&to).map_err(|errno| {
            let what = "what was copied may not be on the disk".to_owned();
            Trouble::All(TransferError::Disk { what, error: errno.into() })
        })
    });
    tally.note(synced, || disk::path_of_top(&name));
    tally.finish()
}

impl Get<'_> {
    /// Goes through all directories, each behind its parent.
    fn walk(&self, name: &CStr, attributes: Attributes, hand: Hand<'_, Batch>) {
        let made = self.make_directory(self.to, name, attributes, None).and_then(|top| {
            let [above, made] = [rustix::fs::fstat(self.to), rustix::fs::fstat(&top.to)];
            let cannot_look = || writing("cannot look at the directory");
            if !disk::is_own(&above.map_err(cannot_look())?, &made.map_err(cannot_look())?) {
                return Err(Trouble::One(
                    "somebody else may have put another directory there: choose a place that nobody else may write to"
                        .to_owned(),
                ));
            }
            let from_top = top.to.try_clone().map_err(|error| Trouble::One(error.to_string()))?;
            self.top.get_or_init(|| from_top);
            let cleared = Place::Open(top.to.as_fd()).clear_inherited();
            let cleared = cleared.and_then(|()| rustix::fs::fchmod(&top.to, PRIVATE_DIRECTORY));
            cleared.map_err(writing("cannot take inherited access lists away"))?;
            Ok(top)
        });
        let top = match made {
            Ok(top) => Arc::new(top),
            // Into what is there already nothing is copied.
            Err(trouble) => return self.tally.note_top(Err(trouble), name),
        };
        // What is still to come, the next one last.
        let mut ways: Vec<(Arc<Directory>, Ino, CString)> = Vec::new();
        self.list(&top, &mut ways, hand);
        self.leave(top);
        while let Some((above, ino, name)) = ways.pop() {
            let entered = self.tally.go_on().and_then(|()| {
                let attributes = self.service.attributes(ino).map_err(reading_pool("cannot look at it"))?;
                self.make_directory(&above.to, &name, attributes, Some(above.clone()))
            });
            match entered {
                Ok(directory) => {
                    let directory = Arc::new(directory);
                    self.list(&directory, &mut ways, hand);
                    self.leave(directory);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(name.to_bytes())),
            }
            self.leave(above);
        }
    }

    fn make_directory(
        &self,
        parent: &OwnedFd,
        name: &CStr,
        attributes: Attributes,
        above: Option<Arc<Directory>>,
    ) -> Outcome<Directory> {
        rustix::fs::mkdirat(parent, name, PRIVATE_DIRECTORY).map_err(writing("cannot make the directory"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to =
            rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(writing("cannot open the directory"))?;
        self.tally.directory();
        Ok(Directory { to, ino: attributes.ino, name: name.to_owned(), attributes, above })
    }

    /// Hands the entries of a directory over, and notes its directories.
    fn list(&self, directory: &Arc<Directory>, ways: &mut Vec<(Arc<Directory>, Ino, CString)>, hand: Hand<'_, Batch>) {
        let (first, mut after) = (ways.len(), 0);
        loop {
            let page = match self.service.read_directory(directory.ino, after, PAGE_ENTRIES, false) {
                Ok(page) => page,
                Err(errno) => {
                    let outcome = Err(reading_pool("cannot list it")(errno));
                    return self.tally.note(outcome, || directory.path(b""));
                }
            };
            let Some(last) = page.last() else { break };
            after = last.cookie;
            let (mut entries, mut content_bytes) = (Vec::with_capacity(BATCH_FILES), 0_u64);
            for entry in page {
                // The kernel is not there to refuse what would lead out of the tree.
                let name = check_name(&entry.name).ok().and_then(|()| disk::c_name(&entry.name));
                let Some(name) = name else {
                    let shown = entry.name.escape_ascii();
                    self.tally.problem(&directory.path(b""), format!("a name that none may have is left out: {shown}"));
                    continue;
                };
                if entry.kind == FileKind::Directory {
                    ways.push((directory.clone(), entry.ino, name));
                    continue;
                }
                match self.service.attributes(entry.ino) {
                    Ok(attributes) => {
                        content_bytes = content_bytes.saturating_add(attributes.size_bytes);
                        entries.push((attributes, name));
                    }
                    // Removed since it was listed.
                    Err(PoolErrno::ENOENT) => {}
                    Err(errno) => {
                        let outcome = Err(reading_pool("cannot look at it")(errno));
                        self.tally.note(outcome, || directory.path(name.to_bytes()));
                    }
                }
                if entries.len() == BATCH_FILES || content_bytes >= BATCH_BYTES {
                    content_bytes = 0;
                    let entries = std::mem::replace(&mut entries, Vec::with_capacity(BATCH_FILES));
                    hand(Batch { directory: directory.clone(), entries });
                }
            }
            if !entries.is_empty() {
                hand(Batch { directory: directory.clone(), entries });
            }
        }
        // As they are listed.
        if let Some(new) = ways.get_mut(first..) {
            new.reverse();
        }
    }

    /// The directory's attributes, if nobody works in it any more, and then of those above it.
    fn leave(&self, directory: Arc<Directory>) {
        let mut next = Some(directory);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            let path = || directory.path(b"");
            let outcome = self.attributes(Place::Open(directory.to.as_fd()), directory.attributes, &path);
            self.tally.note(outcome, path);
            next = directory.above;
        }
    }

    fn batch(&self, batch: Batch, buffer: &mut Vec<u8>) {
        for (attributes, name) in &batch.entries {
            let path = || batch.directory.path(name.to_bytes());
            let outcome =
                self.tally.go_on().and_then(|()| self.entry(&batch.directory, *attributes, name, buffer, &path));
            self.tally.note(outcome, path);
        }
        self.leave(batch.directory);
    }

    fn entry(
        &self,
        directory: &Arc<Directory>,
        attributes: Attributes,
        name: &CStr,
        buffer: &mut Vec<u8>,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let at = (&directory.to, name);
        if attributes.nlink <= 1 {
            return self.make(at, attributes, buffer, path);
        }
        let link = |first: &PathBuf| {
            let top = self.top.get().ok_or_else(|| Trouble::One("cannot link it".to_owned()))?;
            match rustix::fs::linkat(top, first, at.0, name, AtFlags::empty()) {
                Ok(()) => {
                    self.tally.hard_link();
                    Ok(true)
                }
                // What cannot be a link becomes a copy.
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

    /// Anything but a directory.
    fn make(
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
        self.attributes(Place::Named(parent.as_fd(), name), attributes, path)
    }

    /// A regular file with its content; one that cannot be read to its end is not left there.
    fn make_file(
        &self,
        (parent, name): (&OwnedFd, &CStr),
        attributes: Attributes,
        buffer: &mut Vec<u8>,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<()> {
        let how = OpenOptions { read: true, no_access_time: true, ..OpenOptions::default() };
        let opened = match self.service.open(READER, attributes.ino, how) {
            // Removed since it was listed.
            Err(PoolErrno::ENOENT) => return Ok(()),
            opened => opened.map_err(reading_pool("cannot open it"))?,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let outcome = rustix::fs::openat(parent, name, flags, PRIVATE_FILE);
        let outcome = outcome.map_err(writing("cannot make the file")).and_then(|to| {
            let copied = self.content((attributes, opened.handle), &to, buffer);
            let copied = copied.and_then(|bytes| {
                self.attributes(Place::Open(to.as_fd()), attributes, path)?;
                Ok(bytes)
            });
            let copied = copied.and_then(|bytes| {
                // SAFETY: the descriptor is owned here, and nobody uses it afterwards.
                let closed = unsafe { rustix::io::try_close(to.into_raw_fd()) };
                // Some filesystems write only now.
                closed.map_err(writing("cannot write the file"))?;
                Ok(bytes)
            });
            if copied.is_err() {
                // Half a file would be taken for a whole one.
                let _removed = rustix::fs::unlinkat(parent, name, AtFlags::empty());
            }
            copied
        });
        self.service.release(attributes.ino, opened.handle);
        self.tally.file(outcome?);
        let of = |attributes: &Attributes| (attributes.size_bytes, attributes.mtime);
        if self.service.attributes(attributes.ino).is_ok_and(|now| of(&now) != of(&attributes)) {
            let what = "changed while it was copied: it may be neither as it was nor as it is";
            self.tally.problem(&path(), what.to_owned());
        }
        Ok(())
    }

    /// All that is no hole; returns its bytes.
    fn content(&self, (of, handle): (Attributes, Handle), to: &OwnedFd, buffer: &mut Vec<u8>) -> Outcome<u64> {
        let has_holes = of.blocks.saturating_mul(512) < of.size_bytes;
        let cannot_read = || reading_pool("cannot be read: its content is damaged, or lost");
        let (mut offset, mut bytes) = (0, 0);
        while offset < of.size_bytes {
            let mut end = of.size_bytes;
            if has_holes {
                match self.service.seek(of.ino, handle, offset, SeekTarget::Data) {
                    Ok(data) => offset = data,
                    // Nothing but a hole, to the end.
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
                let mut rest = buffer.as_slice();
                while !rest.is_empty() {
                    let written = rustix::io::pwrite(to, rest, offset).map_err(writing("cannot write the file"))?;
                    if written == 0 {
                        return Err(Trouble::One("cannot write the file".to_owned()));
                    }
                    rest = rest.get(written..).unwrap_or_default();
                    offset += written as u64;
                    bytes += written as u64;
                    self.tally.content(written);
                }
            }
        }
        if has_holes {
            rustix::fs::ftruncate(to, of.size_bytes).map_err(writing("cannot write the file"))?;
        }
        Ok(bytes)
    }

    /// Owner, extended attributes, mode and times. What the disk does not take is told.
    fn attributes(&self, to: Place<'_>, mut attributes: Attributes, path: &dyn Fn() -> PathBuf) -> Outcome<()> {
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
            // It would lend the rights of another file's owner.
            if name == CAPABILITY_XATTR && !has_owner {
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
