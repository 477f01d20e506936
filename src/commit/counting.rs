//! The counting thread: durable rows become counts, in their order (invariant I-3), off the way of whoever syncs.
//!
//! 1. It takes all rows that wait. Whoever appended what they made durable must have staged it before it is applied, or the staged
//!    place would stay for ever: so it waits once for the sections that were entered before.
//! 2. Each row is consumed (see [`consume`](super::consume)) under its own number, and a checkpoint is begun when it is time.
//! 3. Only then the row is no longer behind: who settles goes on, and a round may begin that waited for room.
//!
//! After a failure nothing more is applied: the indexes may miss a part of a row, and the next mount counts from their checkpoint
//! on. Rows are still taken, so that nobody waits for ever.
//!
//! A row that is not counted rests on nothing that could go meanwhile: a container is forgotten only behind a checkpoint that holds
//! every row that reads it, because a replay would read it just so.
//!
//! Cost, for a freed node of *c* children (some 512 of 8 KiB, 4 MiB of file): *c* + 1 changes. Of those whose cells lie in sealed tankers,
//! each bucket is read once in 65,536 changes, in the order of the files, and its page of counts with it: at most 2 reads and, at 48 and
//! 4 bytes for each of a bucket's cells (512), 26 KiB for a change, if no two share a bucket and neither is cached. So at worst
//! 131,072 changes, 262,144 reads and 3.3 GiB for each GiB deleted, which the rows' order makes *min(changes, buckets)*: a backup of its own
//! lies in few tankers (2,048 buckets each). Written: nothing at once; each changed cell is a patch of some 70 to 130 bytes in memory until
//! the next checkpoint writes 4 bytes for each cell of each tanker that has any (4 MiB), or 52 where cells went.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dedupfs_store::ContainerKind;

use super::backlog::Weight;
use super::{Committer, Consumed, Consumer};
use crate::containers::Extended;
use crate::error::{EngineError, Result};
use crate::namespace::LogOp;

/// A durable row of the log, as its round made it.
pub(super) struct Row {
    /// Its number.
    pub(super) row: u64,
    /// Its operations.
    pub(super) ops: Vec<LogOp>,
    /// The chunks that its `Extend`s made durable.
    pub(super) extended: Vec<Extended>,
}

impl Row {
    /// `logged`: changes that its operations stand for.
    fn weight(&self, logged: u64) -> Weight {
        let entries = |of: &dyn Fn(&Extended) -> usize| self.extended.iter().map(of).sum::<usize>();
        let is_data = |extended: &Extended| extended.kind == ContainerKind::Data;
        let chunks = entries(&|extended| if is_data(extended) { extended.entries.len() } else { 0 });
        let is_node = |op: &&LogOp| matches!(op, LogOp::NodeStored { .. } | LogOp::NodeMoved { .. });
        let places = (chunks + self.ops.iter().filter(is_node).count()) as u64;
        let held = entries(&|extended| size_of::<Extended>() + size_of_val(extended.entries.as_slice()));
        let bytes = size_of::<Self>() + self.ops.capacity() * size_of::<LogOp>() + held;
        Weight { changes: logged + chunks as u64, places, bytes: bytes as u64 }
    }
}

impl Committer {
    /// Hands what a round made durable to the counting thread.
    pub(super) fn hand_over(&self, ticket: u64, row: Option<Row>) {
        let Some(row) = row else { return self.backlog.hand_over(ticket, Weight::default(), None) };
        let logged = self.committing.load(Ordering::Relaxed);
        self.backlog.hand_over(ticket, row.weight(logged), Some(row));
        // They count twice for a moment, and are never missing.
        self.committing.fetch_sub(logged, Ordering::Relaxed);
    }

    pub(super) fn count_rows(&self) {
        loop {
            let rows = self.backlog.take();
            if rows.is_empty() {
                return;
            }
            self.parts.dedup.barrier();
            for handed in rows {
                if let Some(row) = &handed.row
                    && self.failure().is_none()
                {
                    let count = || self.count(row);
                    let outcome = catch_unwind(AssertUnwindSafe(count))
                        .unwrap_or(Err(EngineError::Internal("the counting thread panicked")));
                    if let Err(error) = outcome {
                        self.fail(&error, "counting failed");
                    }
                }
                self.backlog.counted(handed);
            }
        }
    }

    fn count(&self, row: &Row) -> Result<()> {
        self.note(self.consumer().consume(row.row, &row.ops, Some(&row.extended))?)?;
        self.flush_if_due(row.row)
    }

    pub(super) fn note(&self, consumed: Consumed) -> Result<()> {
        self.changes_since_checkpoint.fetch_add(consumed.changes, Ordering::Relaxed);
        self.inconsistencies.fetch_add(consumed.inconsistencies, Ordering::Relaxed);
        let namespace = &self.parts.namespace;
        if consumed.doubts > 0 {
            if !namespace.has_doubt() {
                tracing::error!("{}", EngineError::CountsInDoubt);
            }
            self.note_doubt()?;
        } else if consumed.inconsistencies > 0 {
            match namespace.set_losses(true) {
                // In force all the same; the next commit notes it.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note that something is lost; it is tried again");
                }
                noted => noted?,
            }
        }
        Ok(())
    }

    /// Notes durably that counts are in doubt. Returns whether it is noted: it is not if there is no space.
    pub(super) fn note_doubt(&self) -> Result<bool> {
        match self.parts.namespace.set_doubt() {
            // In force all the same; the next commit notes it, and no checkpoint is begun before.
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space to note that counts are in doubt; it is tried again");
                Ok(false)
            }
            noted => noted.map(|()| true),
        }
    }

    pub(super) fn consumer(&self) -> Consumer<'_> {
        Consumer {
            chunk_index: &self.parts.chunk_index,
            recipe_index: &self.parts.recipe_index,
            nodes: self.parts.dedup.nodes(),
            data: &self.parts.data,
            recipes: &self.parts.recipes,
            lacks: Cell::new(false),
        }
    }
}
