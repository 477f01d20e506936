//! What outlives the lives of a world.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dedupfs_store::device::faulty::FaultyDevice;
use dedupfs_sync::world;

use crate::judge::File;
use crate::plan::{Life, Place, Plan};

/// A superblock says something in these bytes at most.
const SUPERBLOCK_BYTES: u64 = 256;

/// What outlives a life.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    /// The judge's files of each client; its tree and its versions are behind them.
    files: Mutex<Vec<Vec<File>>>,
    /// Bits that flipped so far: files, and bytes in them.
    pub flips: Mutex<Vec<(String, u64)>>,
    /// The disks of the present life.
    pub faulty: Mutex<Vec<FaultyDevice>>,
    /// Whether the present life closes its pool while clients and tools are busy.
    pub is_closing: AtomicBool,
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

/// The name of a file of a client; behind the files of its tree; behind that of its versions. With versions, each client has its files in
/// a directory of its own.
pub fn name(plan: &Plan, client: usize, file: usize) -> String {
    match plan.place(file) {
        Place::File if plan.with_versions => format!("{}/c{client}-{file}", directory(client)),
        Place::File => format!("c{client}-{file}"),
        Place::Tree => format!("p{client}"),
        Place::Version => format!("v{client}-{file}"),
    }
}

/// The name of the directory of a client.
pub fn directory(client: usize) -> String {
    format!("d{client}")
}

impl World {
    pub fn new(plan: Plan, scratch: PathBuf, with_story: bool) -> Self {
        let of_client = |_| (0..plan.places()).map(|_| File::default()).collect();
        let files = Mutex::new((0..plan.clients).map(of_client).collect());
        Self {
            plan,
            files,
            flips: Mutex::default(),
            faulty: Mutex::default(),
            is_closing: AtomicBool::new(false),
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

    /// The names of all files, trees and versions that exist, in order.
    pub fn names(&self) -> Vec<String> {
        let files = self.files();
        let of = |(client, files): (usize, &Vec<File>)| {
            let exist = files.iter().enumerate().filter(|(_, file)| file.current().is_some());
            exist.map(|(file, _)| name(&self.plan, client, file)).collect::<Vec<_>>()
        };
        let mut names: Vec<_> = files.iter().enumerate().flat_map(of).collect();
        names.sort();
        names
    }

    /// The clients and places of the files whose present state is not known.
    pub fn unread(&self) -> Vec<(usize, usize)> {
        let files = self.files();
        let places =
            files.iter().enumerate().flat_map(|(client, of)| of.iter().enumerate().map(move |file| (client, file)));
        places.filter(|(_, (_, file))| file.is_unsure()).map(|(client, (place, _))| (client, place)).collect()
    }

    /// Whether a bit flipped in a file whose path begins so.
    pub fn has_flipped(&self, path: &str) -> bool {
        let flips = self.flips.lock().unwrap_or_else(PoisonError::into_inner);
        flips.iter().any(|(flipped, _)| flipped.starts_with(path))
    }

    /// Whether bits flipped in both superblocks where they say something.
    pub fn are_superblocks_lost(&self) -> bool {
        let flips = self.flips.lock().unwrap_or_else(PoisonError::into_inner);
        let is_lost = |name: &str| flips.iter().any(|(path, byte)| path == name && *byte < SUPERBLOCK_BYTES);
        is_lost("dedupfs.meta") && is_lost("dedupfs.data")
    }

    /// Notes the start of a life.
    pub fn life_begins(&self) {
        self.faulty.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.is_closing.store(false, Ordering::Relaxed);
        self.was_closed.store(false, Ordering::Relaxed);
    }

    /// Whether an operation of a disk has failed in this life.
    fn has_failed(&self) -> bool {
        self.faulty.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|disk| disk.injected() > 0)
    }

    /// Whether requests may have failed by now.
    pub fn may_fail(&self, life: &Life) -> bool {
        life.is_limited() || self.has_failed()
    }

    /// Whether more may have failed by now than requests that find no room: opening, closing, syncing, tools.
    pub fn may_break(&self, life: &Life) -> bool {
        self.may_fail(life) && (!life.keeps_reserve || life.is_damaged)
    }

    /// Tells a line of the story.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if self.with_story {
            println!("{:>14.6} s  {}", world::now().as_secs_f64(), line());
        }
    }
}
