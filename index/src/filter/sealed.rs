//! The last filter: the whole index (dedupv1's chunk index filter).

use std::sync::Arc;

use dedupfs_store::Result;

use super::{Filter, Query, Verdict};
use crate::index::Index;

/// Decides every entry: `Existing` or `NonExisting`. It asks memory again before the sealed tankers, because between the
/// filters another thread may have staged the fingerprint, and a checkpoint may have moved it.
#[derive(Clone, Debug)]
pub struct SealedFilter {
    index: Arc<Index>,
}

impl SealedFilter {
    /// Asks `index`.
    #[must_use]
    pub const fn new(index: Arc<Index>) -> Self {
        Self { index }
    }
}

impl Filter for SealedFilter {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let (positions, fingerprints) = query.gather_open();
        let mut found = Vec::new();
        self.index.locate_batch(&fingerprints, &mut found)?;
        for (position, location) in positions.into_iter().zip(found) {
            match location {
                Some(location) => query.existing(position as usize, location),
                None => query.verdicts[position as usize] = Verdict::NonExisting,
            }
        }
        Ok(())
    }
}
