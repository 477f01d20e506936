//! The use of the disk under the data root, as df(1) counts, and reclaiming.

use std::path::Path;

use dedupfs::Progress;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::retention::Percent;

use crate::control::{ControlClient, Failure, FailureKind};
use crate::target;

/// Used and available bytes of the disk under the data root, or of the limit for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    used_bytes: u64,
    /// Used and available; space that only root may take is in neither.
    total_bytes: u64,
    /// Part of the used bytes that the pool takes.
    pool_bytes: u64,
}

impl Room {
    pub(super) fn of(pool: &Path, daemon: &mut ControlClient) -> Result<Self, Failure> {
        let stats = daemon.stats()?;
        let root = stats.roots.iter().find(|root| root.name == "data");
        let pool_bytes = root.map_or(stats.data_container_bytes, |root| root.pool_bytes);
        // A limit stands for the disk.
        if let Some(root) = root.filter(|root| root.limit_bytes.is_some()) {
            let used_bytes = root.total_bytes.saturating_sub(root.free_bytes);
            return Ok(Self { used_bytes, total_bytes: root.total_bytes, pool_bytes });
        }
        let place = target::data_root(pool).unwrap_or_else(|| pool.to_owned());
        let disk = rustix::fs::statvfs(&place)
            .map_err(|errno| Failure::failed(format!("cannot ask for the space under {}: {errno}", place.display())))?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let used_bytes = bytes(disk.f_blocks.saturating_sub(disk.f_bfree));
        Ok(Self { used_bytes, total_bytes: used_bytes + bytes(disk.f_bavail), pool_bytes })
    }

    pub(super) fn is_enough(&self, level: Percent) -> bool {
        level.covers(self.used_bytes, self.total_bytes)
    }

    /// Whether the disk would be too full without the pool: removing versions cannot help then.
    pub(super) fn others_fill(&self, level: Percent) -> bool {
        !level.covers(self.used_bytes.saturating_sub(self.pool_bytes), self.total_bytes)
    }

    /// The used share, rounded up as df(1) does.
    pub(super) fn used_percent(&self) -> u64 {
        let percent = (u128::from(self.used_bytes) * 100).div_ceil(u128::from(self.total_bytes.max(1)));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// Gives back all space that can be had, so that no version goes for space that is garbage. Returns the room afterwards.
pub(super) fn reclaim(pool: &Path, daemon: &mut ControlClient, progress: &dyn Progress) -> Result<Room, Failure> {
    let options = ReclaimOptions::below(100);
    let reclaimed = daemon.reclaim(&options, progress).map_err(|failure| failure.usage_as(FailureKind::Failed))?;
    if reclaimed.stopped.is_some() {
        let why = "reclaiming was ended early, so nothing more is removed: run this again";
        return Err(FailureKind::Ended.because(why));
    }
    Room::of(pool, daemon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_counts_as_df_does() {
        let level = Percent::new(80).unwrap_or_else(|| panic!("is a share"));
        let room = |used_bytes, pool_bytes| Room { used_bytes, total_bytes: 1000, pool_bytes };
        assert!(room(800, 0).is_enough(level) && !room(801, 0).is_enough(level));
        assert_eq!((room(801, 0).used_percent(), room(800, 0).used_percent()), (81, 80));
        assert!(room(950, 100).others_fill(level), "850 are others'");
        assert!(!room(950, 150).others_fill(level));
    }
}
