//! Reclaiming space: MAD2 section 3.5's counting fingerprints and dedupv1 section 3.7's collection, with claims.
//!
//! 0. Containers that are dead as a whole already are freed: a run that does not last gives something back.
//! 1. **Nodes** ([`nodes`]): recipe nodes that nothing refers to are claimed, rechecked and freed; that lowers the counts of
//!    their children, which may free further nodes, until none is left. What a backup shares with others costs
//!    nothing here: only its own nodes are touched.
//! 2. **Plan** ([`victims`]): the index knows what is alive in each container (the garbage map); the emptiest are chosen, until no
//!    more garbage is left than may stay. `--dry-run` shows it ([`plan`]).
//! 3. **Containers** ([`containers`], [`batch`]): claimed; after all writers that might have seen them have gone on, what is alive is
//!    copied forward in the order in which the newest recipes use it ([`order`]), what is dead removed from the index.
//! 4. **Freeing** ([`freeing`]): when all of that is committed and checkpointed, the containers are forgotten and their slots freed
//!    (I-4).
//!
//! Every batch is a step after which the run can be stopped, paused or cut off ([`pace`], [`control`]): it leaves both copies or
//! one, and the index names exactly one; the other is garbage that the garbage map shows, and the next run begins with it. So a run
//! that was interrupted needs nothing to go on.
//!
//! Cost: one read of a freed node; for each container emptied one read and one write of what is alive, and its table of contents; for
//! one that is dead its table only; for each tanker concerned one read of its buckets and one write. One scan of the index of nodes
//! for each level of recipes. Memory: [`RunMemory`].

mod batch;
mod containers;
mod control;
mod freeing;
mod history;
mod nodes;
mod options;
mod order;
mod pace;
mod plan;
mod report;
mod victims;

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dedupfs_store::ContainerId;

pub use self::control::{ReclaimControl, ReclaimStatus, RunStatus};
pub use self::history::{FILE_NAME as HISTORY_FILE, LastRun};
pub use self::options::ReclaimOptions;
pub use self::report::{ReclaimReport, Stopped};
pub use self::victims::{Candidate, Choice, Classes, Sum};

use self::control::Tracked;
use self::freeing::Emptied;
use self::pace::Pace;
use crate::config::RECLAIM_WAITING_BYTES;
use crate::error::{EngineError, Result};
use crate::pool::{Core, Progress};

/// How often a run under way notes durably what it has done.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// What a run takes of memory beside `--memory`, bounded by a share of that: some 7 MiB are fixed (a window of victims, classes,
/// claimed nodes), and 8 bytes are taken for each closed container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMemory {
    /// Chunks looked up and ordered at a time, some 150 bytes each.
    pub group_chunks: u64,
    /// Uncompressed bytes that are read before they are written.
    pub batch_bytes: u64,
}

impl RunMemory {
    /// For a pool with this `--memory`: about an eighth for both.
    #[must_use]
    pub const fn new(memory_bytes: u64) -> Self {
        let (group, batch) = (memory_bytes / 16 / 150, memory_bytes / 16);
        Self {
            group_chunks: if group > 1 << 20 { 1 << 20 } else { group },
            batch_bytes: if batch > 64 << 20 { 64 << 20 } else { batch },
        }
    }
}

/// One run.
struct Run<'a> {
    core: &'a Core,
    options: &'a ReclaimOptions,
    control: &'a ReclaimControl,
    pace: &'a Pace<'a>,
    progress: &'a dyn Progress,
    memory: RunMemory,
    report: ReclaimReport,
    /// So many bytes of emptied containers wait to be freed together at most.
    free_bytes: u64,
    /// Since when something emptied waits to be freed.
    waiting_since: Instant,
    /// What the last checkpoint took.
    checkpoint_took: Duration,
    /// Of chunks and nodes, for how many containers to empty were chosen.
    kinds_planned: usize,
    /// Emptied, and not freed yet.
    emptied: Vec<Emptied>,
    /// Containers that could not be emptied: they are not tried again.
    kept: HashSet<ContainerId>,
    last: LastRun,
    noted_at: Option<Instant>,
    /// Of the bytes that progress counts, what is no whole MiB yet.
    untold_bytes: u64,
}

/// Reclaims, or plans.
///
/// # Errors
/// I/O errors and damage met on the way; what was done until then stays done and valid.
pub(crate) fn reclaim(
    core: &Core,
    options: &ReclaimOptions,
    control: &ReclaimControl,
    progress: &dyn Progress,
) -> Result<ReclaimReport> {
    let _begun = control.begin(options.is_background);
    let tracked = Tracked { control, listener: progress };
    // Where there is no room, nobody has anything of its giving way.
    let share_percent = if core.space.is_tight() { 100 } else { options.share_percent };
    let pace = Pace::new(ReclaimOptions { share_percent, ..*options }, control, progress, &core.activity);
    core.committer.settle()?;
    core.committer.check_counts()?;
    let mut run = Run {
        core,
        options,
        control,
        pace: &pace,
        progress: &tracked,
        memory: RunMemory::new(core.memory.total_bytes),
        report: ReclaimReport {
            dry_run: options.dry_run,
            physical_before_bytes: core.physical_bytes()?,
            spared_open: options.is_background && pace.clients_are_active(),
            ..ReclaimReport::default()
        },
        free_bytes: (core.data.physical_bytes()? / 32)
            .clamp(*RECLAIM_WAITING_BYTES.start(), *RECLAIM_WAITING_BYTES.end()),
        waiting_since: Instant::now(),
        checkpoint_took: Duration::ZERO,
        kinds_planned: 0,
        emptied: Vec::new(),
        kept: HashSet::new(),
        last: LastRun { started_secs: now_secs(), ..LastRun::default() },
        noted_at: None,
        untold_bytes: 0,
    };
    // Of a pool whose garbage map was never written it is made once, from the cells.
    let writes = !options.dry_run && !core.is_read_only();
    for index in [&core.chunk_index, &core.recipe_index] {
        let mut go_on = || pace.between_steps().is_none();
        if !index.complete_occupancy_while(writes, &mut go_on)? {
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
    // A removal that is logged and not counted yet must not be undone by a writer that finds what it removes: after a
    // failure the claims stay until everything logged is counted, if need be until the next mount.
    if outcome.is_ok() || core.committer.settle().is_ok() {
        core.dedup.release_nodes();
        core.dedup.release_containers();
    }
    run.report.stopped = match outcome {
        // Closing the pool ends a run; what it had not made durable by then is done again by the next one.
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
    // Closing the pool waits for this, too. What found nothing to do is no news.
    if run.report.has_done_anything() || run.report.stopped.is_some() {
        run.note(true);
    }
    Ok(run.report)
}

impl Run<'_> {
    fn execute(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        let mut stopped = match self.empty() {
            Ok(stopped) => stopped,
            Err(error) => {
                // What is emptied by now has cost nothing more to free, and may be what there is no space for.
                if core.committer.failure().is_none()
                    && let Err(error) = self.free_emptied(true)
                {
                    tracing::warn!(%error, "what was emptied is freed by the next run");
                }
                return Err(error);
            }
        };
        if stopped == Some(Stopped::Unmounted) {
            // Closing the pool makes a checkpoint; what is emptied by now is freed by the next run.
            return Ok(stopped);
        }
        if self.options.is_background && !self.report.has_done_anything() && self.emptied.is_empty() {
            return Ok(stopped);
        }
        self.free_emptied(true)?;
        core.committer.checkpoint()?;
        // This round trims the log that the checkpoint made superfluous.
        core.committer.settle()?;
        core.committer.export()?;
        if !self.control.is_stopped() {
            core.exporter.shrink()?;
        }
        // What the export does not need any more goes.
        core.committer.settle()?;
        // Everything is freed by now; a namespace that cannot be made smaller is no reason to say otherwise.
        if self.control.is_stopped() {
            stopped = stopped.or(self.pace.stopped());
        } else if let Err(error) = core.exporter.while_quiet(|| core.namespace.compact()) {
            tracing::warn!(%error, "the namespace stays as large as it is; the next run makes it smaller");
        }
        Ok(stopped)
    }

    /// Nodes, and then containers; the answer is why it ended early, if it did.
    fn empty(&mut self) -> Result<Option<Stopped>> {
        let core = self.core;
        self.progress.start("freeing what is dead", 0);
        for recipe in [false, true] {
            if let Some(stopped) = self.empty_dead(recipe)? {
                return Ok(Some(stopped));
            }
        }
        if let Some(stopped) = self.free_nodes()? {
            return Ok(Some(stopped));
        }
        self.forget_lost_chunks()?;
        if !self.report.spared_open {
            core.data.seal_all();
            core.recipes.seal_all();
            core.committer.settle()?;
        }
        self.note_losses()?;
        for recipe in [false, true] {
            if let Some(stopped) = self.empty_containers(recipe)? {
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

    /// Tells the status what is done, and the disk now and then, or at once.
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
        // Nothing rests on it.
        if let Err(error) = self.last.write(&*self.core.meta_device, &self.core.pool) {
            tracing::warn!(%error, "cannot note what reclaiming does");
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
