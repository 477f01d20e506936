//! Makes a version of a tree on a disk.
//!
//! The calling thread walks through the directories, names ascending, and hands over windows of entries. The threads of
//! the crew copy the entries of a window in the order of their inodes, because most disks hold them so. One more thread
//! takes the windows in the order of the walk and builds the frozen tree. So no entry has an inode row, and names are
//! written once, as tree nodes.
//!
//! Content is pinned from the moment it is stored until the leaf that names it is. Nothing of an unfinished tree
//! survives: its content is garbage that reclaiming finds.
//!
//! Memory: the names of the open directories; [`STEPS_WAITING`] windows of [`WINDOW_ENTRIES`](window::WINDOW_ENTRIES)
//! entries; the buffers of the crew; a leaf and some lists for each open directory.

mod entry;
mod walk;
mod window;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dedupfs_base::EngineError;
use dedupfs_content::StreamId;
use dedupfs_namespace::check_name;
use dedupfs_service::Ino;
use dedupfs_sync::channel::{self, Receiver};
use dedupfs_sync::clock::Instant;
use rustix::fs::Stat;

use self::entry::Made;
use self::window::Step;
use super::super::crew::{self, Hand};
use super::super::directory::{self, Descriptors};
use super::super::disk;
use super::super::several_names::SeveralNames;
use super::super::tally::{Tally, Trouble, reading};
use super::super::{Result, TransferReport};
use super::can_be_listed;
use super::options::PutOptions;
use crate::engine::Core;
use crate::progress::Progress;
use crate::service::{Service, now};
use crate::versions::build::{Built, TreeBuilder};
use crate::versions::name::{Making, Origin, name_version};

/// Steps of the walk that may wait for the thread that builds the tree.
const STEPS_WAITING: usize = 8;
/// Distinguishes the streams of puts from those of processes.
const STREAM_BASE: u64 = 1 << 33;

/// A directory that is being copied.
type Directory = directory::Directory<Seen>;

/// A directory as it was when it was opened.
struct Seen {
    stat: Stat,
    /// The directory is in a pseudo filesystem: its files are not on a disk.
    is_pseudo: bool,
}

/// A version being made.
struct Freezing<'a> {
    core: &'a Core,
    service: &'a Service,
    options: &'a PutOptions,
    stream: StreamId,
    tally: &'a Tally<'a>,
    /// The device that holds the tree.
    device: u64,
    /// The files with several names that were copied, and their versions.
    several_names: SeveralNames<(u64, u64), Arc<Made>>,
    descriptors: Descriptors,
    /// Nothing more can be built.
    has_failed: AtomicBool,
}

/// Makes a version of the directory `from`, and names it `name` in the directory `into` of the pool. Entries that cannot
/// be copied are in the report, and the rest is there.
///
/// # Errors
/// `from` is no directory; the pool takes no more; the disk fails for good; `progress` is cancelled. Nothing is named
/// then.
pub(crate) fn put_version(
    core: &Core,
    service: &Service,
    options: &PutOptions,
    from: OwnedFd,
    (into, name): (Ino, &[u8]),
    origin: &Origin,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    check_name(name)?;
    let c_name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
    let begun = Instant::now();
    drop(core.begin_change()?);
    core.namespace.allow_versions()?;
    let stored_before = core.dedup.stats().bytes_stored;
    let tally = Tally::new(progress);
    let freezing = Freezing {
        core,
        service,
        options,
        stream: StreamId(STREAM_BASE | into),
        tally: &tally,
        device: 0,
        several_names: SeveralNames::default(),
        descriptors: Descriptors::default(),
        has_failed: AtomicBool::new(false),
    };
    let built = freezing.run(from, &c_name);
    // A client that has gone gives the version no name.
    tally.note(tally.go_on(), std::path::PathBuf::new);
    let mut report = tally.finish()?;
    let built = built.ok_or(EngineError::Internal("a tree without a top"))?;
    let _pass = core.begin_change()?;
    let making = Making {
        origin,
        new_bytes: core.dedup.stats().bytes_stored.saturating_sub(stored_before),
        problems: report.problem_count,
        elapsed: begun.elapsed(),
        completed: now(),
    };
    report.version = Some(name_version(core, built, (into, name), &making)?);
    core.relieve()?;
    Ok(report)
}

impl Freezing<'_> {
    /// Returns the finished tree; `None` after an error, which the tally has.
    fn run(mut self, from: OwnedFd, name: &std::ffi::CStr) -> Option<Built> {
        let tally = self.tally;
        let stat = match rustix::fs::fstat(&from).map_err(reading("cannot look at it")) {
            Ok(stat) => stat,
            Err(trouble) => {
                tally.note_top(Err(trouble), name);
                return None;
            }
        };
        if disk::kind_of(&stat) != Some(dedupfs_service::FileKind::Directory) {
            tally.note_top(Err(Trouble::One("not a directory".to_owned())), name);
            return None;
        }
        self.device = stat.st_dev;
        let again = from.try_clone();
        let this = &self;
        let built = dedupfs_sync::thread::scope(|scope| {
            let (sender, receiver) = channel::bounded::<Step>(STEPS_WAITING);
            let build = move || this.build(&receiver);
            let builder = dedupfs_sync::thread::Builder::new().name("build-tree".to_owned()).spawn_scoped(scope, build);
            let builder = match builder {
                Ok(builder) => builder,
                Err(error) => {
                    let error = super::super::TransferError::Disk { what: "cannot start a thread".to_owned(), error };
                    tally.note(Err(Trouble::All(error)), Default::default);
                    return None;
                }
            };
            let walk = |hand: Hand<'_, window::Batch>| this.walk(from, stat, name, hand, &sender);
            crew::run(tally, walk, |batch, space| this.batch(batch, space));
            drop(sender);
            builder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // A disk that is gone gives an error for every file. A copy made until then is no backup.
        if tally.has_problems() {
            let is_there = again.map_err(|_| rustix::io::Errno::MFILE).and_then(|top| can_be_listed(&top));
            tally.note_top(is_there.map_err(reading("it cannot be read any more")), name);
        }
        built
    }

    /// Builds the tree from the steps of the walk. After an error it takes the rest and drops it.
    fn build(&self, steps: &Receiver<Step>) -> Option<Built> {
        let mut tree = Some(TreeBuilder::new(&self.core.dedup, self.stream));
        let mut built = None;
        for step in steps.iter() {
            let Some(mut building) = tree.take() else { continue };
            let outcome = match step {
                Step::Begin(name) => {
                    building.begin_directory(name.to_bytes());
                    Ok(Some(building))
                }
                Step::Window(window) => window.add_to(&mut building).map(|()| Some(building)),
                Step::End(attributes, keep) if building.depth() > 1 => {
                    building.end_directory(attributes, keep).map(|()| Some(building))
                }
                Step::End(attributes, keep) => building.finish(attributes).map(|finished| {
                    drop(keep);
                    built = Some(finished);
                    None
                }),
            };
            match outcome.and_then(|building| self.core.relieve().map(|()| building)) {
                Ok(building) => tree = building,
                Err(error) => {
                    built = None;
                    self.has_failed.store(true, std::sync::atomic::Ordering::Relaxed);
                    self.tally.note(Err(Trouble::All(error.into())), Default::default);
                }
            }
        }
        built
    }
}
