//! The options of reclaiming.

use serde::{Deserialize, Serialize};

use crate::config::{RECLAIM_LEAVE_PERCENT, RECLAIM_SHARE_PERCENT, RECLAIM_THRESHOLD_PERCENT};

/// How much arranging moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arranging {
    /// Nothing.
    Off,
    /// In proportion to what was stored for new versions; nothing if only dead containers are to be freed.
    #[default]
    Budget,
    /// As [`Budget`](Self::Budget), for a run that does nothing else: nodes of removed versions stay. The threshold is to be 0.
    Alone,
    /// All containers in which restores of the newest versions read much in vain.
    All,
}

/// The options of reclaiming.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimOptions {
    /// Live share, in percent of the chunk bytes put into a container, below which it may be emptied. 100: all with any
    /// garbage; 0: only wholly dead containers are freed.
    pub threshold_percent: u8,
    /// Garbage that may stay, in percent of the live bytes: the emptiest containers go first, until it is reached.
    pub leave_percent: u8,
    /// Only plan.
    pub dry_run: bool,
    /// Share of the time, in percent, that reclaiming works while clients are active. 100: full speed; 0: not at all.
    pub share_percent: u8,
    /// Time after which the run ends, between two steps; 0: no limit.
    pub max_time_ms: u64,
    /// Bytes of containers read and written after which the run ends, between two steps; 0: no limit.
    pub max_io_bytes: u64,
    /// Nobody waits for the run. While clients are active, it leaves containers that are being filled (otherwise it
    /// closes them, so that their garbage is reclaimed too). A request for a run, a plan or a check ends it.
    pub is_background: bool,
    /// How much content of the newest versions is moved together.
    #[serde(default)]
    pub arranging: Arranging,
    /// The pool has no clients, so a namespace of any size is made as small as possible: nobody waits for its lock.
    #[serde(default)]
    pub without_clients: bool,
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
            arranging: Arranging::Budget,
            without_clients: false,
        }
    }
}

impl ReclaimOptions {
    /// Empties every container below the threshold, and arranges everything, at full speed.
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
            arranging: Arranging::All,
            without_clients: false,
        }
    }

    /// Arranges what is new, in the background.
    #[must_use]
    pub fn arranging() -> Self {
        Self { threshold_percent: 0, is_background: true, arranging: Arranging::Alone, ..Self::default() }
    }

    /// The same options, as a plan.
    #[must_use]
    pub const fn planned(self) -> Self {
        Self { dry_run: true, ..self }
    }
}
