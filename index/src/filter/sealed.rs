//! The last filter: the whole index (dedupv1's chunk index filter).

use std::sync::Arc;

use dedupfs_store::{ContainerId, Result};

use super::{Filter, Query, Verdict};
use crate::cell::Location;
use crate::index::Index;
use crate::lookup::Means;

/// Decides every entry: `Existing` or `NonExisting`. It asks memory again before the sealed tankers: since the earlier
/// filters another thread may have staged the fingerprint, or a checkpoint moved it.
#[derive(Clone, Debug)]
pub struct SealedFilter {
    index: Arc<Index>,
    means: Means,
}

impl SealedFilter {
    /// Makes a filter that asks `index`.
    #[must_use]
    pub const fn new(index: Arc<Index>) -> Self {
        Self::with_means(index, Means::ALL)
    }

    /// Makes a filter that asks `index` with these means only.
    #[must_use]
    pub const fn with_means(index: Arc<Index>, means: Means) -> Self {
        Self { index, means }
    }
}

impl Filter for SealedFilter {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let (positions, fingerprints) = query.gather_open();
        let mut found = Vec::new();
        self.index.locate_batch_with(&fingerprints, &mut found, self.means)?;
        for (position, location) in positions.into_iter().zip(found) {
            match location {
                // The built-in fingerprint is never stored and always present, even without a filter for it.
                None if query.fingerprints[position as usize].is_zero() => {
                    let len_bytes = query.lengths[position as usize];
                    query.existing(position as usize, Location { container: ContainerId::NONE, len_bytes });
                }
                Some(location) => query.existing(position as usize, location),
                None => query.verdicts[position as usize] = Verdict::NonExisting,
            }
        }
        Ok(())
    }
}
