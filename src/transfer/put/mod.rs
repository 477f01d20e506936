//! Copies a tree from a disk into the pool.
//!
//! [`walk`] goes through the directories, [`entry`] copies their entries, [`content`] reads their content. [`frozen`]
//! makes a version instead of a live tree. [`image`] makes a version of the image of a disk.

mod content;
mod entry;
mod frozen;
mod image;
mod options;
mod walk;
mod xattrs;

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_service::{Caller, FileKind, Ino, NewNode};
use rustix::fs::{RawDir, SeekFrom, Stat};
use rustix::io::Errno;

pub use self::frozen::BaseChoice;
pub(crate) use self::frozen::put_version;
pub use self::image::{
    ANSWER_BYTES, CHECKED_XATTR, Cutter, Cutting, ImageBase, ImageFiles, ImageOptions, ImageReport, NAMED_RECORD_BYTES,
    NamedImage, QUESTION_BYTES, TOKEN_BYTES_MAX, TOKEN_XATTR, VerifyImage, encode_named,
};
pub(crate) use self::image::{answer, put_image};
pub use self::options::{Owner, PutOptions, RACY_MS, VersionOptions};
use super::crew::{self, Hand, Space};
use super::directory::{self, Descriptors};
use super::disk;
use super::several_names::SeveralNames;
use super::tally::{Outcome, Tally, Trouble, reading};
use super::{Result, TransferReport};
use crate::engine::Core;
use crate::progress::Progress;
use crate::service::Service;
use dedupfs_base::EngineError;
use dedupfs_namespace::check_name;

/// The superuser, with a process id of its own for each put. So each put is a stream of its own, and its chunks do not mix with those of
/// another. No process has such a number.
fn writer(into: Ino) -> Caller {
    Caller { uid: 0, gid: 0, pid: 1 << 31 | into as u32 }
}

const LISTING_BYTES: usize = 64 << 10;

/// A directory that is being copied.
type Directory = directory::Directory<Seen>;

/// A directory as it was when it was opened.
struct Seen {
    stat: Stat,
    /// The directory is in a pseudo filesystem: its files are not on a disk.
    is_pseudo: bool,
}

/// The place of an entry in the pool.
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
            Some(directory) => directory.path(self.name.to_bytes()),
            None => disk::path_of_top(self.name),
        }
    }

    fn is_pseudo(&self) -> bool {
        self.above.is_some_and(|directory| directory.attributes.is_pseudo)
    }

    fn node(&self, mode: u16) -> NewNode<'_> {
        NewNode { parent: self.parent, name: self.name.to_bytes(), mode, umask: 0 }
    }
}

/// Entries of one directory, none of them a directory.
struct Batch {
    directory: Arc<Directory>,
    from: Arc<OwnedFd>,
    names: Vec<CString>,
}

struct Put<'a> {
    core: &'a Core,
    service: &'a Service,
    options: &'a PutOptions,
    writer: Caller,
    is_made: &'a AtomicBool,
    tally: &'a Tally<'a>,
    /// The device that holds the tree.
    device: u64,
    /// The inodes in the pool, and the versions of the files they were copied from.
    several_names: SeveralNames<(u64, u64), (Ino, Version)>,
    descriptors: Descriptors,
}

/// Tells whether a file is unchanged: size and time of the last change of content.
type Version = (i64, i64, u64);

fn version(stat: &Stat) -> Version {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// Removes an incomplete copy, also if a thread panics.
struct Unfinished<'a> {
    service: &'a Service,
    into: Ino,
    name: &'a [u8],
    /// Set once this put has made the top.
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

/// Returns the number of a device as the pool keeps it; 0 of anything else. An ordinary user makes none.
fn device_number(stat: &Stat, options: &PutOptions) -> Outcome<u32> {
    if !matches!(disk::kind_of(stat), Some(FileKind::CharDevice | FileKind::BlockDevice)) {
        return Ok(0);
    }
    if options.owner.is_some() {
        return Err(Trouble::One("only the superuser makes devices".to_owned()));
    }
    let number = disk::encode_device(stat.st_rdev);
    number.ok_or_else(|| Trouble::One("a device with a number that does not fit".to_owned()))
}

/// Copies `from`, a directory with all below it or a regular file, to `name` in the directory `into` of the pool. That directory must be
/// empty. The kernel sees nothing of the copy before this returns.
///
/// Entries that cannot be copied are in the report, and the rest is there. After an error nothing of the tree is left, if the pool can be
/// written.
///
/// # Errors
/// The pool takes no more, the disk fails for good, or `progress` is cancelled.
pub(crate) fn put(
    core: &Core,
    service: &Service,
    options: &PutOptions,
    from: OwnedFd,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    check_name(name)?;
    let c_name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
    let tally = Tally::new(progress).with_rate(options.bytes_per_sec);
    let is_made = AtomicBool::new(false);
    let hidden = service.hide(into)?;
    // Dropped before the kernel can see into the directory.
    let mut unfinished = Unfinished { service, into, name, is_made: &is_made, is_whole: false };
    let several_names = SeveralNames::default();
    let (writer, is_made) = (writer(into), &is_made);
    let descriptors = Descriptors::default();
    let put = Put { core, service, options, writer, is_made, tally: &tally, device: 0, several_names, descriptors };
    put_all(put, from, into, c_name);
    // A client that has gone does not give the copy its final name, so the copy must not stay.
    tally.note(tally.go_on(), PathBuf::new);
    let report = tally.finish();
    unfinished.is_whole = report.is_ok();
    drop(unfinished);
    drop(hidden);
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
            // A disk that is gone gives an error for every file. A copy made until then is no backup.
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
