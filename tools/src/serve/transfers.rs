//! The transfers of trees under way. Closing the pool ends them first, so that no tree is left half done.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupfs::Progress;
use parking_lot::{Condvar, Mutex};

/// Time for transfers to end: the part of a tree that is in the pool has to be removed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks whether waiting must end at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The transfers under way.
#[derive(Default)]
pub(super) struct Transfers {
    running: Mutex<usize>,
    ended: Condvar,
    /// No transfer begins before this time.
    held_until: Mutex<Option<Instant>>,
    is_stopping: AtomicBool,
    /// The time until which stopping waits for them.
    deadline: OnceLock<Instant>,
}

/// One transfer. Its progress is cancelled when all are stopped.
pub(super) struct Transfer<'a> {
    all: &'a Transfers,
    listener: &'a dyn Progress,
}

impl Transfers {
    pub(super) fn begin<'a>(&'a self, listener: &'a dyn Progress) -> Transfer<'a> {
        loop {
            let mut running = self.running.lock();
            let held_until = *self.held_until.lock();
            if held_until.is_none_or(|until| until <= Instant::now()) {
                *running += 1;
                return Transfer { all: self, listener };
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

    /// Whether any transfer is running.
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
        *self.all.running.lock() -= 1;
        self.all.ended.notify_all();
    }
}

impl Progress for Transfer<'_> {
    fn start(&self, what: &str, total: u64) {
        self.listener.start(what, total);
    }

    fn advance(&self, by: u64) {
        self.listener.advance(by);
    }

    fn finish(&self) {
        self.listener.finish();
    }

    fn is_cancelled(&self) -> bool {
        self.all.is_stopping.load(Ordering::Relaxed) || self.listener.is_cancelled()
    }

    fn say(&self, line: &str) {
        self.listener.say(line);
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
            let transfer = transfers.begin(&NoProgress);
            assert!(!transfer.is_cancelled());
            scope.spawn(move || {
                while !transfer.is_cancelled() {
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
        let hangs = transfers.begin(&NoProgress);
        assert!(held.elapsed() >= Duration::from_millis(300), "it began while it was held");
        assert!(!transfers.hold(Duration::from_secs(60)), "one is under way");
        drop(transfers.begin(&NoProgress));
        assert!(hangs.is_cancelled());
        transfers.stop_and_wait(|| true);
        assert!(transfers.are_running());
    }
}
