//! The result of a transfer: counts, problems, and the error that ends it.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_base::EngineError;
use dedupfs_service::Errno;
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;
use rustix::io::Errno as DiskErrno;

use super::pace::Pace;
use super::{
    PATH_TOLD_BYTES_MAX, PROBLEMS_BYTES_MAX, PROBLEMS_TOLD_MAX, Problem, Result, TransferError, TransferReport,
};
use crate::engine::Core;
use crate::progress::Progress;

const MIB: u64 = 1 << 20;
/// More unreadable files in a row than this mean that the disk is gone, and a copy of it is no backup.
const UNREADABLE_IN_A_ROW_MAX: u64 = 100;

/// Reason why an entry was not copied.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Concerns this entry alone. The rest goes on.
    One(String),
    /// Concerns this entry, but a disk that is gone gives the same error: many in a row end the transfer.
    Unreadable(String),
    /// Nothing more can be copied.
    All(TransferError),
}

impl From<TransferError> for Trouble {
    fn from(error: TransferError) -> Self {
        Self::All(error)
    }
}

/// Result of copying one entry.
pub(super) type Outcome<T> = std::result::Result<T, Trouble>;

/// Classifies an error of the disk that is read. It concerns one entry, unless this process can open nothing more.
pub(super) fn reading(what: &'static str) -> impl FnOnce(DiskErrno) -> Trouble {
    move |errno| match errno {
        DiskErrno::IO
        | DiskErrno::NODEV
        | DiskErrno::STALE
        | DiskErrno::NOTCONN
        | DiskErrno::SHUTDOWN
        | DiskErrno::TIMEDOUT => Trouble::Unreadable(format!("{what}: {}", io::Error::from(errno))),
        DiskErrno::MFILE | DiskErrno::NFILE | DiskErrno::NOMEM => {
            Trouble::All(TransferError::Disk { what: what.to_owned(), error: errno.into() })
        }
        errno => Trouble::One(format!("{what}: {}", io::Error::from(errno))),
    }
}

/// Classifies an error of the disk that is written. Errors that the next file would meet as well end the transfer.
pub(super) fn writing(what: &'static str) -> impl FnOnce(DiskErrno) -> Trouble {
    move |errno| match errno {
        DiskErrno::NOSPC | DiskErrno::DQUOT | DiskErrno::ROFS | DiskErrno::IO => {
            Trouble::All(TransferError::Disk { what: what.to_owned(), error: errno.into() })
        }
        errno => Trouble::One(format!("{what}: {}", io::Error::from(errno))),
    }
}

/// Classifies an error with attributes on the disk that is written. A lack of room may concern this file's attributes only.
pub(super) fn writing_attributes(what: &'static str) -> impl FnOnce(DiskErrno) -> Trouble {
    move |errno| match errno {
        DiskErrno::NOSPC | DiskErrno::DQUOT => Trouble::One(format!("{what}: {}", io::Error::from(errno))),
        errno => writing(what)(errno),
    }
}

/// Classifies an error of the pool that is read.
pub(super) fn reading_pool(what: &'static str) -> impl FnOnce(Errno) -> Trouble {
    move |errno| Trouble::One(format!("{what}: {errno}"))
}

/// Classifies an error of the pool that is written. The pool says why it takes nothing.
pub(super) fn writing_pool<'a>(core: &'a Core, what: &'static str) -> impl FnOnce(Errno) -> Trouble + 'a {
    move |errno| match errno {
        Errno::ENOSPC => Trouble::All(EngineError::NoSpace.into()),
        Errno::EROFS | Errno::EIO => {
            let why = core.begin_change().map(drop).and(core.check_failure()).err();
            Trouble::All(why.unwrap_or(EngineError::Internal("the pool cannot be written: see its log")).into())
        }
        errno => Trouble::One(format!("{what}: {errno}")),
    }
}

/// Classifies an error with attributes in the pool that is written. ENOSPC may mean that one inode has too many.
pub(super) fn writing_pool_attributes<'a>(core: &'a Core, what: &'static str) -> impl FnOnce(Errno) -> Trouble + 'a {
    move |errno| match errno {
        Errno::ENOSPC => Trouble::One(format!("{what}: {errno}")),
        errno => writing_pool(core, what)(errno),
    }
}

/// The problems that the report describes.
#[derive(Default)]
struct Told {
    list: Vec<Problem>,
    bytes: usize,
}

/// Returns a path for the report: of a path that is too long, both ends.
fn shown(path: &Path) -> String {
    let shown = dedupfs_base::shown(path.as_os_str().as_bytes());
    if shown.len() <= PATH_TOLD_BYTES_MAX {
        return shown;
    }
    let half = PATH_TOLD_BYTES_MAX / 2 - '…'.len_utf8();
    let head = shown.get(..shown.floor_char_boundary(half)).unwrap_or_default();
    let tail = shown.get(shown.ceil_char_boundary(shown.len() - half)..).unwrap_or_default();
    format!("{head}…{tail}")
}

/// The counts of a transfer, shared by all threads.
pub(super) struct Tally<'a> {
    progress: &'a dyn Progress,
    pace: Option<Pace>,
    started: Instant,
    files: AtomicU64,
    directories: AtomicU64,
    hard_links: AtomicU64,
    others: AtomicU64,
    /// Content of complete files.
    content_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    unreadable_in_a_row: AtomicU64,
    problems: Mutex<Told>,
    problem_count: AtomicU64,
    end: Mutex<Option<TransferError>>,
    has_ended: AtomicBool,
}

impl<'a> Tally<'a> {
    pub(super) fn new(progress: &'a dyn Progress) -> Self {
        progress.start("copied, MiB", 0);
        Self {
            progress,
            pace: None,
            started: Instant::now(),
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            hard_links: AtomicU64::new(0),
            others: AtomicU64::new(0),
            content_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            unreadable_in_a_row: AtomicU64::new(0),
            problems: Mutex::default(),
            problem_count: AtomicU64::new(0),
            end: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Content passes at this rate at most.
    pub(super) fn with_rate(self, bytes_per_sec: Option<NonZeroU64>) -> Self {
        Self { pace: bytes_per_sec.map(Pace::new), ..self }
    }

    /// Counts a complete file with its content.
    pub(super) fn file(&self, content_bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.content_bytes.fetch_add(content_bytes, Ordering::Relaxed);
    }

    pub(super) fn directory(&self) {
        self.directories.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn hard_link(&self) {
        self.hard_links.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn other(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts copied bytes, reports progress in MiB, and waits if they came too fast.
    pub(super) fn content(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.pass(bytes, || self.go_on().is_ok());
        }
        // Only content proves that the disk is there: the kernel may have the rest in its caches.
        self.unreadable_in_a_row.store(0, Ordering::Relaxed);
        let before = self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match (before + bytes as u64) / MIB - before / MIB {
            0 => {}
            whole => self.progress.advance(whole),
        }
    }

    pub(super) fn has_problems(&self) -> bool {
        self.problem_count.load(Ordering::Relaxed) > 0
    }

    /// Fails if the transfer must stop.
    ///
    /// # Errors
    /// An error ended the transfer, or it was cancelled.
    pub(super) fn go_on(&self) -> Outcome<()> {
        match self.has_ended.load(Ordering::Relaxed) || self.progress.is_cancelled() {
            true => Err(Trouble::All(TransferError::Interrupted)),
            false => Ok(()),
        }
    }

    /// Records a problem with one entry.
    pub(super) fn problem(&self, path: &Path, what: String) {
        self.problem_count.fetch_add(1, Ordering::Relaxed);
        let mut told = self.problems.lock();
        if told.list.len() < PROBLEMS_TOLD_MAX && told.bytes < PROBLEMS_BYTES_MAX {
            let problem = Problem { path: shown(path), what };
            told.bytes += problem.path.len() + problem.what.len();
            told.list.push(problem);
        }
    }

    /// Records the outcome of one entry. `path` is called only if it failed.
    pub(super) fn note(&self, outcome: Outcome<()>, path: impl FnOnce() -> std::path::PathBuf) {
        match outcome {
            Ok(()) => {}
            Err(Trouble::One(what)) => self.problem(&path(), what),
            Err(Trouble::Unreadable(what)) => {
                let path = path();
                if self.unreadable_in_a_row.fetch_add(1, Ordering::Relaxed) >= UNREADABLE_IN_A_ROW_MAX {
                    let what = format!("{}, and all before it: {what}: the disk may be gone", shown(&path));
                    self.end(TransferError::Top(what));
                }
                self.problem(&path, what);
            }
            Err(Trouble::All(TransferError::Disk { what, error })) => {
                self.end(TransferError::Disk { what: format!("{} ({what})", shown(&path())), error });
            }
            Err(Trouble::All(error)) => self.end(error),
        }
    }

    /// Records the outcome of the tree's top, without which nothing can be copied.
    pub(super) fn note_top(&self, outcome: Outcome<()>, name: &CStr) {
        let path = super::disk::path_of_top(name);
        let top = |trouble| match trouble {
            Trouble::One(what) | Trouble::Unreadable(what) => {
                Trouble::All(TransferError::Top(format!("{}: {what}", path.display())))
            }
            all @ Trouble::All(_) => all,
        };
        self.note(outcome.map_err(top), || path.clone());
    }

    /// Ends the transfer. The first reason counts; the interruptions that follow from it do not.
    fn end(&self, error: TransferError) {
        self.end.lock().get_or_insert(error);
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns the counts, or the error that ended the transfer.
    pub(super) fn finish(self) -> Result<TransferReport> {
        self.progress.finish();
        if let Some(error) = self.end.into_inner() {
            return Err(error);
        }
        Ok(TransferReport {
            files: self.files.into_inner(),
            directories: self.directories.into_inner(),
            hard_links: self.hard_links.into_inner(),
            others: self.others.into_inner(),
            content_bytes: self.content_bytes.into_inner(),
            elapsed_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            problem_count: self.problem_count.into_inner(),
            problems: self.problems.into_inner().list,
            searched_directories: None,
            version: None,
            image: None,
        })
    }
}
