//! Opening an export: which one counts, how far its log is whole, and which containers are still leaving.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Fingerprinter, Stores};
use dedupfs_namespace::{Exported, Namespace};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, OpenMode, PoolLock};
use dedupfs_store::{PoolId, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::{Condvar, Mutex};

use super::files::{self, Current, Owner};
use super::log::{self, Scanned};
use super::mirror::Mirror;
use super::reached::ReachedNote;
use super::{ExportState, Exporter, Live, Work, kept};

/// The parts that an exporter works on.
pub(crate) struct ExportParts {
    /// Device of the data root.
    pub device: Arc<dyn Device>,
    /// Identity of the pool.
    pub pool: PoolId,
    /// Bytes of a container's slot.
    pub slot_bytes: u32,
    /// The pool's hash function.
    pub fingerprinter: Fingerprinter,
    /// The namespace to export.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks and of recipe nodes.
    pub stores: Stores,
    /// Slots of containers that a recovery could not name, if anything is kept; they count as taken.
    pub kept: Option<Vec<SlotAddress>>,
    /// Whether writing is allowed.
    pub is_enabled: bool,
    /// The pool's locks, checked before each write.
    pub locks: Weak<Vec<PoolLock>>,
}

impl Exporter {
    /// Takes possession of the data root and finds its export. Call before anything is written to either root.
    pub(crate) fn open(parts: ExportParts) -> Result<Arc<Self>> {
        let ExportParts { device, pool, slot_bytes, fingerprinter, namespace, stores, kept, is_enabled, locks } = parts;
        let mut state = ExportState::default();
        let row = namespace.last_row();
        for record in namespace.leaving_containers()? {
            let store = stores.of(record.kind);
            match store.keep(&record) {
                Ok(()) => state.leaving.push((row, record)),
                // An earlier release has reused the slot.
                Err(error) => {
                    tracing::warn!(container = %record.id, %error, "a removed container's slot is not kept");
                    state.left.push(record.id);
                }
            }
        }
        let (mut live, mut stale, mut last_generation, mut damage, mut is_to_set_aside) = (None, None, 0, None, false);
        if is_enabled {
            let mark = namespace.export_mark();
            // Checked before the owner is written below: later nothing shows that it was bad.
            let of_owner = match Owner::read(&*device, &pool) {
                Err(error @ EngineError::Store(StoreError::Corrupt { .. })) => Some(error.to_string()),
                Ok(None) if mark.exported.generation != 0 => Some("export/owner is gone".to_owned()),
                _ => None,
            };
            if let Some(slots) = &kept
                && kept::kept(&*device, &pool, mark.exported.generation != 0)? == kept::Kept::Unknown
            {
                // Without a list, the next opening would also keep slots that a crash leaves until then.
                match kept::keep(&*device, &pool, slots) {
                    Err(error) if error.is_no_space() => {
                        tracing::warn!(%error, "no space to list the slots that are kept")
                    }
                    outcome => outcome?,
                }
            }
            let owner = Owner { lineage: mark.lineage, epoch: namespace.writer_epoch(), keeps: kept.is_some() };
            match owner.write(&*device, &pool) {
                // A recovery skips enough epochs to cover those that could not be noted.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note on the data root which meta root writes to it");
                }
                outcome => outcome?,
            }
            last_generation = highest_generation(&*device)?.max(mark.exported.generation);
            // After a recovery from a damaged export, the namespace rests on no export.
            if kept.is_some() && mark.exported.generation == 0 {
                match kept::set_aside(&*device) {
                    Err(error) if error.is_no_space() => {
                        tracing::warn!(%error, "no space to set a damaged export aside: it stays in its place, and there is no other");
                        is_to_set_aside = true;
                    }
                    outcome => outcome?,
                }
            }
            if is_to_set_aside {
                // Nothing may be appended or cut: the slots that it names stay.
                stale = Current::read(&*device, &pool).ok().flatten().map(|current| current.generation);
            } else {
                (live, damage) = find(&*device, &pool, &namespace)?;
            }
            damage = damage.or(of_owner);
        }
        if !is_enabled {
            // Only for reports.
            live = usable(&*device, &pool, &namespace, false).ok().flatten();
        }
        state.show(live.as_ref());
        // Exports at once, so that a pool is protected from its first second on.
        state.requested = is_enabled && live.is_none();
        let mirror = Mirror::new(device.clone(), slot_bytes);
        let reached = ReachedNote::default();
        let work = Work {
            live,
            mirror,
            reached,
            stale,
            failures: 0,
            failures_anew: 0,
            failed: None,
            last_generation,
            is_to_set_aside,
        };
        Ok(Arc::new(Self {
            device,
            pool,
            slot_bytes,
            fingerprinter,
            namespace,
            stores,
            is_enabled,
            building: Mutex::new(()),
            working: Mutex::new(work),
            state: Mutex::new(state),
            wake: Condvar::new(),
            give_up: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            locks,
            base_wanted: AtomicU64::new(0),
            verification_wanted: AtomicU64::new(0),
            found_at_open: Mutex::new(damage),
            kept: Mutex::new(kept),
        }))
    }
}

/// No pool reaches this generation: a file with a higher number is no export.
const GENERATION_MAX: u64 = 1 << 48;

/// Returns a number that is at least that of every base and log.
fn highest_generation(device: &dyn Device) -> Result<u64> {
    let number = |name: &str| name.strip_prefix("base-").or_else(|| name.strip_prefix("log-"))?.parse::<u64>().ok();
    let mut highest = 0;
    for directory in [files::DIRECTORY, kept::ASIDE] {
        if device.exists(directory)? {
            let entries = device.list(directory)?;
            highest = entries
                .iter()
                .filter_map(|entry| number(&entry.name))
                .filter(|number| *number <= GENERATION_MAX)
                .fold(highest, u64::max);
        }
    }
    Ok(highest)
}

/// Returns the commit whose state the export that counts gives, as far as it can be read; `None` if there is no export. `known` is the
/// namespace's knowledge of it: that part is not read again.
pub(super) fn exported_row(device: &dyn Device, pool: &PoolId, known: &Exported) -> Result<Option<u64>> {
    let found = Current::read(device, pool).and_then(|current| {
        let Some(current) = current else { return Ok(None) };
        let path = files::log_path(current.generation);
        let log = device.open(&path, OpenMode::Read)?;
        let is_known = known.generation == current.generation && log.len()? >= known.log_bytes;
        let start = if is_known {
            let Exported { log_bytes, group, row, time_secs, .. } = *known;
            Scanned { log_bytes, group, row, time_secs, rest: None }
        } else {
            Scanned::start(current.row)
        };
        Ok(Some(log::scan(&*log, &path, pool, current.generation, start)?.row))
    });
    match found {
        // Such an export cannot be used, and is made anew.
        Err(EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => Ok(None),
        found => found,
    }
}

/// Returns the export that counts, if it can be continued. Otherwise makes no export count, durably, and returns the damage, if that is
/// the reason.
fn find(device: &dyn Device, pool: &PoolId, namespace: &Namespace) -> Result<(Option<Live>, Option<String>)> {
    let mut damage = None;
    match usable(device, pool, namespace, true) {
        Ok(Some(live)) => match make_durable(device, &live, &namespace.export_mark().exported) {
            Ok(()) => return Ok((Some(live), None)),
            Err(error) => {
                tracing::error!(%error, "the end of the export cannot be made durable: it is made anew");
                damage = Some(error.to_string());
            }
        },
        Ok(None) if namespace.export_mark().exported.generation != 0 => {
            tracing::error!("the export on the data root is gone: it is made anew");
            damage = Some("export/current is gone".to_owned());
        }
        Ok(None) => {}
        Err(EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. }))) => {
            tracing::error!(%error, "the namespace's export cannot be gone on with: it is made anew");
            damage = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    if device.exists(files::DIRECTORY)? {
        Current::remove(device)?;
    }
    Ok((None, damage))
}

/// Whether a commit knew that this many bytes of a log are durable.
fn is_known(current: &Current, log_bytes: u64, known: &Exported) -> bool {
    current.generation == known.generation && log_bytes <= known.log_bytes
}

/// Syncs the part of an export that no commit knew to be durable: a process that was killed may have left it in memory only.
fn make_durable(device: &dyn Device, live: &Live, known: &Exported) -> Result<()> {
    if is_known(&live.current, live.log_bytes, known) || is_planted(Canary::FoundExportNotSynced) {
        return Ok(());
    }
    // A write that failed may have left a group without the zeros behind it.
    if live.log.len()? < live.log_bytes {
        live.log.set_len(live.log_bytes)?;
    }
    live.log.sync()?;
    Ok(device.sync_directory(files::DIRECTORY)?)
}

/// Returns the export, as far as it is whole. `is_continued`: it is read from the disk where no commit knew it to be durable. A sync that
/// failed under an earlier process has left bytes in memory that the disk does not have, and no later sync writes them.
fn usable(device: &dyn Device, pool: &PoolId, namespace: &Namespace, is_continued: bool) -> Result<Option<Live>> {
    let mark = namespace.export_mark();
    let Some(current) = Current::read(device, pool)? else { return Ok(None) };
    if mark.exported.generation == 0 && mark.trimmed_row > current.row {
        // The namespace knows nothing of this export: it may belong to another time.
        return Ok(None);
    }
    let path = files::log_path(current.generation);
    let log = device.open(&path, OpenMode::Write)?;
    if is_continued
        && !is_known(&current, log.len()?, &mark.exported)
        && !is_planted(Canary::FoundExportNotSynced)
        && !is_planted(Canary::FoundExportNotReread)
        && let Err(error) = log.reread()
    {
        return Err(StoreError::corrupt(path, "a log that can be synced", error).into());
    }
    // The part that the last commit knew to be durable need not be read. A log that a later switch made current is read whole.
    let start = if mark.exported.generation == current.generation {
        let Exported { log_bytes, group, row, time_secs, .. } = mark.exported;
        if log.len()? < log_bytes {
            return Err(StoreError::corrupt(path, format!("at least {log_bytes} bytes"), log.len()?).into());
        }
        Scanned { log_bytes, group, row, time_secs, rest: None }
    } else {
        Scanned::start(current.row)
    };
    let scanned = log::scan(&*log, &path, pool, current.generation, start)?;
    if !(mark.trimmed_row..=namespace.last_row()).contains(&scanned.row) {
        let expected = format!("a state of commit {} to {}", mark.trimmed_row, namespace.last_row());
        return Err(StoreError::corrupt(path, expected, scanned.row).into());
    }
    let Scanned { log_bytes, group, row, time_secs, .. } = scanned;
    Ok(Some(Live { current, log, log_bytes, group, row, time_secs, has_epoch: false }))
}
