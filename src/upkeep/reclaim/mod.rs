//! Reclaiming space: MAD2 section 3.5's counting fingerprints and dedupv1 section 3.7's collection, with claims.
//!
//! 0. Containers that are wholly dead already are freed first, so that even a short run gives space back.
//! 1. **Nodes** ([`nodes`]): recipe nodes without references are claimed, rechecked and freed. That lowers the counts
//!    of their children, which may free further nodes, until none is left. Only a backup's own nodes are touched: the
//!    nodes it shares with others cost nothing here.
//! 2. **Plan** ([`victims`]): the index knows the live bytes of each container (the garbage map). The emptiest
//!    containers are chosen until no more garbage is left than may stay. `--dry-run` shows the plan ([`plan`]).
//!    Besides these, containers are chosen in which restores of the newest versions read much in vain ([`arrange`]).
//! 3. **Containers** ([`containers`], [`batch`]): victims are claimed. When all writers that might have seen them have
//!    moved on, their live chunks are copied forward in the order in which the newest recipes use them ([`order`]), and
//!    their dead chunks are removed from the index. Recipe nodes get present hints when they move ([`hints`]).
//! 4. **Freeing** ([`freeing`]): when all of that is committed and in a checkpoint, the containers are forgotten and
//!    their slots freed (I-4).
//!
//! After every batch the run can be stopped, paused or cut off ([`pace`], [`control`]). It then leaves one or two
//! copies, and the index names exactly one. The other is garbage that the garbage map shows, and the next run begins
//! with it. So an interrupted run needs no repair.
//!
//! Cost: one read of a freed node. For each emptied container, one read and one write of its live chunks, and a read of
//! its table; for a dead one its table only. For each tanker concerned, one read of its buckets and one write. For
//! each level of recipes the counts of the recipe index, and its buckets with nodes to free. Memory: [`RunMemory`].

mod arrange;
mod batch;
mod containers;
mod control;
mod credit;
mod forwarding;
mod freeing;
mod hints;
mod history;
mod newest;
mod nodes;
mod options;
mod order;
mod pace;
mod plan;
mod report;
mod victims;

use std::collections::HashSet;
use std::time::Duration;

use dedupfs_index::NewLists;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerKind};
use dedupfs_sync::clock::Instant;

pub(crate) use self::arrange::has_new_versions;
pub use self::control::{ReclaimControl, ReclaimStatus, RunStatus};
pub use self::credit::{Credit, FILE_NAME as CREDIT_FILE};
pub use self::forwarding::{FILE_NAME as FORWARDING_FILE, ForwardingNotes};
pub use self::history::{FILE_NAME as HISTORY_FILE, LastRun};
pub use self::options::{Arranging, ReclaimOptions};
pub use self::report::{ReclaimReport, Stopped};
// For the benchmark `gc_scale`.
pub use self::victims::{Candidate, Choice, Classes, Sum};

use self::arrange::{Crediting, Usage};
use self::control::Tracked;
use self::freeing::Emptied;
use self::pace::Pace;
use crate::config::RECLAIM_WAITING_BYTES;
use crate::engine::Core;
use crate::progress::Progress;
use dedupfs_base::{EngineError, Result};

/// Interval at which a run records its progress durably.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// Memory of a run besides `--memory`, bounded by a share of that. Some 7 MiB are fixed (a window of victims, classes,
/// claimed nodes), and each closed container takes 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunMemory {
    /// Chunks looked up and ordered at a time, some 150 bytes each.
    pub group_chunks: u64,
    /// Uncompressed bytes that are read before they are written.
    pub batch_bytes: u64,
    /// Nodes of the newest versions that are walked, some 20 bytes each; never while a batch has its bytes.
    pub walked_nodes: u64,
}

impl RunMemory {
    /// Sizes for a pool with this `--memory`: about a sixteenth for each; nodes are walked while a batch has nothing.
    pub(crate) const fn new(memory_bytes: u64) -> Self {
        let (group, batch) = (memory_bytes / 16 / 150, memory_bytes / 16);
        Self {
            group_chunks: if group > 1 << 20 { 1 << 20 } else { group },
            batch_bytes: if batch > 64 << 20 { 64 << 20 } else { batch },
            walked_nodes: memory_bytes / 16 / 20,
        }
    }
}

struct Run<'a> {
    core: &'a Core,
    options: &'a ReclaimOptions,
    control: &'a ReclaimControl,
    pace: &'a Pace<'a>,
    progress: &'a dyn Progress,
    memory: RunMemory,
    report: ReclaimReport,
    /// Bytes of emptied containers that wait at most before they are freed together.
    free_bytes: u64,
    /// Time since which an emptied container waits to be freed.
    waiting_since: Instant,
    /// Duration of the last checkpoint.
    checkpoint_took: Duration,
    /// Number of kinds (chunks, nodes) for which victims were chosen.
    kinds_planned: usize,
    /// Containers that are emptied and not freed yet.
    emptied: Vec<Emptied>,
    /// Containers that could not be emptied: they are not tried again.
    kept: HashSet<ContainerId>,
    /// The newest versions, and what they use in each container: nothing if no version is new.
    usage: Usage,
    /// What arranging may still move, once that is known.
    credit: Option<Crediting>,
    /// Bytes of chunks that were copied because the newest versions use them.
    copied_active_bytes: u64,
    /// Highest number of a closed data container, or of any container that this run wrote.
    last_container: ContainerId,
    last: LastRun,
    noted_at: Option<Instant>,
    /// Bytes that progress has not reported yet: less than a MiB.
    untold_bytes: u64,
}

/// Reclaims, or plans.
///
/// # Errors
/// I/O errors, and damage that concerns more than one container. Completed work stays done and valid.
pub(crate) fn reclaim(
    core: &Core,
    options: &ReclaimOptions,
    control: &ReclaimControl,
    progress: &dyn Progress,
) -> Result<ReclaimReport> {
    let _begun = control.begin(options.is_background);
    let _timed = profile::of(Component::Reclaiming);
    let tracked = Tracked { control, listener: progress };
    // On a full disk yielding helps nobody: use the full share. A plan only reads recipes, for whoever waits for it.
    let share_percent = if core.space.is_tight() || options.dry_run { 100 } else { options.share_percent };
    let pace = Pace::new(ReclaimOptions { share_percent, ..*options }, control, progress, &core.activity);
    core.committer.settle()?;
    core.committer.check_counts()?;
    let mut run = Run {
        core,
        options,
        control,
        pace: &pace,
        progress: &tracked,
        memory: RunMemory::new(core.memory_at_opening.total_bytes),
        report: ReclaimReport {
            dry_run: options.dry_run,
            physical_before_bytes: core.physical_bytes()?,
            spared_open: options.is_background && pace.clients_are_active(),
            ..ReclaimReport::default()
        },
        free_bytes: (core.stores.data.physical_bytes()? / 32)
            .clamp(*RECLAIM_WAITING_BYTES.start(), *RECLAIM_WAITING_BYTES.end()),
        waiting_since: Instant::now(),
        checkpoint_took: Duration::ZERO,
        kinds_planned: 0,
        emptied: Vec::new(),
        kept: HashSet::new(),
        usage: Usage::default(),
        credit: None,
        copied_active_bytes: 0,
        last_container: ContainerId::NONE,
        last: LastRun { started_secs: now_secs(), ..LastRun::default() },
        noted_at: None,
        untold_bytes: 0,
    };
    // If the pool's garbage map was never written, it is computed once, from the cells.
    let lists = if options.dry_run || core.is_read_only() { NewLists::InMemory } else { NewLists::Written };
    for index in [&core.indexes.chunks, &core.indexes.nodes] {
        let mut go_on = || pace.between_steps().is_none();
        if !index.complete_occupancy(lists, &mut go_on)? {
            run.report.stopped = pace.stopped();
            return Ok(run.report);
        }
    }
    if options.dry_run {
        run.plan()?;
        run.report.stopped = pace.stopped();
        return Ok(run.report);
    }
    let outcome = run.execute();
    // A writer must not undo a logged removal by finding the chunk before the removal is counted. So after a failure
    // the claims stay until the whole log is counted, if need be until the next mount.
    if outcome.is_ok() || core.committer.settle().is_ok() {
        core.dedup.release_nodes();
        core.dedup.release_containers();
    }
    run.report.stopped = match outcome {
        // Closing the pool ends a run; the next run repeats the work that was not durable.
        Err(EngineError::ReadOnly(_)) if core.gate.is_closing() => Some(Stopped::Unmounted),
        outcome => outcome?,
    };
    run.complete_totals();
    run.report.physical_after_bytes = core.physical_bytes()?;
    run.report.elapsed_ms = millis(pace.elapsed());
    run.report.waited_ms = millis(pace.waited());
    run.last.ended_secs = now_secs();
    run.last.is_complete = run.report.stopped.is_none();
    run.last.freed_bytes = run.report.physical_before_bytes.saturating_sub(run.report.physical_after_bytes);
    if run.report.chunks_moved + run.report.containers_freed > 0 && !core.space.is_tight() {
        ForwardingNotes::keep(&core.stores, &*core.meta_device, &core.pool);
    }
    run.keep_credit();
    // Closing the pool waits for this too. A run without work needs no record.
    if run.report.has_done_anything() || run.report.stopped.is_some() {
        run.note(true);
    }
    Ok(run.report)
}

/// Visits the containers of a kind among which a run chooses.
type Candidates<'a> = dyn Fn(&Run<'_>, &mut dyn FnMut(Candidate)) + 'a;

impl Run<'_> {
    fn execute(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        let mut stopped = match self.empty() {
            Ok(stopped) => stopped,
            Err(error) => {
                // Freeing the emptied containers costs nothing more, and may make the missing room.
                if core.committer.failure().is_none()
                    && let Err(error) = self.free_emptied(true)
                {
                    tracing::warn!(%error, "cannot free the emptied containers; the next run frees them");
                }
                return Err(error);
            }
        };
        if stopped == Some(Stopped::Unmounted) {
            // Closing the pool makes a checkpoint; the next run frees the emptied containers.
            return Ok(stopped);
        }
        if self.options.is_background && !self.report.has_done_anything() && self.emptied.is_empty() {
            return Ok(stopped);
        }
        self.free_emptied(true)?;
        core.committer.checkpoint()?;
        // This round trims the log rows that the checkpoint made superfluous.
        core.committer.settle()?;
        core.committer.export()?;
        if !self.control.is_stopped() {
            core.exporter.shrink()?;
        }
        // Removes the slots that the export no longer needs.
        core.committer.settle()?;
        // Everything is freed by now; a failure to compact the namespace does not make the run a failure.
        if self.control.is_stopped() {
            stopped = stopped.or(self.pace.stopped());
        } else if let Err(error) = core.exporter.while_quiet(|| self.compact_namespace()) {
            tracing::warn!(%error, "cannot compact the namespace; the next run tries again");
        }
        Ok(stopped)
    }

    /// Commits and reads of names that are in no cache wait for it.
    fn compact_namespace(&self) -> Result<bool> {
        let namespace = &self.core.namespace;
        match self.options.without_clients || namespace.is_compacted_quickly() {
            true => namespace.compact(),
            false => {
                tracing::info!(
                    "the namespace is large: `dedupfs-gc` on the unmounted pool makes its file as small as possible"
                );
                Ok(false)
            }
        }
    }

    /// Frees nodes, then empties containers. Returns the reason if it ended early.
    fn empty(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        if self.options.arranging == Arranging::Alone && !self.has_room_to_arrange()? {
            return Ok(None);
        }
        core.indexes.gather_lost(&mut || !self.control.is_stopped());
        if self.options.arranging != Arranging::Alone {
            self.progress.start("freeing dead containers", 0);
            for kind in [ContainerKind::Data, ContainerKind::Recipe] {
                if let Some(stopped) = self.empty_dead(kind)? {
                    return Ok(Some(stopped));
                }
            }
            if let Some(stopped) = self.free_nodes()? {
                return Ok(Some(stopped));
            }
            self.forget_lost_chunks()?;
        }
        if !self.report.spared_open {
            core.stores.data.seal_all();
            core.stores.recipes.seal_all();
            core.committer.settle()?;
        }
        self.note_losses()?;
        self.usage = self.usage_of_newest()?;
        for kind in [ContainerKind::Data, ContainerKind::Recipe] {
            if let Some(stopped) = self.empty_containers(kind)? {
                return Ok(Some(stopped));
            }
        }
        Ok(None)
    }

    fn read(&mut self, bytes: u64) {
        self.report.read_bytes += bytes;
        self.pace.spend(bytes);
    }

    fn written(&mut self, bytes: u64) {
        self.report.written_bytes += bytes;
        self.pace.spend(bytes);
    }

    fn advance(&mut self, bytes: u64) {
        self.untold_bytes += bytes;
        self.progress.advance(self.untold_bytes >> 20);
        self.untold_bytes &= (1 << 20) - 1;
    }

    /// Updates the status; updates the record on disk at intervals, or now with `at_once`.
    fn note(&mut self, at_once: bool) {
        self.control.note(&self.report);
        if !at_once && self.noted_at.is_some_and(|at| at.elapsed() < NOTE_INTERVAL) {
            return;
        }
        self.noted_at = Some(Instant::now());
        self.last.worked_ms = millis(self.pace.elapsed().saturating_sub(self.pace.waited()));
        self.last.io_bytes = self.pace.io_bytes();
        self.last.moved_bytes = self.report.moved_bytes;
        self.last.containers_freed = self.report.containers_freed;
        self.last.nodes_freed = self.report.nodes_freed;
        self.last.expected_bytes = self.report.expected_bytes;
        // Nothing depends on the record.
        if let Err(error) = self.last.write(&*self.core.meta_device, &self.core.pool) {
            tracing::warn!(%error, "cannot write the record of this reclaiming");
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn now_secs() -> u64 {
    dedupfs_sync::clock::since_epoch().as_secs()
}
