//! Warnings before a root is full: one line when a mark is passed, and none before it was left clearly.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::advice::mib;
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

/// How full in percent: of the disk, or of the limit, whatever is more; and in words. A limit may be less than what is there.
fn fullness(root: &Root, measured: &Measured) -> (u64, String) {
    let percent = |used: u64, of: u64| u64::try_from(u128::from(used) * 100 / u128::from(of.max(1))).unwrap_or(100);
    let space = measured.space;
    let of_disk = percent(space.total_bytes.saturating_sub(space.available_bytes), space.total_bytes);
    match (root.limit_bytes, measured.physical_bytes) {
        (Some(limit), Some(used)) if percent(used, limit) >= of_disk => {
            let words =
                format!("has {} of the {} that {}_limit allows: raise the limit, or", mib(used), mib(limit), root.name);
            (percent(used, limit).min(100), words)
        }
        _ => (of_disk, format!("is {of_disk}% full: add space, or")),
    }
}

impl SpaceGuard {
    /// Tells, once for each, of marks that were passed since the last call.
    pub(super) fn watch(&self, data: &Measured, meta: &Measured) {
        for (root, measured) in [(&self.data, data), (&self.meta, meta)] {
            // On one disk one line is enough, unless each has a limit of its own.
            let is_same = self.is_shared && root.limit_bytes.is_none() && root.name == self.meta.name;
            let (used_percent, words) = fullness(root, measured);
            if let Some(level) = root.watch.risen(used_percent)
                && !is_same
            {
                tracing::warn!(
                    ?level,
                    free_bytes = measured.free_bytes,
                    limit_bytes = root.limit_bytes,
                    "the {} root {} {words} delete old backups (`rm`) and run `dedupfs-gc`",
                    root.name,
                    root.device.describe()
                );
            }
        }
    }

    /// Says at the start which limits hold, and why nothing can be written, if that is so.
    pub(super) fn tell_at_the_start(&self) -> Result<()> {
        for root in [&self.data, &self.meta] {
            if let Some(limit_bytes) = root.limit_bytes {
                tracing::info!(limit_bytes, "{}_limit holds on {}", root.name, root.device.describe());
            }
        }
        self.notices()?.iter().for_each(|notice| tracing::error!("{notice}"));
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
