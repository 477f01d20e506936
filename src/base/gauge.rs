//! Bytes held in memory on their way to disk, summed over all holders.
//!
//! Admitted bytes must be in some gauge until the device has them (see the guard of space). So a holder that
//! passes bytes on adds them at the target before it releases them here: they may count twice for a moment, and are
//! never missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sum over all holders.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    holders: AtomicU64,
}

impl Gauge {
    /// Returns the bytes of all holders.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns the number of holders that hold bytes, or may at any moment.
    #[must_use]
    pub fn holders(&self) -> u64 {
        self.holders.load(Ordering::Acquire)
    }

    /// Replaces `before` by `now` in the sum. All threads share its cache line, so an equal value does not touch it.
    fn change(&self, now: u64, before: u64) {
        match now.cmp(&before) {
            std::cmp::Ordering::Greater => self.bytes.fetch_add(now - before, Ordering::AcqRel),
            std::cmp::Ordering::Less => self.bytes.fetch_sub(before - now, Ordering::AcqRel),
            std::cmp::Ordering::Equal => return,
        };
    }

    /// Adds `holders` that hold `bytes` together, until the returned value is dropped.
    pub fn hold(self: &Arc<Self>, bytes: u64, holders: u64) -> Hold {
        self.change(bytes, 0);
        if holders > 0 {
            self.holders.fetch_add(holders, Ordering::AcqRel);
        }
        Hold { gauge: self.clone(), bytes: AtomicU64::new(bytes), holders }
    }
}

/// The bytes of one or more holders.
#[derive(Debug)]
#[must_use = "dropping it releases the bytes"]
pub struct Hold {
    gauge: Arc<Gauge>,
    bytes: AtomicU64,
    holders: u64,
}

impl Hold {
    /// Holds `bytes` more.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.gauge.change(bytes, 0);
    }

    /// Holds `bytes` less, down to 0.
    pub fn release(&self, bytes: u64) {
        let take = |held: u64| Some(held.saturating_sub(bytes));
        let held = self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).unwrap_or_default();
        self.gauge.change(0, held.min(bytes));
    }

    /// Holds exactly `bytes`; for one thread at a time.
    pub fn set(&self, bytes: u64) {
        self.gauge.change(bytes, self.bytes.swap(bytes, Ordering::AcqRel));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gauge.change(0, self.bytes.load(Ordering::Acquire));
        if self.holders > 0 {
            self.gauge.holders.fetch_sub(self.holders, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_what_all_hold() {
        let gauge = Arc::new(Gauge::default());
        let (one, other) = (gauge.hold(5, 1), gauge.hold(0, 2));
        one.add(10);
        other.set(7);
        assert_eq!((gauge.bytes(), gauge.holders()), (22, 3));
        one.release(3);
        other.set(1);
        assert_eq!(gauge.bytes(), 13);
        one.release(100);
        assert_eq!(gauge.bytes(), 1, "no more is released than is held");
        drop((one, other));
        assert_eq!((gauge.bytes(), gauge.holders()), (0, 0));
    }
}
