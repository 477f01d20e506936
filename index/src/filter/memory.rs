//! The filter of fingerprints in memory: staged ones, the open tanker, patches.

use std::sync::Arc;

use dedupfs_store::Result;

use super::{Filter, Query};
use crate::index::Index;

/// Decides `Existing` for fingerprints that the index finds without I/O. It leaves the others open.
#[derive(Clone, Debug)]
pub struct OpenFilter {
    index: Arc<Index>,
}

impl OpenFilter {
    /// Makes a filter that asks `index`.
    #[must_use]
    pub const fn new(index: Arc<Index>) -> Self {
        Self { index }
    }
}

impl Filter for OpenFilter {
    fn name(&self) -> &'static str {
        "open"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let (positions, fingerprints) = query.gather_open();
        let mut found = Vec::new();
        self.index.locate_in_memory(&fingerprints, &mut found);
        for (position, location) in positions.into_iter().zip(found) {
            if let Some(location) = location {
                query.existing(position as usize, location);
            }
        }
        Ok(())
    }
}
