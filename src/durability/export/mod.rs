//! Exports: copies on the data root of everything that the meta root knows and that cannot be rebuilt from containers.
//!
//! An export holds inodes, names, attributes and container records (as *items* in a base and in the deltas of a log), and copies of the
//! recipe containers. Indexes follow from them. [`recover`] makes a new meta root from an export and the data containers.
//!
//! 1. Each commit notes the keys that it changed in its own transaction (`src/namespace/changes.rs`), so no crash loses one.
//! 2. [`export`](Exporter::export) takes a snapshot of the last commit, copies the recipe containers recorded since ([`mirror`]),
//!    appends one group with the current records of the changed keys to the log, and syncs both.
//! 3. When the log has outgrown its base, a separate thread writes a new base beside it from one snapshot; then the first group of its
//!    log, with all later changes; then it replaces `current`: the only switch.
//! 4. A later commit trims the changes that a durable export has.
//!
//! Invariants: the export that counts is the state of one commit (I-1 and I-2 hold on the data root alone). **A slot is freed only once
//! the durable export no longer names its container**, for every way of removal. Until then the container is *leaving*, also across
//! crashes (a table of the namespace). Without any export, slots are freed at once. If an export does not fit and containers wait for
//! it, the export is durably removed, so that a full disk can be reclaimed; the next export starts with a base.
//!
//! Lock order: `building` (one base at a time), `working` (held while a group is written), `state` (held briefly). The commit thread
//! takes only `state`: no fsync waits for an export.
//!
//! Cost: see `docs/decisions/0015`.

mod anew;
mod base;
#[cfg(test)]
mod damaged_tests;
mod elsewhere;
mod files;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod held;
mod kept;
mod leaving;
mod log;
mod mirror;
mod open;
mod reached;
mod recover;
mod verify;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Fingerprinter, Stores, WholeContainer};
use dedupfs_namespace::{Exported, Namespace};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, DeviceFile, PoolLock};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerRecord, PoolId, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::{Condvar, Mutex, thread};
use serde::{Deserialize, Serialize};

use self::files::Current;
use self::frames::Group;
use self::log::News;
use self::mirror::Mirror;
use self::reached::{Reached, ReachedNote};
use crate::config::{
    EXPORT_AT_ONCE_BYTES_MAX, EXPORT_FAILURES_MAX, EXPORT_INTERVAL, EXPORT_LOG_BYTES_MIN, EXPORT_SMALL_BYTES,
};

pub use elsewhere::{DATA_ROOT_DIRECTORIES, ExportFiles, ExportPosition, make_count, slot_path};
pub(crate) use files::{check_owner, check_pool};
pub(crate) use held::HeldExport;
pub(crate) use kept::{Kept, keep, kept};
pub use mirror::DIRECTORY as RECIPES_OF_DATA_ROOT;
pub(crate) use open::ExportParts;
pub use recover::{RECIPES as RECIPES_OF_META_ROOT, RestoreReport};
pub(crate) use recover::{fence, restore};
pub(crate) use verify::CopyDepth;
pub use verify::ExportCheck;

/// Figures about an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ExportStats {
    /// Bytes of base and log.
    pub namespace_bytes: u64,
    /// Physical bytes of the copies of recipe containers.
    pub recipe_bytes: u64,
    /// The commit whose state it holds; 0 if there is no export.
    pub row: u64,
    /// When it was written, in seconds since 1970; 0 if there is no export.
    pub time_secs: u64,
    /// Bytes written since the mount.
    pub written_bytes: u64,
    /// When a verification last found all of it sound since the mount, in seconds since 1970; 0 if none has yet.
    #[serde(default)]
    pub verified_secs: u64,
}

/// The export that counts.
struct Live {
    current: Current,
    log: Arc<dyn DeviceFile>,
    /// End of the durable part of the log.
    log_bytes: u64,
    /// Number of the last group.
    group: u32,
    /// The commit whose state it holds.
    row: u64,
    /// When it was written.
    time_secs: u64,
    /// Whether its header has the writer epoch of this opening: all content of earlier epochs that it does not name is garbage.
    has_epoch: bool,
}

impl Live {
    fn exported(&self) -> Exported {
        Exported {
            generation: self.current.generation,
            log_bytes: self.log_bytes,
            group: self.group,
            row: self.row,
            time_secs: self.time_secs,
        }
    }
}

/// The working state of exporting.
struct Work {
    live: Option<Live>,
    mirror: Mirror,
    /// Generation of an export that counts on the disk but cannot be continued; see [`anew`]. The slots that it names stay.
    stale: Option<u64>,
    reached: ReachedNote,
    /// Consecutive failures for lack of space.
    failures: u32,
    /// Consecutive failures for other reasons.
    failures_anew: u32,
    /// The error after which nothing is exported until the next mount (invariant I-7).
    failed: Option<EngineError>,
    /// The highest generation that was ever tried.
    last_generation: u64,
    /// Moving a damaged export aside failed for lack of room. Until it succeeds, none of its files may be removed or cut.
    is_to_set_aside: bool,
}

/// The state shared with the commit thread.
#[derive(Default)]
struct ExportState {
    exported: Exported,
    /// Bytes of base and log.
    export_bytes: u64,
    written_bytes: u64,
    verified_secs: u64,
    /// A base of this commit's state is being written: later changes are kept.
    building: Option<u64>,
    /// The number of holders of the export, and the row it had at the first hold: later changes and leaving containers are kept.
    held: Option<(u32, u64)>,
    /// Containers removed by the commit with this row; an export may still name them.
    leaving: Vec<(u64, ContainerRecord)>,
    left: Vec<ContainerId>,
    requested: bool,
    stopping: bool,
}

impl ExportState {
    /// Publishes the figures of the export that counts from now on.
    fn show(&mut self, live: Option<&Live>) {
        self.exported = live.map_or_else(Exported::default, Live::exported);
        self.export_bytes = live.map_or(0, |live| live.current.base_bytes + live.log_bytes);
    }
}

/// Writes and maintains the export of one pool.
pub struct Exporter {
    device: Arc<dyn Device>,
    pool: PoolId,
    slot_bytes: u32,
    fingerprinter: Fingerprinter,
    namespace: Arc<Namespace>,
    stores: Stores,
    is_enabled: bool,
    building: Mutex<()>,
    working: Mutex<Work>,
    state: Mutex<ExportState>,
    wake: Condvar,
    /// Asks the writing of a base or a verification to give up.
    give_up: AtomicBool,
    /// Another process may own the pool by now.
    is_ended: AtomicBool,
    locks: Weak<Vec<PoolLock>>,
    /// The number of threads waiting to write a base: a verification yields to them.
    base_wanted: AtomicU64,
    /// The number of threads waiting to verify the export.
    verification_wanted: AtomicU64,
    /// Damage that kept the export found at opening from being continued.
    found_at_open: Mutex<Option<String>>,
    /// Slots of containers that a recovery could not name, if anything is kept.
    kept: Mutex<Option<Vec<SlotAddress>>>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Whether the error means damage of the exported data, and not of its target.
pub(crate) fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(StoreError::Corrupt { .. }) | EngineError::Database(_))
}

fn now_secs() -> u64 {
    dedupfs_sync::clock::since_epoch().as_secs()
}

impl Exporter {
    /// Reads the copy of a recipe container on the data root; see [`mirror::read`].
    pub(crate) fn read_copy(&self, record: &ContainerRecord, into: &mut WholeContainer) -> bool {
        mirror::read(&*self.device, self.slot_bytes, record, into)
    }

    /// Asks for an export soon.
    pub(crate) fn request(&self) {
        self.state.lock().requested = true;
        self.wake.notify_all();
    }

    /// Ends the thread; a base under way is given up.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.give_up.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// Runs the thread that exports on request and at intervals, and writes bases. `fail` receives the error that ends it.
    pub(crate) fn run(&self, fail: impl Fn(&EngineError)) {
        if !self.is_enabled {
            return;
        }
        loop {
            {
                let mut state = self.state.lock();
                if !state.requested && !state.stopping {
                    self.wake.wait_for(&mut state, EXPORT_INTERVAL);
                }
                if state.stopping {
                    return;
                }
                state.requested = false;
            }
            let run = || self.export().and_then(|()| self.write_base_if_due());
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
                .unwrap_or(Err(EngineError::Internal("the export thread panicked")));
            match outcome {
                Ok(()) => {}
                Err(error) if is_damage(&error) => tracing::error!(%error, "the namespace is exported no more"),
                Err(error) if error.is_no_space() => tracing::warn!(%error, "no space to export the namespace"),
                Err(error) => return fail(&error),
            }
        }
    }

    /// Brings the export up to the last commit, and frees the slots that it no longer names. If there is no room and containers wait to
    /// be freed, removes the export instead.
    ///
    /// # Errors
    /// I/O errors other than lack of space. After one, nothing is exported and nothing freed until the next mount.
    pub(crate) fn export(&self) -> Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
        let _timed = profile::of(Component::Exporting);
        let is_small = || Ok::<_, EngineError>(self.namespace.file_bytes()? <= EXPORT_AT_ONCE_BYTES_MAX);
        if self.working.lock().live.is_none() && is_small()? {
            self.write_base(false)?;
        }
        let mut work = self.working.lock();
        if let Some(failed) = &work.failed {
            return Err(failed.clone());
        }
        let outcome = self.export_into(&mut work);
        match self.conclude(&mut work, outcome) {
            // The unreadable records were exported while they could be read: that export stays, with the slots that it names.
            Err(error) if is_damage(&error) && self.state.lock().leaving.is_empty() => {
                tracing::error!(%error, "the namespace cannot be exported any more: the last export is kept as it is");
                Ok(())
            }
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space to export the namespace to the data root; it is tried again");
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn export_into(&self, work: &mut Work) -> Result<()> {
        // Taken before the snapshot, which may still name containers that leave later.
        let waiting = {
            let state = self.state.lock();
            if state.held.is_some() { 0 } else { state.leaving.len() }
        };
        match self.append(work) {
            Ok(()) if work.live.is_some() => (work.failures, work.failures_anew) = (0, 0),
            Ok(()) => {}
            Err(error) if error.is_no_space() => {
                work.failures += 1;
                if waiting == 0 && work.failures < EXPORT_FAILURES_MAX {
                    tracing::warn!(%error, "no space to export the namespace to the data root; it is tried again");
                    return Ok(());
                }
                tracing::warn!(
                    "no space to export the namespace to the data root: until there is, a lost meta root cannot be recovered"
                );
                self.give_up_export(work)?;
            }
            Err(error) => return Err(error),
        }
        self.free(work, waiting)
    }

    /// Durably removes the export and frees its space. If there is no room even for that, the export is stale: it must be assumed to
    /// count.
    fn give_up_export(&self, work: &mut Work) -> Result<()> {
        self.check_possession()?;
        let removed = Current::remove(&*self.device).and_then(|()| work.reached.remove(&*self.device));
        work.stale = removed.is_err().then(|| work.counting().unwrap_or(work.last_generation));
        work.live = None;
        self.state.lock().show(None);
        match removed {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space to remove the export: the containers that it names keep their space, too");
                return Ok(());
            }
            removed => removed?,
        }
        self.remove_files(work, None);
        // Somebody reads the copies of a held export: the next one trims them.
        let is_held = self.state.lock().held.is_some();
        if !work.is_to_set_aside
            && !is_held
            && let Err(error) = work.mirror.trim(std::iter::empty())
        {
            tracing::warn!(%error, "copies of recipes keep their space though no export counts");
        }
        Ok(())
    }

    /// Checks that this process still owns the pool: before every write and every freeing.
    fn check_possession(&self) -> Result<()> {
        let lost = || StoreError::LockLost { path: self.device.describe() };
        if self.is_ended.load(Ordering::Relaxed) {
            return Err(lost().into());
        }
        let locks = self.locks.upgrade();
        let checked = locks.iter().flat_map(|locks| locks.iter()).try_for_each(PoolLock::check);
        if matches!(checked, Err(StoreError::LockLost { .. })) {
            self.is_ended.store(true, Ordering::Relaxed);
        }
        Ok(checked?)
    }

    /// Stops all writing and freeing, because another process may own the pool by now.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Appends the changes since the last export.
    fn append(&self, work: &mut Work) -> Result<()> {
        let Some(live) = &mut work.live else { return Ok(()) };
        thread::linger(Step::Export);
        self.check_possession()?;
        let source = self.namespace.export_source()?;
        let group = Group {
            generation: live.current.generation,
            number: live.group + 1,
            from_row: live.row,
            row: source.row(),
            time_secs: now_secs(),
        };
        let news =
            News { after_row: live.row, is_header_new: !live.has_epoch && !is_planted(Canary::EpochNotExported) };
        let appended = log::append(self, &source, &mut work.mirror, &live.log, live.log_bytes, &news, group)?;
        if let Some(appended) = appended {
            let is_first = !live.has_epoch;
            live.has_epoch = true;
            (live.log_bytes, live.group, live.row) = (appended.log_bytes, group.number, group.row);
            live.time_secs = group.time_secs;
            let reached = Reached::of(&live.exported(), source.inodes());
            work.reached.write(&*self.device, &self.pool, &reached);
            let mut state = self.state.lock();
            state.written_bytes += appended.written_bytes;
            state.show(Some(live));
            drop(state);
            // An export that a crash cut short may have left copies that nothing names.
            if is_first
                && self.kept.lock().is_none()
                && let Err(error) = self.trim_mirror(work, &[])
            {
                tracing::warn!(%error, "copies of recipes that nothing names keep their space");
            }
        }
        Ok(())
    }

    /// Makes the note of the export's progress durable, before the pool closes.
    pub(crate) fn sync_note(&self) -> Result<()> {
        if self.is_enabled { self.working.lock().reached.sync() } else { Ok(()) }
    }

    /// Writes a new base if there is none, or if the log has outgrown it.
    fn write_base_if_due(&self) -> Result<()> {
        let is_due = self
            .working
            .lock()
            .live
            .as_ref()
            .is_none_or(|live| live.log_bytes > EXPORT_LOG_BYTES_MIN.max(live.current.base_bytes));
        if is_due { self.write_base(true) } else { Ok(()) }
    }

    /// Writes a new base if the export is much larger than the namespace, after large removals. Otherwise names and inodes of removed
    /// files would stay in the log until it is as long as the base, or 8 MiB: much of a small pool.
    pub(crate) fn shrink(&self) -> Result<()> {
        let inodes = u64::try_from(self.namespace.totals().inodes()).unwrap_or(0);
        let is_large = self.working.lock().live.as_ref().is_some_and(|live| {
            let (base_bytes, log_bytes) = (live.current.base_bytes, live.log_bytes);
            // A base has at most a few times the bytes of a log with the same records.
            log_bytes > EXPORT_SMALL_BYTES + base_bytes / 4
                || base_bytes + log_bytes > EXPORT_SMALL_BYTES + 256 * inodes
        });
        if self.is_enabled && is_large { self.write_base(false) } else { Ok(()) }
    }

    /// Writes a new base, due or not.
    #[cfg(test)]
    pub(crate) fn rebase(&self) -> Result<()> {
        if self.is_enabled { self.write_base(false) } else { Ok(()) }
    }

    /// Makes long work (bases and verifications) give up from now on; `false` allows it again.
    pub(crate) fn hurry(&self, hurries: bool) {
        self.give_up.store(hurries, Ordering::Relaxed);
    }

    /// Returns the damage that kept the export found at opening from being continued. That export is made anew.
    pub(crate) fn found_at_open(&self) -> Option<String> {
        self.found_at_open.lock().clone()
    }

    /// Returns figures about the export.
    pub(crate) fn stats(&self) -> Result<ExportStats> {
        let recipe_bytes = Mirror::allocated_bytes(&*self.device)?;
        let state = self.state.lock();
        let Exported { row, time_secs, .. } = state.exported;
        let (namespace_bytes, written_bytes) = (state.export_bytes, state.written_bytes);
        let verified_secs = state.verified_secs;
        Ok(ExportStats { namespace_bytes, recipe_bytes, row, time_secs, written_bytes, verified_secs })
    }
}
