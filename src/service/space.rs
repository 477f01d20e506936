//! Room for what clients bring: asked for before anything is taken, and what df shows of it.

use std::time::{Duration, Instant};

use dedupfs_fuse::service::Statistics;
use dedupfs_store::waiting;
use parking_lot::Mutex;

use super::Service;
use crate::config::{MIB, PUBLISH_PATIENCE};
use crate::error::{EngineError, Result};
use crate::pool::{Demand, Promise};

/// Bytes of the meta root for one more inode with its name, about: as many inodes does statfs promise.
const INODE_BYTES: u64 = 1024;
/// Unit of statfs.
const BLOCK_BYTES: u32 = 4096;
/// What finishing must leave on each root to be done again as soon as there is no room: so it costs something for each so many
/// bytes at most, and not for each write.
const WORTHWHILE_BYTES: u64 = 2 * MIB;
/// When it left less, so long nothing is finished early: the pool is full.
const FULL_FOR: Duration = Duration::from_secs(1);
/// The log is told of refusals this often at most: clients try again and again.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Finishing what is under way, for room.
#[derive(Default)]
pub(super) struct Settling(Mutex<Full>);

#[derive(Default)]
struct Full {
    /// The pool was full then.
    since: Option<Instant>,
    /// When the log was told that something was refused.
    told: Option<Instant>,
}

impl Service {
    /// Takes room for something new. If there is none, what is under way is finished first: much of it may turn out to be known,
    /// or compress well. So a copy of what is stored fits a disk that is nearly full.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn admit(&self, demand: Demand) -> Result<Promise<'_>> {
        let admit = || self.core.admit(demand);
        match admit() {
            Err(EngineError::NoSpace) => self.settle_and(&admit),
            admitted => admitted,
        }
    }

    /// As [`admit`](Self::admit), for what gives back more than it takes in the end.
    pub(super) fn admit_freeing(&self, demand: Demand) -> Result<Promise<'_>> {
        let admit = || self.core.space.admit_freeing(demand);
        match admit() {
            Err(EngineError::NoSpace) => self.settle_and(&admit),
            admitted => admitted,
        }
    }

    /// Whether so much content can be written now, as [`space`](Self::space) tells it. Takes nothing.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn check_available(&self, bytes: u64) -> Result<()> {
        // The worst case fits nearly always, and is asked for without asking the disks.
        match self.core.admit(self.core.cost.of_content(bytes, 1)) {
            Err(EngineError::NoSpace) => {}
            admitted => return admitted.map(drop),
        }
        let is_available = || {
            let available_bytes = self.space()?.blocks_available.saturating_mul(u64::from(BLOCK_BYTES));
            if bytes <= available_bytes { Ok(self.core.promise_change()) } else { Err(EngineError::NoSpace) }
        };
        match is_available() {
            Err(EngineError::NoSpace) => self.settle_and(&is_available).map(drop),
            available => available.map(drop),
        }
    }

    /// Publishes all files and commits, and tries again; by one thread at a time, and not soon after that was of no use. To be
    /// called with no lock held.
    fn settle_and<'a>(&self, admit: &dyn Fn() -> Result<Promise<'a>>) -> Result<Promise<'a>> {
        let mut full = waiting::lock(&self.settling.0);
        // Another thread may have done it while this one waited.
        match admit() {
            Err(EngineError::NoSpace) => {}
            admitted => return admitted,
        }
        if full.since.is_some_and(|since| since.elapsed() < FULL_FOR) {
            return Err(EngineError::NoSpace);
        }
        // Each file remembers its own error, and the next commit says if this one failed: here only the space counts.
        let published = self.publish_all(None, Some(PUBLISH_PATIENCE));
        let committed = self.core.committer.commit();
        if let Err(error) = published.and(committed) {
            tracing::debug!(%error, "not all that is under way could be finished");
        }
        let is_worthwhile = self.core.space.has_room(WORTHWHILE_BYTES)?;
        full.since = (!is_worthwhile).then(Instant::now);
        let admitted = admit();
        if admitted.is_err() && full.told.is_none_or(|told| told.elapsed() >= TOLD_AGAIN_AFTER) {
            full.told = Some(Instant::now());
            self.core.space.tell_refusal();
        }
        admitted
    }

    /// What df shows: used is what the pool takes, not what others keep on the same disk; available is what can be written, by the
    /// root that is full first.
    pub(super) fn space(&self) -> Result<Statistics> {
        let core = &self.core;
        let [data, meta] = core.space.roots()?;
        let one_root = core.space.is_shared();
        // What is described with all that the meta root has left.
        let described_bytes = core.cost.described_bytes(meta.usable_bytes);
        let usable_bytes = if one_root {
            core.cost.stored_bytes(data.usable_bytes.min(meta.usable_bytes)).min(data.usable_bytes)
        } else {
            data.usable_bytes.min(described_bytes)
        };
        let used_bytes = if one_root { data.pool_bytes + meta.pool_bytes } else { data.pool_bytes };
        let reserve_bytes = (if one_root { data.reserve_bytes + meta.reserve_bytes } else { data.reserve_bytes })
            .min(data.free_bytes.saturating_sub(usable_bytes));
        let unit = u64::from(BLOCK_BYTES);
        let inodes = u64::try_from(core.namespace.totals().inodes()).unwrap_or(0);
        let inodes_left = meta.usable_bytes / INODE_BYTES;
        Ok(Statistics {
            block_bytes: BLOCK_BYTES,
            blocks: (used_bytes + usable_bytes + reserve_bytes) / unit,
            blocks_free: (usable_bytes + reserve_bytes) / unit,
            blocks_available: usable_bytes / unit,
            files: inodes + inodes_left,
            files_free: inodes_left,
            name_bytes_max: 255,
        })
    }
}
