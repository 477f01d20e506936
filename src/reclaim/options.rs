//! How to reclaim.

use serde::{Deserialize, Serialize};

use crate::config::{RECLAIM_LEAVE_PERCENT, RECLAIM_SHARE_PERCENT, RECLAIM_THRESHOLD_PERCENT};

/// How to reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimOptions {
    /// Containers whose live share (percent of the chunk bytes put into them) is below this may be emptied. 100: all with any
    /// garbage; 0: none, so that only what is dead as a whole is freed.
    pub threshold_percent: u8,
    /// Garbage that may stay, in percent of what is alive: the emptiest containers go first, until it is reached.
    pub leave_percent: u8,
    /// Only plan.
    pub dry_run: bool,
    /// Share of the time that is worked while clients are active, in percent; 100: as fast as it goes; 0: not at all.
    pub share_percent: u8,
    /// Ends after so long, between two steps; 0: when it is done.
    pub max_time_ms: u64,
    /// Ends after so many bytes of containers were read and written, between two steps; 0: when it is done.
    pub max_io_bytes: u64,
    /// Nobody waits for it: containers that are still being filled stay so as long as clients are active (else they are closed, so
    /// that what is garbage in them is reclaimed, too), and whoever asks for a run, a plan or a check ends this one.
    pub is_background: bool,
}

impl Default for ReclaimOptions {
    fn default() -> Self {
        Self {
            threshold_percent: RECLAIM_THRESHOLD_PERCENT,
            leave_percent: RECLAIM_LEAVE_PERCENT,
            dry_run: false,
            share_percent: RECLAIM_SHARE_PERCENT,
            max_time_ms: 0,
            max_io_bytes: 0,
            is_background: false,
        }
    }
}

impl ReclaimOptions {
    /// Empties every container below the threshold, as fast as it goes.
    #[must_use]
    pub const fn below(threshold_percent: u8) -> Self {
        Self {
            threshold_percent,
            leave_percent: 0,
            dry_run: false,
            share_percent: 100,
            max_time_ms: 0,
            max_io_bytes: 0,
            is_background: false,
        }
    }

    /// The same, without doing it.
    #[must_use]
    pub const fn planned(self) -> Self {
        Self { dry_run: true, ..self }
    }
}
