//! The filter of fingerprints in memory: staged ones, the open tanker, patches.

use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::profile::Component;

use super::{Filter, Query};
use crate::index::Index;

/// Decides `Existing` for fingerprints that the index finds without I/O. It leaves the others open.
pub(crate) struct OpenFilter(pub(crate) Arc<Index>);

impl Filter for OpenFilter {
    fn name(&self) -> &'static str {
        "open"
    }

    fn component(&self) -> Component {
        Component::OpenFilter
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        query.find_open(|prints, found| {
            self.0.locate_in_memory(prints, found);
            Ok(())
        })
    }
}
