//! Ending a reclaim that runs, in order: what it has begun is completed, and the next one goes on from there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// How long to wait before one that runs is told again.
const NAP: Duration = Duration::from_millis(50);

/// The reclaim of one pool: at most one runs.
#[derive(Default, Debug)]
pub struct ReclaimControl {
    pub(crate) running: Mutex<()>,
    stop: AtomicBool,
}

impl ReclaimControl {
    /// Ends the one that runs, soon: behind the node or container that it is at.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Whether the one that runs should end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn begin(&self) {
        self.stop.store(false, Ordering::Release);
    }

    /// Ends the one that runs, and keeps others from beginning until the answer is dropped; `None` if it does not end within
    /// `patience`.
    pub(crate) fn end(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + patience;
        loop {
            // Again and again: one that just begins forgets what was said before.
            self.stop();
            let ended = self.running.try_lock_for(NAP);
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
        }
    }
}
