//! Exports: everything that the meta root knows and cannot be made from containers, also on the data root.
//!
//! What is exported: inodes, names, attributes, container records (as *items* in a base and deltas of a log), and copies of the
//! recipe containers. Indexes follow from them. [`recover`] makes a new meta root from that and the data containers.
//!
//! 1. Each commit notes in its own transaction which keys it changed (`namespace/changes.rs`). So no crash loses one.
//! 2. An [`export`](Exporter::export) takes a snapshot of the last commit, copies what was recorded of recipe containers since
//!    ([`mirror`]), appends one group to the log with what the changed keys are now, and syncs both.
//! 3. When the log has outgrown its base, a new base is written beside it by a thread of its own, from one snapshot; then the
//!    first group of its log, with everything since; then `current` is replaced: the only switch.
//! 4. A later commit trims what a durable export has.
//!
//! Invariants: the export that counts is the state of one commit (I-1 and I-2 hold on the data root alone); **a slot is freed only
//! once the durable export names its container no more**, whoever removed it: until then the container is *leaving*, also across
//! crashes (a table of the namespace). Without any export slots are freed at once. An export for which there is no room, and
//! for which containers wait, is removed durably, so that a full disk can be reclaimed; the next one starts with a base.
//!
//! Lock order: `building` (one base at a time), `working` (held while a group is written), `state` (for moments). The
//! commit thread takes only `state`: no fsync waits for an export.
//!
//! Cost: see `docs/decisions/0015`.

mod anew;
mod base;
mod files;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod kept;
mod log;
mod mirror;
mod open;
mod reached;
mod recover;
mod verify;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, DeviceFile, OpenMode, PoolLock};
use dedupfs_store::{ContainerId, ContainerKind, PoolId, StoreError};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use self::files::Current;
use self::frames::Group;
use self::mirror::Mirror;
use self::reached::{Reached, ReachedNote};
use crate::config::{
    EXPORT_AT_ONCE_BYTES_MAX, EXPORT_FAILURES_MAX, EXPORT_INTERVAL, EXPORT_LOG_BYTES_MIN, EXPORT_SMALL_BYTES,
};
use crate::containers::ContainerStore;
use crate::error::{EngineError, Result};
use crate::namespace::{ContainerRecord, Exported, Namespace};

pub(crate) use files::check_owner;
pub(crate) use kept::{Kept, keep, kept};
pub use open::ExportParts;
pub use recover::{RecoverReport, Restored, fence, restore};
pub use verify::{CopyDepth, ExportCheck, Pace};
pub(crate) use watch::ExportWatch;

/// What a commit has to note of exports.
#[derive(Clone, Debug, Default)]
pub struct Position {
    /// What is durable.
    pub exported: Option<Exported>,
    /// Changes of commits up to this one are needed no more.
    pub trim_through: u64,
    /// Containers that have left.
    pub left: Vec<ContainerId>,
}

/// What there is of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportStats {
    /// Bytes of base and log.
    pub namespace_bytes: u64,
    /// Physical bytes of the copies of recipe containers.
    pub recipe_bytes: u64,
    /// The commit whose state it holds; 0 if there is none.
    pub row: u64,
    /// When it was written, in seconds since 1970; 0 if there is none.
    pub time_secs: u64,
    /// Bytes written since the mount.
    pub written_bytes: u64,
    /// When it was last found sound as a whole since the mount, in seconds since 1970; 0: not yet.
    #[serde(default)]
    pub verified_secs: u64,
}

/// The export that counts.
struct Live {
    current: Current,
    log: Arc<dyn DeviceFile>,
    /// The log up to here is durable.
    log_bytes: u64,
    /// Number of its last group.
    group: u32,
    /// The commit whose state it holds.
    row: u64,
    /// When it was written.
    time_secs: u64,
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

/// What exporting works on.
struct Work {
    live: Option<Live>,
    mirror: Mirror,
    /// An export of this generation counts on the disk, and is not gone on with: see [`anew`]. What it names stays.
    stale: Option<u64>,
    reached: ReachedNote,
    /// Failures in a row for lack of space.
    failures: u32,
    /// Failures in a row for another reason.
    failures_anew: u32,
    /// After it nothing is exported until the next mount (invariant I-7).
    failed: Option<EngineError>,
    /// The highest generation that was ever tried.
    last_generation: u64,
    /// There was no room to set the files of a damaged export aside: none of them may be removed or cut off before.
    is_to_set_aside: bool,
}

/// What the commit thread asks and tells.
#[derive(Default)]
struct State {
    exported: Exported,
    /// Bytes of base and log.
    export_bytes: u64,
    written_bytes: u64,
    verified_secs: u64,
    /// A base is being made of this commit's state: changes after it stay.
    building: Option<u64>,
    /// So many rest on the export as it is: changes behind commits from this row on stay, and what leaves.
    held: Option<(u32, u64)>,
    /// Removed by the commit with this row; an export may name them.
    leaving: Vec<(u64, ContainerRecord)>,
    left: Vec<ContainerId>,
    requested: bool,
    stopping: bool,
}

impl State {
    /// From here on this export counts.
    fn show(&mut self, live: Option<&Live>) {
        self.exported = live.map_or_else(Exported::default, Live::exported);
        self.export_bytes = live.map_or(0, |live| live.current.base_bytes + live.log_bytes);
    }
}

/// Keeps the export of one pool.
pub struct Exporter {
    device: Arc<dyn Device>,
    pool: PoolId,
    slot_bytes: u32,
    namespace: Arc<Namespace>,
    data: Arc<ContainerStore>,
    recipes: Arc<ContainerStore>,
    is_enabled: bool,
    building: Mutex<()>,
    working: Mutex<Work>,
    state: Mutex<State>,
    wake: Condvar,
    /// A base that is being written gives up, and so does a verification.
    give_up: AtomicBool,
    /// The pool may be another process's by now.
    is_ended: AtomicBool,
    locks: Weak<Vec<PoolLock>>,
    /// So many wait to write a base: a verification gives way.
    base_wanted: AtomicU64,
    /// So many wait to verify the export.
    verification_wanted: AtomicU64,
    /// Why the export that was there at opening could not be gone on with, if it was damaged.
    found_at_open: Mutex<Option<String>>,
    /// Slots of containers that a recovery could not name, if anything is kept.
    kept: Mutex<Option<Vec<SlotAddress>>>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Whether what is to be exported is damaged, and not what it is exported to.
pub(crate) fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(StoreError::Corrupt { .. }) | EngineError::Database(_))
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// See [`Exporter::hold`].
pub struct HeldExport<'a> {
    exporter: &'a Exporter,
    exported: Exported,
}

impl std::fmt::Debug for HeldExport<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldExport").field("row", &self.exported.row).finish_non_exhaustive()
    }
}

impl HeldExport<'_> {
    /// The commit that was exported then.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.exported.row
    }

    /// Whether another base took the place of the one that counted then.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.exporter.state.lock().exported.generation != self.exported.generation
    }

    /// Makes a view of the data root end where the export ended then: groups that are appended meanwhile may be there in part.
    ///
    /// # Errors
    /// The view cannot be changed. That there is no log is no error here.
    pub fn cut_view(&self, view: &dyn Device) -> Result<()> {
        if self.exported.generation == 0 {
            return Ok(());
        }
        match view.open(&files::log_path(self.exported.generation), OpenMode::Write) {
            Ok(log) if log.len()? > self.exported.log_bytes => log.set_len(self.exported.log_bytes)?,
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // It tells of what was appended since.
        ReachedNote::default().remove(view)
    }
}

impl Drop for HeldExport<'_> {
    fn drop(&mut self) {
        let mut state = self.exporter.state.lock();
        state.held = state.held.and_then(|(holders, row)| (holders > 1).then_some((holders - 1, row)));
    }
}

impl Exporter {
    /// What the next commit has to note. Who cannot commit gives [`left`](Position::left) back with
    /// [`not_left`](Self::not_left).
    #[must_use]
    pub fn position(&self) -> Position {
        if !self.is_enabled {
            return Position::default();
        }
        let mut state = self.state.lock();
        let durable = if state.exported.generation == 0 { u64::MAX } else { state.exported.row };
        Position {
            exported: Some(state.exported),
            trim_through: [state.building, state.held.map(|(_, row)| row)]
                .into_iter()
                .flatten()
                .fold(durable, u64::min),
            left: std::mem::take(&mut state.left),
        }
    }

    /// A commit that was to note this failed.
    pub fn not_left(&self, left: Vec<ContainerId>) {
        self.state.lock().left.extend(left);
    }

    /// These were removed by the commit `row`: their slots become free once no export names them.
    pub fn leave(&self, row: u64, containers: Vec<ContainerRecord>) {
        self.state.lock().leaving.extend(containers.into_iter().map(|record| (row, record)));
    }

    /// Exports soon.
    pub fn request(&self) {
        self.state.lock().requested = true;
        self.wake.notify_all();
    }

    /// Ends the thread; a base that it is writing is given up.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.give_up.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// The thread that exports on request and at intervals, and writes bases; `fail` is told what ends it.
    pub fn run(&self, fail: impl Fn(&EngineError)) {
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

    /// Brings the export up to the last commit and frees slots that it names no more. If there is no room for it, and
    /// containers wait to be freed, the export is removed instead.
    ///
    /// # Errors
    /// I/O errors other than lack of space; from then on nothing is exported, and nothing freed, until the next mount.
    pub fn export(&self) -> Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
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
            // What cannot be read now was exported when it could: that stays, and with it what it names.
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
        // Taken before the snapshot: what leaves later may be in it.
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

    /// Frees the first `waiting` that leave: no durable export names them.
    fn free(&self, work: &mut Work, waiting: usize) -> Result<()> {
        // What is stale counts on the disk, and names them.
        if waiting == 0 || work.stale.is_some() {
            return Ok(());
        }
        self.check_possession()?;
        let freed: Vec<ContainerRecord> = {
            let mut state = self.state.lock();
            let freed: Vec<_> = state.leaving.drain(..waiting).map(|(_, record)| record).collect();
            // Before any of their slots can be taken: so no commit has a new user of one and still says that it leaves.
            state.left.extend(freed.iter().map(|record| record.id));
            freed
        };
        let (recipes, data): (Vec<_>, Vec<_>) =
            freed.into_iter().partition(|record| record.kind == ContainerKind::Recipe);
        // So are copies that stay.
        if !recipes.is_empty()
            && let Err(error) = self.trim_mirror(work, &recipes)
        {
            tracing::warn!(%error, "copies of recipes that are gone keep their space");
        }
        for (store, records) in [(&self.recipes, &recipes), (&self.data, &data)] {
            // A slot that cannot be freed is only space, and is found at the next mount.
            if !records.is_empty()
                && let Err(error) = store.free(records)
            {
                tracing::warn!(%error, "a freed container's slot is not free yet");
            }
        }
        Ok(())
    }

    fn trim_mirror(&self, work: &mut Work, freed: &[ContainerRecord]) -> Result<()> {
        if work.is_to_set_aside {
            return Ok(());
        }
        for record in freed {
            work.mirror.free(record.address)?;
        }
        let leaving: Vec<ContainerRecord> = self.state.lock().leaving.iter().map(|(_, record)| *record).collect();
        let kept = self.recipes.containers();
        work.mirror.trim(kept.iter().chain(leaving.iter().filter(|record| record.kind == ContainerKind::Recipe)))
    }

    /// From here on no export counts, durably, and its space is given back. Without room even for that, the export is stale: for all
    /// that is known it counts.
    fn give_up_export(&self, work: &mut Work) -> Result<()> {
        self.check_possession()?;
        let removed = Current::remove(&*self.device).and_then(|()| work.reached.remove(&*self.device));
        work.stale = removed.is_err().then(|| work.counting().unwrap_or(work.last_generation));
        work.live = None;
        self.state.lock().show(None);
        match removed {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space to remove the export: what it names keeps its space, too");
                return Ok(());
            }
            removed => removed?,
        }
        self.remove_files(work, None);
        if !work.is_to_set_aside
            && let Err(error) = work.mirror.trim(std::iter::empty())
        {
            tracing::warn!(%error, "copies of recipes keep their space though no export counts");
        }
        Ok(())
    }

    /// Whether the pool is still this process's alone: asked before anything is written or freed.
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

    /// The pool may be another process's: from here on nothing is written or freed.
    pub fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Appends what has changed since the last export.
    fn append(&self, work: &mut Work) -> Result<()> {
        let Some(live) = &mut work.live else { return Ok(()) };
        self.check_possession()?;
        let source = self.namespace.export_source()?;
        let group = Group {
            generation: live.current.generation,
            number: live.group + 1,
            from_row: live.row,
            row: source.row(),
            time_secs: now_secs(),
        };
        let appended = log::append(self, &source, &mut work.mirror, &live.log, live.log_bytes, live.row, group)?;
        if let Some(appended) = appended {
            (live.log_bytes, live.group, live.row) = (appended.log_bytes, group.number, group.row);
            live.time_secs = group.time_secs;
            let reached = Reached::of(&live.exported(), source.inodes());
            work.reached.write(&*self.device, &self.pool, &reached);
            let mut state = self.state.lock();
            state.written_bytes += appended.written_bytes;
            state.show(Some(live));
        }
        Ok(())
    }

    /// Makes the note of how far the export has come durable, before the pool is closed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn settle_note(&self) -> Result<()> {
        if self.is_enabled { self.working.lock().reached.sync() } else { Ok(()) }
    }

    /// Writes a new base if the log has outgrown the one that counts, or there is none.
    fn write_base_if_due(&self) -> Result<()> {
        let is_due = self
            .working
            .lock()
            .live
            .as_ref()
            .is_none_or(|live| live.log_bytes > EXPORT_LOG_BYTES_MIN.max(live.current.base_bytes));
        if is_due { self.write_base(true) } else { Ok(()) }
    }

    /// Writes a new base if the export is larger than what there is: for who has removed much. What names and inodes of files that are
    /// gone take in the log would else be there until that is as long as the base, or 8 MiB: much of a small pool.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub fn shrink(&self) -> Result<()> {
        let inodes = u64::try_from(self.namespace.totals().inodes()).unwrap_or(0);
        let is_large = self.working.lock().live.as_ref().is_some_and(|live| {
            let (base_bytes, log_bytes) = (live.current.base_bytes, live.log_bytes);
            // Bytes of bases are a few times those of logs at most.
            log_bytes > EXPORT_SMALL_BYTES + base_bytes / 4
                || base_bytes + log_bytes > EXPORT_SMALL_BYTES + 256 * inodes
        });
        if self.is_enabled && is_large { self.write_base(false) } else { Ok(()) }
    }

    /// Writes a new base, whether one is due or not.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub fn rebase(&self) -> Result<()> {
        if self.is_enabled { self.write_base(false) } else { Ok(()) }
    }

    /// Work that takes long, bases and verifications, is given up from here on, or may be done again.
    pub fn hurry(&self, hurries: bool) {
        self.give_up.store(hurries, Ordering::Relaxed);
    }

    /// What the export as of now needs stays until this is dropped: slots that it names, and which keys changed since.
    #[must_use]
    pub fn hold(&self) -> HeldExport<'_> {
        // Nobody is about to free what the export named a moment ago.
        let _working = self.working.lock();
        let mut state = self.state.lock();
        let exported = state.exported;
        let (holders, first) = state.held.unwrap_or((0, exported.row));
        state.held = Some((holders + 1, first));
        HeldExport { exporter: self, exported }
    }

    /// Runs something while no export reads the namespace; a base that is being written is given up, and tried again later.
    pub fn while_quiet<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.give_up.swap(true, Ordering::Relaxed);
        let _no_base = self.building.lock();
        let _no_group = self.working.lock();
        self.give_up.store(before, Ordering::Relaxed);
        run()
    }

    /// Why the export that was there at opening could not be gone on with, if it was damaged: it is made anew.
    #[must_use]
    pub fn found_at_open(&self) -> Option<String> {
        self.found_at_open.lock().clone()
    }

    /// Figures.
    ///
    /// # Errors
    /// The device does not tell.
    pub fn stats(&self) -> Result<ExportStats> {
        let recipe_bytes = Mirror::allocated_bytes(&*self.device)?;
        let state = self.state.lock();
        let Exported { row, time_secs, .. } = state.exported;
        let (namespace_bytes, written_bytes) = (state.export_bytes, state.written_bytes);
        let verified_secs = state.verified_secs;
        Ok(ExportStats { namespace_bytes, recipe_bytes, row, time_secs, written_bytes, verified_secs })
    }
}
