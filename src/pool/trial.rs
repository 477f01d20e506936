//! A trial recovery: makes a meta root from the data root alone, in scratch space, compares it with the pool's own, and removes it.
//!
//! 1. Hold the export: until the end no slot that it names is freed, and no change of the namespace behind it is forgotten. Reclaiming
//!    and checks wait.
//! 2. Restore the names from the export, as a recovery does, and compare each record with the namespace, except those that changed
//!    since.
//! 3. Restore the recipes, and build indexes from them and the containers of the data root: all content that files need must be there.
//!
//! The data root is read through an [`OverlayDevice`] and never written. Scratch space takes as
//! much as names, recipes and indexes of the meta root.
//!
//! Memory, besides the pool's own: that of the indexes, as in a pool with that `--memory`; 17 bytes for each key that changed since the export, at most [`CHANGED_MAX`] keys, so 36 MiB.
//!
//! A trial ends early when its caller goes away, when [`Pool::stop_trial`] asks it to, or when the pool closes: the next change of scratch
//! space then fails.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_content::Fingerprinter;
use dedupfs_namespace::{ChangedKey, ExportSource, ExportTable, Item, Namespace};
use dedupfs_store::StoreError;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, FileDevice, OverlayDevice, Subdirectory, remove_directories, remove_files_below};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

use super::indexes::Rebuild;
use super::open::OpenOptions;
use super::parts::{Admission, Sources};
use super::{Core, Pool};
use crate::config::{Fingerprints, MEMORY_BYTES_MIN, MemoryPlan};
use crate::durability::export::{HeldExport, restore};
use crate::engine::gate::Gate;
use crate::progress::Progress;

/// Directory below the scratch space that holds the trial.
pub(super) const SCRATCH: &str = "dedupfs-trial";
/// Memory budget of the recovered pool of a trial beside clients.
pub const TRIAL_MEMORY_BYTES: u64 = MEMORY_BYTES_MIN;
/// Scratch space required beyond the size of the meta root's files.
const ROOM_BYTES: u64 = 64 << 20;
/// Most keys that may have changed since the export: the capacity of a hash table with 2^21 places.
const CHANGED_MAX: usize = (1 << 21) / 8 * 7;
/// Attempts; a new base of the export can spoil one.
const ATTEMPTS: usize = 3;
/// Records compared between two checks for cancellation.
const RECORDS_AT_ONCE: u64 = 4096;
/// Most differences that are described.
const TOLD_MAX: usize = 20;

/// The result of a trial recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrialReport {
    /// The commit that a recovery would restore.
    pub row: u64,
    /// Time of that export, in seconds since 1970.
    pub time_secs: u64,
    /// Regular files.
    pub files: u64,
    /// Directories, including the root.
    pub directories: u64,
    /// Records compared with the pool's own.
    pub compared: u64,
    /// Containers from which indexes were built.
    pub containers: u64,
    /// Missing or differing content; at most 20 entries of each kind.
    pub missing: Vec<String>,
    /// Duration in milliseconds.
    pub elapsed_ms: u64,
}

impl TrialReport {
    /// Whether a recovery would give everything that was exported.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Control of the trial recovery of one pool; at most one runs, because it excludes checks.
#[derive(Default, Debug)]
pub(super) struct TrialControl {
    is_running: AtomicBool,
    is_stopped: AtomicBool,
}

impl TrialControl {
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    fn begin(&self) -> RunningTrial<'_> {
        self.is_stopped.store(false, Ordering::Release);
        self.is_running.store(true, Ordering::Release);
        RunningTrial(self)
    }
}

struct RunningTrial<'a>(&'a TrialControl);

impl Drop for RunningTrial<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}

impl Pool {
    /// Recovers from the data root alone into a directory below `scratch`, with so much memory, compares, and removes it again.
    ///
    /// # Errors
    /// `Busy` if a reclaim or check is running, or too many keys change meanwhile; scratch space that cannot be written or is too
    /// small; a namespace that cannot be read; `Ended` if it was stopped, the pool closes or the caller goes away. Faults of the export are in the report.
    pub fn trial_recovery(&self, scratch: &Path, memory_bytes: u64, progress: &dyn Progress) -> Result<TrialReport> {
        self.end_background();
        let _one = self.exclusively()?;
        let _running = self.trial.begin();
        let made: Vec<&Path> = scratch.ancestors().take_while(|directory| !directory.exists()).collect();
        let report = self.try_in(scratch, memory_bytes, progress);
        for directory in made {
            // It stays if somebody has put something there meanwhile.
            let _ = std::fs::remove_dir(directory);
        }
        report
    }

    /// Ends a running trial recovery soon.
    pub fn stop_trial(&self) {
        self.trial.is_stopped.store(true, Ordering::Release);
    }

    fn try_in(&self, scratch: &Path, memory_bytes: u64, progress: &dyn Progress) -> Result<TrialReport> {
        let started = Instant::now();
        let device: Arc<dyn Device> = Arc::new(FileDevice::create(scratch)?);
        check_own(scratch)?;
        remove(&*device)?;
        check_room(&self.core, &*device)?;
        let ending = Arc::new(Ending::default());
        let progress = Watched { listener: progress, gate: &self.core.gate, control: &self.trial, ending: &ending };
        let mut attempts = 1..=ATTEMPTS;
        let mut report = loop {
            let stage: Arc<dyn Device> = Arc::new(Subdirectory::create(device.clone(), SCRATCH)?);
            let stage: Arc<dyn Device> = Arc::new(ObservedDevice::new(stage, ending.clone()));
            let held = self.core.exporter.hold();
            let outcome = try_recover(&self.core, &held, &stage, memory_bytes, &progress);
            drop(stage);
            let removed = remove(&*device);
            let report = match outcome {
                Err(_) if progress.is_cancelled() => return Err(EngineError::Ended("the trial recovery")),
                outcome => outcome?,
            };
            removed?;
            // If the base was replaced between holding and opening, another export was read: try again.
            if report.is_sound() || !held.is_replaced() || attempts.next().is_none() {
                break report;
            }
        };
        report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(report)
    }
}

/// Removes the trial that a killed process left in a meta root. The caller holds the pool's lock.
pub(super) fn remove_leftover(meta: &dyn Device) {
    if let Err(error) = remove(meta) {
        tracing::warn!(%error, "the leftover of a trial recovery stays");
    }
}

/// A switch that ends a trial: once set, every change of scratch space fails.
#[derive(Debug, Default)]
struct Ending(AtomicBool);

impl Observer for Ending {
    fn around(
        &self,
        call: &Call<'_>,
        perform: &mut dyn FnMut() -> dedupfs_store::Result<()>,
    ) -> dedupfs_store::Result<()> {
        if call.is_change() && self.0.load(Ordering::Relaxed) {
            return Err(ended());
        }
        perform()
    }
}

fn ended() -> StoreError {
    let error = std::io::Error::new(std::io::ErrorKind::Interrupted, "it was ended");
    StoreError::from_io("finish", "the trial recovery", error)
}

/// Forwards progress to the caller, and ends the trial when the caller or the pool does.
struct Watched<'a> {
    listener: &'a dyn Progress,
    gate: &'a Gate,
    control: &'a TrialControl,
    ending: &'a Ending,
}

impl Progress for Watched<'_> {
    fn start(&self, what: &str, total: u64) {
        self.listener.start(what, total);
    }

    fn advance(&self, by: u64) {
        self.listener.advance(by);
        if self.is_cancelled() {
            self.ending.0.store(true, Ordering::Relaxed);
        }
    }

    fn finish(&self) {
        self.listener.finish();
    }

    fn say(&self, line: &str) {
        self.listener.say(line);
    }

    fn is_cancelled(&self) -> bool {
        self.gate.is_closing() || self.control.is_stopped.load(Ordering::Acquire) || self.listener.is_cancelled()
    }
}

/// Checks that the trial's place is no link: anyone who can write to the scratch space could have put one there, and its target would
/// be removed.
fn check_own(scratch: &Path) -> Result<()> {
    let place = scratch.join(SCRATCH);
    match std::fs::symlink_metadata(&place) {
        Ok(found) if !found.is_dir() => {
            let message = format!("{} is no directory of a trial recovery: remove it", place.display());
            Err(StoreError::Usage(message).into())
        }
        _ => Ok(()),
    }
}

/// Checks the size of the scratch space: a trial must not fill the pool's own disk.
fn check_room(core: &Core, scratch: &dyn Device) -> Result<()> {
    let own_bytes = core.namespace.file_bytes()? + core.stores.recipes.physical_bytes()? + core.index_bytes()?;
    let needed_bytes = own_bytes + own_bytes / 2 + ROOM_BYTES;
    let there_bytes = scratch.space()?.available_bytes;
    if there_bytes < needed_bytes {
        let place = scratch.describe();
        return Err(StoreError::NoSpace {
            operation: "make a trial recovery, which may take",
            path: format!(
                "{} MiB of scratch space: {place} has {} MiB. Name another place with --scratch DIR",
                needed_bytes.div_ceil(1 << 20),
                there_bytes >> 20
            ),
        }
        .into());
    }
    Ok(())
}

/// Removes the trial's directory.
fn remove(device: &dyn Device) -> Result<()> {
    remove_files_below(device, SCRATCH)?;
    if device.exists(SCRATCH)? {
        remove_directories(device, SCRATCH);
    }
    Ok(())
}

fn try_recover(
    core: &Core,
    held: &HeldExport<'_>,
    stage: &Arc<dyn Device>,
    memory_bytes: u64,
    progress: &dyn Progress,
) -> Result<TrialReport> {
    let data: Arc<dyn Device> = Arc::new(OverlayDevice::new(core.data_device.clone(), TRIAL_MEMORY_BYTES));
    held.cut_view(&*data)?;
    let of_data = Superblock::read(&*data, Role::Data)?;
    let superblock = Superblock { role: Role::Meta, data_root: b"elsewhere".to_vec(), ..of_data };
    let mut report = TrialReport::default();
    let mut compared = Ok(());
    let restored = restore(&**stage, &*data, &superblock, false, progress, &mut |row| {
        compared = compare(core, &**stage, row, held, progress, &mut report);
        Ok(())
    });
    compared?;
    let restored = match restored {
        Ok(restored) => restored,
        // Other errors come from the disk of the scratch space; they say nothing about the export.
        Err(
            error @ EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. } | StoreError::Usage(_)),
        ) => {
            report.missing.push(error.to_string());
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    (report.row, report.time_secs) = (restored.report.row, restored.report.time_secs);
    (report.files, report.directories) = (restored.report.files, restored.report.directories);
    report.missing.extend(restored.report.shortfall);
    let memory = MemoryPlan::new(memory_bytes, Fingerprints::default());
    let sources = Sources::open_as(stage, &data, &superblock, &memory, Admission::Any)?;
    report.missing.extend(sources.missing_shortfall());
    let fingerprinter = Fingerprinter::new(superblock.properties.fingerprint);
    let options = OpenOptions { rebuild_index: true, memory_bytes, ..OpenOptions::default() };
    let rebuild = Rebuild { options: &options, fingerprinter: &fingerprinter, progress };
    sources.namespace.begin_writing()?;
    let rebuilt = sources.index_sources(&superblock, &memory).rebuild(&rebuild)?;
    report.containers = rebuilt.containers;
    if rebuilt.missing > 0 && !restored.has_losses {
        report
            .missing
            .push(format!("{} tables, recipe nodes or chunks that files need cannot be read", rebuilt.missing));
    }
    Ok(report)
}

/// Compares the restored names, as of commit `row`, with the pool's own.
fn compare(
    core: &Core,
    stage: &dyn Device,
    row: u64,
    held: &HeldExport<'_>,
    progress: &dyn Progress,
    report: &mut TrialReport,
) -> Result<()> {
    let restored = Namespace::open(
        stage,
        MemoryPlan::new(TRIAL_MEMORY_BYTES, Fingerprints::default()).namespace_cache_bytes,
        &|_| Ok(()),
    )?;
    let (ours, own) = (restored.export_source()?, core.namespace.export_source()?);
    if own.row() < row || held.row() > row {
        report.missing.push(format!(
            "the export ends with commit {row} of the namespace: it should end with one from {} (exported before the trial) to {} (the newest)",
            held.row(),
            own.row()
        ));
        return Ok(());
    }
    let changed = changed_since(&own, row)?;
    progress.start("comparing names", 0);
    let (mut alike, mut told) = (0_u64, 0_usize);
    let mut tell = |what: String| {
        told += 1;
        if told <= TOLD_MAX {
            report.missing.push(what);
        }
    };
    let mut seen = 0_u64;
    let mut goes_on = || {
        seen += 1;
        if seen.is_multiple_of(RECORDS_AT_ONCE) {
            progress.advance(RECORDS_AT_ONCE);
            if progress.is_cancelled() {
                return Err(EngineError::from(ended()));
            }
        }
        Ok(())
    };
    ours.for_each(&mut |item| {
        goes_on()?;
        let key = key_of(&item)?;
        if changed.contains(&hash(item.table, item.key)) {
            return Ok(());
        }
        own.item(&key, &mut |owned| {
            match owned.value {
                value if value == item.value => alike += 1,
                Some(_) => tell(format!("{key:?} would be recovered with another record")),
                None => tell(format!("{key:?} would be recovered and does not exist")),
            }
            Ok(())
        })
    })?;
    let mut unchanged = 0_u64;
    own.for_each(&mut |item| {
        goes_on()?;
        unchanged += u64::from(!changed.contains(&hash(item.table, item.key)));
        Ok(())
    })?;
    if unchanged > alike {
        tell(format!("{} of {unchanged} records would not be recovered as they are", unchanged - alike));
    }
    report.compared = unchanged;
    progress.finish();
    restored.end();
    Ok(())
}

fn changed_since(source: &ExportSource, row: u64) -> Result<HashSet<u128>> {
    let mut changed = HashSet::new();
    source.changes_after(row, &mut |keys| {
        for key in keys {
            changed.insert(match key {
                ChangedKey::Inode(ino) => hash(ExportTable::Inodes, &ino.to_le_bytes()),
                ChangedKey::Name(key) => hash(ExportTable::Names, &key),
                ChangedKey::Xattr(key) => hash(ExportTable::Xattrs, &key),
                ChangedKey::Container { id, .. } => hash(ExportTable::Containers, &id.0.to_le_bytes()),
            });
        }
        if changed.len() > CHANGED_MAX {
            let owner = "backups that change too much while the trial recovery runs: try again when they are over";
            return Err(StoreError::Busy { what: "the pool".to_owned(), owner: owner.to_owned() }.into());
        }
        Ok(())
    })?;
    Ok(changed)
}

fn hash(table: ExportTable, key: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot_with_seed(table as u64, key)
}

fn key_of(item: &Item<'_>) -> Result<ChangedKey> {
    let number = || {
        let bytes: std::result::Result<[u8; 8], _> = item.key.try_into();
        bytes.map(u64::from_le_bytes).map_err(|_| StoreError::corrupt("restored key", "8 bytes", item.key.len()))
    };
    Ok(match item.table {
        ExportTable::Inodes => ChangedKey::Inode(number()?),
        ExportTable::Names => ChangedKey::Name(item.key.to_vec()),
        ExportTable::Xattrs => ChangedKey::Xattr(item.key.to_vec()),
        ExportTable::Containers | ExportTable::Header => {
            ChangedKey::Container { id: dedupfs_store::ContainerId(number()?), from_bytes: 0 }
        }
    })
}
