//! A tree out of the pool to a disk.
//!
//! [`walk`] goes through the directories, [`entry`] copies what is in them.

mod entry;
mod walk;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use dedupfs_fuse::service::{Attributes, FileKind, FileService, Ino};

use super::crew::{self, Hand, Space};
use super::directory::{self, Descriptors};
use super::disk;
use super::several_names::SeveralNames;
use super::tally::{Tally, Trouble, reading_pool};
use super::{Result, TransferError, TransferReport};
use crate::namespace::check_name;
use crate::pool::Progress;
use crate::service::Service;

/// A directory that is being made.
type Directory = directory::Directory<Attributes>;

/// Entries of one directory, none of them a directory.
struct Batch {
    directory: Arc<Directory>,
    to: Arc<OwnedFd>,
    entries: Vec<(Ino, CString)>,
    /// Of all of them, as they were when they were listed.
    content_bytes: u64,
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
    descriptors: Descriptors,
}

/// Copies an inode of the pool, a directory with all below it or a regular file, to the new name `name` in the directory `to`.
///
/// What cannot be copied is in the report, and the rest is there, and durable: a file that is damaged is left out.
///
/// # Errors
/// The name is none that an entry may have, or is taken; the disk takes no more; `progress` is cancelled; what was copied until then stays.
pub fn get(
    service: &Service,
    ino: Ino,
    (to, name): (OwnedFd, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    // Whoever asks may have checked nothing: `..` and `/` lead out of the directory.
    check_name(name)?;
    let name = disk::c_name(name).ok_or(crate::EngineError::Invalid("a name with a zero byte"))?;
    let tally = Tally::new(progress);
    let (top, several_names) = (OnceLock::new(), SeveralNames::default());
    let get = Get { service, tally: &tally, to: &to, top, several_names, descriptors: Descriptors::default() };
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
