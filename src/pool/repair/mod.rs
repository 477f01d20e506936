//! Repairing a pool that is not open: first a plan, then, on request, its steps.
//!
//! 1. [`superblocks`]: a damaged one is rewritten from that of the other root.
//! 2. *Namespace*: see [`dedupfs_namespace::repair`].
//! 3. *Indexes*: if they are missing, damaged, or have wrong counts or places, both are rebuilt ([`crate::upkeep::check::Rebuilder`]).
//! 4. *Content*, if it is read: bad copies are quarantined ([`crate::upkeep::scrub`]).
//! 5. *The export* on the data root: its bad parts are rewritten. Content that a recovery kept is given up on request.
//! 6. *Files left over* by interrupted work are removed.
//!
//! Then everything is checked again. A loss remains until the same data is written again.

mod leftovers;
mod superblocks;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace as namespace;
use dedupfs_namespace::NAMESPACE_FILE;
use dedupfs_service::Timestamp;
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, FileDevice, PoolLock};
use dedupfs_store::superblock::{Role, Superblock};

use self::superblocks::{check_is_data_root, restore_superblocks};
use crate::durability::export::ExportCheck;
use crate::pool::socket::claim;
use crate::pool::{OpenOptions, Pool, UnrecoveredPool, missing_data_root, overlays, relative_or_absolute};
use crate::progress::Progress;
use crate::upkeep::check::{CheckOptions, CheckReport, RebuildReport};
use crate::upkeep::scrub::ScrubOptions;

/// How to repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairOptions {
    /// Make the changes; else only list them.
    pub apply: bool,
    /// Read and verify all content, too.
    pub read_data: bool,
    /// Give up the content that a recovery kept and could not name.
    pub give_up_unnamed: bool,
    /// A directory for temporary files of checks; see [`CheckOptions::scratch`].
    pub scratch: Option<PathBuf>,
}

/// The result of a repair, or its plan.
#[derive(Clone, Default, Debug)]
pub struct RepairReport {
    /// Each change, in order.
    pub plan: Vec<String>,
    /// Result of the rebuild of the indexes, if there was one.
    pub rebuilt: Option<RebuildReport>,
    /// The check after the repair; of a plan alone, the check of the present state. `None` if the pool cannot be opened
    /// before it is repaired.
    pub check: Option<CheckReport>,
}

impl RepairReport {
    /// Whether no defect is left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.check.as_ref().is_some_and(CheckReport::is_clean)
    }
}

/// Repairs the pool whose meta root is `meta`, alone. `data` gives its data root if the meta superblock cannot be read,
/// or is wrong because the data root moved.
///
/// # Errors
/// The errors of [`repair_on`]; the pool is in use; the data root is not found.
pub fn repair_at(
    meta: &Path,
    data: Option<&Path>,
    how: &RepairOptions,
    open: &OpenOptions,
    progress: &dyn Progress,
) -> Result<RepairReport> {
    let meta_device: Arc<dyn Device> = Arc::new(FileDevice::open(meta)?);
    let _meta_lock = claim(meta, &open.note)?;
    let (root, name) = match (Superblock::read(&*meta_device, Role::Meta), data) {
        (Ok(superblock), Some(data)) => data_root_of(meta, &superblock, data)?,
        (Ok(superblock), None) => (superblock.data_root_path(meta), superblock.data_root),
        (Err(_), Some(data)) => {
            let root = std::path::absolute(data).map_err(|error| StoreError::from_io("find", "data root", error))?;
            let name = root.as_os_str().as_bytes().to_vec();
            (root, name)
        }
        (Err(_), None) if meta_device.exists(Role::Data.file_name())? => {
            if !meta_device.exists(NAMESPACE_FILE)? {
                let shown = meta.display();
                let advice = "name the meta root; if that is lost, `dedupfs recover` makes a new one";
                return Err(StoreError::Usage(format!("{shown} is a data root, and has no namespace: {advice}")).into());
            }
            (meta.to_owned(), b".".to_vec())
        }
        (Err(error), None) => {
            let message = format!("{error}; if the pool has a data root of its own, say where it is with `--data DIR`");
            return Err(StoreError::Usage(message).into());
        }
    };
    if root == meta || name == b"." {
        return repair_on(&meta_device, &meta_device, &name, how, open, progress);
    }
    let data_device = FileDevice::open(&root).map_err(|error| missing_data_root(&root, &error))?;
    let data_device: Arc<dyn Device> = Arc::new(data_device);
    check_is_data_root(&*data_device, &root)?;
    let _data_lock = PoolLock::acquire(&root, &open.note)?;
    repair_on(&meta_device, &data_device, &name, how, open, progress)
}

/// Returns the place of the data root, and the path for the superblock. The user gave the place `data`.
fn data_root_of(meta: &Path, superblock: &Superblock, data: &Path) -> Result<(PathBuf, Vec<u8>)> {
    let absolute = std::path::absolute(data).map_err(|error| StoreError::from_io("find", "data root", error))?;
    let named = superblock.data_root_path(meta);
    let is_same = |one: &Path, other: &Path| matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other);
    if is_same(&named, &absolute) {
        return Ok((named, superblock.data_root.clone()));
    }
    let is_of_pool = |root: &Path| {
        let found = FileDevice::open(root).and_then(|device| Superblock::read(&device, Role::Data));
        found.is_ok_and(|found| found.pool == superblock.pool)
    };
    if is_of_pool(&named) {
        let what = if is_of_pool(data) {
            "is another copy, which may be older"
        } else {
            "is not: leave `--data` out, or name that"
        };
        return Err(StoreError::Usage(format!(
            "the pool's data root is {}, where it should be: {} {what}",
            named.display(),
            data.display()
        ))
        .into());
    }
    let name = relative_or_absolute(meta, &absolute)?;
    Ok((absolute, name))
}

/// Repairs the pool on these devices, which the caller has locked. `data_root` is the path of the data root for the
/// meta superblock. A plan changes nothing: changes needed to look further are made in memory.
///
/// # Errors
/// A defect that cannot be repaired prevents the rest, or a device fails. The steps done until then are sound.
pub fn repair_on(
    meta_device: &Arc<dyn Device>,
    data_device: &Arc<dyn Device>,
    data_root: &[u8],
    how: &RepairOptions,
    open: &OpenOptions,
    progress: &dyn Progress,
) -> Result<RepairReport> {
    if !how.apply {
        // Reading the namespace recovers it, which writes. Without a superblock nothing can be read.
        let (meta, data) = overlays(meta_device, data_device, open.memory_bytes);
        return plan_or_repair(&meta, &data, data_root, how, open, progress);
    }
    plan_or_repair(meta_device, data_device, data_root, how, open, progress)
}

fn plan_or_repair(
    meta_device: &Arc<dyn Device>,
    data_device: &Arc<dyn Device>,
    data_root: &[u8],
    how: &RepairOptions,
    open: &OpenOptions,
    progress: &dyn Progress,
) -> Result<RepairReport> {
    let mut report = RepairReport::default();
    report.plan.extend(restore_superblocks(&**meta_device, &**data_device, data_root)?);
    let names = namespace::repair(&**meta_device, now(), how.apply)?;
    report.plan.extend(names.lines.into_iter().map(|line| format!("namespace: {line}")));
    report.plan.extend(leftovers::remove(&**meta_device, &**data_device, how.apply)?);
    let open_on = |options: &OpenOptions| Pool::open_on(meta_device, data_device, Vec::new(), options, progress);
    let options = OpenOptions { rebuild_index: false, ..open.clone() };
    let mut reason = names.needs_recount.then(|| "content of removed inodes is not referred to any more".to_owned());
    match open_on(&options) {
        Ok(pool) => {
            let found = check_and_quarantine(&pool, how, progress, &mut report.plan);
            let closed = pool.close();
            match found {
                Err(EngineError::Store(error @ StoreError::Corrupt { .. })) => {
                    tracing::warn!(%error, ?closed, "the indexes cannot be read");
                    reason = Some("they are damaged".to_owned());
                }
                found => {
                    closed?;
                    let found = found?;
                    if found.needs_rebuild {
                        reason = reason.or(Some("counts or places are wrong".to_owned()));
                    }
                    report.check = Some(found);
                }
            }
        }
        Err(EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. }))) => {
            // The error advises this very repair.
            tracing::warn!(%error, "the indexes cannot be used");
            let why = if matches!(error, StoreError::NotFound { .. }) {
                "a part is missing"
            } else {
                "they are damaged or incomplete"
            };
            reason = Some(why.to_owned());
        }
        Err(error) => return Err(error),
    }
    if let Some(reason) = reason {
        let anew = OpenOptions { rebuild_index: true, rebuild_reads_data: how.read_data, ..open.clone() };
        let lacks = UnrecoveredPool::open(meta_device, data_device, &anew)?.diagnose()?;
        if !lacks.missing_files.is_empty() {
            report.plan.push(format!(
                "give up the content that was in files of containers that are missing ({}): if they can be put back, do that \
                 instead, and nothing is lost",
                lacks.missing_files.join(", ")
            ));
        }
        report.plan.push(format!("make the indexes anew from containers and namespace: {reason}"));
        if how.apply {
            let pool = open_on(&anew)?;
            report.rebuilt = pool.rebuilt().copied();
            // What is bad is bad in the new indexes, too.
            let found = check_and_quarantine(&pool, how, progress, &mut report.plan);
            pool.close()?;
            report.check = Some(found?);
        }
    }
    Ok(report)
}

/// Checks the pool and quarantines bad content. The report describes the state afterwards.
fn check_and_quarantine(
    pool: &Pool,
    how: &RepairOptions,
    progress: &dyn Progress,
    plan: &mut Vec<String>,
) -> Result<CheckReport> {
    let (slots, bytes) = pool.core().exporter.kept()?;
    if how.give_up_unnamed && slots + bytes > 0 {
        plan.push(format!(
            "give up {slots} slots with content that no file names, and {bytes} bytes of damaged exports, which a recovery kept: nothing \
             can be rescued from there any more"
        ));
        if how.apply {
            pool.core().exporter.give_up_kept()?;
        }
    }
    let options = CheckOptions { read_data: how.read_data, scratch: how.scratch.clone() };
    let mut found = pool.check(&options, progress)?;
    // Opening for writing may have rewritten it by now.
    if let Some(export) = found.export.as_mut().filter(|export| !export.is_sound()) {
        let line = format!("write the export on the data root anew: {}", export.findings.join("; "));
        if how.apply {
            if export.is_bad() {
                pool.core().exporter.renew(export)?;
            }
            found = pool.check(&options, progress)?;
        }
        // Without room for it there is none, and the report says so.
        if !how.apply || found.export.as_ref().is_none_or(ExportCheck::is_sound) {
            plan.push(line);
        }
    }
    if found.bad_copies == 0 {
        return Ok(found);
    }
    plan.push(format!("quarantine {} chunks and recipe nodes that are bad", found.bad_copies));
    if !how.apply {
        return Ok(found);
    }
    pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, progress)?;
    pool.check(&options, progress)
}

fn now() -> Timestamp {
    let since = dedupfs_sync::clock::since_epoch();
    Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}
