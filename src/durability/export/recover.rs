//! Restores a namespace and recipe containers from a data root alone.
//!
//! 1. The base that `current` names must be whole: without it the log has no start.
//! 2. Follow the log as far as its groups are whole. A damaged group ends it, and the report says so. A read error of the device is not
//!    damage: later groups may be whole and would be given up. Anything less than the data root leads to expect is a *shortfall*; the
//!    caller decides whether the rest is enough.
//! 3. Write the items into a new store, and copy recipe containers from their copies to the addresses in their records.
//! 4. The caller rebuilds the indexes, and then takes possession of the data root with [`fence`].
//!
//! Until then the data root is only read.

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{Exported, Lineage, Namespace, Restorer};
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::superblock::Superblock;
use dedupfs_store::{ContainerKind, ContainerRecord, PoolId, StoreError};
use serde::{Deserialize, Serialize};

use super::files::{self, Current, Owner};
use super::log::{self, GroupFrames, Scanned};
use super::mirror;
use super::reached::Reached;
use crate::config::EXPORT_KEYS_AT_ONCE;
use crate::progress::Progress;

/// Upper bound of the epochs used but not noted on the data root: openings while it had no room for a small file.
const EPOCHS_AHEAD: u32 = 1024;
/// Bytes copied at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// The content of an export that was restored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RestoreReport {
    /// The commit to which the pool was recovered.
    pub row: u64,
    /// Time of that export, in seconds since 1970.
    pub time_secs: u64,
    /// Why the export ends there, if more of it cannot be read.
    pub damage: Option<String>,
    /// Regular files.
    pub files: u64,
    /// Directories, including the root.
    pub directories: u64,
    /// Sum of the lengths of regular files.
    pub logical_bytes: u64,
    /// Bytes read of the export.
    pub export_bytes: u64,
    /// Bytes of recipe containers.
    pub recipe_bytes: u64,
    /// Recipe containers that could not be copied in full.
    pub recipes_damaged: u64,
    /// Content that the data root leads to expect and lacks.
    #[serde(default)]
    pub shortfall: Vec<String>,
}

/// The result of [`restore`].
#[derive(Clone, Debug)]
pub(crate) struct Restored {
    /// The report for the user.
    pub report: RestoreReport,
    /// The missing part of the export may name containers of this writer epoch or a later one.
    pub epoch: u32,
    /// Files needed lost content before already.
    pub has_losses: bool,
    /// A part of the export is damaged: the new pool does not continue it, and keeps its files unchanged.
    pub is_damaged: bool,
}

/// Makes namespace and recipe containers on `meta`, which has neither, from the export on `data`.
///
/// `look_at_names` is called with the commit once the namespace is whole, before recipes are copied. `forced`: if no file says which
/// export counts, takes the newest whole base.
///
/// # Errors
/// There is no export, or its base is damaged; I/O errors.
pub(crate) fn restore(
    meta: &dyn Device,
    data: &dyn Device,
    superblock: &Superblock,
    forced: bool,
    progress: &dyn Progress,
    look_at_names: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Restored> {
    let pool = &superblock.pool;
    let mut shortfall = Vec::new();
    let (reached, may_be_any) = match Reached::read(data, pool) {
        Ok(reached) => (reached, reached.is_some()),
        Err(error) => {
            shortfall.push(format!("how far the export had come cannot be read: {error}"));
            (None, true)
        }
    };
    let current = find_current(data, pool, may_be_any, forced, &mut shortfall)?;
    let owner = match Owner::read(data, pool) {
        Err(error @ EngineError::Store(StoreError::Corrupt { .. })) => {
            tracing::warn!(%error, "the writer epoch is taken from the export");
            None
        }
        Err(error @ EngineError::Store(StoreError::Io { .. })) if forced => {
            tracing::warn!(%error, "the writer epoch is taken from the export");
            None
        }
        owner => owner?,
    };
    let mut report = RestoreReport::default();
    let mut restorer = Restorer::create(meta)?;
    let base_path = files::base_path(current.generation);
    let base = match data.open(&base_path, OpenMode::Read) {
        Err(StoreError::NotFound { .. }) => {
            return Err(StoreError::corrupt(base_path, "the base of the export", "no such file").into());
        }
        base => base?,
    };
    let log_path = files::log_path(current.generation);
    let mut is_durable = false;
    let (log, scanned) = match data.open(&log_path, OpenMode::Read) {
        Ok(log) => {
            // A killed process may have left its end in memory only, and a failed sync bytes that no later sync writes.
            is_durable = log.reread().inspect_err(|error| tracing::warn!(%error, "the log cannot be synced")).is_ok();
            let scanned = log::scan(&*log, &log_path, pool, current.generation, Scanned::start(current.row))?;
            (Some(log), scanned)
        }
        Err(error @ StoreError::NotFound { .. }) => {
            (None, Scanned { rest: Some(error.into()), ..Scanned::start(current.row) })
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(error) = &scanned.rest {
        check_end(error, &data.describe())?;
        shortfall.push(format!("the export cannot be read behind commit {}: {error}", scanned.row));
    }
    if let Some(reached) = reached.filter(|reached| !reached.is_within(current.generation, scanned.log_bytes)) {
        shortfall.push(format!(
            "the export ends with commit {}, and one of commit {}, with {} inodes, was complete",
            scanned.row, reached.row, reached.inodes
        ));
    }
    progress.start("restoring the namespace", current.base_bytes + scanned.log_bytes);
    let mut apply = |file: &dyn dedupfs_store::device::DeviceFile, path: &str, offset: u64| -> Result<(u64, u64)> {
        let (mut frames, mut time_secs) = (GroupFrames::new(offset), 0);
        while let Some(frame) = frames.next(file, path, pool, current.generation)? {
            let raw = frame.unpack(path)?;
            for items in frame.items(path, &raw)?.chunks(EXPORT_KEYS_AT_ONCE) {
                restorer.apply(items)?;
            }
            time_secs = frame.group.time_secs;
        }
        progress.advance(frames.end_bytes() - offset);
        Ok((frames.end_bytes(), time_secs))
    };
    let (base_bytes, time_secs) = apply(&*base, &base_path, 0)?;
    if base_bytes != current.base_bytes {
        return Err(StoreError::corrupt(base_path, format!("{} bytes", current.base_bytes), base_bytes).into());
    }
    report.time_secs = time_secs;
    let mut at = 0;
    while let Some(log) = log.as_ref().filter(|_| at < scanned.log_bytes) {
        (at, report.time_secs) = apply(&**log, &log_path, at)?;
    }
    progress.finish();
    report.export_bytes = base_bytes + scanned.log_bytes;
    report.damage = scanned.rest.as_ref().map(ToString::to_string);
    if restorer.row() != Some(scanned.row) {
        let found = restorer.row().map_or_else(|| "none".to_owned(), |row| format!("row {row}"));
        return Err(StoreError::corrupt("header of the export", format!("row {}", scanned.row), found).into());
    }
    report.row = scanned.row;
    // The data root still belongs to the old meta root: until the fence, this is only an attempt.
    let lineage = owner.map_or_else(Lineage::random, |owner| Ok(owner.lineage))?;
    let (log_bytes, group) = (scanned.log_bytes, scanned.group);
    let (row, time_secs) = (scanned.row, report.time_secs);
    let is_damaged = !shortfall.is_empty();
    let exported = match is_damaged || !is_durable {
        false => Exported { generation: current.generation, log_bytes, group, row, time_secs },
        // A damaged export is not continued, but kept. A sound one is, once the next opening can sync it.
        true => Exported::default(),
    };
    let (header_epoch, has_losses) = restorer.epoch_and_losses();
    let epoch = owner.map_or(0, |owner| owner.epoch);
    let (totals, records) = restorer.finish(lineage, exported, epoch, EPOCHS_AHEAD)?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    (report.files, report.directories) = (count(totals.files), count(totals.directories));
    report.logical_bytes = count(totals.logical_bytes);
    look_at_names(report.row)?;
    restore_recipes(meta, data, superblock, records, progress, &mut report)?;
    if report.recipes_damaged > 0 {
        shortfall.push(format!("{} copies of recipe containers are missing or cut off", report.recipes_damaged));
    }
    report.shortfall = shortfall;
    Ok(Restored { report, epoch: header_epoch, has_losses, is_damaged })
}

/// Finds the export that counts. `may_be_any`: a note says that there was one, or the note cannot be read.
fn find_current(
    data: &dyn Device,
    pool: &PoolId,
    may_be_any: bool,
    forced: bool,
    shortfall: &mut Vec<String>,
) -> Result<Current> {
    let error = match Current::read(data, pool) {
        Ok(Some(current)) => return Ok(current),
        Ok(None) if !may_be_any => {
            let place = data.describe();
            return Err(StoreError::Usage(format!(
                "{place} has no export of the namespace: it was never mounted for writing by a release that exports, or there was no \
                 room for it. Only the meta root has the names"
            ))
            .into());
        }
        Ok(None) => StoreError::corrupt("export/current", "the name of the export that counts", "no such file"),
        Err(EngineError::Store(error @ StoreError::Corrupt { .. })) => error,
        Err(error) => return Err(error),
    };
    if !forced {
        let StoreError::Corrupt { what, expected, found } = error else { return Err(error.into()) };
        let found = format!(
            "{found}; nothing was changed. `dedupfs recover --force` takes the newest export of which the base is whole, if there is one"
        );
        return Err(StoreError::Corrupt { what, expected, found }.into());
    }
    for generation in bases(data)? {
        if let Ok(current) = whole_base(data, pool, generation) {
            shortfall.push(format!("which export counts is taken from its files: {error}"));
            return Ok(current);
        }
    }
    Err(error.into())
}

/// Returns the numbers of all bases, the newest first.
fn bases(data: &dyn Device) -> Result<Vec<u64>> {
    let entries = data.list(files::DIRECTORY)?;
    let number = |name: &str| name.strip_prefix("base-")?.parse::<u64>().ok();
    let mut bases: Vec<u64> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
    bases.sort_unstable_by(|left, right| right.cmp(left));
    Ok(bases)
}

/// Reconstructs the content of `current` from a base, if the base is whole.
fn whole_base(data: &dyn Device, pool: &PoolId, generation: u64) -> Result<Current> {
    let path = files::base_path(generation);
    let file = data.open(&path, OpenMode::Read)?;
    let (mut frames, mut row) = (GroupFrames::new(0), 0);
    while let Some(frame) = frames.next(&*file, &path, pool, generation)? {
        row = frame.group.row;
    }
    Ok(Current { generation, base_bytes: frames.end_bytes(), row })
}

/// Checks that the error marks the end of a log: it was cut off, or is damaged. Returns other errors, with advice.
fn check_end(error: &EngineError, place: &str) -> Result<()> {
    match error {
        EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. }) => Ok(()),
        EngineError::Store(StoreError::Io { operation, path, source }) => {
            let advice = format!(
                "{source}; nothing was changed. If trying again does not help, copy {place} to a sound disk as far as it can be read \
                 (ddrescue) and recover from there"
            );
            let source = std::io::Error::new(source.kind(), advice).into();
            Err(StoreError::Io { operation, path: path.clone(), source }.into())
        }
        other => Err(other.clone()),
    }
}

/// Copies recipe containers to the addresses in their records.
fn restore_recipes(
    meta: &dyn Device,
    data: &dyn Device,
    superblock: &Superblock,
    mut records: Vec<ContainerRecord>,
    progress: &dyn Progress,
    report: &mut RestoreReport,
) -> Result<()> {
    let slot_bytes = superblock.properties.container_bytes;
    records.retain(|record| record.kind == ContainerKind::Recipe);
    records.sort_unstable_by_key(|record| record.address);
    progress.start("restoring recipes", records.iter().map(|record| u64::from(record.used_bytes)).sum());
    meta.create_directory(RECIPES)?;
    meta.sync_directory("")?;
    for records in records.chunk_by(|left, right| left.address.file == right.address.file) {
        let Some(first) = records.first() else { continue };
        let number = first.address.file;
        let target = meta.open(&mirror::path(RECIPES, number), OpenMode::CreateNew)?;
        let source = match data.open(&mirror::path(mirror::DIRECTORY, number), OpenMode::Read) {
            Ok(source) => source,
            Err(error) => {
                tracing::error!(%error, "copies of recipe containers are missing");
                report.recipes_damaged += records.len() as u64;
                continue;
            }
        };
        for record in records {
            if let Err(error) = copy(&*source, &*target, record, slot_bytes)? {
                tracing::error!(container = %record.id, %error, "a recipe container is not whole");
                report.recipes_damaged += 1;
            }
            report.recipe_bytes += u64::from(record.used_bytes);
            progress.advance(record.used_bytes.into());
        }
        target.sync()?;
    }
    meta.sync_directory(RECIPES)?;
    progress.finish();
    Ok(())
}

/// Directory of recipe containers on a meta root.
pub const RECIPES: &str = "recipes";

/// Copies one recipe container. The inner error is one of the source, the outer one of the target.
fn copy(
    source: &dyn dedupfs_store::device::DeviceFile,
    target: &dyn dedupfs_store::device::DeviceFile,
    record: &ContainerRecord,
    slot_bytes: u32,
) -> Result<std::result::Result<(), StoreError>> {
    let start = u64::from(record.address.slot) * u64::from(slot_bytes);
    let used_bytes = record.used_bytes.min(slot_bytes);
    let mut at = 0;
    while at < used_bytes {
        let len = PIECE_BYTES.min(used_bytes - at);
        let mut bytes = vec![0; len as usize];
        if let Err(error) = source.read_exact_at(&mut bytes, start + u64::from(at)) {
            return Ok(Err(error));
        }
        target.write_at(&bytes, start + u64::from(at))?;
        at += len;
    }
    Ok(Ok(()))
}

/// Takes possession of the data root for the new meta root: from here on no other meta root may write to it. `keeps`: content that the
/// new meta root does not name is kept there.
pub(crate) fn fence(namespace: &Namespace, data: &dyn Device, pool: &PoolId, keeps: bool) -> Result<()> {
    let lineage = Lineage::random()?;
    namespace.change_lineage(lineage)?;
    Owner { lineage, epoch: namespace.writer_epoch(), keeps }.write(data, pool)
}
