//! Warnings before a root is full. Logs once per mark; re-arms 2% below it.

use std::sync::atomic::{AtomicU8, Ordering};

use dedupfs_base::Result;
use serde::{Deserialize, Serialize};

use super::advice::mib;
use super::{Measured, Root, SpaceGuard};
use crate::config::{SPACE_HYSTERESIS_PERCENT, SPACE_LOW_PERCENT, SPACE_URGENT_PERCENT};

/// The fill level of a root.
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
    /// Returns the level at `used_percent`, coming from this level.
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

/// The last known level of one root.
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

    /// Returns the new level, if a mark was passed upwards.
    fn risen(&self, used_percent: u64) -> Option<Level> {
        let before = self.level();
        let level = before.next(used_percent);
        let was = self.0.swap(level as u8, Ordering::Relaxed);
        // If two threads pass a mark at once, only one reports it.
        (level > before && was == before as u8).then_some(level)
    }
}

/// Returns the fill in percent, and a description. The larger of two values counts: used of the disk, or used of the limit. Both
/// exclude the reserve, because writes are refused from there on. A limit may be less than the pool's size or than the reserve.
fn fullness(root: &Root, measured: &Measured, disk_reserve_bytes: u64) -> (u64, String) {
    let percent = |used: u64, of: u64| match u128::from(of) {
        0 => u64::MAX,
        of => u64::try_from(u128::from(used) * 100 / of).unwrap_or(u64::MAX),
    };
    let space = measured.space;
    let used_bytes = space.total_bytes.saturating_sub(space.available_bytes);
    let of_disk = percent(used_bytes, space.total_bytes.saturating_sub(disk_reserve_bytes));
    if let (Some(limit), Some(used)) = (root.limit_bytes, measured.physical_bytes) {
        let of_limit = percent(used, limit.saturating_sub(root.reserve_bytes));
        if of_limit > of_disk {
            let (name, used, limit) = (root.name, mib(used), mib(limit));
            let words =
                format!("has {used} of the {limit} that {name}_limit allows, reserve included: raise the limit, or");
            return (of_limit.min(100), words);
        }
    }
    let used_percent = of_disk.min(100);
    let reserve = mib(disk_reserve_bytes);
    (used_percent, format!("is {used_percent}% full, besides {reserve} in reserve: add space, or"))
}

impl SpaceGuard {
    /// Logs each mark passed since the last call, once.
    pub(super) fn watch(&self, data: &Measured, meta: &Measured) {
        // The reserve here excludes the bytes of a checkpoint: they come and go, and count as used while one is written.
        let both_bytes = self.data.reserve_bytes + self.meta.reserve_bytes;
        for (root, measured) in [(&self.data, data), (&self.meta, meta)] {
            let disk_reserve_bytes = if self.is_shared { both_bytes } else { root.reserve_bytes };
            // One line is enough for one disk, unless each root has its own limit.
            let is_same = self.is_shared && root.limit_bytes.is_none() && root.name == self.meta.name;
            let (used_percent, words) = fullness(root, measured, disk_reserve_bytes);
            if let Some(level) = root.watch.risen(used_percent)
                && !is_same
            {
                tracing::warn!(
                    is_urgent = level == Level::Urgent,
                    free_bytes = measured.free_bytes,
                    limit_bytes = root.limit_bytes,
                    "the {} root {} {words} delete old backups (`rm`) and run `dedupfs-gc`",
                    root.name,
                    root.device.describe()
                );
            }
        }
    }

    /// Logs at the start which limits apply, and why nothing can be written, if that is the case.
    pub(super) fn tell_at_the_start(&self) -> Result<()> {
        for root in [&self.data, &self.meta] {
            if let Some(limit_bytes) = root.limit_bytes {
                tracing::info!(limit_bytes, "{}_limit holds on {}", root.name, root.device.describe());
            }
        }
        self.notices()?.iter().for_each(|notice| tracing::error!("{notice}"));
        Ok(())
    }

    /// Logs that new content was refused, and why.
    pub(crate) fn tell_refusal(&self) {
        match self.notices() {
            Ok(notices) if !notices.is_empty() => notices.iter().for_each(|notice| tracing::error!("{notice}")),
            // Some room is left, but less than was asked for.
            _ => tracing::error!(
                "no space for something new: add space or raise the limit, or delete old backups (`rm`) and run `dedupfs-gc` (`dedupfs-stats` shows \
                 what is left)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One disk for both roots, an eighth of it reserved: the last write that fits is beyond both marks.
    #[test]
    fn regression_marks_are_of_what_can_be_written() {
        let root = |limit_bytes| Root {
            name: "data",
            device: std::sync::Arc::new(dedupfs_store::device::MemoryDevice::new()),
            limit_bytes,
            reserve_bytes: 64,
            watch: Watch::default(),
        };
        let measured = |available_bytes, used| Measured {
            space: dedupfs_store::device::Space { total_bytes: 1024, available_bytes },
            free_bytes: available_bytes,
            physical_bytes: Some(used),
        };
        let percent = |root: &Root, measured: &Measured| fullness(root, measured, 128).0;
        assert_eq!(percent(&root(None), &measured(1024, 0)), 0);
        assert_eq!(percent(&root(None), &measured(576, 448)), 50);
        assert_eq!(percent(&root(None), &measured(128, 896)), 100);
        assert_eq!(percent(&root(None), &measured(0, 1024)), 100, "the reserve is in use");
        // A limit contains only the reserve of its own root.
        let (of_limit, words) = fullness(&root(Some(264)), &measured(900, 100), 128);
        assert!(of_limit == 50 && words.contains("data_limit"), "{of_limit} {words}");
        // The greater of two reasons is reported; a limit that admits nothing counts as full.
        let (of_both, words) = fullness(&root(Some(1024)), &measured(0, 960), 128);
        assert!(of_both == 100 && words.contains("add space"), "{of_both} {words}");
        assert_eq!(percent(&root(Some(1)), &measured(1024, 0)), 100);
    }

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
