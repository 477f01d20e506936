//! Checkpoints of the indexes on a thread of their own, so that no commit waits for one (dedupv1 tech report section
//! 3.4).
//!
//! The counting thread freezes both indexes after a row and hands them over. One checkpoint is written at a time. Its
//! row is older than the last durable one by the backlog. The log is trimmed up to it, and no further.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Frozen;
use dedupfs_store::profile::{self, Component};

use super::Committer;
use super::checkpoint_queue::CheckpointOutcome;
use crate::config::{CHECKPOINT_CHANGES, PENDING_CHANGES_MIN};

/// Approximate log bytes of one change.
const LOGGED_CHANGE_BYTES: u64 = 128;

/// Returns the changes after which a checkpoint is due when the log has so many bytes: only a checkpoint trims it.
fn changes_within(log_bytes: u64) -> u64 {
    (log_bytes / LOGGED_CHANGE_BYTES).clamp(PENDING_CHANGES_MIN, CHECKPOINT_CHANGES)
}

/// The work of one checkpoint.
pub(super) struct Checkpoint {
    /// The frozen index of chunks.
    pub(super) chunks: Frozen,
    /// The frozen index of nodes.
    pub(super) recipes: Frozen,
    /// Log operations applied since the previous checkpoint.
    pub(super) changes: u64,
}

impl Committer {
    /// Settles, and writes checkpoints of both indexes. Returns the log row that both then hold. The next round trims
    /// the log.
    pub(crate) fn checkpoint(&self) -> Result<u64> {
        self.settle()?;
        let row = self.parts.namespace.last_row();
        loop {
            let position = self.parts.indexes.chunks.position().min(self.parts.indexes.nodes.position());
            if position >= row {
                return Ok(position);
            }
            if !self.has_noted_doubt()? {
                return Err(EngineError::NoSpace);
            }
            // A checkpoint under way was frozen earlier.
            self.checkpoints.wait();
            self.changes_since_checkpoint.store(CHECKPOINT_CHANGES, Ordering::Relaxed);
            self.settle()?;
            match self.checkpoints.wait() {
                CheckpointOutcome::Whole => {}
                // It is tried again later, but this caller needs it now.
                CheckpointOutcome::NoSpace => return Err(EngineError::NoSpace),
                CheckpointOutcome::Failed => {
                    return Err(self.failure().unwrap_or(EngineError::Internal("a checkpoint failed")));
                }
            }
        }
    }

    /// Number of changes that the indexes have counted and no checkpoint holds; more while a checkpoint is asked for.
    pub(crate) fn uncheckpointed(&self) -> u64 {
        self.changes_since_checkpoint.load(Ordering::Relaxed)
    }

    /// Asks for a checkpoint behind the next round, and waits for nothing.
    pub(crate) fn ask_for_checkpoint(&self) {
        self.changes_since_checkpoint.fetch_max(CHECKPOINT_CHANGES, Ordering::Relaxed);
        self.turns.ask();
    }

    /// Starts a checkpoint of the state after `row` if it is due. Waits for it while an index has no memory left for
    /// open tankers.
    pub(super) fn checkpoint_if_due(&self, row: u64) -> Result<()> {
        let indexes = [&self.parts.indexes.chunks, &self.parts.indexes.nodes];
        let space = &self.parts.space;
        let changes_max = space.is_tight().then(|| space.commit_bytes()).map_or(CHECKPOINT_CHANGES, changes_within);
        let due = self.changes_since_checkpoint.load(Ordering::Relaxed) >= changes_max;
        if (due || indexes.iter().any(|index| index.wants_checkpoint())) && !self.checkpoints.is_busy() {
            self.begin_checkpoint(row)?;
        }
        while indexes.iter().any(|index| index.is_full()) {
            if self.checkpoints.wait() != CheckpointOutcome::Whole {
                break;
            }
            // The checkpoint frozen earlier may not have freed enough.
            if indexes.iter().any(|index| index.is_full()) && !self.begin_checkpoint(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Hands the state after `row` to the thread that writes checkpoints. Returns whether it did. It refuses while
    /// there is no space to record a doubt: the rows in a checkpoint are not counted again, so nothing would reveal the
    /// doubt a second time.
    pub(super) fn begin_checkpoint(&self, row: u64) -> Result<bool> {
        if !self.has_noted_doubt()? {
            self.is_starved.store(true, Ordering::Release);
            return Ok(false);
        }
        let changes = self.changes_since_checkpoint.swap(0, Ordering::Relaxed);
        let (chunks, recipes) = (self.parts.indexes.chunks.freeze(row)?, self.parts.indexes.nodes.freeze(row)?);
        self.checkpoints.submit(Checkpoint { chunks, recipes, changes });
        Ok(true)
    }

    /// Returns whether there is no doubt, or it is durable.
    fn has_noted_doubt(&self) -> Result<bool> {
        Ok(!self.parts.namespace.has_doubt() || self.note_doubt()?)
    }

    /// Runs the thread that writes checkpoints.
    pub(super) fn write_checkpoints(&self) {
        while let Some(Checkpoint { chunks, recipes, changes }) = self.checkpoints.next() {
            let needed_bytes = chunks.disk_bytes() + recipes.disk_bytes();
            let write = || -> Result<()> {
                let _timed = profile::of(Component::Checkpoints);
                // A checkpoint that fails halfway would take space from commits meanwhile.
                self.parts.space.expect_checkpoint(needed_bytes)?;
                self.parts.indexes.chunks.write(chunks)?;
                Ok(self.parts.indexes.nodes.write(recipes)?)
            };
            let outcome = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or(Err(EngineError::Internal("the thread that writes checkpoints panicked")));
            let how = match outcome {
                Ok(()) => CheckpointOutcome::Whole,
                Err(error) => {
                    // The log is kept, so that it can be replayed.
                    self.changes_since_checkpoint.fetch_add(changes, Ordering::Relaxed);
                    if error.is_no_space() {
                        tracing::warn!(%error, "no space for an index checkpoint; it is tried again");
                        CheckpointOutcome::NoSpace
                    } else {
                        self.fail(&error, "an index checkpoint failed");
                        CheckpointOutcome::Failed
                    }
                }
            };
            self.is_starved.store(how == CheckpointOutcome::NoSpace, Ordering::Release);
            self.checkpoints.done(how);
            self.parts.exporter.request();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_has_little_room_is_trimmed_earlier() {
        assert_eq!(changes_within(16 << 20), 131_072);
        assert_eq!(changes_within(1 << 20), PENDING_CHANGES_MIN);
        assert_eq!(changes_within(1 << 40), CHECKPOINT_CHANGES);
    }
}
