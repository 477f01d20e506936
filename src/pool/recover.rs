//! Recovery: makes a new meta root from a data root alone.
//!
//! 1. Lock both roots. The meta root must hold nothing that is still needed.
//! 2. Make namespace, recipes and indexes in a directory of the meta root ([`STAGE`]). The data root is only read.
//! 3. Take possession of the data root: an older meta root that comes back may not write to it any more.
//! 4. Remove the old meta root, its superblock first; move the new files into place; write the new superblock last. Until then there is
//!    no pool, and recovery can start again: the data root has everything.

use std::path::Path;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::Fingerprinter;
use dedupfs_namespace::{NAMESPACE_FILE, NAMESPACE_SUMS_FILES};
use dedupfs_store::StoreError;
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, FileDevice, Subdirectory, remove_directories, remove_files_below};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

use super::format::relative_or_absolute;
use super::indexes::Rebuild;
use super::open::OpenOptions;
use super::parts::{Admission, Sources};
use super::socket::claim;
use super::trial::SCRATCH as TRIAL_SCRATCH;
use crate::config::{Fingerprints, MemoryPlan};
use crate::durability::export::{RestoreReport, fence, keep, restore};
use crate::progress::Progress;
use crate::upkeep::check::RebuildReport;
use crate::upkeep::reclaim::{CREDIT_FILE, FORWARDING_FILE, HISTORY_FILE as RECLAIM_HISTORY_FILE};
use crate::upkeep::scrub::POSITION_FILE as SCRUB_POSITION_FILE;
use crate::versions::list::{VersionTotals, totals as versions_in};
use crate::versions::notes::{DIRECTORY as NOTES_DIRECTORY, is_of_notes};

/// Directory of the meta root in which everything is made. Without a superblock beside it, recovery was interrupted.
pub const STAGE: &str = "recovered";
/// Directories of a meta root, besides superblock and namespace.
const META_DIRECTORIES: [&str; 3] = ["index", "recipes", NOTES_DIRECTORY];
/// Other known names on a root.
const OTHERS: [&str; 13] = [
    "lock",
    "dedupfs.log",
    "dedupfs.log.1",
    "control.sock",
    "containers",
    "export",
    // Notes of replicas: of another lineage from now on, so they are not believed.
    "replicas",
    SCRUB_POSITION_FILE,
    RECLAIM_HISTORY_FILE,
    FORWARDING_FILE,
    CREDIT_FILE,
    STAGE,
    TRIAL_SCRATCH,
];
/// Deepest nesting of directories.
const DEPTH_MAX: usize = 4;

/// The result of a recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RecoverReport {
    /// Names and recipes, restored from the export.
    #[serde(flatten)]
    pub restored: RestoreReport,
    /// Versions. Their files are not counted in `files`; their bytes without holes are in `logical_bytes`.
    #[serde(default)]
    pub versions: VersionTotals,
    /// Report of the index rebuild.
    pub rebuilt: RebuildReport,
    /// Kept slots: they hold containers that nothing names.
    #[serde(default)]
    pub kept_slots: u64,
    /// Duration in milliseconds.
    pub elapsed_ms: u64,
}

/// Makes the meta root `meta` (created if absent) from the data root `data`; both may be one directory. `forced`: also replaces a meta
/// root that has a superblock and a namespace, and accepts less than the data root leads to expect.
///
/// # Errors
/// `Corrupt` if the data root gives less than expected: then nothing was changed. `Usage` if `data` is no data root or has no export,
/// or `meta` holds other files; `Busy`; damage; I/O errors.
pub fn recover(
    meta: &Path,
    data: &Path,
    forced: bool,
    options: &OpenOptions,
    progress: &dyn Progress,
) -> Result<RecoverReport> {
    let data_device: Arc<dyn Device> = Arc::new(FileDevice::open(data)?);
    let of_data = Superblock::read(&*data_device, Role::Data)?;
    // This checks the control socket too: in a pool with one root, this is the meta root.
    let _data_lock = claim(data, &options.note)?;
    let is_one = meta.canonicalize().ok().is_some_and(|meta| data.canonicalize().is_ok_and(|data| data == meta));
    if is_one {
        return recover_on(&data_device, &data_device, b".".to_vec(), forced, options, progress);
    }
    if !forced && data_device.exists(Role::Meta.file_name())? && data_device.exists(NAMESPACE_FILE)? {
        return Err(StoreError::Usage(format!(
            "{0} is a pool with a meta root of its own, which knows more than its export, and could not be used any more: try \
             `dedupfs mount` and `dedupfs fsck` first. If it is beyond repair, `dedupfs recover --force {0}` makes it anew in its place",
            data.display()
        ))
        .into());
    }
    if let Ok(there) = FileDevice::open(meta) {
        // Checked before any file is left there: the directory may be somebody else's.
        check_target(&there, &of_data, forced)?;
    }
    let is_new = !meta.exists();
    let meta_device: Arc<dyn Device> = Arc::new(FileDevice::create(meta)?);
    let meta_lock = claim(meta, &options.note)?;
    let data_root = relative_or_absolute(meta, data)?;
    let outcome = recover_on(&meta_device, &data_device, data_root, forced, options, progress);
    if outcome.is_err() && is_new {
        drop(meta_lock);
        remove_if_empty(meta, &*meta_device);
    }
    outcome
}

/// Removes the new directory of a meta root that was not completed.
fn remove_if_empty(meta: &Path, device: &dyn Device) {
    let is_lock_alone = device.list("").is_ok_and(|entries| entries.iter().all(|entry| entry.name == "lock"));
    if is_lock_alone && device.remove("lock").is_ok() {
        // Fails if somebody put a file there meanwhile; then it stays.
        let _not_empty = std::fs::remove_dir(meta);
    }
}

/// Recovers as [`recover`] on two devices (or one given twice) that nobody else uses.
pub fn recover_on(
    meta: &Arc<dyn Device>,
    data: &Arc<dyn Device>,
    data_root: Vec<u8>,
    forced: bool,
    options: &OpenOptions,
    progress: &dyn Progress,
) -> Result<RecoverReport> {
    let started = Instant::now();
    let of_data = Superblock::read(&**data, Role::Data)?;
    check_target(&**meta, &of_data, forced)?;
    let superblock = Superblock { role: Role::Meta, data_root, ..of_data };
    remove_files_below(&**meta, STAGE)?;
    let stage: Arc<dyn Device> = Arc::new(Subdirectory::create(meta.clone(), STAGE)?);
    let restored = match restore(&*stage, &**data, &superblock, forced, progress, &mut |_| Ok(())) {
        Ok(restored) => restored,
        Err(error) => {
            // Best effort: the next attempt begins with the same removal.
            let _left_there = remove_files_below(&**meta, STAGE);
            remove_directories(&**meta, STAGE);
            return Err(error);
        }
    };
    let mut report = RecoverReport { restored: restored.report, ..RecoverReport::default() };
    {
        let fingerprinter = Fingerprinter::new(superblock.properties.fingerprint);
        let options = OpenOptions { rebuild_index: true, ..options.clone() };
        let rebuild = Rebuild { options: &options, fingerprinter: &fingerprinter, progress };
        let memory = MemoryPlan::new(options.memory_bytes, Fingerprints::default());
        // Forced, the owner file may be unreadable: then any meta root is admitted.
        let admission = if forced { Admission::Any } else { Admission::Owner };
        let sources = Sources::open_as(&stage, data, &superblock, &memory, admission)?;
        report.restored.shortfall.extend(sources.missing_shortfall());
        let unnamed = unnamed(&sources, restored.epoch, &mut report);
        report.kept_slots = unnamed.len() as u64;
        // Checked before the rebuild of the index, which takes longest.
        if forced || report.restored.shortfall.is_empty() {
            sources.namespace.begin_writing()?;
            report.rebuilt = sources.index_sources(&superblock, &memory).rebuild(&rebuild)?;
            if report.rebuilt.missing > 0 && !restored.has_losses {
                let missing = report.rebuilt.missing;
                report
                    .restored
                    .shortfall
                    .push(format!("{missing} tables, recipe nodes or chunks that files need cannot be read"));
            }
        }
        if !report.restored.shortfall.is_empty() && !forced {
            drop(sources);
            remove_files_below(&**meta, STAGE)?;
            remove_directories(&**meta, STAGE);
            return Err(less_than_expected(&report));
        }
        let keeps = restored.is_damaged || !unnamed.is_empty() || sources.kept.is_some();
        if keeps {
            let slots = [sources.kept.as_deref().unwrap_or_default(), &unnamed].concat();
            keep(&**data, &superblock.pool, &slots)?;
        }
        // Only told: it must not end a recovery.
        let told = sources.namespace.committed().and_then(|view| versions_in(&view));
        report.versions = told.unwrap_or_else(|error| {
            tracing::warn!(%error, "the versions cannot be counted");
            VersionTotals::default()
        });
        fence(&sources.namespace, &**data, &superblock.pool, keeps)?;
    }
    put_in_place(&**meta)?;
    superblock.write_new(&**meta)?;
    report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// Finds the slots of containers that nothing names but a missing part of the export may have named; adds them to the report.
fn unnamed(sources: &Sources, epoch: u32, report: &mut RecoverReport) -> Vec<SlotAddress> {
    // A container of an earlier writer epoch is garbage: the namespace of the next mount names its content, or gave it up.
    let mut unnamed = sources.stores.data.unnamed();
    unnamed.retain(|(_, id)| id.is_none_or(|id| id.epoch() >= epoch));
    let containers = unnamed.iter().filter(|(_, id)| id.is_some()).count();
    if containers > 0 {
        report.restored.shortfall.push(format!(
            "{containers} containers with content are named by nothing: they were written behind commit {}",
            report.restored.row
        ));
    }
    unnamed.into_iter().map(|(address, _)| address).collect()
}

/// The error of a recovery that gives less than expected. Nothing was changed; the user decides.
fn less_than_expected(report: &RecoverReport) -> EngineError {
    let expected = format!("everything that was exported or written ({})", report.restored.shortfall.join("; "));
    let found = format!(
        "{} files in {} directories, as of commit {}; nothing was changed. A missing file may lie elsewhere: put it back. An older copy of the \
         meta root may have more. `dedupfs recover --force` goes on with what is there, and keeps what nothing names until `dedupfs fsck --repair \
         --give-up-unnamed`",
        report.restored.files, report.restored.directories, report.restored.row
    );
    StoreError::corrupt("the content of the data root", expected, found).into()
}

/// Checks that the target is empty, or holds the remains of this pool's meta root.
fn check_target(meta: &dyn Device, of_data: &Superblock, forced: bool) -> Result<()> {
    let place = meta.describe();
    let usage = |message: String| Err(StoreError::Usage(message).into());
    let superblock_names = [Role::Meta.file_name(), Role::Data.file_name()];
    let known = |name: &str| {
        // A `.new` file is a replacement that was interrupted.
        let name = name.strip_suffix(".new").unwrap_or(name);
        [OTHERS.as_slice(), META_DIRECTORIES.as_slice(), superblock_names.as_slice()].concat().contains(&name)
            || name.starts_with(NAMESPACE_FILE)
            || NAMESPACE_SUMS_FILES.contains(&name)
    };
    if let Some(entry) = meta.list("")?.iter().find(|entry| !known(&entry.name)) {
        return usage(format!("{place} has something else in it ({}): name an empty or new directory", entry.name));
    }
    // A directory of this name may be somebody's.
    if meta.exists(NOTES_DIRECTORY)?
        && let Some(entry) =
            meta.list(NOTES_DIRECTORY)?.iter().find(|entry| entry.is_directory || !is_of_notes(&entry.name))
    {
        let what = format!("{NOTES_DIRECTORY}/{}", entry.name);
        return usage(format!("{place} has something else in it ({what}): name an empty or new directory"));
    }
    match Superblock::read(meta, Role::Meta) {
        Ok(superblock) if superblock.pool != of_data.pool => {
            return usage(format!("{place} is the meta root of another pool, {}", superblock.pool));
        }
        Err(error @ StoreError::Unsupported { .. }) => return Err(error.into()),
        _ => {}
    }
    if let Some(other) = Superblock::salvage(meta, Role::Data).ok().filter(|other| other.pool != of_data.pool) {
        return usage(format!(
            "{place} is the data root of another pool, {}: name an empty or new directory",
            other.pool
        ));
    }
    if !forced && meta.exists(Role::Meta.file_name())? && meta.exists(NAMESPACE_FILE)? {
        return usage(format!(
            "{place} has a meta root, which knows more than the data root: try `dedupfs mount` and `dedupfs fsck` first. If it \
             is beyond repair, --force replaces it"
        ));
    }
    Ok(())
}

/// Removes the old meta root and moves the new one into its place.
fn put_in_place(meta: &dyn Device) -> Result<()> {
    // The superblock goes first: until the new one is written, there is no pool.
    let files = [
        Role::Meta.file_name(),
        NAMESPACE_FILE,
        SCRUB_POSITION_FILE,
        RECLAIM_HISTORY_FILE,
        FORWARDING_FILE,
        CREDIT_FILE,
    ];
    for name in files.into_iter().chain(NAMESPACE_SUMS_FILES) {
        match meta.remove(name) {
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        meta.sync_directory("")?;
    }
    for directory in META_DIRECTORIES {
        remove_files_below(meta, directory)?;
    }
    move_below(meta, "", 0)?;
    meta.sync_directory("")?;
    remove_directories(meta, STAGE);
    Ok(meta.sync_directory("")?)
}

/// Moves the files below a directory of the stage to their places.
fn move_below(meta: &dyn Device, directory: &str, depth: usize) -> Result<()> {
    let join = |parent: &str, name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
    let from = join(STAGE, directory);
    let from = from.trim_end_matches('/');
    if depth > DEPTH_MAX {
        return Ok(());
    }
    if !directory.is_empty() {
        meta.create_directory(directory)?;
    }
    for entry in meta.list(from)? {
        let path = join(directory, &entry.name);
        if entry.is_directory {
            move_below(meta, &path, depth + 1)?;
        } else {
            meta.rename(&join(from, &entry.name), &path)?;
        }
    }
    // Sync the target first: a file must be in one of the two directories.
    meta.sync_directory(directory)?;
    Ok(meta.sync_directory(from)?)
}
