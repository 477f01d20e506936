//! Copies the entries of a directory, except directories, into the pool, for a frozen tree.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use dedupfs_content::{FileBody, Published, RootPin};
use dedupfs_service::{FileKind, acl, check_xattr_name};
use dedupfs_store::codec::checksum;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{ATTRIBUTES_INLINE_BYTES_MAX, Attribute, Attributes, Content, encode_attributes};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::super::super::crew::Space;
use super::super::super::disk::{self, Place, XattrSpace};
use super::super::super::tally::{Outcome, Trouble, reading};
use super::super::content::{ContentSink, Source};
use super::super::{Version, version};
use super::window::Batch;
use super::{Directory, Freezing};
use crate::versions::build::{EntryAttributes, FileId, Keep};

/// Largest set of extended attributes.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 20;

/// An entry that was copied.
pub(super) struct Made {
    pub(super) attributes: EntryAttributes,
    pub(super) content: Content,
    /// Tells a file with several names.
    pub(super) file: Option<FileId>,
    /// What keeps its content.
    pub(super) keep: Vec<Arc<RootPin>>,
    /// The file as it was copied.
    version: Version,
}

impl Freezing<'_> {
    pub(super) fn batch(&self, mut batch: Batch, space: &mut Space) {
        let (directory, from) = (batch.directory.clone(), batch.from.clone());
        while let Some(name) = batch.next() {
            let outcome = self.tally.go_on().and_then(|()| self.entry(&directory, &from, name, space));
            let path = || directory.path(name.to_bytes());
            let made = outcome.map_err(|trouble| self.tally.note(Err(trouble), path)).ok();
            batch.record(made);
        }
    }

    fn entry(&self, directory: &Directory, above: &OwnedFd, name: &CStr, space: &mut Space) -> Outcome<Arc<Made>> {
        let path = || directory.path(name.to_bytes());
        let seen = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        let seen = seen.map_err(reading("cannot look at it"))?;
        // A device must not be opened: opening may act on it.
        if disk::kind_of(&seen) != Some(FileKind::Regular) {
            return self.with_names(&seen, || self.node(above.as_fd(), name, &seen, &mut space.xattrs, &path));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = rustix::fs::openat(above, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        if disk::kind_of(&stat) != Some(FileKind::Regular) {
            return Err(became_another());
        }
        let is_pseudo = directory.attributes.is_pseudo;
        let source = Source { from: from.as_fd(), stat: &stat, is_pseudo, path: &path };
        self.with_names(&stat, || self.file(&source, space))
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
        above: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        space: &mut XattrSpace,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<Made> {
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
                let read = rustix::fs::readlinkat(above, name, Vec::new());
                Content::Symlink(read.map_err(reading("cannot read the link"))?.into_bytes())
            }
            Some(FileKind::CharDevice) => Content::CharDevice(number()?),
            Some(FileKind::BlockDevice) => Content::BlockDevice(number()?),
            Some(FileKind::Fifo) => Content::Fifo,
            Some(FileKind::Socket) => Content::Socket,
            _ => return Err(became_another()),
        };
        let (attributes, keep) = self.attributes(Place::Named(above, name), stat, space, path)?;
        self.tally.other();
        Ok(made(stat, attributes, content, keep, None))
    }

    fn file(&self, source: &Source<'_>, space: &mut Space) -> Outcome<Made> {
        let mut body = self.body()?;
        let mut writing = Writing { freezing: self, body: &mut body };
        let bytes = source.copy(self.tally, &mut space.content, &mut writing)?;
        let stat = source.stat;
        let (attributes, keep) = self.attributes(Place::Open(source.from), stat, &mut space.xattrs, source.path)?;
        let (root, data_bytes, pin) = self.publish(&mut body)?;
        self.tally.file(bytes);
        if !rustix::fs::fstat(source.from).is_ok_and(|now| version(&now) == version(stat)) {
            let what = "changed while it was copied: it may be neither as it was nor as it is".to_owned();
            self.tally.problem(&(source.path)(), what);
        }
        Ok(made(stat, attributes, Content::File { root, data_bytes }, keep, pin))
    }

    fn body(&self) -> Outcome<FileBody> {
        FileBody::open(self.core.files.clone(), &Root::Empty).map_err(all)
    }

    /// Stores content, and pins what its root names.
    fn publish(&self, body: &mut FileBody) -> Outcome<(Root, u64, Option<RootPin>)> {
        let _pass = self.core.begin_change().map_err(all)?;
        let mut outcome = (Root::Empty, 0, None);
        let mut log = |published: Published| {
            outcome = (published.root, published.data_bytes, self.core.dedup.pin_root(&published.root));
            Ok(())
        };
        body.publish(self.stream, &mut log).map_err(all)?;
        Ok(outcome)
    }

    /// Reads extended attributes (access lists among them), owner, mode and time. Attributes that the pool does not take
    /// are reported.
    pub(super) fn attributes(
        &self,
        from: Place<'_>,
        stat: &Stat,
        space: &mut XattrSpace,
        path: &dyn Fn() -> PathBuf,
    ) -> Outcome<(EntryAttributes, Vec<Keep>)> {
        let mut mode = (stat.st_mode & 0o7777) as u16;
        let (mut uid, mut gid) = (stat.st_uid, stat.st_gid);
        if let Some(owner) = &self.options.owner {
            (uid, gid, mode) = owner.of_copy(uid, gid, mode);
        }
        if disk::kind_of(stat) == Some(FileKind::Symlink) {
            mode = 0o777;
        }
        let (mut set, mut bytes): (Vec<Attribute>, usize) = (Vec::new(), 0);
        let take = |name: &CStr, value: &[u8]| {
            let name = name.to_bytes();
            let is_optional = disk::is_optional(name);
            if is_optional && self.options.owner.is_some() {
                return Ok(());
            }
            let refused = |why: &str| {
                let name = String::from_utf8_lossy(name).into_owned();
                self.tally.problem(&path(), format!("the pool does not take the extended attribute: {why} ({name})"));
            };
            bytes += name.len() + value.len();
            match check_xattr_name(name) {
                Err(_) if is_optional => {}
                Err(errno) => refused(&errno.to_string()),
                Ok(()) if bytes > ATTRIBUTES_BYTES_MAX => refused("too many bytes of attributes"),
                Ok(()) if name == acl::ACCESS_XATTR => match acl::set_access(value, mode, true) {
                    Ok(change) => set.extend(change.stored.map(|stored| (name.to_vec(), stored))),
                    Err(_) => refused("an access list of a wrong form"),
                },
                Ok(()) if name == acl::DEFAULT_XATTR => match acl::Acl::parse(value) {
                    Ok(list) => set.push((name.to_vec(), list.to_bytes())),
                    Err(_) => refused("an access list of a wrong form"),
                },
                Ok(()) => set.push((name.to_vec(), value.to_vec())),
            }
            Ok(())
        };
        match from.for_each_xattr(space, |errno| reading("cannot read extended attributes")(errno), take) {
            Err(Trouble::One(what) | Trouble::Unreadable(what)) => self.tally.problem(&path(), what),
            outcome => outcome?,
        }
        set.sort_unstable();
        set.dedup_by(|one, other| one.0 == other.0);
        let encoded = encode_attributes(&set);
        let mut keep = Vec::new();
        let attributes = if encoded.len() <= ATTRIBUTES_INLINE_BYTES_MAX {
            Attributes::Inline(encoded)
        } else {
            let mut body = self.body()?;
            Writing { freezing: self, body: &mut body }.write(0, &encoded)?;
            let (root, _, pin) = self.publish(&mut body)?;
            keep.extend(pin.map(|pin| Keep::Root(Arc::new(pin))));
            Attributes::Stored(root)
        };
        let (mtime_secs, mtime_nanos) = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Ok((EntryAttributes { mode, uid, gid, mtime_secs, mtime_nanos, flags: 0, attributes }, keep))
    }
}

fn made(stat: &Stat, attributes: EntryAttributes, content: Content, keep: Vec<Keep>, pin: Option<RootPin>) -> Made {
    let version = version(stat);
    let (size, secs, nanos) = version;
    let state = checksum(&[size.to_le_bytes(), secs.to_le_bytes(), nanos.to_le_bytes()].concat());
    let keep = keep.into_iter().filter_map(Keep::into_root).chain(pin.map(Arc::new)).collect();
    Made { attributes, content, file: (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino, state)), keep, version }
}

/// The content of a file that is being copied.
struct Writing<'a, 'b> {
    freezing: &'a Freezing<'a>,
    body: &'b mut FileBody,
}

impl ContentSink for Writing<'_, '_> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let Freezing { core, service, stream, .. } = self.freezing;
        let _pass = core.begin_change().map_err(all)?;
        let room = service.admit_write(bytes.len() as u64).map_err(all)?;
        self.body.write(*stream, offset, bytes).map_err(all)?;
        drop(room);
        service.relieve_memory();
        core.relieve().map_err(all)
    }

    fn extend_to(&mut self, size_bytes: u64) -> Outcome<()> {
        let _pass = self.freezing.core.begin_change().map_err(all)?;
        self.body.truncate(self.freezing.stream, size_bytes).map_err(all)
    }
}

/// An error of the pool concerns all further entries.
fn all(error: dedupfs_base::EngineError) -> Trouble {
    Trouble::All(error.into())
}

fn became_another() -> Trouble {
    Trouble::One("became something else while it was looked at".to_owned())
}
