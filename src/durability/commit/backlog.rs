//! The backlog: durable rows that are not counted yet, on their way from the commit thread to the counting thread, in
//! order.
//!
//! 1. Before a round begins, the commit thread waits while the backlog is full
//!    ([`wait_for_room`](Backlog::wait_for_room)). So the backlog never exceeds the bound by more than one row.
//! 2. After each round the commit thread [hands over](Backlog::hand_over) the durable row, under the last ticket that
//!    the round served. This never waits: requesters already have their answer.
//! 3. The counting thread [takes](Backlog::take) all waiting rows, counts row by row, and reports each
//!    ([`counted`](Backlog::counted)). Only then the row's weight is released.
//! 4. A thread that needs the counts waits for a ticket ([`wait_for`](Backlog::wait_for)). A thread that makes changes
//!    waits until the backlog is smaller ([`wait_while`](Backlog::wait_while)).
//! 5. After [`end`](Backlog::end) the rows handed over before are still taken; then the counting thread ends.
//!
//! Invariants: rows are taken in the order of handing over, each once. A ticket is counted when all rows up to it are
//! counted. Each counted row wakes all waiting threads, and no thread waits while the backlog is empty.
//!
//! Lock: taken alone, for moments.

use std::collections::VecDeque;

use dedupfs_store::profile::{self, Component};
use dedupfs_sync::{Condvar, Mutex};

/// The size of uncounted work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Weight {
    /// Approximate number of index changes.
    pub changes: u64,
    /// Of these, the changes that give a fingerprint a place: it is staged until they are counted.
    pub places: u64,
    /// Bytes of memory.
    pub bytes: u64,
}

impl Weight {
    fn add(&mut self, more: Self) {
        self.changes += more.changes;
        self.places += more.places;
        self.bytes += more.bytes;
    }

    fn take(&mut self, less: Self) {
        self.changes -= less.changes;
        self.places -= less.places;
        self.bytes -= less.bytes;
    }
}

/// The result of one round.
pub(super) struct Handed<R> {
    ticket: u64,
    weight: Weight,
    /// `None`: the round made nothing durable.
    pub row: Option<R>,
}

struct BacklogState<R> {
    waiting: VecDeque<Handed<R>>,
    /// Number of rows that were taken and are not counted yet.
    taken: usize,
    /// Weight of all waiting and taken rows.
    weight: Weight,
    /// Everything up to this ticket is counted.
    counted: u64,
    is_ended: bool,
}

impl<R> BacklogState<R> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.taken == 0
    }
}

/// The rows of one pool that are not counted yet.
pub(super) struct Backlog<R> {
    state: Mutex<BacklogState<R>>,
    changed: Condvar,
    bound: Weight,
}

impl<R> Backlog<R> {
    /// Creates an empty backlog. No round begins while it holds as many changes or bytes as `bound`.
    pub(super) fn new(bound: Weight) -> Self {
        let state =
            BacklogState { waiting: VecDeque::new(), taken: 0, weight: Weight::default(), counted: 0, is_ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), bound }
    }

    /// Returns the size of the uncounted rows.
    pub(super) fn weight(&self) -> Weight {
        self.state.lock().weight
    }

    /// Returns the size from which on no round begins.
    #[cfg(test)]
    pub(super) fn bound(&self) -> Weight {
        self.bound
    }

    /// Waits while the backlog is full.
    pub(super) fn wait_for_room(&self) {
        let bound = self.bound;
        self.wait_while(|| (), |weight| weight.changes >= bound.changes || weight.bytes >= bound.bytes);
    }

    /// Hands over the durable row of the round that served all tickets up to `ticket`.
    pub(super) fn hand_over(&self, ticket: u64, weight: Weight, row: Option<R>) {
        let mut state = self.state.lock();
        if state.is_ended || (row.is_none() && state.is_empty()) {
            // The counting has ended, or there is nothing to count.
            state.counted = ticket;
        } else if let (None, Some(last)) = (&row, state.waiting.back_mut()) {
            last.ticket = ticket;
        } else {
            state.weight.add(weight);
            state.waiting.push_back(Handed { ticket, weight, row });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes all waiting rows, in order; waits until there is one. Empty after the last row.
    pub(super) fn take(&self) -> VecDeque<Handed<R>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.is_ended {
            self.changed.wait(&mut state);
        }
        let all = std::mem::take(&mut state.waiting);
        state.taken = all.len();
        all
    }

    /// Reports that the first of the taken rows is counted.
    pub(super) fn counted(&self, handed: Handed<R>) {
        let Handed { ticket, weight, row } = handed;
        // Its memory is freed before its weight is released.
        drop(row);
        let mut state = self.state.lock();
        state.taken -= 1;
        state.weight.take(weight);
        state.counted = ticket;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything up to `ticket` is counted. Calls `before_waiting` if it has to wait.
    pub(super) fn wait_for(&self, ticket: u64, before_waiting: impl FnOnce()) {
        let mut state = self.state.lock();
        if state.counted < ticket {
            before_waiting();
        }
        let mut waits = None;
        while state.counted < ticket {
            waits.get_or_insert_with(|| profile::of(Component::Backlog));
            self.changed.wait(&mut state);
        }
    }

    /// Waits while the backlog is not empty and `is_too_much` holds for its size. Calls `before_waiting` if it has to
    /// wait.
    pub(super) fn wait_while(&self, before_waiting: impl FnOnce(), is_too_much: impl Fn(Weight) -> bool) {
        let mut state = self.state.lock();
        if state.is_empty() || !is_too_much(state.weight) {
            return;
        }
        before_waiting();
        let mut waits = None;
        while !state.is_empty() && is_too_much(state.weight) {
            waits.get_or_insert_with(|| profile::of(Component::Backlog));
            self.changed.wait(&mut state);
        }
    }

    /// Ends the backlog: nothing more is handed over.
    pub(super) fn end(&self) {
        self.state.lock().is_ended = true;
        self.changed.notify_all();
    }
}
