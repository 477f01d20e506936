//! Checkpoints of the indexes by a thread of their own, so that no commit waits for one (dedupv1 tech report section 3.4).
//!
//! The commit thread freezes both indexes at the end of a row and hands that over; one checkpoint is written at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dedupfs_index::Frozen;
use parking_lot::{Condvar, Mutex};

use super::Committer;
use crate::config::{CHECKPOINT_CHANGES, PENDING_CHANGES_MIN};
use crate::error::{EngineError, Result};

/// Bytes of the log for each change, about.
const LOGGED_CHANGE_BYTES: u64 = 128;

/// What is to be written.
pub(super) struct Flush {
    /// Of the index of chunks.
    pub(super) chunks: Frozen,
    /// Of the index of nodes.
    pub(super) recipes: Frozen,
    /// Log operations applied since the checkpoint before.
    pub(super) changes: u64,
}

/// How a flush ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Flushed {
    /// Durable.
    #[default]
    Whole,
    /// There was no space: a later one tries again.
    NoSpace,
    /// The pool is read-only now.
    Failed,
}

#[derive(Default)]
struct State {
    waiting: Option<Flush>,
    is_busy: bool,
    stopping: bool,
    last: Flushed,
}

/// Where the commit thread and the flushing thread meet.
#[derive(Default)]
pub(super) struct FlushQueue {
    state: Mutex<State>,
    changed: Condvar,
}

impl FlushQueue {
    /// Whether one is under way, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.state.lock().is_busy
    }

    /// Hands one over; only when none is under way.
    pub(super) fn submit(&self, flush: Flush) {
        let mut state = self.state.lock();
        debug_assert!(!state.is_busy, "one at a time");
        state.is_busy = true;
        state.waiting = Some(flush);
        self.changed.notify_all();
    }

    /// Waits until none is under way; the answer is how the last one ended.
    pub(super) fn wait(&self) -> Flushed {
        let mut state = self.state.lock();
        while state.is_busy && !state.stopping {
            self.changed.wait(&mut state);
        }
        state.last
    }

    /// The next one to write; `None` when there will be none.
    pub(super) fn next(&self) -> Option<Flush> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(flush) = state.waiting.take() {
                return Some(flush);
            }
            self.changed.wait(&mut state);
        }
    }

    /// The one that [`next`](Self::next) gave has ended.
    pub(super) fn done(&self, how: Flushed) {
        let mut state = self.state.lock();
        (state.is_busy, state.last) = (false, how);
        self.changed.notify_all();
    }

    /// No more are written. One that is being written is completed, one that waits is given up.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }
}

impl Committer {
    /// Settles and writes the indexes' checkpoints; returns the log row that both then hold. The next round trims
    /// the log.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); a checkpoint could not be written.
    pub fn checkpoint(&self) -> Result<u64> {
        self.settle()?;
        let row = self.parts.namespace.last_row();
        loop {
            let position = self.parts.chunk_index.position().min(self.parts.recipe_index.position());
            if position >= row {
                return Ok(position);
            }
            // One that is under way was frozen before.
            self.flushes.wait();
            self.changes_since_checkpoint.store(CHECKPOINT_CHANGES, Ordering::Relaxed);
            self.settle()?;
            match self.flushes.wait() {
                Flushed::Whole => {}
                // It is tried again later; who needs it now must know.
                Flushed::NoSpace => return Err(EngineError::NoSpace),
                Flushed::Failed => return Err(self.failure().unwrap_or(EngineError::Internal("a checkpoint failed"))),
            }
        }
    }

    /// Starts a checkpoint of the state after `row` if it is time, and waits for it if as much is open as memory allows.
    pub(super) fn flush_if_due(&self, row: u64) -> Result<()> {
        let indexes = [&self.parts.chunk_index, &self.parts.recipe_index];
        let space = &self.parts.space;
        let changes_max = if space.is_tight() {
            // The log is trimmed by a checkpoint only.
            (space.commit_bytes() / LOGGED_CHANGE_BYTES).clamp(PENDING_CHANGES_MIN, CHECKPOINT_CHANGES)
        } else {
            CHECKPOINT_CHANGES
        };
        let due = self.changes_since_checkpoint.load(Ordering::Relaxed) >= changes_max;
        if (due || indexes.iter().any(|index| index.wants_checkpoint())) && !self.flushes.is_busy() {
            self.flush(row)?;
        }
        while indexes.iter().any(|index| index.is_full()) {
            if self.flushes.wait() != Flushed::Whole {
                break;
            }
            // What was frozen before may not have been enough.
            if indexes.iter().any(|index| index.is_full()) {
                self.flush(row)?;
            }
        }
        Ok(())
    }

    /// Hands the state after `row` to the thread that writes checkpoints.
    fn flush(&self, row: u64) -> Result<()> {
        let changes = self.changes_since_checkpoint.swap(0, Ordering::Relaxed);
        let (chunks, recipes) = (self.parts.chunk_index.freeze(row)?, self.parts.recipe_index.freeze(row)?);
        self.flushes.submit(Flush { chunks, recipes, changes });
        Ok(())
    }

    /// The thread that writes checkpoints.
    pub(super) fn write_checkpoints(&self) {
        while let Some(Flush { chunks, recipes, changes }) = self.flushes.next() {
            let needed_bytes = chunks.disk_bytes() + recipes.disk_bytes();
            let write = || -> Result<()> {
                // One that fails halfway would for that long take the space from commits.
                self.parts.space.expect_checkpoint(needed_bytes)?;
                self.parts.chunk_index.write(chunks)?;
                Ok(self.parts.recipe_index.write(recipes)?)
            };
            let outcome = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or(Err(EngineError::Internal("the thread that writes checkpoints panicked")));
            let how = match outcome {
                Ok(()) => Flushed::Whole,
                Err(error) => {
                    // The log stays long enough to replay.
                    self.changes_since_checkpoint.fetch_add(changes, Ordering::Relaxed);
                    if error.is_no_space() {
                        tracing::warn!(%error, "no space for an index checkpoint; it is tried again");
                        Flushed::NoSpace
                    } else {
                        self.fail(&error, "an index checkpoint failed");
                        Flushed::Failed
                    }
                }
            };
            self.is_starved.store(how == Flushed::NoSpace, Ordering::Release);
            self.flushes.done(how);
            self.parts.exporter.request();
        }
    }
}
