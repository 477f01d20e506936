//! Makes a version of a tree on a disk.
//!
//! The calling thread walks through the directories, names ascending, and hands over windows of entries. The threads of
//! the crew copy the entries of a window in the order of their inodes, because most disks hold them so. One more thread
//! takes the windows in the order of the walk and builds the frozen tree. So no entry has an inode row, and names are
//! written once, as tree nodes.
//!
//! With [`bases`], entries that did not change since are taken over from them.
//!
//! Content is pinned from the moment it is stored until the leaf that names it is. Of an unfinished tree an incomplete
//! version may survive ([`so_far`]). The rest of its content is garbage that reclaiming finds.
//!
//! Memory: the names of the open directories; [`STEPS_WAITING`] windows of [`WINDOW_ENTRIES`](window::WINDOW_ENTRIES)
//! entries; the buffers of the crew; a leaf and some lists for each open directory.

mod base;
mod bases;
mod entry;
pub(super) mod scope;
mod so_far;
mod walk;
mod window;

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dedupfs_base::{EngineError, allocator};
use dedupfs_content::StreamId;
use dedupfs_namespace::check_name;
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::StoreError;
use dedupfs_sync::channel::{self, Receiver};
use dedupfs_sync::clock::Instant;
use rustix::fs::Stat;
use rustix::io::Errno;

pub use self::base::BaseChoice;
use self::bases::Bases;
use self::entry::Made;
use self::so_far::SoFar;
use self::window::Step;
use super::super::crew::{self, Hand};
use super::super::directory::{self, Descriptors};
use super::super::disk;
use super::super::several_names::SeveralNames;
use super::super::tally::{Tally, Trouble, reading};
use super::super::{Result, TransferError, TransferReport};
use super::can_be_listed;
use super::options::{PutOptions, VersionOptions};
use crate::engine::Core;
use crate::progress::Progress;
use crate::service::{Service, now};
use crate::versions::build::{Built, TreeBuilder};
use crate::versions::name::{Making, Resumed, VersionReport, name_version};
use crate::versions::notes::{self, About, Noted, NotesWriter};
use crate::versions::work::WORK_MARK;

/// Steps of the walk that may wait for the thread that builds the tree.
const STEPS_WAITING: usize = 8;
/// Entries between two looks whether freed memory stays in the process.
const ENTRIES_BETWEEN_TRIMS: usize = 1 << 15;
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

/// Counts of an incremental put.
#[derive(Default)]
struct Counts {
    taken_over: AtomicU64,
    /// The part of `taken_over` that is of incomplete versions.
    resumed: AtomicU64,
    verified: AtomicU64,
    lied: AtomicU64,
}

/// A version being made.
struct VersionPut<'a> {
    core: &'a Core,
    new_content: scope::Context,
    service: &'a Service,
    options: &'a PutOptions,
    version: &'a VersionOptions,
    bases: Bases<'a>,
    counts: Counts,
    /// Decides which entries are verified.
    seed: u64,
    stream: StreamId,
    tally: &'a Tally<'a>,
    /// The device that holds the tree.
    device: u64,
    /// The files with several names that were copied, and their versions.
    several_names: SeveralNames<(u64, u64), Arc<Made>>,
    descriptors: Descriptors,
}

/// Makes a version of the directory `from`, and names it `name` in the directory `into` of the pool. Entries that cannot
/// be copied are in the report, and the rest is there.
///
/// # Errors
/// `from` is no directory; the pool takes no more; the disk fails for good; `progress` is cancelled. Then
/// nothing has the name; an incomplete version may be left.
pub(crate) fn put_version(
    core: &Core,
    service: &Service,
    (options, version): (&PutOptions, &VersionOptions),
    from: OwnedFd,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<TransferReport> {
    check_name(name)?;
    let c_name = disk::c_name(name).ok_or(EngineError::Invalid("a name with a zero byte"))?;
    let begun = Instant::now();
    drop(core.begin_change()?);
    core.namespace.check_versions()?;
    // In a hidden directory the kernel must see nothing of what is named and forgotten.
    let has_mark = core.namespace.xattr(into, WORK_MARK)?.is_some();
    let hidden = has_mark.then(|| service.hide(into)).transpose()?;
    let stored_before = core.dedup.stats().bytes_stored;
    let so_far = hidden.as_ref().and_then(|_| SoFar::new(core, service, version, (into, name), begun));
    let bases = Bases::open(core, service, version);
    let (base, resumed_from_secs) = (bases.complete(), bases.resumed_from_secs());
    let mut seed = [0; 8];
    dedupfs_sync::entropy::fill(&mut seed)
        .map_err(|error| StoreError::from_io("get", "random bytes", error))
        .map_err(EngineError::from)?;
    let tally = Tally::new(progress).with_rate(options.bytes_per_sec);
    let put = VersionPut {
        core,
        new_content: scope::context(core, service, &tally, (into, base)),
        service,
        options,
        version,
        bases,
        counts: Counts::default(),
        seed: u64::from_le_bytes(seed),
        stream: StreamId(STREAM_BASE | into),
        tally: &tally,
        device: 0,
        several_names: SeveralNames::default(),
        descriptors: Descriptors::default(),
    };
    let notes = begin_notes(core, into);
    let Outcome { built, notes, so_far, counts, without_base } = put.run(from, &c_name, (notes, so_far));
    // A client that has gone gives the version no name.
    tally.note(tally.go_on(), std::path::PathBuf::new);
    let (mut report, built, notes) = match (tally.finish(), built, notes) {
        (Ok(report), Some(built), notes) => (report, built, notes),
        (Ok(_), None, _) => return Err(EngineError::Internal("a tree without a top").into()),
        (Err(error), built, notes) => {
            if let (Some(mut so_far), Some(built), Some(notes)) = (so_far, built, &notes) {
                so_far.end_whole(built, notes);
            }
            discard(notes);
            return Err(error);
        }
    };
    let top = built.top();
    let _pass = core.begin_change()?;
    let making = Making {
        dated_secs: None,
        origin: &version.origin,
        new_bytes: core.dedup.stats().bytes_stored.saturating_sub(stored_before),
        problems: report.problem_count,
        elapsed: begun.elapsed(),
        is_incomplete: false,
        completed: now(),
    };
    let named = name_version(core, built, (into, name), &making)?;
    if let Some(notes) = notes {
        // Without notes the next put reads everything, and nothing else is lost.
        if let Err(error) = notes.finish(named.ino, &About::new(top, &version.origin)) {
            tracing::warn!(%error, "the notes of a put cannot be kept");
        }
    }
    if let Some(so_far) = so_far {
        so_far.forget();
    }
    let resumed = resumed_from_secs.map(|from_secs| Resumed { entries: counts.resumed.into_inner(), from_secs });
    report.version = Some(VersionReport {
        base,
        without_base,
        resumed,
        taken_over: counts.taken_over.into_inner(),
        verified: counts.verified.into_inner(),
        lied: counts.lied.into_inner(),
        ..named
    });
    core.relieve()?;
    Ok(report)
}

/// What is left when the walk has ended.
struct Outcome<'a> {
    /// The finished tree; `None` after an error, which the tally has.
    built: Option<Built>,
    notes: Option<NotesWriter>,
    so_far: Option<SoFar<'a>>,
    counts: Counts,
    without_base: Option<String>,
}

/// What the thread that builds the tree writes beside it.
type Beside<'a> = (Option<NotesWriter>, Option<SoFar<'a>>);

/// Begins the notes of a put; a put can do without.
fn begin_notes(core: &Core, into: Ino) -> Option<NotesWriter> {
    let epoch = core.namespace.writer_epoch();
    if let Err(error) = notes::clean_pool(core) {
        tracing::warn!(%error, "notes that nobody needs cannot be removed");
    }
    let begun = NotesWriter::begin(core.meta_device.clone(), core.pool, epoch, into);
    begun.inspect_err(|error| tracing::warn!(%error, "this put keeps no notes")).ok()
}

/// Removes unfinished notes.
fn discard(notes: Option<NotesWriter>) {
    if let Some(notes) = notes {
        notes.discard();
    }
}

impl VersionPut<'_> {
    fn run<'b>(mut self, from: OwnedFd, name: &CStr, beside: Beside<'b>) -> Outcome<'b> {
        let (built, (notes, so_far)) = match self.look_at_top(&from) {
            Ok(stat) => {
                self.device = stat.st_dev;
                self.walk_and_build((from, stat), name, beside)
            }
            Err(trouble) => {
                self.tally.note_top(Err(trouble), name);
                (None, beside)
            }
        };
        Outcome { built, notes, so_far, without_base: self.bases.without_complete(), counts: self.counts }
    }

    fn look_at_top(&self, from: &OwnedFd) -> super::super::tally::Outcome<Stat> {
        let stat = rustix::fs::fstat(from).map_err(reading("cannot look at it"))?;
        match disk::kind_of(&stat) {
            Some(FileKind::Directory) => Ok(stat),
            _ => Err(Trouble::One("not a directory".to_owned())),
        }
    }

    fn walk_and_build<'b>(
        &self,
        (from, stat): (OwnedFd, Stat),
        name: &CStr,
        beside: Beside<'b>,
    ) -> (Option<Built>, Beside<'b>) {
        let tally = self.tally;
        let again = from.try_clone();
        let outcome = dedupfs_sync::thread::scope(|scope| {
            let (sender, receiver) = channel::bounded::<Step>(STEPS_WAITING);
            let build = move || self.build(&receiver, beside);
            let builder = dedupfs_sync::thread::Builder::new().name("build-tree".to_owned()).spawn_scoped(scope, build);
            let builder = match builder {
                Ok(builder) => builder,
                Err(error) => {
                    let error = TransferError::Disk { what: "cannot start a thread".to_owned(), error };
                    tally.note(Err(Trouble::All(error)), Default::default);
                    return (None, (None, None));
                }
            };
            let walk = |hand: Hand<'_, window::Batch>| self.walk(from, stat, name, hand, &sender);
            crew::run(tally, walk, |batch, space| self.batch(batch, space));
            drop(sender);
            builder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // A disk that is gone gives an error for every file. A copy made until then is no backup.
        if tally.has_problems() {
            let is_there = again.map_err(|_| Errno::MFILE).and_then(|top| can_be_listed(&top));
            tally.note_top(is_there.map_err(reading("it cannot be read any more")), name);
        }
        outcome
    }

    /// Builds the tree from the steps of the walk. After an error it takes the rest and drops it.
    fn build<'b>(&self, steps: &Receiver<Step>, beside: Beside<'b>) -> (Option<Built>, Beside<'b>) {
        let (mut notes, mut so_far) = beside;
        let mut entries: usize = 0;
        let mut tree = Some(TreeBuilder::new(&self.core.dedup, self.stream));
        let mut built = None;
        for step in steps.iter() {
            let Some(mut building) = tree.take() else { continue };
            let outcome = match step {
                Step::Begin(name) => {
                    building.begin_directory(name.to_bytes());
                    add_note(&mut notes, Noted::default());
                    Ok(Some(building))
                }
                Step::Window(window) => {
                    entries += window.len();
                    if entries >= ENTRIES_BETWEEN_TRIMS {
                        entries = 0;
                        allocator::give_back_if_grown();
                    }
                    let room = self.service.admit_entries(window.len());
                    room.and_then(|_room| window.add_to(&mut building, &mut |noted| add_note(&mut notes, noted)))
                        .map(|()| Some(building))
                }
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
                Ok(building) => {
                    tree = building;
                    if let (Some(tree), Some(so_far)) = (&mut tree, &mut so_far) {
                        so_far.look(tree, notes.as_ref());
                    }
                }
                Err(error) => {
                    built = None;
                    self.tally.note(Err(Trouble::All(error.into())), Default::default);
                }
            }
        }
        if let (Some(mut tree), Some(so_far)) = (tree, &mut so_far) {
            so_far.end_early(&mut tree, notes.as_ref());
        }
        (built, (notes, so_far))
    }
}

/// Adds a note. Notes that cannot be written are given up.
fn add_note(notes: &mut Option<NotesWriter>, noted: Noted) {
    if let Some(mut writer) = notes.take() {
        match writer.add(noted) {
            Ok(()) => *notes = Some(writer),
            Err(error) => {
                tracing::warn!(%error, "this put keeps no notes");
                writer.discard();
            }
        }
    }
}
