//! The filter of the locality cache (dedupv1's container cache filter, tech report section 3.2).

use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::profile::Component;

use super::{Filter, Query};
use crate::index::Index;

/// Decides `Existing` for fingerprints of recently hit containers. It leaves the others open. Its answers are those of
/// the index, so they are final; dedupv1's are a strong maybe.
pub(crate) struct LocalityFilter(pub(crate) Arc<Index>);

impl Filter for LocalityFilter {
    fn name(&self) -> &'static str {
        "locality"
    }

    fn component(&self) -> Component {
        Component::LocalityFilter
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        query.find_open(|prints, found| self.0.locate_cached(prints, found))
    }
}
