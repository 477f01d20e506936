//! The choice and order of filters. It is configuration, so leaving one out needs a command and no change of code.
//!
//! The write path stays exact without any of the others: `sealed` is the authority, always present and always last.
//! Only `compare` may follow it, to read the finds of the others; it is not in the default plan. The cost of leaving a
//! filter out:
//!
//! | without | cost |
//! |---|---|
//! | `block` | rewriting a file in place asks the index for chunks that the file held |
//! | `open` | chunks of the last minutes are asked of filters and caches in vain before `sealed` finds them in memory |
//! | `bloom` | each new chunk reads a bucket of every sealed tanker |
//! | `locality` | each repeated chunk reads its own bucket, unless the bucket cache has it |
//!
//! Order affects only time: a filter decides the entries that the earlier ones left open.
//!
//! `compare` costs a read of every duplicate chunk (`docs/index.md`). In return, damaged chunks are found and stored
//! again by the next backup of the same data, and a collision of the hash is an error instead of another file's bytes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{BloomFilter, CompareFilter, Filter, FilterChain, LocalityFilter, OpenFilter, SealedFilter, StoredChunks};
use crate::index::Index;
use crate::lookup::Means;

/// A filter that chains had once. Lists in an fstab may name it still.
const REMOVED: &str = "zero";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FilterKind {
    /// Filters that come with a query: the file's content before it is overwritten.
    Block,
    Open,
    Bloom,
    Locality,
    Sealed,
    Compare,
}

impl FilterKind {
    pub(crate) const DEFAULT: [Self; 5] = [Self::Block, Self::Open, Self::Bloom, Self::Locality, Self::Sealed];
    /// All filters in their best order.
    const ALL: [Self; 6] = [Self::Block, Self::Open, Self::Bloom, Self::Locality, Self::Sealed, Self::Compare];

    /// The name in `--filters` and in the statistics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Open => "open",
            Self::Bloom => "bloom",
            Self::Locality => "locality",
            Self::Sealed => "sealed",
            Self::Compare => "compare",
        }
    }
}

/// The reasons to refuse a list of filters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterPlanError {
    /// No filter has this name.
    #[error("there is no filter `{0}`; known are block, open, bloom, locality, sealed and compare")]
    Unknown(String),
    /// A filter is listed twice.
    #[error("the filter `{0}` is named twice")]
    Twice(&'static str),
    /// `sealed` is missing, or a filter other than `compare` follows it.
    #[error("the last filter must be `sealed`: it alone decides every fingerprint; only `compare` may follow")]
    SealedNotLast,
    /// `compare` would see only the finds of the filters before it.
    #[error("`compare` reads the finds of the other filters: it must be the last one, after `sealed`")]
    CompareNotLast,
}

/// A list of filters, as in `--filters`. Its text, parsed again, gives an equal list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterPlan {
    kinds: Vec<FilterKind>,
    /// Whether the list names [`REMOVED`].
    names_removed: bool,
}

impl Default for FilterPlan {
    fn default() -> Self {
        Self { kinds: FilterKind::DEFAULT.to_vec(), names_removed: false }
    }
}

impl fmt::Display for FilterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let removed = self.names_removed.then_some(REMOVED);
        let names: Vec<_> = removed.into_iter().chain(self.kinds.iter().map(|kind| kind.name())).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for FilterPlan {
    type Err = FilterPlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut kinds, mut names_removed) = (Vec::new(), false);
        for name in text.split(',').map(str::trim) {
            if name == REMOVED {
                if std::mem::replace(&mut names_removed, true) {
                    return Err(FilterPlanError::Twice(REMOVED));
                }
                continue;
            }
            let known = FilterKind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = known.ok_or_else(|| FilterPlanError::Unknown(name.to_owned()))?;
            if kinds.contains(&kind) {
                return Err(FilterPlanError::Twice(kind.name()));
            }
            kinds.push(kind);
        }
        let deciding = kinds.strip_suffix(&[FilterKind::Compare]).unwrap_or(&kinds);
        if deciding.last() != Some(&FilterKind::Sealed) {
            return Err(FilterPlanError::SealedNotLast);
        }
        if deciding.contains(&FilterKind::Compare) {
            return Err(FilterPlanError::CompareNotLast);
        }
        Ok(Self { kinds, names_removed })
    }
}

impl FilterPlan {
    pub(crate) fn has(&self, kind: FilterKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Returns a warning for the user who gave this list.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.names_removed.then(|| {
            format!("the filter `{REMOVED}` was removed and is ignored: leave it out of `--filters` and `filters=`")
        })
    }

    /// Makes the chain over `index`. `sealed` does not use the left-out filters either. `stored` supplies the chunks
    /// for `compare`, if the plan has it.
    pub fn chain(&self, index: &Arc<Index>, stored: impl FnOnce() -> Arc<dyn StoredChunks>) -> FilterChain {
        let means = Means { filters: self.has(FilterKind::Bloom), locality: self.has(FilterKind::Locality) };
        let filter = |kind: &FilterKind| -> Option<Arc<dyn Filter>> {
            Some(match kind {
                FilterKind::Block | FilterKind::Compare => return None,
                FilterKind::Open => Arc::new(OpenFilter(index.clone())),
                FilterKind::Bloom => Arc::new(BloomFilter(index.clone())),
                FilterKind::Locality => Arc::new(LocalityFilter(index.clone())),
                FilterKind::Sealed => Arc::new(SealedFilter(index.clone(), means)),
            })
        };
        let own_at = self.kinds.iter().position(|kind| *kind == FilterKind::Block);
        let chain = FilterChain::new(self.kinds.iter().filter_map(filter).collect(), own_at);
        if self.has(FilterKind::Compare) { chain.comparing(CompareFilter::new(index.clone(), stored())) } else { chain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_shown() {
        let all = "block,open,bloom,locality,sealed";
        assert_eq!((all.parse(), FilterPlan::default().to_string()), (Ok(FilterPlan::default()), all.to_owned()));
        let some: FilterPlan = "open, sealed".parse().unwrap();
        assert_eq!(some.to_string(), "open,sealed");
        assert!(some.has(FilterKind::Open) && !some.has(FilterKind::Bloom));
        assert!(!FilterPlan::default().has(FilterKind::Compare), "reading everything is for who asks for it");
        let comparing: FilterPlan = "open,sealed,compare".parse().unwrap();
        assert_eq!((comparing.has(FilterKind::Compare), comparing.to_string().as_str()), (true, "open,sealed,compare"));
    }

    #[test]
    fn a_removed_filter_in_a_list_is_ignored_with_a_warning() {
        for (old, new) in [
            ("zero,block,open,bloom,locality,sealed", "block,open,bloom,locality,sealed"),
            ("open, zero, sealed,compare", "open,sealed,compare"),
            ("zero,sealed", "sealed"),
        ] {
            let [old, new]: [FilterPlan; 2] = [old, new].map(|text| text.parse().unwrap());
            assert_eq!((&old.kinds, new.warning()), (&new.kinds, None));
            assert!(old.warning().unwrap().contains("the filter `zero` was removed"));
            // A daemon gets the text, and has to warn too.
            assert_eq!((old.to_string(), old.to_string().parse()), (format!("zero,{new}"), Ok(old)));
        }
    }

    #[test]
    fn senseless_lists_are_refused_with_a_reason() {
        let error = |text: &str| text.parse::<FilterPlan>().unwrap_err();
        assert_eq!(error("open,blom,sealed"), FilterPlanError::Unknown("blom".to_owned()));
        assert!(error("").to_string().contains("known are block,"));
        assert_eq!(error("open,open,sealed"), FilterPlanError::Twice("open"));
        assert_eq!(error("zero,sealed,zero"), FilterPlanError::Twice("zero"));
        for wrong in ["zero", "zero,open", "zero,compare"] {
            assert_eq!(error(wrong), FilterPlanError::SealedNotLast, "{wrong}");
        }
        assert_eq!(error("sealed,open"), FilterPlanError::SealedNotLast);
        for wrong in ["compare", "sealed,open,compare", "sealed,compare,open"] {
            assert_eq!(error(wrong), FilterPlanError::SealedNotLast, "{wrong}");
        }
        assert_eq!(error("open,compare,sealed"), FilterPlanError::CompareNotLast);
        assert_eq!(error("sealed,compare,compare"), FilterPlanError::Twice("compare"));
    }
}
