//! Time, which passes only when the world says so.

use std::ops::{Add, AddAssign, Sub};
use std::sync::LazyLock;
use std::time::Duration;

use crate::world::state;

/// The beginning of the first life: 2100-01-01. Files of the real disk that a put reads are older, also if the clock of the world jumps.
const EPOCH: Duration = Duration::from_secs(4_102_444_800);

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        static OUTSIDE: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        // No moment is so early that a day before it cannot be told.
        let before = Duration::from_secs(1 << 20);
        Self(before + if state::in_world() { state::now() } else { OUTSIDE.elapsed() })
    }

    /// Time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Time from `earlier` to this moment; zero if it is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// As [`duration_since`](Self::duration_since).
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// The moment this much later.
    #[must_use]
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// The moment this much earlier.
    #[must_use]
    pub fn checked_sub(&self, time: Duration) -> Option<Self> {
        self.0.checked_sub(time).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, time: Duration) -> Self {
        Self(self.0 - time)
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// Time since 1970.
#[must_use]
pub fn since_epoch() -> Duration {
    state::on_the_wall(EPOCH)
}
