//! dedupfs: a FUSE-mounted deduplicating filesystem for backups.
//!
//! [`format()`] makes a pool, [`Pool::open`] opens it, and [`Pool`] is everything that can be done with it. `config` has the limits, and the
//! other modules have the options and reports of long work.
//!
//! The rooms, from the bottom to the top; each uses only those below it:
//!
//! ```text
//! pool                 format, open, recover, repair, close
//! transfer             put and get
//! service | upkeep     answers clients | reclaims, checks, scrubs
//! versions             frozen trees: building, reading, and which of a series are kept
//! engine               the parts of an open pool
//! durability           space, commit, export
//! content | namespace  crates: bytes to chunks, containers and recipes | inodes, names, log
//! ```
//!
//! `ARCHITECTURE.md` has the drawing, `docs/format.md` the bytes.

#![warn(unreachable_pub)]

pub mod config;
mod durability;
mod engine;
mod pool;
mod progress;
mod service;
#[cfg(test)]
#[expect(unreachable_pub, reason = "helpers are shared with tests outside of the crate")]
mod tests;
pub mod transfer;
mod upkeep;
mod versions;

// Tests name the crate as its users do.
#[cfg(test)]
extern crate self as dedupfs;

pub use dedupfs_base::{EngineError, Result, allocator, panics, shown};
pub use dedupfs_index::filter::FilterPlan;
pub use dedupfs_namespace::is_frozen;
pub use dedupfs_sync::IS_WORLD;
pub use durability::export;
pub use durability::space::SpaceLimits;
pub use pool::{
    ExportHold, OpenOptions, Pool, TRIAL_MEMORY_BYTES, TrialReport, UnrecoveredPool, format, format_on, recover,
    recover_on, repair, socket, stats,
};
pub use progress::{NoProgress, Progress};
pub use service::{AccessTimes, Service};
pub use upkeep::tree_stats::TreeStats;
pub use upkeep::would_free::WouldFree;
pub use upkeep::{check, reclaim, scrub};
#[cfg(feature = "fuzzing")]
pub use versions::fuzzing;
pub use versions::history::{HistoryRow, HistoryState};
pub use versions::list::VersionInfo;
pub use versions::name::{Origin, Resumed, VersionReport};
pub use versions::read::difference::{Change, ChangeKind, DifferencePage};
pub use versions::retention;
pub use versions::series::{Scope, SeriesRecord};
pub use versions::work::INCOMPLETE_PREFIX;
