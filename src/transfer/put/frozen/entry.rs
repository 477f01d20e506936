//! Copies the entries of a directory, except directories, into the pool, for a frozen tree.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_content::{FileBody, Published, RootPin};
use dedupfs_service::FileKind;
use dedupfs_store::codec::{checksum, checksum_seeded};
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{ATTRIBUTES_INLINE_BYTES_MAX, Attributes, Content, Entry, encode_attributes};
use dedupfs_sync::canary::{Canary, is_planted};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::super::super::crew::Space;
use super::super::super::disk::{self, Place, XattrSpace};
use super::super::super::tally::{Outcome, Trouble, reading};
use super::super::content::{ContentSink, Source};
use super::super::{Version, device_number, version, xattrs};
use super::base::{BaseEntry, ctime_nanos, is_racy};
use super::window::Batch;
use super::{Directory, VersionPut};
use crate::versions::build::{EntryAttributes, FileId, Keep};
use crate::versions::notes::Noted;

/// A shorter file is written without its former recipe: reading that would cost as much as asking the index.
const FORMER_BYTES_MIN: u64 = 8 << 20;

/// Attributes of an entry, as they were copied.
#[derive(Default)]
pub(super) struct CopiedAttributes {
    pub(super) attributes: EntryAttributes,
    /// Pins of those that are stored as content.
    pub(super) keep: Vec<Keep>,
    /// Whether none is missing. If one is, the next put must not take the entry over, or the problem would be told once only.
    pub(super) are_complete: bool,
}

/// An entry that was copied.
pub(super) struct Made {
    pub(super) attributes: EntryAttributes,
    pub(super) content: Content,
    /// Tells a file with several names.
    pub(super) file: Option<FileId>,
    /// What keeps its content.
    pub(super) keep: Vec<Arc<RootPin>>,
    /// What to note for the next put.
    pub(super) noted: Noted,
    /// The file as it was copied.
    version: Version,
}

impl VersionPut<'_> {
    pub(super) fn batch(&self, mut batch: Batch, space: &mut Space) {
        let (directory, from) = (batch.directory.clone(), batch.from.clone());
        while let Some((name, base)) = batch.next() {
            let outcome = self.tally.go_on().and_then(|()| self.entry((&directory, &from), name, base, space));
            let path = || directory.path(name.to_bytes());
            let made = outcome.map_err(|trouble| self.tally.note(Err(trouble), path)).ok();
            batch.record(made);
        }
    }

    fn entry(
        &self,
        (directory, above): (&Directory, &OwnedFd),
        name: &CStr,
        base: Option<&BaseEntry>,
        space: &mut Space,
    ) -> Outcome<Arc<Made>> {
        let path = || directory.path(name.to_bytes());
        let now = self.now_nanos();
        let seen = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        let seen = seen.map_err(reading("cannot look at it"))?;
        let unchanged = base.filter(|base| base.is_unchanged(&seen, self.owner(&seen)));
        let unchanged = unchanged.filter(|unchanged| !self.may_lack(unchanged));
        if let Some(unchanged) = unchanged
            && !self.is_verified(&seen)
        {
            self.counts.taken_over.fetch_add(1, Ordering::Relaxed);
            self.counts.resumed.fetch_add(u64::from(unchanged.is_incomplete), Ordering::Relaxed);
            // So that a further name counts as one.
            return self.with_names(&seen, || Ok(self.take_over(&seen, unchanged)));
        }
        // A device must not be opened: opening may act on it.
        if disk::kind_of(&seen) != Some(FileKind::Regular) {
            return self.with_names(&seen, || self.node((above.as_fd(), name), (&seen, now), &mut space.xattrs, &path));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = rustix::fs::openat(above, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let now = self.now_nanos();
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        if disk::kind_of(&stat) != Some(FileKind::Regular) {
            return Err(became_another());
        }
        let is_pseudo = directory.attributes.is_pseudo;
        let source = Source { from: from.as_fd(), stat: &stat, is_pseudo, path: &path };
        let made = self.with_names(&stat, || self.file(&source, now, base, space))?;
        if let Some(unchanged) = unchanged {
            self.compare(&made, unchanged, &path);
        }
        Ok(made)
    }

    /// Time of the source, in nanoseconds since 1970: this machine's.
    fn now_nanos(&self) -> i64 {
        i64::try_from(dedupfs_sync::clock::since_epoch().as_nanos()).unwrap_or(i64::MAX)
    }

    /// What to note of an entry whose `stat` was taken at `now`.
    fn noted(&self, stat: &Stat, now_nanos: i64) -> Noted {
        let margin_nanos = i64::try_from(self.version.racy_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        match is_racy(stat, now_nanos, margin_nanos) {
            true => Noted::default(),
            false => Noted { ctime_nanos: ctime_nanos(stat), ino: stat.st_ino },
        }
    }

    /// Whether an unchanged entry is read nevertheless. The choice is another in each put.
    fn is_verified(&self, stat: &Stat) -> bool {
        let percent = u64::from(self.version.verify_percent);
        let is_file = disk::kind_of(stat) == Some(FileKind::Regular);
        is_file && percent > 0 && checksum_seeded(&stat.st_ino.to_le_bytes(), self.seed) % 100 < percent
    }

    /// Whether content or attributes of the entry may be lost. Reading the source stores them again.
    fn may_lack(&self, base: &BaseEntry) -> bool {
        // What cannot be read is no help either.
        base.entry.references().any(|reference| self.core.dedup.may_lack_below(&reference).unwrap_or(true))
    }

    /// Takes over an entry of the base.
    fn take_over(&self, stat: &Stat, base: &BaseEntry) -> Made {
        match disk::kind_of(stat) {
            Some(FileKind::Regular) => self.tally.file(0),
            _ => self.tally.other(),
        }
        taken_over(stat, base)
    }

    /// Compares an entry that was read with the one that would have been taken over.
    fn compare(&self, made: &Made, unchanged: &BaseEntry, path: &dyn Fn() -> PathBuf) {
        self.counts.verified.fetch_add(1, Ordering::Relaxed);
        let names = |content: &Content| match content {
            Content::File { root, .. } => (root.len_bytes(), root.reference().map(|named| named.fingerprint())),
            _ => (0, None),
        };
        if names(&made.content) != names(&unchanged.entry.content) {
            self.counts.lied.fetch_add(1, Ordering::Relaxed);
            let what = "its content changed, though size, times and inode number did not: put with --reread".to_owned();
            self.tally.problem(&path(), what);
        }
    }

    /// Copies an inode, or takes it from an earlier name of it.
    fn with_names(&self, stat: &Stat, make: impl FnOnce() -> Outcome<Made>) -> Outcome<Arc<Made>> {
        if stat.st_nlink <= 1 {
            return make().map(Arc::new);
        }
        let mut taken = None;
        let link = |made: &Arc<Made>| {
            // Another file may have the number of one that was removed meanwhile.
            if made.version != version(stat) {
                return Ok(false);
            }
            self.tally.hard_link();
            taken = Some(made.clone());
            Ok::<_, Trouble>(true)
        };
        let mut copied = None;
        let copy = || {
            let made = Arc::new(make()?);
            copied = Some(made.clone());
            Ok(made)
        };
        self.several_names.with((stat.st_dev, stat.st_ino), stat.st_nlink, link, copy)?;
        taken.or(copied).ok_or_else(|| Trouble::One("was neither copied nor linked".to_owned()))
    }

    /// Makes an entry that is neither a directory nor a regular file.
    fn node(
        &self,
        (above, name): (BorrowedFd<'_>, &CStr),
        (stat, now_nanos): (&Stat, i64),
        space: &mut XattrSpace,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<Made> {
        let number = device_number(stat, self.options)?;
        let content = match disk::kind_of(stat) {
            Some(FileKind::Symlink) => {
                let read = rustix::fs::readlinkat(above, name, Vec::new());
                Content::Symlink(read.map_err(reading("cannot read the link"))?.into_bytes())
            }
            Some(FileKind::CharDevice) => Content::CharDevice(number),
            Some(FileKind::BlockDevice) => Content::BlockDevice(number),
            Some(FileKind::Fifo) => Content::Fifo,
            Some(FileKind::Socket) => Content::Socket,
            _ => return Err(became_another()),
        };
        let CopiedAttributes { attributes, keep, are_complete } =
            self.attributes(Place::Named(above, name), stat, space, path)?;
        self.tally.other();
        let noted = if are_complete { self.noted(stat, now_nanos) } else { Noted::default() };
        Ok(made(stat, noted, attributes, content, (keep, None)))
    }

    fn file(&self, source: &Source<'_>, now_nanos: i64, base: Option<&BaseEntry>, space: &mut Space) -> Outcome<Made> {
        let mut body = self.body_like(base)?;
        let mut writing = Writing { put: self, body: &mut body };
        let bytes = source.copy(self.tally, &mut space.content, &mut writing)?;
        let stat = source.stat;
        let CopiedAttributes { attributes, keep, are_complete } =
            self.attributes(Place::Open(source.from), stat, &mut space.xattrs, source.path)?;
        let (root, data_bytes, pin) = self.publish(&mut body)?;
        self.tally.file(bytes);
        let mut noted = if are_complete { self.noted(stat, now_nanos) } else { Noted::default() };
        if !rustix::fs::fstat(source.from).is_ok_and(|now| version(&now) == version(stat)) {
            noted = Noted::default();
            let what = "changed while it was copied: it may be neither as it was nor as it is".to_owned();
            self.tally.problem(&(source.path)(), what);
        }
        Ok(made(stat, noted, attributes, Content::File { root, data_bytes }, (keep, pin)))
    }

    /// Begins the content of a file. The base, which is held, is likely to have most of its chunks.
    fn body_like(&self, base: Option<&BaseEntry>) -> Outcome<FileBody> {
        if let Some(BaseEntry { entry: Entry { content: Content::File { root, .. }, .. }, .. }) = base
            && root.len_bytes() >= FORMER_BYTES_MIN
        {
            match FileBody::anew(self.new_content.files.clone(), root) {
                Ok(body) => return Ok(body),
                Err(error) => tracing::debug!(%error, "the former content of a file is no help"),
            }
        }
        self.body()
    }

    fn body(&self) -> Outcome<FileBody> {
        FileBody::open(self.new_content.files.clone(), &Root::Empty).map_err(all)
    }

    /// Stores content, and pins what its root names.
    fn publish(&self, body: &mut FileBody) -> Outcome<(Root, u64, Option<RootPin>)> {
        let _pass = self.core.begin_change().map_err(all)?;
        let mut outcome = (Root::Empty, 0, None);
        let mut log = |published: Published| {
            let pin = self.core.dedup.pin_root(&published.root).filter(|_| !is_planted(Canary::EntryNotPinned));
            outcome = (published.root, published.data_bytes, pin);
            Ok(())
        };
        body.publish(self.stream, &mut log).map_err(all)?;
        Ok(outcome)
    }

    /// Owner, group and mode of the copy of a file.
    fn owner(&self, stat: &Stat) -> (u32, u32, u16) {
        let (uid, gid, mode) = (stat.st_uid, stat.st_gid, (stat.st_mode & 0o7777) as u16);
        let (uid, gid, mode) = match &self.options.owner {
            Some(owner) => owner.of_copy(uid, gid, mode),
            None => (uid, gid, mode),
        };
        (uid, gid, if disk::kind_of(stat) == Some(FileKind::Symlink) { 0o777 } else { mode })
    }

    /// Reads extended attributes (access lists among them), owner, mode and time. Attributes that the pool does not take
    /// are reported.
    pub(super) fn attributes(
        &self,
        from: Place<'_>,
        stat: &Stat,
        space: &mut XattrSpace,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<CopiedAttributes> {
        let (uid, gid, mode) = self.owner(stat);
        let mut are_complete = true;
        let mut missing = |what| {
            are_complete = false;
            self.tally.problem(&path(), what);
        };
        let set = xattrs::copied(from, (mode, self.options.owner.is_some()), space, &mut missing)?;
        let encoded = encode_attributes(&set);
        let mut keep = Vec::new();
        let attributes = if encoded.len() <= ATTRIBUTES_INLINE_BYTES_MAX {
            Attributes::Inline(encoded)
        } else {
            let mut body = self.body()?;
            Writing { put: self, body: &mut body }.write(0, &encoded)?;
            let (root, _, pin) = self.publish(&mut body)?;
            keep.extend(pin.map(|pin| Keep::Root(Arc::new(pin))));
            Attributes::Stored(root)
        };
        let (mtime_secs, mtime_nanos) = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let attributes = EntryAttributes { mode, uid, gid, mtime_secs, mtime_nanos, flags: 0, attributes };
        Ok(CopiedAttributes { attributes, keep, are_complete })
    }
}

/// Tells a file with several names.
fn file_id(stat: &Stat) -> Option<FileId> {
    let (size, secs, nanos) = version(stat);
    let state = || checksum(&[size.to_le_bytes(), secs.to_le_bytes(), nanos.to_le_bytes()].concat());
    (stat.st_nlink > 1).then(|| (stat.st_dev, stat.st_ino, state()))
}

fn made(
    stat: &Stat,
    noted: Noted,
    attributes: EntryAttributes,
    content: Content,
    (keep, pin): (Vec<Keep>, Option<RootPin>),
) -> Made {
    let keep = keep.into_iter().filter_map(Keep::into_root).chain(pin.map(Arc::new)).collect();
    Made { attributes, content, file: file_id(stat), keep, noted, version: version(stat) }
}

/// An entry of the base, which holds what it names.
fn taken_over(stat: &Stat, base: &BaseEntry) -> Made {
    let Entry { mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, content, .. } = base.entry.clone();
    Made {
        attributes: EntryAttributes { mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes },
        content,
        file: file_id(stat),
        keep: Vec::new(),
        noted: base.noted,
        version: version(stat),
    }
}

/// The content of a file that is being copied.
struct Writing<'a, 'b> {
    put: &'a VersionPut<'a>,
    body: &'b mut FileBody,
}

impl ContentSink for Writing<'_, '_> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let VersionPut { core, service, stream, .. } = self.put;
        let _pass = core.begin_change().map_err(all)?;
        let room = service.admit_write(bytes.len() as u64).map_err(all)?;
        self.body.write(*stream, offset, bytes).map_err(all)?;
        drop(room);
        service.relieve_memory();
        core.relieve().map_err(all)
    }

    fn extend_to(&mut self, size_bytes: u64) -> Outcome<()> {
        let _pass = self.put.core.begin_change().map_err(all)?;
        self.body.truncate(self.put.stream, size_bytes).map_err(all)
    }
}

/// An error of the pool concerns all further entries.
fn all(error: dedupfs_base::EngineError) -> Trouble {
    Trouble::All(error.into())
}

fn became_another() -> Trouble {
    Trouble::One("became something else while it was looked at".to_owned())
}
