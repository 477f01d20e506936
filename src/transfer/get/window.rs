//! Windows: files of versions whose content is restored together, in the order of the pool's disk.
//!
//! Threads that would copy a file plan it instead: they add its chunks to the window that fills. The thread that fills it up reads all of it in one
//! sweep, while others plan the next window. Files that can change, and those with several names, are copied one after another.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_base::EngineError;
use dedupfs_content::{Sweep, SweepTarget, Wanted};
use dedupfs_service::Attributes;
use dedupfs_store::recipe::Child;
use dedupfs_sync::{Mutex, MutexGuard};

use super::super::disk;
use super::super::tally::{Outcome, Trouble, reading_pool, writing};
use super::arrival::State;
use super::{Directory, Get};
use crate::service::errno;

/// Memory of a chunk in each of two windows, without spare capacity.
const CHUNK_BYTES: u64 = 96;
/// Part of the memory of a restore for chunks.
const CHUNKS_SHARE: u64 = 2;
/// Memory of a file with its name, of two windows.
const FILE_BYTES: u64 = 2 * 400;
/// Part of the memory of a restore for files.
const FILES_SHARE: u64 = 4;
/// Chunks that a thread collects before it adds them.
const COLLECTED_MAX: usize = 1024;
pub(super) const CANNOT_READ: &str = "cannot be read: its content is damaged, or lost";
const NOT_WHOLE: &str = "left out: not all of its content arrived. This is a bug, please report it";

/// The window that fills, and the turn to read one.
pub(in super::super) struct Windows {
    filling: Mutex<Window>,
    /// Held during a sweep. Taken with `filling` locked.
    sweeping: Mutex<()>,
    chunks_max: usize,
    files_max: usize,
}

#[derive(Default)]
struct Window {
    sweep: Sweep,
    files: Vec<Arc<Planned>>,
}

/// A file whose content arrives in any order, maybe from several windows.
pub(super) struct Planned {
    /// `None`: the file itself is what is copied.
    directory: Option<Arc<Directory>>,
    pub(super) name: CString,
    pub(super) attributes: Attributes,
    /// Bytes that have not arrived; one more until all are planned.
    left_bytes: AtomicU64,
    pub(super) hole_bytes: AtomicU64,
    pub(super) state: Mutex<State>,
}

impl Planned {
    pub(super) fn path(&self) -> PathBuf {
        match &self.directory {
            Some(directory) => directory.path(self.name.to_bytes()),
            None => disk::path_of_top(&self.name),
        }
    }

    /// Takes note of bytes that arrived, or need not. Returns whether they were the last.
    fn arrived(&self, bytes: u64) -> bool {
        self.left_bytes.fetch_sub(bytes, Ordering::AcqRel) == bytes
    }
}

impl Windows {
    pub(in super::super) fn new(memory_bytes: u64) -> Self {
        let of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX).max(COLLECTED_MAX);
        Self::of(of(memory_bytes / CHUNKS_SHARE / CHUNK_BYTES), of(memory_bytes / FILES_SHARE / FILE_BYTES))
    }

    /// Windows that are full with so many files or chunks; the last file may add some more.
    pub(in super::super) fn of(chunks_max: usize, files_max: usize) -> Self {
        Self { filling: Mutex::default(), sweeping: Mutex::default(), chunks_max, files_max }
    }
}

impl Get<'_> {
    /// Plans the content of a file of a version. Its attributes and its directory's are set when the content is there.
    pub(super) fn plan(&self, directory: Option<&Arc<Directory>>, name: &CStr, attributes: Attributes) -> Outcome<()> {
        let planned = Arc::new(Planned {
            directory: directory.cloned(),
            name: name.to_owned(),
            attributes,
            left_bytes: AtomicU64::new(attributes.size_bytes.saturating_add(1)),
            hole_bytes: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let outcome = self.plan_chunks(&planned);
        match outcome {
            Ok(()) if planned.arrived(1) => self.complete(&planned),
            Ok(()) => {}
            Err(trouble) => self.give_up(&planned, trouble),
        }
        self.end_if_last(planned);
        Ok(())
    }

    fn plan_chunks(&self, planned: &Arc<Planned>) -> Outcome<()> {
        let cannot_read = |error: &EngineError| reading_pool(CANNOT_READ)(errno(error));
        let size_bytes = planned.attributes.size_bytes;
        let (mut collected, mut end, mut outcome) = (Vec::new(), 0_u64, Ok(()));
        let walked = self.service.for_each_frozen_chunk(planned.attributes.ino, &mut |offset, child| {
            end = offset.saturating_add(child.len_bytes);
            if end > size_bytes {
                return false;
            }
            if child.fingerprint.is_zero() {
                planned.hole_bytes.fetch_add(child.len_bytes, Ordering::Relaxed);
                // The byte for planning is left.
                planned.arrived(child.len_bytes);
                return true;
            }
            collected.push((offset, *child));
            if collected.len() >= COLLECTED_MAX {
                outcome = self.add(planned, &mut collected);
            }
            outcome.is_ok()
        });
        outcome?;
        walked.map_err(|error| cannot_read(&error))?;
        if end != size_bytes {
            tracing::error!(
                ino = planned.attributes.ino,
                end,
                size_bytes,
                "the recipe has another length than the file"
            );
            return Err(cannot_read(&EngineError::Internal("a recipe of another length")));
        }
        self.add(planned, &mut collected)
    }

    fn add(&self, planned: &Arc<Planned>, collected: &mut Vec<(u64, Child)>) -> Outcome<()> {
        self.tally.go_on()?;
        self.service.note_activity();
        if collected.is_empty() {
            return Ok(());
        }
        let mut window = self.windows.filling.lock();
        let number = window.files.len() as u32;
        window.files.push(Arc::clone(planned));
        for (offset, child) in collected.drain(..) {
            let added = window.sweep.add(&child, number, offset);
            added.map_err(|error| reading_pool(CANNOT_READ)(errno(&error)))?;
        }
        if window.files.len() >= self.windows.files_max || window.sweep.chunks() >= self.windows.chunks_max {
            self.sweep(window);
        }
        Ok(())
    }

    /// Reads the last window.
    pub(super) fn sweep_rest(&self) {
        self.sweep(self.windows.filling.lock());
    }

    /// Reads a window, while the next one fills. When that is full, its thread waits with `filling` locked, so there are never more than two.
    fn sweep(&self, mut filling: MutexGuard<'_, Window>) {
        let turn = self.windows.sweeping.lock();
        let Window { sweep, files } = std::mem::take(&mut *filling);
        drop(filling);
        if self.tally.go_on().is_ok() && sweep.chunks() > 0 {
            self.service.sweep(sweep, &Target { get: self, files: &files });
        }
        drop(turn);
        files.into_iter().for_each(|planned| self.end_if_last(planned));
    }

    /// Ends the work for a file with its last user: leaves its directory. A file that is not whole is taken away.
    fn end_if_last(&self, planned: Arc<Planned>) {
        let Some(mut planned) = Arc::into_inner(planned) else { return };
        if !planned.state.lock().has_ended() {
            let trouble = self.tally.go_on().err().unwrap_or_else(|| Trouble::One(NOT_WHOLE.to_owned()));
            self.give_up(&planned, trouble);
        }
        if let Some(directory) = planned.directory.take() {
            self.leave(directory);
        }
    }

    pub(super) fn note(&self, planned: &Planned, trouble: Trouble) {
        match planned.directory {
            Some(_) => self.tally.note(Err(trouble), || planned.path()),
            None => self.tally.note_top(Err(trouble), &planned.name),
        }
    }

    /// Opens the directory of a file.
    pub(super) fn directory_of(&self, planned: &Planned) -> Outcome<DirectoryOf<'_>> {
        match &planned.directory {
            None => Ok(DirectoryOf::Top(self.to)),
            Some(directory) => {
                let opened = directory.open(&self.descriptors).map_err(writing("cannot open its directory"))?;
                Ok(DirectoryOf::Below(opened))
            }
        }
    }
}

/// The directory in which a file lies, open.
pub(super) enum DirectoryOf<'a> {
    Top(&'a OwnedFd),
    Below(Arc<OwnedFd>),
}

impl DirectoryOf<'_> {
    pub(super) fn descriptor(&self) -> &OwnedFd {
        match self {
            Self::Top(descriptor) => descriptor,
            Self::Below(descriptor) => descriptor,
        }
    }
}

/// The files of a window, which take chunks.
struct Target<'a> {
    get: &'a Get<'a>,
    files: &'a [Arc<Planned>],
}

impl SweepTarget for Target<'_> {
    fn take(&self, bytes: &[u8], chunks: &[(u32, Wanted)]) {
        let follows = |(start, chunk): &(u32, Wanted), (next_start, next): &(u32, Wanted)| {
            let len_bytes = chunk.len_bytes;
            chunk.file == next.file
                && start.checked_add(len_bytes) == Some(*next_start)
                && chunk.offset_bytes + u64::from(len_bytes) == next.offset_bytes
        };
        // Neighbours in the region and in the file are written at once.
        for run in chunks.chunk_by(follows) {
            let (Some((start, first)), Some((last_start, last))) = (run.first(), run.last()) else { continue };
            let range = *start as usize..*last_start as usize + last.len_bytes as usize;
            let (Some(planned), Some(bytes)) = (self.files.get(first.file as usize), bytes.get(range)) else {
                continue;
            };
            self.get.arrive(planned, first.offset_bytes, bytes);
            if planned.arrived(bytes.len() as u64) {
                self.get.complete(planned);
            }
        }
    }

    fn lost(&self, wanted: &Wanted, error: EngineError) {
        let Some(planned) = self.files.get(wanted.file as usize) else { return };
        tracing::error!(ino = planned.attributes.ino, offset = wanted.offset_bytes, %error, "read failed");
        self.get.give_up(planned, reading_pool(CANNOT_READ)(errno(&error)));
    }

    fn goes_on(&self) -> bool {
        self.get.service.note_activity();
        self.get.tally.go_on().is_ok()
    }
}
