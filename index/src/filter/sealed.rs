//! The last filter: the whole index (dedupv1's chunk index filter).

use std::sync::Arc;

use dedupfs_store::profile::Component;
use dedupfs_store::{Fingerprint, Result};

use super::{Filter, Query, Verdict};
use crate::index::Index;
use crate::lookup::Means;

/// Decides every entry: `Existing` or `NonExisting`. It asks memory again before the sealed tankers: since the earlier
/// filters another thread may have staged the fingerprint, or a checkpoint moved it.
pub(crate) struct SealedFilter(pub(crate) Arc<Index>, pub(crate) Means);

impl Filter for SealedFilter {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn component(&self) -> Component {
        Component::SealedFilter
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let locate = |prints: &[Fingerprint], found: &mut Vec<_>| self.0.locate_batch_with(prints, found, self.1);
        query.ask_open(locate, |query, position, found| match found {
            Some(location) => query.existing(position, location),
            // It is in no tanker, and no other filter decides it.
            None if query.fingerprints[position].is_zero() => query.verdicts[position] = Verdict::BuiltIn,
            None => query.verdicts[position] = Verdict::NonExisting,
        })
    }
}
