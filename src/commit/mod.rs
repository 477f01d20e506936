//! Commits: what was done becomes durable, in the one order that is safe.
//!
//! A round, by the one commit thread:
//! 1. the namespace's generation is frozen: everything it refers to has been appended to containers before;
//! 2. all containers are flushed and synced (I-1);
//! 3. the generation, the containers' records and the log row become durable in one transaction (I-2);
//! 4. whoever waited is answered;
//! 5. the row is handed to the counting thread ([`backlog`]).
//!
//! Beside it, each by a thread of its own:
//! - *counting* ([`counting`]): durable rows are consumed into the indexes in their order (I-3), and from time to time the indexes are
//!   frozen as of the row that was counted last;
//! - *flushing* ([`flush`]): what was frozen is written as a checkpoint, up to which the log can be trimmed;
//! - *exporting* ([`crate::export`]).
//!
//! What is durable and not counted yet is bounded, in changes and in bytes: with as much, the next round waits for the counting; and
//! when little more than the reserve is left on the disks, each does. Counting waits for a checkpoint only when as much is open as
//! memory allows. Who makes changes waits ([`Committer::relieve`]) when as many are not durable yet as one row may have, and when as
//! many are staged, which only counting ends.
//!
//! **Waiting order**: whoever stands here may wait for those behind it, never for those before it:
//! writers, reclaiming, quarantine -> the commit thread -> the counting thread -> sections (whoever is inside waits for none of these),
//! the store of the namespace (across a transaction), the flush thread -> devices. The export thread is waited for by none of them.
//!
//! Right before 3, and in rounds that have nothing to commit as well, it is made sure that the pool is still locked. If it is not, another
//! process may write it: nothing more is written then.
//!
//! A round that fails before 3 loses nothing: generation and containers keep what they have for the next round. A
//! failed sync is never retried into a success: the layers below remember it and the pool turns read-only (I-7).
//!
//! Cost: two or three syncs per round, however many operations it carries. That of counting stands in [`counting`].

mod backlog;
mod consume;
mod counting;
mod flush;
mod flush_queue;
mod rounds;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use dedupfs_index::Index;
use dedupfs_store::device::PoolLock;
use dedupfs_store::{ContainerId, StoreError, waiting};
use parking_lot::{Condvar, Mutex};

pub use consume::{Consumed, Consumer};

use self::backlog::{Backlog, Weight};
use self::counting::Row;
use self::flush::Flush;
use self::flush_queue::FlushQueue;
use crate::config::{BACKLOG_BYTES_PER_CHANGE, BACKLOG_ROWS, PENDING_CHANGES_MIN};
use crate::containers::ContainerStore;
use crate::dedup::Deduplicator;
use crate::error::{EngineError, Result};
use crate::export::Exporter;
use crate::namespace::Namespace;
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
    /// What keeps other processes out; held by the pool alone.
    pub locks: Weak<Vec<PoolLock>>,
    /// Changes of the namespace in memory that start a round early; twice as many make who changes names wait for one.
    pub pending_operations_max: usize,
}

#[derive(Default)]
struct State {
    requested: u64,
    finished: u64,
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
    /// Changes of the indexes that were frozen and are not in a durable row yet.
    committing: AtomicU64,
    /// Durable rows that are not counted yet.
    backlog: Backlog<Row>,
    /// Changes that one row has, about, at most.
    row_changes_max: u64,
    flushes: FlushQueue<Flush>,
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
        let row_changes_max = parts.chunk_index.pending_max().max(PENDING_CHANGES_MIN);
        let changes = BACKLOG_ROWS * row_changes_max;
        let bound = Weight { changes, places: changes, bytes: row_changes_max * BACKLOG_BYTES_PER_CHANGE };
        Arc::new(Self {
            parts,
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            removed: Mutex::default(),
            failure: Mutex::default(),
            changes_since_checkpoint: AtomicU64::new(0),
            committing: AtomicU64::new(0),
            backlog: Backlog::new(bound),
            row_changes_max,
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
        let (mut rows, consumer) = (0, self.consumer());
        self.parts.namespace.log_after(from, &mut |row, ops| {
            rows += 1;
            self.note(consumer.consume(row, &ops, None)?)
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

    /// Keeps the memory of the namespace and of the indexes bounded: starts a round early, waits for it when it is late, and waits
    /// for the counting when that is. To be called with no lock held.
    ///
    /// # Errors
    /// The round's error; why the pool is read-only.
    pub fn relieve(&self) -> Result<()> {
        let pending = self.parts.namespace.pending_operations();
        let (changes, most) = (self.uncommitted_changes(), self.row_changes_max);
        let pending_max = self.parts.pending_operations_max;
        if pending >= 2 * pending_max || changes >= most {
            self.commit()?;
        } else if pending >= pending_max || changes >= most / 2 {
            let mut state = self.state.lock();
            if state.requested == state.finished {
                state.requested += 1;
                self.wake.notify_one();
            }
        }
        if self.staged() < most {
            return Ok(());
        }
        // What is committed is staged until it is counted.
        self.backlog.wait_while(waiting::announce, |_| self.staged() >= most);
        self.failure().map_or(Ok(()), Err)
    }

    /// As [`relieve`](Self::relieve), for work that nobody waits for and that makes much to count: at most half a row of it is behind
    /// when this returns, so that there is room for the rows of those who sync meanwhile.
    ///
    /// # Errors
    /// As [`relieve`](Self::relieve).
    pub fn pace(&self) -> Result<()> {
        self.relieve()?;
        let most = self.row_changes_max / 2;
        if self.backlog.weight().changes < most {
            return Ok(());
        }
        self.backlog.wait_while(waiting::announce, |weight| weight.changes >= most);
        self.failure().map_or(Ok(()), Err)
    }

    fn staged(&self) -> u64 {
        self.parts.chunk_index.staged() + self.parts.recipe_index.staged()
    }

    /// Changes of the indexes that are staged, or logged, and in no durable row yet.
    fn uncommitted_changes(&self) -> u64 {
        let logged = self.parts.namespace.logged_changes() + self.committing.load(Ordering::Relaxed);
        logged + self.staged().saturating_sub(self.backlog.weight().places)
    }

    /// Changes of the indexes that are durable and not counted yet, about.
    #[must_use]
    pub fn backlog_changes(&self) -> u64 {
        self.backlog.weight().changes
    }

    /// With so many [`backlog_changes`](Self::backlog_changes) no round is begun.
    #[must_use]
    pub fn backlog_changes_max(&self) -> u64 {
        self.backlog.bound().changes
    }

    /// The next round makes the namespace forget these containers, and frees them afterwards.
    ///
    /// # Errors
    /// [`CountsInDoubt`](EngineError::CountsInDoubt): they stay.
    pub fn remove_containers(&self, containers: Vec<ContainerId>) -> Result<()> {
        self.check_counts()?;
        self.removed.lock().extend(containers);
        Ok(())
    }

    /// Whether something may be freed by the counts of the indexes.
    ///
    /// # Errors
    /// [`CountsInDoubt`](EngineError::CountsInDoubt).
    pub fn check_counts(&self) -> Result<()> {
        if self.parts.namespace.has_doubt() { Err(EngineError::CountsInDoubt) } else { Ok(()) }
    }

    /// Commits, and waits until the counts in the indexes are those of everything done before this call.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn settle(&self) -> Result<()> {
        self.commit()?;
        let ticket = self.state.lock().finished;
        self.backlog.wait_for(ticket, waiting::announce);
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
    /// before it is freed), noting that nothing is lost any more. May be held while waiting for rounds and for their
    /// counting: neither thread takes it.
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

    /// Ends the threads after the rounds that were asked for, and after counting them.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake.notify_one();
    }

    /// From now on the pool takes no changes.
    fn fail(&self, failure: &EngineError, what: &str) {
        tracing::error!(%failure, "{what}; the pool is read-only from now on");
        self.failure.lock().get_or_insert_with(|| failure.clone());
        if matches!(failure, EngineError::Store(StoreError::LockLost { .. })) {
            // Slots that are free for this process may be another's by now.
            self.parts.data.stop();
            self.parts.recipes.stop();
            self.parts.exporter.end();
        }
    }
}
