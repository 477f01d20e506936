//! Commits: make changes durable, in the one safe order.
//!
//! A round, by the one commit thread:
//! 1. The namespace's generation is frozen. Everything it refers to has been appended to containers before.
//! 2. All containers are written out and synced (I-1).
//! 3. The generation, the container records and the log row become durable in one transaction (I-2).
//! 4. The waiting requests are answered.
//! 5. The row is handed to the counting thread ([`backlog`]).
//!
//! Beside it, each on a thread of its own:
//! - *counting* ([`counting`]): applies durable rows to the indexes, in order (I-3), and from time to time freezes the
//!   indexes as of the last counted row;
//! - *checkpoints* ([`checkpoint`]): writes the frozen indexes. The log can then be trimmed up to their row;
//! - *exporting* ([`crate::durability::export`]).
//!
//! The backlog of uncounted rows is bounded, in changes and in bytes. When it is full, the next round waits for the
//! counting; when the free space is near the reserve, every round does. Counting waits for a checkpoint only when open
//! tankers fill their memory. Threads that make changes wait ([`Committer::relieve`]) in two cases: the uncommitted
//! changes, or those of them that are new places, reach the size of one row; or as many fingerprints are staged. Only
//! counting ends the latter.
//!
//! **Waiting order**: each may wait for those behind it, never for those before it: writers, reclaiming, quarantine, checks ->
//! the commit thread -> the counting thread -> sections (a thread in a section waits for none of these), the store of
//! the namespace (across a transaction), the checkpoint thread -> devices. None of them waits for the export thread.
//!
//! Right before step 3, and also in rounds with nothing to commit, the round checks that the pool is still locked. If
//! it is not, another process may write it, and nothing more is written here.
//!
//! A round that fails before step 3 loses nothing: generation and containers keep their content for the next round. A
//! failed sync is never retried into a success: the layers below remember it and the pool turns read-only (I-7).
//!
//! Cost: two or three syncs per round, for any number of operations. See [`counting`] for the cost of counting.

mod apply;
mod backlog;
#[cfg(test)]
mod backlog_tests;
mod checkpoint;
mod checkpoint_queue;
mod counted_view;
mod counting;
#[cfg(test)]
mod full_disk_tests;
mod rounds;
mod turns;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_content::{Indexes, Stores};
use dedupfs_store::device::PoolLock;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, StoreError, waiting};
use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::thread::JoinHandle;

pub(crate) use apply::{Applied, Applier};
pub(crate) use counted_view::{CellsView, CountedView};

use self::backlog::{Backlog, Weight};
use self::checkpoint::Checkpoint;
use self::checkpoint_queue::CheckpointQueue;
use self::counted_view::ViewRequest;
use self::counting::Row;
use self::turns::Turns;
use crate::config::{BACKLOG_BYTES_PER_PLACE, PENDING_CHANGES_MIN, ROUND_OPERATIONS};
use crate::durability::export::Exporter;
use crate::durability::space::SpaceGuard;
use dedupfs_base::ReadOnly;
use dedupfs_base::{EngineError, Result};
use dedupfs_content::Deduplicator;
use dedupfs_namespace::Namespace;

/// The parts of a pool that commits use.
pub(crate) struct CommitParts {
    /// Inodes, names and the log.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks and of recipe nodes.
    pub stores: Stores,
    /// Index of chunks and index of recipe nodes.
    pub indexes: Indexes,
    /// For reading nodes.
    pub dedup: Arc<Deduplicator>,
    /// Tells when commits and checkpoints should be short.
    pub space: Arc<SpaceGuard>,
    /// Copies of the namespace on the data root.
    pub exporter: Arc<Exporter>,
    /// The locks that keep other processes out. Only the pool holds them.
    pub locks: Weak<Vec<PoolLock>>,
    /// Number of uncommitted namespace changes that starts a round early. At twice as many, threads that change names
    /// wait for a round.
    pub pending_operations_max: usize,
}

/// Runs rounds on request and at intervals.
pub struct Committer {
    parts: CommitParts,
    turns: Turns<EngineError>,
    /// Containers that reclaiming has emptied; the next round forgets them.
    removed: Mutex<Vec<ContainerId>>,
    /// A wait for a counted view, if there is one. The next round takes it.
    request: Mutex<Option<ViewRequest>>,
    /// Why the pool is read-only, if it is.
    failure: Mutex<Option<EngineError>>,
    changes_since_checkpoint: AtomicU64,
    /// Index changes that were frozen and are not in a durable row yet.
    committing: AtomicU64,
    /// Durable rows that are not counted yet.
    backlog: Backlog<Row>,
    /// Approximate upper bound of the changes in one row.
    row_changes_max: u64,
    /// The same of those that give a new fingerprint its place: the open tankers fill with them.
    row_places_max: u64,
    checkpoints: CheckpointQueue<Checkpoint>,
    /// Whether the last checkpoint failed for lack of space.
    is_starved: AtomicBool,
    inconsistencies: AtomicU64,
    /// See [`hold_losses`](Self::hold_losses).
    losses: Mutex<()>,
    rounds: AtomicU64,
    rounds_without_space: AtomicU64,
    /// Called at the interval, before a round: publishes files that have been open for long.
    before_interval: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Committer {
    /// Creates a committer whose thread is not running yet.
    pub(crate) fn new(parts: CommitParts) -> Arc<Self> {
        let row_changes_max = parts.indexes.chunks.pending_max().max(PENDING_CHANGES_MIN);
        let row_places_max = parts.indexes.chunks.pending_places_max().max(PENDING_CHANGES_MIN);
        // A row of reclaiming, and one of clients that write meanwhile. The next mount counts them behind a power failure.
        let changes = row_changes_max + row_places_max;
        let bound = Weight { changes, places: changes, bytes: row_places_max * BACKLOG_BYTES_PER_PLACE };
        Arc::new(Self {
            parts,
            turns: Turns::default(),
            removed: Mutex::default(),
            request: Mutex::default(),
            failure: Mutex::default(),
            changes_since_checkpoint: AtomicU64::new(0),
            committing: AtomicU64::new(0),
            backlog: Backlog::new(bound),
            row_changes_max,
            row_places_max,
            checkpoints: CheckpointQueue::default(),
            is_starved: AtomicBool::new(false),
            inconsistencies: AtomicU64::new(0),
            losses: Mutex::new(()),
            rounds: AtomicU64::new(0),
            rounds_without_space: AtomicU64::new(0),
            before_interval: Mutex::new(None),
        })
    }

    /// Applies the rest of the log to the indexes, as a mount after a crash must. Returns the number of replayed rows.
    ///
    /// # Errors
    /// A node or table that the log refers to cannot be read.
    pub(crate) fn replay(&self) -> Result<u64> {
        let from = self.parts.indexes.chunks.position().min(self.parts.indexes.nodes.position());
        let (mut rows, applier) = (0, self.applier());
        self.parts.namespace.log_after(from, &mut |row, ops| {
            rows += 1;
            self.note(applier.apply(row, &ops, None)?)
        })?;
        Ok(rows)
    }

    /// Starts the commit thread. It calls `before_interval` before a round, once per interval.
    pub(crate) fn start(
        self: &Arc<Self>,
        interval: Duration,
        before_interval: Box<dyn Fn() + Send>,
    ) -> Result<JoinHandle<()>> {
        *self.before_interval.lock() = Some(before_interval);
        let committer = self.clone();
        dedupfs_sync::thread::Builder::new()
            .name("commit".to_owned())
            .spawn(move || committer.run(interval))
            .map_err(|error| dedupfs_store::StoreError::from_io("start", "commit thread", error).into())
    }

    /// Commits: everything done before this call is durable when it returns.
    ///
    /// # Errors
    /// The round's error. Nothing is lost then, but nothing is promised either.
    pub(crate) fn commit(&self) -> Result<()> {
        if is_planted(Canary::AnsweredEarly) {
            self.turns.ask();
            return Ok(());
        }
        let _waits = profile::of(Component::Commit);
        match self.turns.take(waiting::announce) {
            None => Err(ReadOnly::Unmounting.into()),
            Some(outcome) => outcome.map_or(Ok(()), Err),
        }
    }

    /// Bounds the memory of the namespace and of the indexes. It starts a round early, waits for the round when it is
    /// late, and waits for the counting when that is late. To be called without locks.
    ///
    /// # Errors
    /// The round's error; the reason why the pool is read-only.
    pub(crate) fn relieve(&self) -> Result<()> {
        let pending = self.parts.namespace.pending_operations();
        let pending_max = self.parts.pending_operations_max;
        let (logged, staged) = self.uncommitted_changes();
        let is_reached =
            |parts| logged + staged >= self.row_changes_max / parts || staged >= self.row_places_max / parts;
        if pending >= 2 * pending_max || is_reached(1) {
            self.commit()?;
        } else if pending >= pending_max.min(ROUND_OPERATIONS) || is_reached(2) {
            self.turns.ask();
        }
        // Committed fingerprints stay staged until they are counted. Memory bounds those of all rows together.
        let most = self.row_changes_max;
        if self.staged() < most {
            return Ok(());
        }
        self.backlog.wait_while(waiting::announce, |_| self.staged() >= most);
        self.failure().map_or(Ok(()), Err)
    }

    /// Slows background work that makes much to count. Besides [`relieve`](Self::relieve), it waits until less than
    /// half a row is uncounted, which leaves room for the rows of clients that sync meanwhile.
    pub(crate) fn pace(&self) -> Result<()> {
        self.relieve()?;
        let most = self.row_changes_max / 2;
        if self.backlog.weight().changes < most {
            return Ok(());
        }
        self.backlog.wait_while(waiting::announce, |weight| weight.changes >= most);
        self.failure().map_or(Ok(()), Err)
    }

    fn staged(&self) -> u64 {
        self.parts.indexes.chunks.staged() + self.parts.indexes.nodes.staged()
    }

    /// Returns the index changes that are logged, and those that are staged, in no durable row yet.
    fn uncommitted_changes(&self) -> (u64, u64) {
        let logged = self.parts.namespace.logged_changes() + self.committing.load(Ordering::Relaxed);
        (logged, self.staged().saturating_sub(self.backlog.weight().places))
    }

    /// Returns the approximate number of index changes that are durable and not counted yet.
    #[cfg(test)]
    pub(crate) fn backlog_changes(&self) -> u64 {
        self.backlog.weight().changes
    }

    /// Returns the most changes of a row, and the most places.
    #[cfg(test)]
    pub(crate) fn row_bounds(&self) -> (u64, u64) {
        (self.row_changes_max, self.row_places_max)
    }

    /// Returns the number of [`backlog_changes`](Self::backlog_changes) from which on no round begins.
    #[cfg(test)]
    pub(crate) fn backlog_changes_max(&self) -> u64 {
        self.backlog.bound().changes
    }

    /// Makes the next round remove these containers from the namespace, and free them afterwards.
    ///
    /// # Errors
    /// [`CountsInDoubt`](EngineError::CountsInDoubt): the containers stay.
    pub(crate) fn remove_containers(&self, containers: Vec<ContainerId>) -> Result<()> {
        self.check_counts()?;
        self.removed.lock().extend(containers);
        Ok(())
    }

    /// Checks that the counts of the indexes are good enough to free content.
    ///
    /// # Errors
    /// [`CountsInDoubt`](EngineError::CountsInDoubt).
    pub(crate) fn check_counts(&self) -> Result<()> {
        if self.parts.namespace.has_doubt() { Err(EngineError::CountsInDoubt) } else { Ok(()) }
    }

    /// Commits, and waits until the counts in the indexes are those of everything done before this call.
    pub(crate) fn settle(&self) -> Result<()> {
        self.commit()?;
        let ticket = self.turns.finished();
        if !is_planted(Canary::SettledEarly) {
            self.backlog.wait_for(ticket, waiting::announce);
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Brings the export on the data root up to the last commit, and frees the slots that no export names any more.
    ///
    /// # Errors
    /// The export cannot be written, for another reason than lack of space.
    pub(crate) fn export(&self) -> Result<()> {
        let outcome = self.parts.exporter.export();
        if let Err(error) = &outcome
            && !crate::durability::export::is_damage(error)
        {
            self.fail(error, "an export of the namespace failed");
        }
        outcome
    }

    /// Returns the reason why the pool takes no more changes, if there is one.
    pub(crate) fn failure(&self) -> Option<EngineError> {
        self.failure.lock().clone()
    }

    /// Whether an index has filled its memory and there is no space for a checkpoint: nothing new should be accepted.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_starved.load(Ordering::Acquire)
            && (self.parts.indexes.chunks.is_full() || self.parts.indexes.nodes.is_full())
    }

    /// Locks out the others of: quarantining (which makes losses), freeing recipe nodes (a claimed node must not be
    /// lost before it is freed), and recording that nothing is lost any more. May be held while waiting for rounds and
    /// for their counting: neither thread takes it.
    pub(crate) fn hold_losses(&self) -> dedupfs_sync::MutexGuard<'_, ()> {
        self.losses.lock()
    }

    /// Returns the number of impossible counts since the pool was opened.
    pub(crate) fn inconsistencies(&self) -> u64 {
        self.inconsistencies.load(Ordering::Relaxed)
    }

    /// Returns the number of rounds since the pool was opened.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Returns the number of rounds that failed for lack of space: 0 unless another program used the reserve.
    #[cfg(test)]
    pub(crate) fn rounds_without_space(&self) -> u64 {
        self.rounds_without_space.load(Ordering::Relaxed)
    }

    /// Ends the threads after the requested rounds and their counting.
    pub(crate) fn stop(&self) {
        self.turns.stop();
    }

    /// Makes the pool refuse changes from now on.
    fn fail(&self, failure: &EngineError, what: &str) {
        tracing::error!(%failure, "{what}; the pool is read-only from now on");
        self.failure.lock().get_or_insert_with(|| failure.clone());
        if matches!(failure, EngineError::Store(StoreError::LockLost { .. })) {
            // Slots that look free to this process may belong to another by now.
            self.parts.stores.data.stop();
            self.parts.stores.recipes.stop();
            self.parts.exporter.end();
        }
    }
}
