//! Whether clients are there: who works in the background gives way to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When clients asked for something last.
#[derive(Debug)]
pub struct Activity {
    started: Instant,
    /// Milliseconds since then, and one; 0: never.
    last_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self { started: Instant::now(), last_ms: AtomicU64::new(0) }
    }
}

impl Activity {
    /// A client asks for something that costs time. Cost: a look at the clock.
    pub fn note(&self) {
        let elapsed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed_ms.saturating_add(1), Ordering::Relaxed);
    }

    /// For how long nobody has asked for anything.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
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
