//! Copies a tree out of the pool to a disk.
//!
//! [`walk`] goes through the directories, [`entry`] copies their entries.

mod entry;
mod walk;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_namespace::check_name;
use dedupfs_service::{Attributes, FileKind, FileService, Ino};
use dedupfs_sync::OnceLock;

use super::crew::{self, Hand, Space};
use super::directory::{self, Descriptors};
use super::several_names::SeveralNames;
use super::tally::{Tally, Trouble, reading_pool};
use super::{Result, TransferError, TransferReport, disk};
use crate::progress::Progress;
use crate::service::Service;

/// A directory that is being made.
type Directory = directory::Directory<Attributes>;

/// Entries of one directory, none of them a directory.
struct Batch {
    directory: Arc<Directory>,
    to: Arc<OwnedFd>,
    entries: Vec<(Ino, CString)>,
    /// Sum of their sizes when they were listed.
    content_bytes: u64,
}

struct Get<'a> {
    service: &'a Service,
    tally: &'a Tally<'a>,
    /// The directory that receives the tree.
    to: &'a OwnedFd,
    /// The tree's top. Until the tree is complete, only its owner can change a path below it.
    top: OnceLock<OwnedFd>,
    /// The first name of each file, as a path from the top.
    several_names: SeveralNames<Ino, PathBuf>,
    descriptors: Descriptors,
}

/// Copies an inode of the pool, a directory with all below it or a regular file, to the new name `name` in the directory `to`.
///
/// Entries that cannot be copied are in the report. The rest is there, and durable. A damaged file is left out.
///
/// # Errors
/// The name is invalid or taken, the disk takes no more, or `progress` is cancelled. Everything copied until then stays.
pub(crate) fn get(
    service: &Service,
    ino: Ino,
    (to, name): (OwnedFd, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    // The client may have checked nothing: `..` and `/` lead out of the directory.
    check_name(name)?;
    let name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
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
    // Filesystems may report failed writes only when they are synced, if at all.
    let synced = tally.go_on().and_then(|()| {
        rustix::fs::syncfs(&to).map_err(|errno| {
            let what = "what was copied may not be on the disk".to_owned();
            Trouble::All(TransferError::Disk { what, error: errno.into() })
        })
    });
    tally.note(synced, || disk::path_of_top(&name));
    tally.finish()
}
