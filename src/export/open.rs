//! Opening: which export counts, how far its log is whole, what still leaves.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, OpenMode, PoolLock};
use dedupfs_store::{ContainerKind, PoolId, StoreError};
use parking_lot::{Condvar, Mutex};

use super::files::{self, Current, Owner};
use super::kept;
use super::log::{self, Scanned};
use super::mirror::Mirror;
use super::reached::ReachedNote;
use super::{Exporter, Live, State, Work};
use crate::containers::ContainerStore;
use crate::error::{EngineError, Result};
use crate::namespace::{Exported, Namespace};

/// What an exporter works on.
pub struct ExportParts {
    /// Device of the data root.
    pub device: Arc<dyn Device>,
    /// Identity of the pool.
    pub pool: PoolId,
    /// Bytes of a container's slot.
    pub slot_bytes: u32,
    /// What is exported.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks.
    pub data: Arc<ContainerStore>,
    /// Containers of recipe nodes, which are copied.
    pub recipes: Arc<ContainerStore>,
    /// Slots of containers that a recovery could not name, if anything is kept; they are taken.
    pub kept: Option<Vec<SlotAddress>>,
    /// Whether anything may be written.
    pub is_enabled: bool,
    /// Locks of the pool, which are asked before anything is written.
    pub locks: Weak<Vec<PoolLock>>,
}

impl Exporter {
    /// Takes possession of the data root and finds what was exported. Before anything is written to either root.
    ///
    /// # Errors
    /// The data root cannot be read or written.
    pub fn open(parts: ExportParts) -> Result<Arc<Self>> {
        let ExportParts { device, pool, slot_bytes, namespace, data, recipes, kept, is_enabled, locks } = parts;
        let mut state = State::default();
        let row = namespace.last_row();
        for record in namespace.leaving_containers()? {
            let store = if record.kind == ContainerKind::Recipe { &recipes } else { &data };
            match store.keep(&record) {
                Ok(()) => state.leaving.push((row, record)),
                // An earlier release has used it again.
                Err(error) => {
                    tracing::warn!(container = %record.id, %error, "a removed container's slot is not kept");
                    state.left.push(record.id);
                }
            }
        }
        let (mut live, mut stale, mut last_generation, mut damage, mut is_to_set_aside) = (None, None, 0, None, false);
        if is_enabled {
            let mark = namespace.export_mark();
            // The owner is noted anew below: later nothing shows that it was bad.
            let of_owner = match Owner::read(&*device, &pool) {
                Err(error @ EngineError::Store(StoreError::Corrupt { .. })) => Some(error.to_string()),
                Ok(None) if mark.exported.generation != 0 => Some("export/owner is gone".to_owned()),
                _ => None,
            };
            if let Some(slots) = &kept
                && kept::kept(&*device, &pool)? == kept::Kept::Unknown
            {
                // Without a list the next opening would also keep what a crash leaves until then.
                match kept::keep(&*device, &pool, slots) {
                    Err(error) if error.is_no_space() => {
                        tracing::warn!(%error, "no space to list the slots that are kept")
                    }
                    outcome => outcome?,
                }
            }
            let owner = Owner { lineage: mark.lineage, epoch: namespace.writer_epoch(), keeps: kept.is_some() };
            match owner.write(&*device, &pool) {
                // Recovering leaves room for epochs that could not be noted.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note on the data root which meta root writes to it");
                }
                outcome => outcome?,
            }
            last_generation = highest_generation(&*device)?.max(mark.exported.generation);
            // A recovery from an export that was damaged rests on none.
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
                // Nothing may be appended to it, or cut off: what it names stays.
                stale = Current::read(&*device, &pool).ok().flatten().map(|current| current.generation);
            } else {
                (live, damage) = find(&*device, &pool, &namespace)?;
            }
            damage = damage.or(of_owner);
        }
        if !is_enabled {
            // To tell of it only.
            live = usable(&*device, &pool, &namespace).ok().flatten();
        }
        state.show(live.as_ref());
        // A pool is protected from its first second on.
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
            namespace,
            data,
            recipes,
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

/// No pool comes so far: whoever named a file so, it is no export.
const GENERATION_MAX: u64 = 1 << 48;

/// Files of this number or a lower one may be there.
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

/// The commit whose state the export gives that counts, as far as it can be read; `None` if there is none. `known` is what the
/// namespace knows of it: that need not be read.
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
        // It is no export then, and is made anew.
        Err(EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => Ok(None),
        found => found,
    }
}

/// The export that counts, if it can be gone on with; else none counts from here on, durably, and why, if that is damage.
fn find(device: &dyn Device, pool: &PoolId, namespace: &Namespace) -> Result<(Option<Live>, Option<String>)> {
    let mut damage = None;
    match usable(device, pool, namespace) {
        Ok(Some(live)) => return Ok((Some(live), None)),
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

fn usable(device: &dyn Device, pool: &PoolId, namespace: &Namespace) -> Result<Option<Live>> {
    let mark = namespace.export_mark();
    let Some(current) = Current::read(device, pool)? else { return Ok(None) };
    if mark.exported.generation == 0 && mark.trimmed_row > current.row {
        // Nothing is known of it: it may be of another time than the namespace.
        return Ok(None);
    }
    let path = files::log_path(current.generation);
    let log = device.open(&path, OpenMode::Write)?;
    // Up to what the last commit knew to be durable it need not be read; a log that was switched to since is read whole.
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
    Ok(Some(Live { current, log, log_bytes, group, row, time_secs }))
}
