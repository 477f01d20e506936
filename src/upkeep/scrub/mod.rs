//! Scrubbing: reads all stored content and compares it with its checksums and fingerprints, beside all other work.
//!
//! 1. Containers are read whole, in the order of their places on disk, recipes first ([`run`]). The workers check every
//!    frame and hash every chunk ([`inspect`](crate::upkeep::inspect)) while the next container is read.
//! 2. Bad copies of nodes are stored again from the export ([`repair`]), all others quarantined ([`quarantine`]) before the
//!    position moves beyond them. Content that the disk does not
//!    return after some tries counts as bad as soon as the disk returns other content: a loose cable is no loss.
//! 3. The position is made durable now and then ([`position`]). After a crash or a stop, the next scrub resumes there.
//! 4. Then the export on the data root is verified, and its bad parts are rewritten ([`crate::durability::export`]).
//! 5. What is lost can be stored again from a copy of the pool elsewhere ([`heal`]).
//! 6. At the end the files that need lost content are named ([`crate::upkeep::affected`]).
//!
//! A scrub takes no lock that writers, reclaiming or checks wait for. Only one scrub runs at a time. A container freed
//! meanwhile is no finding; one filled meanwhile is left to the next scrub. Reclaiming and a scrub wait for each other
//! only to free or quarantine recipe nodes.
//!
//! Cost: one read of each container, one hash of its content. Memory: some containers (4 MiB each, and again
//! uncompressed), the records of all containers, 40 bytes for each bad chunk of a batch, and the memory for naming
//! files.

mod heal;
mod position;
mod quarantine;
mod repair;
mod run;
pub(crate) mod suspects;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupfs_sync::Mutex;
use serde::{Deserialize, Serialize};

pub use self::heal::{
    COPIES_BYTES_MAX, LOST_AT_ONCE, LostContent, decode_copies, decode_lost, encode_copies, encode_lost,
};
pub use self::position::{FILE_NAME as POSITION_FILE, ScrubPosition};
pub(crate) use self::quarantine::BadCopy;
pub use self::run::scrub;
use crate::durability::export::ExportCheck;
use crate::upkeep::affected::AffectedFiles;

/// How to scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubOptions {
    /// Limit of the bytes read from the disks in a second; 0: no limit.
    pub rate_bytes_per_s: u64,
    /// Start over, ignoring the position of the last scrub.
    pub restart: bool,
}

/// Number of damages that are described in words.
pub(crate) const DAMAGE_TOLD_MAX: usize = 100;

/// The result of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Whether everything was read. If not, the scrub was stopped, and the next one resumes.
    pub finished: bool,
    /// Whether the scrub ended because the pool was unmounted. Losses were not looked up then.
    #[serde(default)]
    pub unmounted: bool,
    /// Containers read by this run.
    pub containers: u64,
    /// Containers that earlier runs of this pass had read.
    pub containers_before: u64,
    /// Chunks and recipe nodes that are sound.
    pub sound: u64,
    /// Bytes read from the disks by this run.
    pub disk_bytes: u64,
    /// Uncompressed bytes that were compared with their fingerprints.
    pub content_bytes: u64,
    /// Duration, without naming files.
    pub elapsed_ms: u64,
    /// Chunks that this run found bad and quarantined.
    pub bad_chunks: u64,
    /// Recipe nodes that this run found bad and quarantined.
    pub bad_nodes: u64,
    /// Recipe nodes and tree nodes that this run found bad, and stored again from their copies on the data root.
    #[serde(default)]
    pub repaired_nodes: u64,
    /// Damaged containers in which nothing is to be quarantined, because the bad content is not needed or already lost.
    /// Reclaiming frees them when it empties them.
    pub containers_with_garbage: u64,
    /// Chunks that files need and no container has, as of the end; losses found by any run.
    pub lost_chunks: u64,
    /// Recipe nodes that files need and no container has.
    pub lost_nodes: u64,
    /// Content that the index calls lost and this run found sound in some container. A rebuilt index has it again.
    #[serde(default)]
    pub lost_and_readable: u64,
    /// Whether impossible counts were met: nothing is freed until `dedupfs fsck --rebuild-index`.
    #[serde(default)]
    pub counts_in_doubt: bool,
    /// Descriptions of the damage, at most [`DAMAGE_TOLD_MAX`].
    pub damage: Vec<String>,
    /// Number of all damages.
    pub damage_count: u64,
    /// Files that need lost content.
    pub affected: AffectedFiles,
    /// Result for the export on the data root, if the scrub reached it.
    #[serde(default)]
    pub export: Option<ExportCheck>,
}

impl ScrubReport {
    /// Whether all content that files need was sound, as far as it was read.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.bad_chunks + self.bad_nodes + self.lost_chunks + self.lost_nodes == 0
    }

    /// Whether the export is bad and could not be rewritten.
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

/// The state of scrubbing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Whether a scrub is running.
    pub running: bool,
    /// Whether a trial recovery is running, of a scrub or of a check.
    #[serde(default)]
    pub in_trial: bool,
    /// Position of the running scrub, or of the last one; `None` if there never was one.
    pub position: Option<ScrubPosition>,
    /// Total bytes of the containers now.
    pub total_bytes: u64,
    /// Chunks that are lost now, no matter how they were found; `None` if unknown, because another process has the
    /// pool. Chunks that only garbage needs are included until it is reclaimed.
    #[serde(default)]
    pub lost_chunks: Option<u64>,
    /// Recipe nodes that are lost now, likewise.
    #[serde(default)]
    pub lost_nodes: Option<u64>,
}

/// Control of the scrub of one pool; at most one runs.
#[derive(Default, Debug)]
pub struct ScrubControl {
    pub(crate) running: Mutex<()>,
    stop: AtomicBool,
    position: Mutex<Option<ScrubPosition>>,
}

/// Longest sleep of a throttled scrub between two looks at its stop flag.
const NAP: Duration = Duration::from_millis(50);

impl ScrubControl {
    /// Ends the running scrub soon. The next one resumes there.
    pub(crate) fn stop(&self) {
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

    /// Returns the position of the running scrub, or of the last one in this session.
    pub(crate) fn position(&self) -> Option<ScrubPosition> {
        *self.position.lock()
    }
}
