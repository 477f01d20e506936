//! The counting thread: applies durable rows to the indexes in order (invariant I-3), so that no sync waits for it.
//!
//! 1. It takes all waiting rows. A chunk can be durable before it is staged, and applying first would leak the staged
//!    entry. So the thread waits once for all sections entered before.
//! 2. It applies each row (see [`apply`](super::apply)) under the row's number, and begins a checkpoint when one
//!    is due.
//! 3. Only then the row leaves the backlog. Threads that settle go on, and a round that waited for room may begin.
//!
//! After a failure no row is applied any more: the indexes may miss a part of a row, and the next mount counts from
//! their checkpoint on. Rows are still taken, so that no thread waits for ever.
//!
//! An uncounted row needs nothing that could be freed meanwhile: a container is forgotten only after a checkpoint that
//! holds every row that reads the container, because a replay would read it in the same way.
//!
//! Cost, for a freed node of *c* children (some 512 of 8 KiB, 4 MiB of file, or of an image 128): *c* + 1 changes. If their cells lie in
//! sealed tankers, each bucket is read once in 65,536 changes (more with more memory), in the order of the files, and with it its page of
//! counts. That is at most 2 reads for a change and, at 48 and 4 bytes for each of a bucket's cells (512), 26 KiB, if
//! no two changes share a bucket and neither is cached. So at worst 131,072 changes, 262,144 reads and 3.3 GiB for each
//! GiB deleted. The order of rows reduces this to *min(changes, buckets)*: a backup of its own lies in few tankers
//! (2,048 buckets each). Nothing is written at once: each changed cell is a patch of some 70 to 130 bytes in memory.
//! The next checkpoint writes 4 bytes for each cell of each tanker with patches (4 MiB), or 52 where cells were
//! removed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::Extended;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerKind, LogOp};
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::backlog::Weight;
use super::counted_view::ViewRequestWithNames;
use super::{Applied, Applier, Committer};

/// A durable row of the log, as its round made it.
pub(super) struct Row {
    /// Its number.
    pub(super) row: u64,
    /// Its operations.
    pub(super) ops: Vec<LogOp>,
    /// The chunks that its `Extend`s made durable.
    pub(super) extended: Vec<Extended>,
    /// Answered when the row is counted.
    pub(super) request: Option<ViewRequestWithNames>,
}

impl Row {
    /// Returns the weight of the row. `logged`: index changes of its operations.
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
    /// Hands the durable row of a round to the counting thread.
    pub(super) fn hand_over(&self, ticket: u64, row: Option<Row>) {
        let Some(row) = row else { return self.backlog.hand_over(ticket, Weight::default(), None) };
        let logged = self.committing.load(Ordering::Relaxed);
        self.backlog.hand_over(ticket, row.weight(logged), Some(row));
        // The changes count twice for a moment, and are never missing.
        self.committing.fetch_sub(logged, Ordering::Relaxed);
    }

    pub(super) fn count_rows(&self) {
        loop {
            let rows = self.backlog.take();
            if rows.is_empty() {
                return;
            }
            self.parts.dedup.barrier();
            thread::linger(Step::Counting);
            for mut handed in rows {
                if let Some(row) = &mut handed.row
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

    fn count(&self, row: &mut Row) -> Result<()> {
        let _timed = profile::of(Component::Counting);
        self.note(self.applier().apply(row.row, &row.ops, Some(&row.extended))?)?;
        if let Some(request) = row.request.take() {
            request.answer(&self.parts.indexes);
        }
        self.checkpoint_if_due(row.row)
    }

    pub(super) fn note(&self, applied: Applied) -> Result<()> {
        self.changes_since_checkpoint.fetch_add(applied.changes, Ordering::Relaxed);
        self.inconsistencies.fetch_add(applied.inconsistencies, Ordering::Relaxed);
        let namespace = &self.parts.namespace;
        if applied.doubts > 0 {
            if !namespace.has_doubt() {
                tracing::error!("{}", EngineError::CountsInDoubt);
            }
            self.note_doubt()?;
        } else if applied.inconsistencies > 0 {
            match namespace.set_losses(true) {
                // The flag is in force all the same; the next commit records it.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note that something is lost; it is tried again");
                }
                noted => noted?,
            }
        }
        Ok(())
    }

    /// Records durably that counts are in doubt. Returns whether it is recorded; `false` for lack of space.
    pub(super) fn note_doubt(&self) -> Result<bool> {
        match self.parts.namespace.set_doubt() {
            // The doubt is in force all the same. The next commit records it, and no checkpoint begins before.
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space to note that counts are in doubt; it is tried again");
                Ok(false)
            }
            noted => noted.map(|()| true),
        }
    }

    pub(super) fn applier(&self) -> Applier<'_> {
        Applier {
            indexes: &self.parts.indexes,
            nodes: self.parts.dedup.nodes(),
            stores: &self.parts.stores,
            lacks: Cell::new(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::container::TableEntry;
    use dedupfs_store::{ContainerId, Fingerprint};

    use super::*;

    #[test]
    fn a_row_weighs_what_it_holds() {
        let freed = LogOp::NodeFreed { level: 0, fingerprint: Fingerprint([1; 32]), container: ContainerId(1) };
        let stored = |container| LogOp::NodeStored {
            level: 0,
            fingerprint: Fingerprint([1; 32]),
            container: ContainerId(container),
            len_bytes: 1000,
        };
        let extended = |kind, chunks: usize| Extended {
            container: ContainerId(1),
            kind,
            from_bytes: 0,
            to_bytes: 4096,
            entries: vec![TableEntry { fingerprint: Fingerprint([1; 32]), len_bytes: 1000 }; chunks],
        };
        let mut ops = vec![freed; 90];
        ops.extend((0..10).map(stored));
        let extended = vec![extended(ContainerKind::Data, 30), extended(ContainerKind::Recipe, 7)];
        let weight = Row { row: 1, ops, extended, request: None }.weight(200);
        assert_eq!((weight.changes, weight.places), (200 + 30, 30 + 10));
        let (ops, entries) = (100 * size_of::<LogOp>() as u64, 37 * size_of::<TableEntry>() as u64);
        assert!((ops + entries..2 * (ops + entries)).contains(&weight.bytes), "{}", weight.bytes);
    }
}
