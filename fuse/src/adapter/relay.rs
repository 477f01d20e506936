//! Selects the threads that receive the kernel's requests: few at a time (one by default), and never one that waits.
//!
//! Waking a thread on another core costs more than a small request, so requests are answered where they are received. But a thread that
//! waits there, for a disk or a lock, would delay all requests. So it hands over first:
//!
//! ```text
//!              settle: there are too few receivers, or called
//!    ┌───────┐ ─────────────────────────────────────────────> ┌───────────┐
//!    │ aside │                                                │ receiving │
//!    └───────┘ <───────────────────────────────────────────── └───────────┘
//!       a new thread     step_aside: it is about to wait; another one is called
//! ```
//!
//! 1. Each thread of the session runs the library's loop of receiving and answering. After each answer it *settles*: a thread that is
//!    aside, while enough others receive, sleeps here until it is called.
//! 2. Before a receiver waits, it *steps aside* and calls a sleeping thread. Then it waits, answers, and settles.
//! 3. A thread that ends (the session ends) wakes all: the kernel gives each of them the same end.
//!
//! Invariants:
//! - There are never more counted receivers than wanted. A thread that is aside receives once more beside them if it waited in a `forget`,
//!   which has no answer.
//! - A thread sleeps only while there are as many receivers as wanted, or while a thread is about to be woken.
//! - When all threads wait, nobody receives: that is the back-pressure.

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct Threads {
    /// Threads that receive, answer without waiting, or are called to receive.
    receivers: usize,
    /// Threads that sleep and are not called.
    sleepers: usize,
    /// Threads that are called and still sleep.
    called: usize,
    ended: bool,
}

pub(crate) struct Relay {
    threads: Mutex<Threads>,
    call: Condvar,
    receivers_max: usize,
}

impl Relay {
    pub(crate) fn new(receivers_max: usize) -> Self {
        Self { threads: Mutex::new(Threads::default()), call: Condvar::new(), receivers_max }
    }

    /// Called by a thread that is aside, before it receives. Returns when the thread is to receive.
    pub(crate) fn take_place(&self) {
        let mut threads = self.threads.lock();
        if threads.receivers < self.receivers_max || threads.ended {
            threads.receivers += 1;
            return;
        }
        threads.sleepers += 1;
        while threads.called == 0 && !threads.ended {
            self.call.wait(&mut threads);
        }
        if threads.called > 0 {
            threads.called -= 1;
        } else {
            threads.sleepers -= 1;
            threads.receivers += 1;
        }
    }

    /// Called by a receiver that is about to wait. It is aside from here on.
    pub(crate) fn step_aside(&self) {
        let mut threads = self.threads.lock();
        if threads.sleepers == 0 {
            threads.receivers -= 1;
            return;
        }
        // The called thread receives in its place.
        threads.sleepers -= 1;
        threads.called += 1;
        drop(threads);
        self.call.notify_one();
    }

    /// Called when a receiver stops receiving: no other will receive either.
    pub(crate) fn end(&self) {
        self.threads.lock().ended = true;
        self.call.notify_all();
    }
}
