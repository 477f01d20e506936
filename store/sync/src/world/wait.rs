//! Tasks that wait: for each other, and for the time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use shuttle::thread::Thread;

use super::state;

const WAITS: u8 = 0;
const WOKEN: u8 = 1;
const TIMED_OUT: u8 = 2;

/// A task that waits, once.
#[derive(Debug)]
pub(in crate::world) struct Waiter {
    thread: Thread,
    state: AtomicU8,
}

impl Waiter {
    /// A waiter of the calling task.
    pub(in crate::world) fn new() -> Arc<Self> {
        assert!(!state::is_atomic(), "a task would wait inside of an atomic step");
        Arc::new(Self { thread: shuttle::thread::current(), state: AtomicU8::new(WAITS) })
    }

    pub(in crate::world) fn is_woken(&self) -> bool {
        self.state.load(Ordering::Relaxed) != WAITS
    }

    /// Wakes the task unless something else has.
    fn wake(&self, how: u8) -> bool {
        let wakes = self.state.compare_exchange(WAITS, how, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if wakes {
            self.thread.unpark();
        }
        wakes
    }

    /// Waits until it is woken, for `at_most` this time. Returns whether it was woken by then.
    pub(in crate::world) fn wait(self: &Arc<Self>, at_most: Option<Duration>) -> bool {
        if let Some(time) = at_most {
            state::set_timer(time, self.clone());
        }
        while !self.is_woken() {
            shuttle::thread::park();
        }
        self.state.load(Ordering::Relaxed) == WOKEN
    }
}

/// Tasks that wait for the same thing. Outside of a world nobody waits here.
#[derive(Debug, Default)]
pub(in crate::world) struct Waiters(parking_lot::Mutex<VecDeque<Arc<Waiter>>>);

impl Waiters {
    pub(in crate::world) const fn new() -> Self {
        Self(parking_lot::Mutex::new(VecDeque::new()))
    }

    /// Adds the calling task.
    pub(in crate::world) fn enter(&self) -> Arc<Waiter> {
        let waiter = Waiter::new();
        self.join(&waiter);
        waiter
    }

    /// Adds a waiter, which may be in other queues.
    pub(in crate::world) fn join(&self, waiter: &Arc<Waiter>) {
        self.0.lock().push_back(waiter.clone());
    }

    /// Takes a waiter that gave up out of the queue.
    pub(in crate::world) fn leave(&self, waiter: &Arc<Waiter>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, waiter));
    }

    /// Wakes a waiter, any of them.
    pub(in crate::world) fn wake_one(&self) {
        let mut waiters = self.0.lock();
        while !waiters.is_empty() {
            let chosen = state::random(waiters.len() as u64) as usize;
            if waiters.remove(chosen).is_some_and(|waiter| waiter.wake(WOKEN)) {
                return;
            }
        }
    }

    pub(in crate::world) fn wake_all(&self) {
        let waiters = std::mem::take(&mut *self.0.lock());
        waiters.iter().for_each(|waiter| {
            waiter.wake(WOKEN);
        });
    }
}

/// Waits for this time.
pub(in crate::world) fn sleep(time: Duration) {
    Waiter::new().wait(Some(time));
}

/// The task that lets time pass. It goes on when no other task can, and ends behind the main task and all threads.
pub(in crate::world) fn keep_time() {
    while !state::is_over() {
        if state::is_killed() {
            // Fails the execution on this stack alone: no destructor of the engine runs, and its tasks are leaked.
            std::panic::resume_unwind(Box::new("killed"));
        }
        match state::next_timer() {
            Some(waiter) => {
                waiter.wake(TIMED_OUT);
            }
            None => panic!("all threads wait, and none for a time"),
        }
        shuttle::thread::yield_now();
    }
}
