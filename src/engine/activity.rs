//! The clock of client activity. Background work yields while clients are active.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupfs_sync::clock::Instant;

/// The time of the last client request.
#[derive(Debug)]
pub struct Activity {
    started: Instant,
    /// Milliseconds from `started` to the last request, plus one; 0: no request yet.
    last_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self { started: Instant::now(), last_ms: AtomicU64::new(0) }
    }
}

impl Activity {
    /// Notes a client request that costs time. Cost: one clock read.
    pub(crate) fn note(&self) {
        let elapsed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed_ms.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the time since the last request; `Duration::MAX` if there was none.
    pub(crate) fn idle_for(&self) -> Duration {
        match self.last_ms.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            last_ms => self.started.elapsed().saturating_sub(Duration::from_millis(last_ms - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_for_nothing_is_idle_for_ever() {
        let activity = Activity::default();
        assert_eq!(activity.idle_for(), Duration::MAX);
        activity.note();
        let noted = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(activity.idle_for() >= Duration::from_millis(5));
        assert!(activity.idle_for() <= noted.elapsed() + Duration::from_millis(1));
    }
}
