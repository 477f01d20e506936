//! Admission of new content by room, and the figures of df.

use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::Statistics;
use dedupfs_store::waiting;
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;

use super::Service;
use crate::config::{ENTRY_META_BYTES, MIB, PUBLISH_PATIENCE};
use crate::durability::space::{Demand, Promise};

/// Estimate of the bytes on the meta root for one inode with its name; statfs derives its free inodes from it.
const INODE_BYTES: u64 = 1024;
/// Unit of statfs.
const BLOCK_BYTES: u32 = 4096;
/// Room that finishing must leave on each root to be worth a repetition as soon as room runs out. It bounds the cost per written byte:
/// not every write on a full pool may trigger it.
const WORTHWHILE_BYTES: u64 = 2 * MIB;
/// After a finish that left less, the pool counts as full for this time, and nothing is finished early.
const FULL_FOR: Duration = Duration::from_secs(1);
/// Least time between two log lines about refusals: clients retry often.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// The state of early finishing, which makes room.
#[derive(Default)]
pub(super) struct MakingRoom(Mutex<Full>);

#[derive(Default)]
struct Full {
    /// Since when the pool is full, if it is.
    since: Option<Instant>,
    /// Time of the last log line about a refusal.
    told: Option<Instant>,
}

impl Service {
    /// Takes room for new content. If there is none, finishes pending content first: much of it may prove to be known, or compress
    /// well. So a copy of stored content fits a nearly full disk.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn admit(&self, demand: Demand) -> Result<Promise<'_>> {
        let admit = || self.core.admit(demand);
        match admit() {
            Err(EngineError::NoSpace) => self.make_room_and(&admit),
            admitted => admitted,
        }
    }

    /// Takes room for a write of `bytes` of content, as [`admit`](Self::admit) does.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn admit_write(&self, bytes: u64) -> Result<Promise<'_>> {
        self.admit(self.core.cost.of_write(bytes))
    }

    /// Takes room for that many entries of a frozen tree.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn admit_entries(&self, entries: usize) -> Result<Promise<'_>> {
        let meta_bytes = Demand::change(0).meta_bytes + entries as u64 * ENTRY_META_BYTES;
        self.admit(Demand { data_bytes: 0, meta_bytes })
    }

    /// As [`admit`](Self::admit), for changes that free more than they take in the end.
    pub(super) fn admit_freeing(&self, demand: Demand) -> Result<Promise<'_>> {
        let admit = || self.core.space.admit_freeing(demand);
        match admit() {
            Err(EngineError::NoSpace) => self.make_room_and(&admit),
            admitted => admitted,
        }
    }

    /// Checks that `bytes` of content can be written now, by the measure of [`space`](Self::space). Takes no room.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn check_available(&self, bytes: u64) -> Result<()> {
        // The worst case fits nearly always, and this check needs no call to the disks.
        match self.core.admit(self.core.cost.of_content(bytes, 1)) {
            Err(EngineError::NoSpace) => {}
            admitted => return admitted.map(drop),
        }
        let is_available = || {
            let available_bytes = self.space()?.blocks_available.saturating_mul(u64::from(BLOCK_BYTES));
            if bytes <= available_bytes { Ok(self.core.promise_change()) } else { Err(EngineError::NoSpace) }
        };
        match is_available() {
            Err(EngineError::NoSpace) => self.make_room_and(&is_available).map(drop),
            available => available.map(drop),
        }
    }

    /// Publishes all files, commits, and tries `admit` again. One thread at a time, and not soon after an attempt that freed little.
    /// Call with no lock held.
    fn make_room_and<'a>(&self, admit: &dyn Fn() -> Result<Promise<'a>>) -> Result<Promise<'a>> {
        let mut full = waiting::lock(&self.making_room.0);
        // Another thread may have made room while this one waited.
        match admit() {
            Err(EngineError::NoSpace) => {}
            admitted => return admitted,
        }
        if full.since.is_none_or(|since| since.elapsed() >= FULL_FOR) {
            // Each file remembers its own error, and the next commit reports a failed one: only the room matters here.
            let published = self.publish_all(None, Some(PUBLISH_PATIENCE));
            let committed = self.core.committer.commit();
            if let Err(error) = published.and(committed) {
                tracing::debug!(%error, "not all that is under way could be finished");
            }
            let is_worthwhile = self.core.space.has_room(WORTHWHILE_BYTES)?;
            full.since = (!is_worthwhile).then(Instant::now);
            match admit() {
                Err(EngineError::NoSpace) => {}
                admitted => return admitted,
            }
        }
        if full.told.is_none_or(|told| told.elapsed() >= TOLD_AGAIN_AFTER) {
            full.told = Some(Instant::now());
            self.core.space.tell_refusal();
        }
        Err(EngineError::NoSpace)
    }

    /// Returns the figures of df. Used: the bytes of the pool, without other data on the same disk. Available: the content that can be
    /// written before the first root is full.
    pub(super) fn space(&self) -> Result<Statistics> {
        let core = &self.core;
        let [data, meta] = core.space.roots()?;
        let one_root = core.space.is_shared();
        // Content that the room on the meta root can describe.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::tests::space::site::{MIB, Site};

    /// Finishing early made room for one request and left little. The next request was refused at once, and nothing was logged.
    #[test]
    fn regression_a_refusal_soon_after_the_last_room_was_taken_is_told() {
        let site = Site::one(96 * MIB);
        let pool = site.open();
        let service = pool.service();
        site.data.set_capacity(site.data.used_bytes());
        std::thread::sleep(2 * crate::config::SPACE_CHECK_INTERVAL);
        let attempts = Cell::new(0);
        let admit = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 2 { Ok(service.core.promise_change()) } else { Err(EngineError::NoSpace) }
        };
        assert!(service.make_room_and(&admit).is_ok(), "finishing made room");
        assert!(service.making_room.0.lock().since.is_some(), "and left little");
        assert!(matches!(service.make_room_and(&admit), Err(EngineError::NoSpace)));
        assert!(service.making_room.0.lock().told.is_some(), "the refusal is told");
    }
}
