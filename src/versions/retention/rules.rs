//! The rules of a series: restic's, with their names and their meaning.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::StoreError;

use super::{Count, Percent, Span, Unit};

/// The moment from which [`Rules::keep_within`] counts back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RelativeTo {
    /// The newest complete version that is not from the future, as restic does: without new backups nothing grows old.
    #[default]
    Newest,
    /// The time of the decision.
    Now,
}

impl fmt::Display for RelativeTo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Newest => "newest",
            Self::Now => "now",
        })
    }
}

impl FromStr for RelativeTo {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        match text {
            "newest" => Ok(Self::Newest),
            "now" => Ok(Self::Now),
            _ => Err(StoreError::Usage(format!("`{text}` is no moment to count from: write newest or now"))),
        }
    }
}

/// Rules that say which versions stay. A version stays if any rule keeps it.
///
/// A rule by periods, such as `keep_daily`, keeps the newest version of each of the last *n* days that have versions; days
/// without one do not count. If there are fewer than *n* such days, the oldest version stays too, so that the history is as
/// long as the rule allows. All of that is restic's `forget`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules {
    /// The last *n* complete versions.
    pub keep_last: Option<Count>,
    /// The newest version of each of the last *n* hours that have versions. An hour that the clock shows twice is two.
    pub keep_hourly: Option<Count>,
    /// The newest version of each of the last *n* days that have versions.
    pub keep_daily: Option<Count>,
    /// The newest version of each of the last *n* weeks (ISO: Monday to Sunday) that have versions.
    pub keep_weekly: Option<Count>,
    /// The newest version of each of the last *n* months that have versions.
    pub keep_monthly: Option<Count>,
    /// The newest version of each of the last *n* years that have versions.
    pub keep_yearly: Option<Count>,
    /// All versions completed later than this span before [`relative_to`](Self::relative_to).
    pub keep_within: Option<Span>,
    /// After the other rules: remove the oldest kept versions until the used space of the disk is at most this share.
    ///
    /// restic has no such rule. [`decide`](super::decide()) does not look at it, because removing one version frees an amount
    /// that only the pool knows: the caller removes the versions of [`removable_for_space`](super::removable_for_space) one
    /// by one, and stops as soon as [`Percent::covers`] holds. Alone it keeps everything that there is space for.
    pub free_until: Option<Percent>,
    /// The moment from which `keep_within` counts.
    pub relative_to: RelativeTo,
    /// Permits rules that keep nothing. Without it such rules keep everything.
    pub keep_none: bool,
}

impl Rules {
    /// Whether the rules would keep nothing, `free_until` and `keep_none` aside. The caller refuses them unless one of these
    /// two is given. [`decide`](super::decide()) keeps everything then, unless `keep_none` is set.
    pub fn is_empty(&self) -> bool {
        self.keep_within.is_none() && self.counts().into_iter().flatten().all(|count| count == Count::new(0))
    }

    /// Returns the counts in the order in which they are stored and shown.
    pub(super) const fn counts(&self) -> [Option<Count>; 6] {
        [self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly, self.keep_monthly, self.keep_yearly]
    }

    /// Returns the rules by periods that keep something.
    pub(super) fn by_periods(&self) -> impl Iterator<Item = (Unit, Count)> {
        let [_, counts @ ..] = self.counts();
        let units = Unit::ALL.into_iter().zip(counts);
        units.filter_map(|(unit, count)| Some((unit, count.filter(|count| *count > Count::new(0))?)))
    }
}

impl fmt::Display for Rules {
    /// Writes the rules as options of `dedupfs prune`, in a fixed order; `--keep-last 3 --keep-daily 7`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];
        let counts = names.into_iter().zip(self.counts());
        let counts = counts.filter_map(|(name, count)| Some(format!("--keep-{name} {}", count?)));
        let others = [
            self.keep_within.map(|span| format!("--keep-within {span}")),
            self.free_until.map(|share| format!("--free-until {share}")),
            (self.relative_to != RelativeTo::default()).then(|| format!("--relative-to {}", self.relative_to)),
            self.keep_none.then(|| "--keep-none".to_owned()),
        ];
        let options: Vec<String> = counts.chain(others.into_iter().flatten()).collect();
        formatter.write_str(if options.is_empty() { "no rules" } else { "" })?;
        formatter.write_str(&options.join(" "))
    }
}
