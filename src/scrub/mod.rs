//! Scrubbing: everything that is stored is read and compared with what it should be, beside all other work.
//!
//! 1. Containers are read whole, in the order in which they lie on the disk, recipes first ([`run`]). The workers check every
//!    frame and hash every chunk ([`judge`]) while the next container is read.
//! 2. What is bad is quarantined ([`quarantine`]) before the position moves beyond it. What the disk does not give after some
//!    tries counts as bad as soon as something else could be read again: a cable that fell out is no loss.
//! 3. The position is made durable now and then ([`position`]): after a crash, or when it is stopped, a scrub goes on there.
//! 4. Then the export on the data root is verified; what is bad of it is written anew ([`crate::export`]).
//! 5. At the end the files that need what is lost are named ([`crate::check::affected`]).
//!
//! It takes no lock that writers, reclaiming or checks wait for; one scrub at a time. A container that is freed
//! meanwhile is no finding; one that is filled meanwhile is left to the next scrub. Reclaiming and a scrub only wait for each
//! other where recipe nodes are freed, or quarantined.
//!
//! Cost: one read of each container, one hash of its content. Memory: some containers (4 MiB each, uncompressed as
//! well), the records of all containers, 40 bytes for each bad chunk of a batch, and what naming files takes.

mod judge;
mod pipeline;
mod position;
mod quarantine;
mod run;
mod suspects;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::judge::judge;
pub use self::pipeline::{Judged, Pipeline};
pub use self::position::{FILE_NAME as POSITION_FILE, ScrubPosition};
pub use self::quarantine::BadCopy;
pub use self::run::scrub;
pub(crate) use self::suspects::SuspectThread;
use crate::check::affected::AffectedFiles;
use crate::export::ExportCheck;

/// How to scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubOptions {
    /// Bytes read from the disks in a second at most; 0: as fast as they give.
    pub rate_bytes_per_s: u64,
    /// Begin anew, wherever the last one was.
    pub restart: bool,
}

/// Kinds of damage that are told in words.
pub const DAMAGE_TOLD_MAX: usize = 100;

/// What a scrub found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Everything was read; else it was stopped, and the next one goes on.
    pub finished: bool,
    /// Not finished, because the pool was unmounted meanwhile; what is lost was not looked for then.
    #[serde(default)]
    pub unmounted: bool,
    /// Containers read by this run.
    pub containers: u64,
    /// Containers that runs before had read, from which this one went on.
    pub containers_before: u64,
    /// Chunks and recipe nodes that are as they should be.
    pub sound: u64,
    /// Bytes read from the disks by this run.
    pub disk_bytes: u64,
    /// Uncompressed bytes of them that were compared with their names.
    pub content_bytes: u64,
    /// Time it took, without naming files.
    pub elapsed_ms: u64,
    /// Chunks that this run found bad and quarantined.
    pub bad_chunks: u64,
    /// Recipe nodes that this run found bad and quarantined.
    pub bad_nodes: u64,
    /// Containers with damage of which nothing is to be quarantined, because nothing needs it or it is lost already: reclaiming frees
    /// them when it empties them.
    pub containers_with_garbage: u64,
    /// Chunks that files need and nobody has, as of the end: of this run and of any time before.
    pub lost_chunks: u64,
    /// Recipe nodes that files need and nobody has.
    pub lost_nodes: u64,
    /// Of what the index calls lost, what this run has found sound in some container: an index that is made anew has it again.
    #[serde(default)]
    pub lost_and_readable: u64,
    /// Counts of what is in use could not be right: nothing is freed until `dedupfs fsck --rebuild-index`.
    #[serde(default)]
    pub counts_in_doubt: bool,
    /// Each thing that is not as it was written, at most [`DAMAGE_TOLD_MAX`] of them.
    pub damage: Vec<String>,
    /// All of them.
    pub damage_count: u64,
    /// Files that need what is lost.
    pub affected: AffectedFiles,
    /// What was found of the export on the data root, if the scrub came to it.
    #[serde(default)]
    pub export: Option<ExportCheck>,
}

impl ScrubReport {
    /// Whether all that files need was found sound, as far as it was read.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.bad_chunks + self.bad_nodes + self.lost_chunks + self.lost_nodes == 0
    }

    /// Whether the export is bad and could not be written anew.
    #[must_use]
    pub fn is_export_bad(&self) -> bool {
        self.export.as_ref().is_some_and(ExportCheck::is_bad)
    }

    fn add_damage(&mut self, what: String) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_TOLD_MAX {
            self.damage.push(what);
        }
    }
}

/// What a scrub is at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// One is running.
    pub running: bool,
    /// How far the one that runs, or the last one, has come; `None` if there never was one.
    pub position: Option<ScrubPosition>,
    /// Bytes of all containers now.
    pub total_bytes: u64,
    /// Chunks that are lost as of now, whoever found them bad; `None`: it is not known, because another process has the pool.
    /// Those that only garbage needs count until it is reclaimed.
    #[serde(default)]
    pub lost_chunks: Option<u64>,
    /// Recipe nodes, likewise.
    #[serde(default)]
    pub lost_nodes: Option<u64>,
}

/// The scrub of one pool: at most one runs.
#[derive(Default, Debug)]
pub struct ScrubControl {
    pub(crate) running: Mutex<()>,
    stop: AtomicBool,
    position: Mutex<Option<ScrubPosition>>,
}

/// How long a throttled scrub sleeps before it looks whether it should end.
const NAP: Duration = Duration::from_millis(50);

impl ScrubControl {
    /// Ends the one that runs, soon; the next goes on where it was.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn begin(&self) {
        self.stop.store(false, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn note(&self, position: ScrubPosition) {
        *self.position.lock() = Some(position);
    }

    /// The position of the one that runs, or ran last in this session.
    #[must_use]
    pub fn position(&self) -> Option<ScrubPosition> {
        *self.position.lock()
    }
}
