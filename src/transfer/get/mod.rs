//! Copies a tree out of the pool to a disk.
//!
//! [`walk`] goes through the directories, [`selection`] says which entries are wanted, [`entry`] copies them. The content of files
//! that cannot change is planned in [`window`]s and read in the order of the pool's disk; [`arrival`] puts it where it belongs.

mod arrival;
mod entry;
mod selection;
mod walk;
mod window;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_base::EngineError;
use dedupfs_namespace::check_name;
use dedupfs_service::{Attributes, FileKind, FileService, Ino};
use dedupfs_sync::OnceLock;

pub(super) use self::arrival::Arrivals;
pub use self::selection::Patterns;
use self::selection::{Reached, Selection};
pub(super) use self::window::Windows;
use super::crew::{self, Hand, Space};
use super::directory::{self, Descriptors};
use super::several_names::SeveralNames;
use super::tally::{Tally, Trouble, reading_pool};
use super::{Result, TransferError, TransferReport, disk};
use crate::progress::Progress;
use crate::service::Service;

/// A directory that is being made, or is made once something in it is wanted.
type Directory = directory::Directory<Known>;

/// What is known of a directory.
struct Known {
    attributes: Attributes,
    reached: Reached,
    /// The version whose tree this holds, as the kernel does.
    held: Option<Ino>,
}

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
    selection: Selection,
    windows: Windows,
    arrivals: Arrivals,
    /// Directories that were listed.
    listed: AtomicU64,
}

/// Copies an inode of the pool, a directory with all below it or a regular file, to the new name `name` in the directory `to`.
///
/// Entries that cannot be copied are in the report. The rest is there, and durable. A damaged file is left out. Of a directory, only what
/// `patterns` choose is copied, with the directories on the way; a pattern that matches nothing is a problem in the report.
///
/// # Errors
/// The name is invalid or taken, the disk takes no more, or `progress` is cancelled. Everything copied until then stays. A pattern makes no
/// sense; they choose nothing, or are given for a file.
pub(crate) fn get(
    service: &Service,
    ino: Ino,
    (to, name): (OwnedFd, &[u8]),
    patterns: &Patterns,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let (memory_bytes, _held) = service.take_memory_to_transfer();
    get_in((Windows::new(memory_bytes), Arrivals::new(memory_bytes)), service, ino, (to, name), patterns, progress)
}

/// As [`get`], with other bounds.
pub(super) fn get_in(
    (windows, arrivals): (Windows, Arrivals),
    service: &Service,
    ino: Ino,
    (to, name): (OwnedFd, &[u8]),
    patterns: &Patterns,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let selection = Selection::compile(patterns)?;
    // The client may have checked nothing: `..` and `/` lead out of the directory.
    check_name(name)?;
    let name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
    let tally = Tally::new(progress);
    let (top, several_names) = (OnceLock::new(), SeveralNames::default());
    let (descriptors, listed) = Default::default();
    let get =
        Get { service, tally: &tally, to: &to, top, several_names, descriptors, selection, windows, arrivals, listed };
    match service.attributes(ino).map_err(reading_pool("cannot look at it")) {
        Ok(attributes) if attributes.kind == FileKind::Directory => {
            let walk = |hand: Hand<'_, Batch>| get.walk(&name, attributes, hand);
            crew::run(&tally, walk, |batch, space| get.batch(batch, &mut space.content));
            get.sweep_rest();
        }
        Ok(_) if !get.selection.is_all() => {
            return Err(EngineError::Invalid("patterns choose parts of a directory, and this is a file").into());
        }
        Ok(attributes) => {
            let path = || disk::path_of_top(&name);
            let copied = match get.is_planned(&attributes) {
                true => get.plan(None, &name, attributes).map(|()| get.sweep_rest()),
                false => get.make((&to, &name), attributes, &mut Space::default().content, &path),
            };
            tally.note_top(copied, &name);
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
    let unmatched: Vec<String> = get.selection.unmatched().map(str::to_owned).collect();
    let searched = (!get.selection.is_all()).then(|| get.listed.load(Ordering::Relaxed));
    let is_empty = get.top.get().is_none() && searched.is_some();
    drop(get);
    if is_empty && tally.go_on().is_ok() && !tally.has_problems() {
        tally.finish()?;
        return Err(TransferError::NothingChosen);
    }
    for pattern in unmatched {
        tally.problem(Path::new(&pattern), "this pattern matches nothing in the tree".to_owned());
    }
    tally.finish().map(|report| TransferReport { searched_directories: searched, ..report })
}
