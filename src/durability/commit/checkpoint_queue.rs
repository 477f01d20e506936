//! The queue between the counting thread and the thread that writes checkpoints: one checkpoint at a time.

use dedupfs_store::profile::{self, Component};
use dedupfs_sync::{Condvar, Mutex};

/// The outcome of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum CheckpointOutcome {
    /// The checkpoint is durable.
    #[default]
    Whole,
    /// There was no space. A later checkpoint tries again.
    NoSpace,
    /// The pool is read-only now.
    Failed,
}

struct State<F> {
    waiting: Option<F>,
    is_busy: bool,
    stopping: bool,
    last: CheckpointOutcome,
}

pub(super) struct CheckpointQueue<F> {
    state: Mutex<State<F>>,
    changed: Condvar,
}

impl<F> Default for CheckpointQueue<F> {
    fn default() -> Self {
        let state = State { waiting: None, is_busy: false, stopping: false, last: CheckpointOutcome::default() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<F> CheckpointQueue<F> {
    /// Whether a checkpoint is under way, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.state.lock().is_busy
    }

    /// Hands over a checkpoint; only when none is under way.
    pub(super) fn submit(&self, flush: F) {
        let mut state = self.state.lock();
        debug_assert!(!state.is_busy, "one at a time");
        state.is_busy = true;
        state.waiting = Some(flush);
        self.changed.notify_all();
    }

    /// Waits until no checkpoint is under way. Returns the outcome of the last one.
    pub(super) fn wait(&self) -> CheckpointOutcome {
        let mut state = self.state.lock();
        let mut waits = None;
        while state.is_busy && !state.stopping {
            waits.get_or_insert_with(|| profile::of(Component::CheckpointEnd));
            self.changed.wait(&mut state);
        }
        state.last
    }

    /// Waits for the next checkpoint to write; `None` when the queue is stopped.
    pub(super) fn next(&self) -> Option<F> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(flush) = state.waiting.take() {
                return Some(flush);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Ends the checkpoint that [`next`](Self::next) returned.
    pub(super) fn done(&self, how: CheckpointOutcome) {
        let mut state = self.state.lock();
        (state.is_busy, state.last) = (false, how);
        self.changed.notify_all();
    }

    /// Stops the queue. A checkpoint being written is completed; a waiting one is dropped.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }
}
