//! Trees that are being copied: who closes the pool ends them first, so that nothing is left half done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupfs::pool::Progress;
use parking_lot::{Condvar, Mutex};

/// Copying ends within this time: what of a tree is in the pool by then has to be removed.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Those under way.
#[derive(Default)]
pub(super) struct Transfers {
    running: Mutex<usize>,
    ended: Condvar,
    is_stopping: AtomicBool,
}

/// One of them; its progress is cancelled when all are stopped.
pub(super) struct Transfer<'a> {
    all: &'a Transfers,
    listener: &'a dyn Progress,
}

impl Transfers {
    pub(super) fn begin<'a>(&'a self, listener: &'a dyn Progress) -> Transfer<'a> {
        *self.running.lock() += 1;
        Transfer { all: self, listener }
    }

    /// Ends those under way; none begins before [`resume`](Self::resume).
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// The same, and waits for it.
    pub(super) fn stop_and_wait(&self) {
        self.stop();
        let mut running = self.running.lock();
        if *running > 0 {
            tracing::info!(running = *running, "ending what is being copied");
        }
        if self.ended.wait_while_for(&mut running, |running| *running > 0, STOP_TIMEOUT).timed_out() {
            tracing::warn!(running = *running, "what is being copied does not end");
        }
    }

    pub(super) fn resume(&self) {
        self.is_stopping.store(false, Ordering::Relaxed);
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
    use dedupfs::pool::NoProgress;

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
            transfers.stop_and_wait();
        });
        assert!(transfers.begin(&NoProgress).is_cancelled());
        transfers.resume();
        assert!(!transfers.begin(&NoProgress).is_cancelled());
        assert_eq!(*transfers.running.lock(), 0);
    }
}
