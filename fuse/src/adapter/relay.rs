//! Who receives the kernel's requests: few threads at a time (one, unless told otherwise), and never one that waits.
//!
//! Waking a thread on another core costs more than a small request, so requests are answered where they are received. But a
//! thread that waits there, for a disk or for a lock, would keep everybody's requests waiting. So it hands over first:
//!
//! ```text
//!              settle: there are too few receivers, or called
//!    ┌───────┐ ─────────────────────────────────────────────> ┌───────────┐
//!    │ aside │                                                │ receiving │
//!    └───────┘ <───────────────────────────────────────────── └───────────┘
//!       a new thread     step_aside: it is about to wait; another one is called
//! ```
//!
//! 1. Each thread of the session is in the library's loop of receiving and answering. Behind each answer it *settles*: one that
//!    is aside, while enough others receive, sleeps here until it is called.
//! 2. Before a receiver waits, it *steps aside* and calls a sleeping one; then it waits, answers, and settles.
//! 3. A thread that ends (the session ends) wakes all: the kernel tells each of them the same.
//!
//! Invariants: never more counted receivers than wanted (one that is aside receives beside them once more if what it waited in
//! was a `forget`, which has no answer); a thread sleeps only while there are as many, or while one is about to be
//! woken. When all threads wait, nobody receives: that is the back-pressure.

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Threads that receive, or answer without waiting, or are called to.
    receivers: usize,
    /// Threads that sleep and are not called.
    sleepers: usize,
    /// Threads that are called and still sleep.
    called: usize,
    ended: bool,
}

/// The threads of one session.
pub(crate) struct Relay {
    state: Mutex<State>,
    call: Condvar,
    receivers_max: usize,
}

impl Relay {
    /// With so many receivers at a time.
    pub(crate) fn new(receivers_max: usize) -> Self {
        Self { state: Mutex::new(State::default()), call: Condvar::new(), receivers_max }
    }

    /// For a thread that is aside, before it receives: returns when it is to do so.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock();
        if state.receivers < self.receivers_max || state.ended {
            state.receivers += 1;
            return;
        }
        state.sleepers += 1;
        while state.called == 0 && !state.ended {
            self.call.wait(&mut state);
        }
        if state.called > 0 {
            state.called -= 1;
        } else {
            state.sleepers -= 1;
            state.receivers += 1;
        }
    }

    /// For a receiver that is about to wait: it is aside from here on.
    pub(crate) fn step_aside(&self) {
        let mut state = self.state.lock();
        if state.sleepers == 0 {
            state.receivers -= 1;
            return;
        }
        // The one that is called receives in its place.
        state.sleepers -= 1;
        state.called += 1;
        drop(state);
        self.call.notify_one();
    }

    /// A receiver receives nothing any more: nor will any other.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.call.notify_all();
    }
}
