//! The rate at which a source is read at most.

use std::num::NonZeroU64;
use std::time::Duration;

use dedupfs_sync::clock::Instant;
use dedupfs_sync::{Mutex, thread};

/// Longest wait without a look whether the transfer goes on.
const STEP: Duration = Duration::from_millis(100);

/// Lets so many bytes a second pass, of all threads together. Time in which fewer passed is not made up for.
pub struct Pace {
    bytes_per_sec: NonZeroU64,
    /// The time at which all that has passed may have passed.
    due: Mutex<Instant>,
}

impl Pace {
    /// Lets so many bytes a second pass.
    #[must_use]
    pub fn new(bytes_per_sec: NonZeroU64) -> Self {
        Self { bytes_per_sec, due: Mutex::new(Instant::now()) }
    }

    /// Waits as long as these bytes take, behind those before them, while `goes_on`.
    pub fn pass(&self, bytes: usize, goes_on: impl Fn() -> bool) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_sec.get() as f64);
        let due = {
            let mut due = self.due.lock();
            *due = (*due).max(Instant::now()) + takes;
            *due
        };
        while goes_on() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_passes_than_the_rate_from_all_threads_together() {
        let pace = Pace::new(NonZeroU64::new(1_000_000).unwrap());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| pace.pass(10_000, || true)));
            }
        });
        assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
        pace.pass(usize::MAX, || false);
    }
}
