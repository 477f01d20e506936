//! Warnings before a root is full: one line when a mark is passed, and none before it was left clearly.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::{Measured, Root, SpaceGuard};
use crate::config::{SPACE_HYSTERESIS_PERCENT, SPACE_LOW_PERCENT, SPACE_URGENT_PERCENT};
use crate::error::Result;

/// How full a root is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Below the first mark.
    #[default]
    Enough,
    /// Beyond [`SPACE_LOW_PERCENT`].
    Low,
    /// Beyond [`SPACE_URGENT_PERCENT`].
    Urgent,
}

impl Level {
    /// The level at `used_percent`, having been at this one.
    fn next(self, used_percent: u64) -> Self {
        let passed = |mark: u64, was: bool| {
            used_percent >= if was { mark.saturating_sub(SPACE_HYSTERESIS_PERCENT) } else { mark }
        };
        if passed(SPACE_URGENT_PERCENT, self == Self::Urgent) {
            Self::Urgent
        } else if passed(SPACE_LOW_PERCENT, self >= Self::Low) {
            Self::Low
        } else {
            Self::Enough
        }
    }
}

/// The level of one root.
#[derive(Debug, Default)]
pub(super) struct Watch(AtomicU8);

impl Watch {
    pub(super) fn level(&self) -> Level {
        match self.0.load(Ordering::Relaxed) {
            0 => Level::Enough,
            1 => Level::Low,
            _ => Level::Urgent,
        }
    }

    /// The new level, if a mark was passed upwards.
    fn risen(&self, used_percent: u64) -> Option<Level> {
        let before = self.level();
        let level = before.next(used_percent);
        let was = self.0.swap(level as u8, Ordering::Relaxed);
        // Of two that pass it at once, one tells.
        (level > before && was == before as u8).then_some(level)
    }
}

/// How full: of the disk, or of the limit, whatever is more.
fn used_percent(root: &Root, measured: &Measured) -> u64 {
    let percent = |used: u64, of: u64| u64::try_from(u128::from(used) * 100 / u128::from(of.max(1))).unwrap_or(100);
    let space = measured.space;
    let of_disk = percent(space.total_bytes.saturating_sub(space.available_bytes), space.total_bytes);
    match (root.limit_bytes, measured.physical_bytes) {
        (Some(limit), Some(used)) => of_disk.max(percent(used, limit)),
        _ => of_disk,
    }
}

impl SpaceGuard {
    /// Tells, once for each, of marks that were passed since the last call.
    pub(super) fn watch(&self, data: &Measured, meta: &Measured) {
        for (root, measured) in [(&self.data, data), (&self.meta, meta)] {
            // On one disk one line is enough, unless each has a limit of its own.
            let is_same = self.is_shared && root.limit_bytes.is_none() && root.name == self.meta.name;
            let used_percent = used_percent(root, measured);
            if let Some(level) = root.watch.risen(used_percent)
                && !is_same
            {
                tracing::warn!(
                    ?level,
                    free_bytes = measured.free_bytes,
                    limit_bytes = root.limit_bytes,
                    "the {} root {} is {used_percent}% full: delete old backups (`rm`) and run `dedupfs-gc`, or add space",
                    root.name,
                    root.device.describe()
                );
            }
        }
    }

    /// Says at the start if a disk is too small to hold anything beside what must stay free.
    pub(super) fn tell_small_disks(&self) -> Result<()> {
        let reserve = self.reserve();
        let both_bytes = reserve.data_bytes + reserve.meta_bytes;
        for (root, reserve_bytes) in [(&self.data, reserve.data_bytes), (&self.meta, reserve.meta_bytes)] {
            let needed_bytes = if self.is_shared && root.limit_bytes.is_none() { both_bytes } else { reserve_bytes };
            let total_bytes = root.device.space()?.total_bytes.min(root.limit_bytes.unwrap_or(u64::MAX));
            if total_bytes <= needed_bytes {
                tracing::error!(
                    total_bytes,
                    needed_bytes,
                    "the {} root {} is too small: all of it must stay free for deleting and reclaiming, and nothing can be \
                     written; move the pool to a larger disk, raise its limit, or make one with smaller containers",
                    root.name,
                    root.device.describe()
                );
            }
        }
        Ok(())
    }

    /// Says at the start what limits hold, and which the pool exceeds already.
    pub(super) fn tell_limits(&self) -> Result<()> {
        if self.data.limit_bytes.is_none() && self.meta.limit_bytes.is_none() {
            return Ok(());
        }
        let physical = self.holdings.physical()?;
        for (root, used_bytes) in [(&self.data, physical.data_bytes), (&self.meta, physical.meta_bytes)] {
            let Some(limit_bytes) = root.limit_bytes else { continue };
            let (name, place) = (root.name, root.device.describe());
            if used_bytes >= limit_bytes.saturating_sub(root.reserve_bytes) {
                tracing::error!(
                    limit_bytes,
                    used_bytes,
                    reserve_bytes = root.reserve_bytes,
                    "the pool has as much on its {name} root {place} as {name}_limit allows, with the reserve: it takes no new \
                     data until something is deleted and `dedupfs-gc` has run, or the limit is raised"
                );
            } else {
                tracing::info!(limit_bytes, used_bytes, "{name}_limit holds on {place}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_told_once_until_it_was_left() {
        let watch = Watch::default();
        let told: Vec<_> = [84, 85, 86, 84, 85, 83, 82, 85, 95, 94, 95, 92, 95, 10, 99, 99]
            .into_iter()
            .map(|percent| watch.risen(percent))
            .collect();
        let (low, urgent) = (Some(Level::Low), Some(Level::Urgent));
        let expected =
            [None, low, None, None, None, None, None, low, urgent, None, None, None, urgent, None, urgent, None];
        assert_eq!(told, expected);
        assert_eq!(watch.level(), Level::Urgent);
    }
}
