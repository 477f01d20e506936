//! The filter of the locality cache (dedupv1's container cache filter, tech report section 3.2).

use std::sync::Arc;

use dedupfs_store::Result;

use super::{Filter, Query};
use crate::index::Index;

/// Decides `Existing` for fingerprints of recently hit containers. It leaves the others open. Its answers are those of
/// the index, so they are final; dedupv1's are a strong maybe.
#[derive(Clone, Debug)]
pub struct LocalityFilter {
    index: Arc<Index>,
}

impl LocalityFilter {
    /// Makes a filter that asks the locality cache of `index`.
    #[must_use]
    pub const fn new(index: Arc<Index>) -> Self {
        Self { index }
    }
}

impl Filter for LocalityFilter {
    fn name(&self) -> &'static str {
        "locality"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let (positions, fingerprints) = query.gather_open();
        let mut found = Vec::new();
        self.index.locate_cached(&fingerprints, &mut found)?;
        for (position, location) in positions.into_iter().zip(found) {
            if let Some(location) = location {
                query.existing(position as usize, location);
            }
        }
        Ok(())
    }
}
