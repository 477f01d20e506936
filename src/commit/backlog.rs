//! What is durable and waits to be counted: it goes from the commit thread to the counting thread, in order.
//!
//! 1. Before a round begins, the commit thread waits while the bound is reached ([`wait_for_room`](Backlog::wait_for_room)). So the
//!    backlog is never more than the bound and one row.
//! 2. Behind each round it [hands over](Backlog::hand_over) what became durable, under the last ticket that the round served. That
//!    never waits: whoever asked is answered already.
//! 3. The counting thread [takes](Backlog::take) all that waits, counts row by row, and says so after each
//!    ([`counted`](Backlog::counted)). Only then does the row's weight go.
//! 4. Who needs the counts waits for a ticket ([`wait_for`](Backlog::wait_for)); who makes changes waits until less is behind
//!    ([`wait_while`](Backlog::wait_while)).
//! 5. [`end`](Backlog::end): what was handed over before is still taken; then the counting thread ends.
//!
//! Invariants: rows are taken in the order in which they were handed over, each once; a ticket counts as counted when all rows up
//! to it are; whoever waits is woken whenever something was counted, and nobody waits while nothing is behind.
//!
//! Lock: taken alone, for moments.

use std::collections::VecDeque;

use crate::sync::{Condvar, Mutex};

/// How much there is to count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Weight {
    /// Changes of the indexes, about.
    pub changes: u64,
    /// Of these, the ones that give a fingerprint a place: until they are counted it is staged.
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

/// What one round handed over.
pub struct Handed<R> {
    ticket: u64,
    weight: Weight,
    /// None: the round made nothing durable.
    pub row: Option<R>,
}

struct State<R> {
    waiting: VecDeque<Handed<R>>,
    /// How many were taken and are not counted yet.
    taken: usize,
    /// Of what waits and what was taken.
    weight: Weight,
    /// Everything up to this ticket is counted.
    counted: u64,
    is_ended: bool,
}

impl<R> State<R> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.taken == 0
    }
}

/// The rows of one pool that are not counted yet.
pub struct Backlog<R> {
    state: Mutex<State<R>>,
    changed: Condvar,
    bound: Weight,
}

impl<R> Backlog<R> {
    /// With as many changes or bytes as in `bound`, no round is begun.
    pub fn new(bound: Weight) -> Self {
        let state =
            State { waiting: VecDeque::new(), taken: 0, weight: Weight::default(), counted: 0, is_ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), bound }
    }

    /// How much is not counted yet.
    pub fn weight(&self) -> Weight {
        self.state.lock().weight
    }

    /// With as much, no round is begun.
    pub fn bound(&self) -> Weight {
        self.bound
    }

    /// Waits while the bound is reached.
    pub fn wait_for_room(&self) {
        let bound = self.bound;
        self.wait_while(|| (), |weight| weight.changes >= bound.changes || weight.bytes >= bound.bytes);
    }

    /// Hands over what the round that served all tickets up to `ticket` made durable.
    pub fn hand_over(&self, ticket: u64, weight: Weight, row: Option<R>) {
        let mut state = self.state.lock();
        if state.is_ended || (row.is_none() && state.is_empty()) {
            // Nobody counts any more, or there is nothing to count.
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

    /// All that waits, in order; waits until there is something. Empty once there will be nothing any more.
    pub fn take(&self) -> VecDeque<Handed<R>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.is_ended {
            self.changed.wait(&mut state);
        }
        let all = std::mem::take(&mut state.waiting);
        state.taken = all.len();
        all
    }

    /// The first of what was taken is counted.
    pub fn counted(&self, handed: Handed<R>) {
        let Handed { ticket, weight, row } = handed;
        // Its memory goes before its weight.
        drop(row);
        let mut state = self.state.lock();
        state.taken -= 1;
        state.weight.take(weight);
        state.counted = ticket;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything up to `ticket` is counted. `before_waiting` is called if it is not.
    pub fn wait_for(&self, ticket: u64, before_waiting: impl FnOnce()) {
        let mut state = self.state.lock();
        if state.counted < ticket {
            before_waiting();
        }
        while state.counted < ticket {
            self.changed.wait(&mut state);
        }
    }

    /// Waits while something is not counted yet and `is_too_much` says so of it. `before_waiting` is called then.
    pub fn wait_while(&self, before_waiting: impl FnOnce(), is_too_much: impl Fn(Weight) -> bool) {
        let mut state = self.state.lock();
        if state.is_empty() || !is_too_much(state.weight) {
            return;
        }
        before_waiting();
        while !state.is_empty() && is_too_much(state.weight) {
            self.changed.wait(&mut state);
        }
    }

    /// Nothing more is handed over.
    pub fn end(&self) {
        self.state.lock().is_ended = true;
        self.changed.notify_all();
    }
}
