//! Commits: what was done becomes durable, in the one order that is safe.
//!
//! A round, always by the one commit thread:
//! 1. the namespace's generation is frozen: everything it refers to has been appended to containers before;
//! 2. all containers are flushed and synced (I-1);
//! 3. the generation, the containers' records and the log row become durable in one transaction (I-2);
//! 4. whoever waited is answered;
//! 5. the row is consumed into the indexes (I-3), and from time to time these are frozen as of that row; a thread of its own
//!    writes the checkpoints, after which the log can be trimmed. Only when as much is open as memory allows, rounds wait for it.
//!
//! A round that fails before 3 loses nothing: generation and containers keep what they have for the next round. A
//! failed sync is never retried into a success: the layers below remember it and the pool turns read-only (I-7).
//!
//! Cost: two or three syncs per round, however many operations it carries.

mod consume;
mod flush;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dedupfs_index::Index;
use dedupfs_store::{ContainerId, waiting};
use parking_lot::{Condvar, Mutex};

pub use consume::{Consumed, Consumer};

use self::flush::FlushQueue;
use crate::config::{PENDING_CHANGES_MIN, PENDING_OPERATIONS_MAX};
use crate::containers::ContainerStore;
use crate::dedup::Deduplicator;
use crate::error::{EngineError, Result};
use crate::export::Exporter;
use crate::namespace::{CommitInput, LogOp, Namespace};
use crate::pool::SpaceGuard;

/// What commits work on.
pub struct CommitParts {
    /// Inodes, names and the log.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks.
    pub data: Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: Arc<ContainerStore>,
    /// Index of chunks.
    pub chunk_index: Arc<Index>,
    /// Index of nodes.
    pub recipe_index: Arc<Index>,
    /// For reading nodes.
    pub dedup: Arc<Deduplicator>,
    /// Tells when commits and checkpoints should be short.
    pub space: Arc<SpaceGuard>,
    /// Copies of the namespace on the data root.
    pub exporter: Arc<Exporter>,
}

#[derive(Default)]
struct State {
    requested: u64,
    finished: u64,
    /// Tickets whose rows are consumed into the indexes too.
    consumed: u64,
    /// Outcome of the round that finished last.
    outcome: Option<EngineError>,
    stopping: bool,
}

/// Runs rounds on request and at intervals.
pub struct Committer {
    parts: CommitParts,
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    /// Containers that reclaiming has emptied: forgotten by the next round.
    removed: Mutex<Vec<ContainerId>>,
    /// Why the pool is read-only, if it is.
    failure: Mutex<Option<EngineError>>,
    changes_since_checkpoint: AtomicU64,
    /// Changes of the indexes that rounds under way stand for.
    consuming: AtomicU64,
    flushes: FlushQueue,
    /// The last checkpoint failed for lack of space.
    is_starved: AtomicBool,
    inconsistencies: AtomicU64,
    /// See [`hold_losses`](Self::hold_losses).
    losses: Mutex<()>,
    rounds: AtomicU64,
    rounds_without_space: AtomicU64,
    /// Called before each round that the interval starts: publishes what has been open for long.
    before_interval: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Committer {
    /// A committer whose thread is not running yet.
    #[must_use]
    pub fn new(parts: CommitParts) -> Arc<Self> {
        Arc::new(Self {
            parts,
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            removed: Mutex::default(),
            failure: Mutex::default(),
            changes_since_checkpoint: AtomicU64::new(0),
            consuming: AtomicU64::new(0),
            flushes: FlushQueue::default(),
            is_starved: AtomicBool::new(false),
            inconsistencies: AtomicU64::new(0),
            losses: Mutex::new(()),
            rounds: AtomicU64::new(0),
            rounds_without_space: AtomicU64::new(0),
            before_interval: Mutex::new(None),
        })
    }

    /// Brings the indexes up to the log's end: what a mount after a crash has to do. Returns rows replayed.
    ///
    /// # Errors
    /// A node or table that the log refers to cannot be read.
    pub fn replay(&self) -> Result<u64> {
        let from = self.parts.chunk_index.position().min(self.parts.recipe_index.position());
        let mut rows = 0;
        self.parts.namespace.log_after(from, &mut |row, ops| {
            rows += 1;
            self.note(self.consumer().consume(row, &ops, None)?)
        })?;
        Ok(rows)
    }

    /// Starts the commit thread. `before_interval` is called before each round that the interval starts.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        self: &Arc<Self>,
        interval: Duration,
        before_interval: Box<dyn Fn() + Send>,
    ) -> Result<JoinHandle<()>> {
        *self.before_interval.lock() = Some(before_interval);
        let committer = self.clone();
        std::thread::Builder::new()
            .name("commit".to_owned())
            .spawn(move || committer.run(interval))
            .map_err(|error| dedupfs_store::StoreError::from_io("start", "commit thread", error).into())
    }

    /// Everything done before this call is durable when it returns.
    ///
    /// # Errors
    /// The round's error. Nothing is lost then, but nothing is promised either.
    pub fn commit(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(EngineError::ReadOnly(": it is being unmounted".to_owned()));
        }
        state.requested += 1;
        let ticket = state.requested;
        self.wake.notify_one();
        waiting::announce();
        while state.finished < ticket {
            self.done.wait(&mut state);
        }
        // A later round may have finished since; a failure that it repaired is no failure any more.
        state.outcome.clone().map_or(Ok(()), Err)
    }

    /// Keeps the memory of the namespace and of the indexes bounded: starts a round early, and waits for it when it is late.
    ///
    /// # Errors
    /// The round's error.
    pub fn relieve(&self) -> Result<()> {
        let parts = &self.parts;
        let pending = parts.namespace.pending_operations();
        let changes = parts.namespace.logged_changes()
            + self.consuming.load(Ordering::Relaxed)
            + parts.chunk_index.staged()
            + parts.recipe_index.staged();
        let changes_max = parts.chunk_index.pending_max().max(PENDING_CHANGES_MIN);
        if pending >= 2 * PENDING_OPERATIONS_MAX || changes >= changes_max {
            return self.commit();
        }
        if pending >= PENDING_OPERATIONS_MAX || changes >= changes_max / 2 {
            let mut state = self.state.lock();
            if state.requested == state.finished {
                state.requested += 1;
                self.wake.notify_one();
            }
        }
        Ok(())
    }

    /// The next round makes the namespace forget these containers, and frees them afterwards.
    pub fn remove_containers(&self, containers: Vec<ContainerId>) {
        self.removed.lock().extend(containers);
    }

    /// Commits, and waits until the counts in the indexes are those of everything done before this call.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn settle(&self) -> Result<()> {
        self.commit()?;
        let mut state = self.state.lock();
        let ticket = state.finished;
        waiting::announce();
        while state.consumed < ticket {
            self.done.wait(&mut state);
        }
        drop(state);
        self.failure().map_or(Ok(()), Err)
    }

    /// Brings the export on the data root up to the last commit, and frees the slots that no export names any more.
    ///
    /// # Errors
    /// The export cannot be written, for another reason than lack of space.
    pub fn export(&self) -> Result<()> {
        let outcome = self.parts.exporter.export();
        if let Err(error) = &outcome
            && !crate::export::is_damage(error)
        {
            self.fail(error, "an export of the namespace failed");
        }
        outcome
    }

    /// Why the pool takes no more changes, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<EngineError> {
        self.failure.lock().clone()
    }

    /// Whether as much is counted in memory as it allows, and there is no space to write it: nothing new should be taken.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.is_starved.load(Ordering::Acquire)
            && (self.parts.chunk_index.is_full() || self.parts.recipe_index.is_full())
    }

    /// One at a time: quarantining (which makes losses), freeing recipe nodes (a node that is claimed must not be lost
    /// before it is freed), noting that nothing is lost any more. May be held while waiting for rounds: the commit
    /// thread never takes it.
    pub fn hold_losses(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.losses.lock()
    }

    /// Counts that could not be right since the pool was opened.
    #[must_use]
    pub fn inconsistencies(&self) -> u64 {
        self.inconsistencies.load(Ordering::Relaxed)
    }

    /// Rounds since the pool was opened.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Rounds that failed for lack of space: none, unless something else took the reserve.
    #[must_use]
    pub fn rounds_without_space(&self) -> u64 {
        self.rounds_without_space.load(Ordering::Relaxed)
    }

    /// Ends the thread after the rounds that were asked for.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake.notify_one();
    }

    fn run(&self, interval: Duration) {
        std::thread::scope(|scope| {
            let export = || self.parts.exporter.run(|error| self.fail(error, "an export of the namespace failed"));
            if let Err(error) = std::thread::Builder::new().name("export".to_owned()).spawn_scoped(scope, export) {
                tracing::warn!(%error, "cannot start the export thread: the namespace is exported when the pool is closed");
            }
            // Without it nothing could be committed for long.
            match std::thread::Builder::new().name("flush".to_owned()).spawn_scoped(scope, || self.write_checkpoints())
            {
                Ok(_) => self.run_rounds(interval),
                Err(error) => {
                    let error = dedupfs_store::StoreError::from_io("start", "flush thread", error);
                    self.fail(&error.into(), "cannot write checkpoints");
                    self.run_rounds(interval);
                }
            }
            self.flushes.stop();
            self.parts.exporter.stop();
        });
    }

    /// From now on the pool takes no changes.
    fn fail(&self, failure: &EngineError, what: &str) {
        tracing::error!(%failure, "{what}; the pool is read-only from now on");
        self.failure.lock().get_or_insert_with(|| failure.clone());
    }

    fn run_rounds(&self, interval: Duration) {
        let (mut last, mut last_before) = (Instant::now(), Instant::now());
        loop {
            let mut state = self.state.lock();
            while state.requested == state.finished && !state.stopping {
                let due = interval.saturating_sub(last.elapsed());
                if due.is_zero() || self.wake.wait_for(&mut state, due).timed_out() {
                    break;
                }
            }
            let goal = state.requested;
            let asked = goal != state.finished;
            if state.stopping && !asked {
                return;
            }
            drop(state);
            // Not only in rounds of its own: who syncs all the time must not keep the others from being published.
            if last_before.elapsed() >= interval
                && let Some(before) = &*self.before_interval.lock()
            {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(before)).is_err() {
                    tracing::error!("publishing open files panicked");
                }
                last_before = Instant::now();
            }
            last = Instant::now();
            let answer = |outcome: &Result<()>| {
                let mut state = self.state.lock();
                state.outcome = outcome.as_ref().err().cloned();
                state.finished = goal;
                self.done.notify_all();
            };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.round(asked, &answer))).is_err() {
                let failure = EngineError::Internal("the commit thread panicked");
                self.fail(&failure, "a commit failed");
                answer(&Err(failure));
            }
            self.state.lock().consumed = goal;
            self.done.notify_all();
        }
    }

    /// One round; `answer` is called as soon as it is durable, or failed.
    fn round(&self, asked: bool, answer: &dyn Fn(&Result<()>)) {
        if let Some(failure) = self.failure() {
            return answer(&Err(failure));
        }
        match self.round_until_durable(asked) {
            Err(error) => {
                if error.is_no_space() {
                    self.rounds_without_space.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        %error,
                        "a commit failed for lack of space, and is tried again: something else uses the disks' reserve; free \
                         some space there"
                    );
                } else {
                    self.fail(&error, "a commit failed");
                }
                answer(&Err(error));
            }
            Ok(row) => {
                answer(&Ok(()));
                if let Some((row, ops, extended)) = row
                    && let Err(error) = self.after(row, &ops, &extended)
                {
                    self.fail(&error, "counting failed");
                }
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "one caller, right above")]
    fn round_until_durable(&self, asked: bool) -> Result<Option<(u64, Vec<LogOp>, Vec<crate::containers::Extended>)>> {
        let parts = &self.parts;
        let removed = std::mem::take(&mut *self.removed.lock());
        let mut left = Vec::new();
        let outcome = (|| {
            // No section may be cut in two: what it logs belongs into one row.
            let is_any = parts.dedup.between_sections(|| {
                // What an earlier round could not commit is still to come.
                self.consuming.fetch_add(parts.namespace.take_logged_changes(), Ordering::Relaxed);
                parts.namespace.freeze()
            });
            if !is_any && !asked && removed.is_empty() {
                return Ok(None);
            }
            let data = parts.data.flush()?;
            let recipes = parts.recipes.flush()?;
            let extended: Vec<_> = data.extends.into_iter().chain(recipes.extends).collect();
            let extends = extended
                .iter()
                .map(|extended| LogOp::Extend {
                    container: extended.container,
                    kind: extended.kind,
                    from_bytes: extended.from_bytes,
                    to_bytes: extended.to_bytes,
                })
                .collect();
            let record = |id: &ContainerId| parts.data.record(*id).or_else(|| parts.recipes.record(*id));
            let leaving: Vec<_> = removed.iter().filter_map(record).collect();
            // After the flush: whoever uses a slot that was freed is recorded in no earlier commit than this.
            let position = parts.exporter.position();
            left = position.left;
            let committed = parts.namespace.commit(CommitInput {
                exported: position.exported,
                trim_changes_through: position.trim_through,
                leaving: leaving.clone(),
                left: left.clone(),
                containers: data.records.iter().chain(&recipes.records).cloned().collect(),
                removed_containers: removed.clone(),
                extends,
                trim_log_through: parts.chunk_index.position().min(parts.recipe_index.position()),
            })?;
            parts.data.acknowledge(&data.records);
            parts.recipes.acknowledge(&recipes.records);
            for store in [&parts.data, &parts.recipes] {
                // The transaction is durable: a container that is not forgotten is only space, and is found at the next mount.
                if let Err(error) = store.forget(&removed) {
                    tracing::warn!(%error, "a removed container is not forgotten yet");
                }
            }
            parts.exporter.leave(committed.row, leaving);
            self.rounds.fetch_add(1, Ordering::Relaxed);
            Ok(Some((committed.row, committed.ops, extended)))
        })();
        if outcome.is_err() {
            self.removed.lock().extend(removed);
            parts.exporter.not_left(left);
        }
        outcome
    }

    /// Consumes a durable row and checkpoints when it is time.
    fn after(&self, row: u64, ops: &[LogOp], extended: &[crate::containers::Extended]) -> Result<()> {
        // Whoever appended what this row made durable must have staged it before it is applied, or the staged place
        // would stay for ever.
        self.parts.dedup.barrier();
        self.note(self.consumer().consume(row, ops, Some(extended))?)?;
        self.consuming.store(0, Ordering::Relaxed);
        self.flush_if_due(row)
    }

    fn note(&self, consumed: Consumed) -> Result<()> {
        self.changes_since_checkpoint.fetch_add(consumed.changes, Ordering::Relaxed);
        self.inconsistencies.fetch_add(consumed.inconsistencies, Ordering::Relaxed);
        // What was counted and is nowhere has become a cell without a place.
        if consumed.inconsistencies > 0 {
            match self.parts.namespace.set_losses(true) {
                // In force all the same; the next commit notes it.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note that something is lost; it is tried again");
                }
                noted => noted?,
            }
        }
        Ok(())
    }

    fn consumer(&self) -> Consumer<'_> {
        Consumer {
            chunk_index: &self.parts.chunk_index,
            recipe_index: &self.parts.recipe_index,
            nodes: self.parts.dedup.nodes(),
            data: &self.parts.data,
            recipes: &self.parts.recipes,
        }
    }
}
