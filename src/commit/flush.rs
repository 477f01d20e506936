//! Checkpoints of the indexes by a thread of their own, so that no commit waits for one (dedupv1 tech report section 3.4).
//!
//! The counting thread freezes both indexes at the end of a row and hands that over; one checkpoint is written at a time. The
//! row lies as far behind the last durable one as the counting does: the log is trimmed up to it, and no further.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dedupfs_index::Frozen;

use super::Committer;
use super::flush_queue::Flushed;
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
            if !self.has_noted_doubt()? {
                return Err(EngineError::NoSpace);
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
            if indexes.iter().any(|index| index.is_full()) && !self.flush(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Hands the state after `row` to the thread that writes checkpoints. Returns whether it did: not while there is no space to note
    /// that counts are in doubt. What a checkpoint holds is not counted again, so nothing would tell of the doubt once more.
    fn flush(&self, row: u64) -> Result<bool> {
        if !self.has_noted_doubt()? {
            self.is_starved.store(true, Ordering::Release);
            return Ok(false);
        }
        let changes = self.changes_since_checkpoint.swap(0, Ordering::Relaxed);
        let (chunks, recipes) = (self.parts.chunk_index.freeze(row)?, self.parts.recipe_index.freeze(row)?);
        self.flushes.submit(Flush { chunks, recipes, changes });
        Ok(true)
    }

    /// Whether there is no doubt, or it is durable.
    fn has_noted_doubt(&self) -> Result<bool> {
        Ok(!self.parts.namespace.has_doubt() || self.note_doubt()?)
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
