//! The transfers of trees under way. Closing the pool ends them first, so that no tree is left half done.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupfs::Progress;
use parking_lot::{Condvar, Mutex};

use crate::progress::Cancellable;

/// Time for transfers to end: the part of a tree that is in the pool has to be removed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Transfers {
    running: Mutex<usize>,
    ended: Condvar,
    /// No transfer begins before this time.
    held_until: Mutex<Option<Instant>>,
    is_stopping: AtomicBool,
    deadline: OnceLock<Instant>,
}

/// One transfer. Its progress is cancelled when all are stopped.
pub(super) struct Transfer<'a>(&'a Transfers);

impl Transfers {
    pub(super) fn begin(&self) -> Transfer<'_> {
        loop {
            let mut running = self.running.lock();
            let held_until = *self.held_until.lock();
            if held_until.is_none_or(|until| until <= Instant::now()) {
                *running += 1;
                return Transfer(self);
            }
            drop(running);
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Lets no transfer begin for the time `at_most`. If any is running, holds nothing and returns `false`.
    pub(super) fn hold(&self, at_most: Duration) -> bool {
        let running = self.running.lock();
        if *running == 0 {
            *self.held_until.lock() = Some(Instant::now() + at_most);
        }
        *running == 0
    }

    pub(super) fn are_running(&self) -> bool {
        *self.running.lock() > 0
    }

    /// Stops all transfers, lets none begin, and waits for them. All calls together wait at most [`STOP_TIMEOUT`], and none waits once
    /// `is_urgent`.
    pub(super) fn stop_and_wait(&self, is_urgent: impl Fn() -> bool) {
        self.is_stopping.store(true, Ordering::Relaxed);
        let deadline = *self.deadline.get_or_init(|| Instant::now() + STOP_TIMEOUT);
        let mut running = self.running.lock();
        if *running > 0 {
            tracing::info!(running = *running, "stopping transfers");
        }
        while *running > 0 {
            if Instant::now() >= deadline || is_urgent() {
                tracing::warn!(running = *running, "transfers have not ended");
                return;
            }
            self.ended.wait_for(&mut running, LOOK_INTERVAL);
        }
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Transfer<'_> {
    pub(super) fn progress<'a>(&'a self, listener: &'a dyn Progress) -> Cancellable<'a, impl Fn() -> bool + Sync> {
        let is_stopping = &self.0.is_stopping;
        Cancellable { listener, is_cancelled: || is_stopping.load(Ordering::Relaxed) || listener.is_cancelled() }
    }
}

#[cfg(test)]
mod tests {
    use dedupfs::NoProgress;

    use super::*;

    #[test]
    fn those_under_way_end_before_the_pool_does() {
        let transfers = Transfers::default();
        std::thread::scope(|scope| {
            let transfer = transfers.begin();
            assert!(!transfer.progress(&NoProgress).is_cancelled());
            scope.spawn(move || {
                while !transfer.progress(&NoProgress).is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(transfer);
            });
            assert!(transfers.are_running());
            transfers.stop_and_wait(|| false);
        });
        assert!(!transfers.are_running());
        assert!(transfers.hold(Duration::from_millis(300)));
        let held = Instant::now();
        let hangs = transfers.begin();
        assert!(held.elapsed() >= Duration::from_millis(300), "it began while it was held");
        assert!(!transfers.hold(Duration::from_secs(60)), "one is under way");
        drop(transfers.begin());
        assert!(hangs.progress(&NoProgress).is_cancelled());
        transfers.stop_and_wait(|| true);
        assert!(transfers.are_running());
    }
}
