//! What outlives the lives of a world.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dedupfs_sync::world;

use crate::judge::File;
use crate::plan::Plan;

/// What outlives a life.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    /// The judge's files of each client; the last one is its tree.
    files: Mutex<Vec<Vec<File>>>,
    /// Whether the present life closed its pool.
    pub was_closed: AtomicBool,
    /// Whether the pool must be recovered from its data root before it can be opened.
    pub is_meta_lost: AtomicBool,
    /// Whether the pool was ever closed in order, beside no fault: then its data root has an export.
    pub has_export: AtomicBool,
    /// Whether a forced recovery kept slots that nothing names.
    pub has_kept: AtomicBool,
    /// Whether the data root may have content behind its export.
    pub is_export_old: AtomicBool,
    /// A directory of the real disk, for trees that are put and got.
    pub scratch: PathBuf,
    with_story: bool,
    pub tally: Tally,
}

/// Counts of what happened, over all lives.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests of clients, and those that failed.
    pub requests: AtomicU64,
    pub refused: AtomicU64,
    pub device_operations: AtomicU64,
    pub recoveries: AtomicU64,
}

impl World {
    pub fn new(plan: Plan, scratch: PathBuf, with_story: bool) -> Self {
        // Behind the files is the tree.
        let of_client = |_| (0..=plan.files).map(|_| File::default()).collect();
        let files = Mutex::new((0..plan.clients).map(of_client).collect());
        Self {
            plan,
            files,
            was_closed: AtomicBool::new(false),
            is_meta_lost: AtomicBool::new(false),
            has_export: AtomicBool::new(false),
            has_kept: AtomicBool::new(false),
            is_export_old: AtomicBool::new(false),
            scratch,
            with_story,
            tally: Tally::default(),
        }
    }

    /// The judge's files. A task that holds them must reach no point: another one would wait for ever.
    pub fn files(&self) -> MutexGuard<'_, Vec<Vec<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a line of the story.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if self.with_story {
            println!("{:>14.6} s  {}", world::now().as_secs_f64(), line());
        }
    }
}
