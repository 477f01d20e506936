//! An index under work: rows, checkpoints as they come due, and the cost of each phase.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs_index::{Change, Index};

use crate::metered::{Meter, Moved};
use crate::{mib, resident_bytes};

/// The index with its meters and pending changes.
pub(crate) struct Work<'w> {
    pub(crate) index: &'w Index,
    pub(crate) meter: &'w Arc<Meter>,
    pub(crate) row: u64,
    pub(crate) changes: Vec<Change>,
    /// Changes of a row.
    pub(crate) row_changes: usize,
    phase: Phase,
}

#[derive(Default)]
struct Phase {
    applied: u64,
    applying: Duration,
    looking_up: Duration,
    checkpoints: u64,
    checkpointing: Duration,
    applying_moved: Moved,
    checkpointing_moved: Moved,
    memory_bytes_max: u64,
}

impl<'w> Work<'w> {
    pub(crate) fn new(index: &'w Index, meter: &'w Arc<Meter>) -> Self {
        meter.take();
        let row_changes = index.pending_places_max() as usize;
        let changes = Vec::with_capacity(row_changes);
        Self { index, meter, row: index.position(), changes, row_changes, phase: Phase::default() }
    }

    /// Adds a change, and applies the row if it is full.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(change);
        if self.changes.len() >= self.row_changes {
            self.apply();
        }
    }

    /// Looks up committed cells, as a part of applying.
    pub(crate) fn looked_up<T>(&mut self, look_up: impl FnOnce(&Index) -> T) -> T {
        let started = Instant::now();
        let answer = look_up(self.index);
        self.phase.looking_up += started.elapsed();
        add(&mut self.phase.applying_moved, self.meter.take());
        answer
    }

    /// Applies the gathered changes. Returns whether a checkpoint was written.
    pub(crate) fn apply(&mut self) -> bool {
        if self.changes.is_empty() {
            return false;
        }
        self.row += 1;
        let started = Instant::now();
        let report = self.index.apply(self.row, &self.changes).unwrap();
        self.phase.applying += started.elapsed();
        assert_eq!(report.count, 0, "{report:?}");
        self.phase.applied += self.changes.len() as u64;
        self.changes.clear();
        add(&mut self.phase.applying_moved, self.meter.take());
        let due = self.index.wants_checkpoint();
        if due {
            self.checkpoint();
        }
        due
    }

    pub(crate) fn checkpoint(&mut self) {
        self.phase.memory_bytes_max = self.phase.memory_bytes_max.max(self.index.stats().memory_bytes);
        let started = Instant::now();
        self.index.checkpoint(self.row).unwrap();
        self.phase.checkpointing += started.elapsed();
        self.phase.checkpoints += 1;
        add(&mut self.phase.checkpointing_moved, self.meter.take());
    }

    /// Ends a phase with a checkpoint and prints its cost.
    pub(crate) fn end(&mut self, what: &str) {
        self.apply();
        self.checkpoint();
        let phase = std::mem::take(&mut self.phase);
        let rate = phase.applied as f64 / (phase.applying + phase.looking_up).as_secs_f64().max(1e-9) / 1e3;
        println!(
            "  {what:<10} {:>11} changes: looking up {:>7.1} s, applying {:>7.1} s ({rate:.0} k/s), reads {:>9} of {:>9.1} MiB in all; {:>4} \
             checkpoints {:>7.1} s, read {:>9.1} MiB, wrote {:>9.1} MiB; memory of the index {:.0} MiB at most, of the process {:.0} MiB",
            phase.applied,
            phase.looking_up.as_secs_f64(),
            phase.applying.as_secs_f64(),
            phase.applying_moved.reads,
            mib(phase.applying_moved.read_bytes),
            phase.checkpoints,
            phase.checkpointing.as_secs_f64(),
            mib(phase.checkpointing_moved.read_bytes),
            mib(phase.checkpointing_moved.written_bytes),
            mib(phase.memory_bytes_max),
            mib(resident_bytes()),
        );
        assert_eq!(phase.applying_moved.writes, 0, "applying writes nothing");
    }
}

fn add(sum: &mut Moved, moved: Moved) {
    sum.reads += moved.reads;
    sum.read_bytes += moved.read_bytes;
    sum.writes += moved.writes;
    sum.written_bytes += moved.written_bytes;
}
