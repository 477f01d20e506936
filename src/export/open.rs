//! Opening: which export counts, how far its log is whole, what still leaves.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::{ContainerKind, PoolId, StoreError};
use parking_lot::{Condvar, Mutex};

use super::files::{self, Current, Owner};
use super::log::{self, Scanned};
use super::mirror::Mirror;
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
    /// Whether anything may be written.
    pub is_enabled: bool,
}

impl Exporter {
    /// Takes possession of the data root and finds what was exported. Before anything is written to either root.
    ///
    /// # Errors
    /// The data root cannot be read or written.
    pub fn open(parts: ExportParts) -> Result<Arc<Self>> {
        let ExportParts { device, pool, slot_bytes, namespace, data, recipes, is_enabled } = parts;
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
        let (mut live, mut last_generation) = (None, 0);
        if is_enabled {
            let owner = Owner { lineage: namespace.export_mark().lineage, epoch: namespace.writer_epoch() };
            match owner.write(&*device, &pool) {
                // Recovering leaves room for epochs that could not be noted.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note on the data root which meta root writes to it");
                }
                outcome => outcome?,
            }
            live = find(&*device, &pool, &namespace)?;
            last_generation = highest_generation(&*device)?.max(namespace.export_mark().exported.generation);
        }
        if !is_enabled {
            // To tell of it only.
            live = usable(&*device, &pool, &namespace).ok().flatten();
        }
        state.show(live.as_ref());
        // A pool is protected from its first second on.
        state.requested = is_enabled && live.is_none();
        let mirror = Mirror::new(device.clone(), slot_bytes);
        let work = Work { live, mirror, failures: 0, failed: None, last_generation };
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
        }))
    }
}

/// Files of this number or a lower one may be there.
fn highest_generation(device: &dyn Device) -> Result<u64> {
    if !device.exists(files::DIRECTORY)? {
        return Ok(0);
    }
    let number = |name: &str| name.strip_prefix("base-").or_else(|| name.strip_prefix("log-"))?.parse::<u64>().ok();
    Ok(device.list(files::DIRECTORY)?.iter().filter_map(|entry| number(&entry.name)).max().unwrap_or(0))
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

/// The export that counts, if it can be gone on with; else none counts from here on, durably.
fn find(device: &dyn Device, pool: &PoolId, namespace: &Namespace) -> Result<Option<Live>> {
    match usable(device, pool, namespace) {
        Ok(Some(live)) => return Ok(Some(live)),
        Ok(None) => {}
        Err(EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. }))) => {
            tracing::warn!(%error, "the namespace's export cannot be gone on with: it is made anew");
        }
        Err(error) => return Err(error),
    }
    if device.exists(files::DIRECTORY)? {
        Current::remove(device)?;
    }
    Ok(None)
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
