//! The filter of the Bloom filter array (MAD2 section III.B; dedupv1's Bloom filter, tech report section 3.2).

use std::sync::Arc;

use dedupfs_store::profile::Component;
use dedupfs_store::{Fingerprint, Result};

use super::{Filter, Query, Verdict};
use crate::index::Index;

/// Decides `NonExisting` for fingerprints that neither memory nor any tanker's filter names, and `WeakMaybe` for the
/// others. The built-in fingerprint stays open: no tanker has it, and yet it is always present.
pub(crate) struct BloomFilter(pub(crate) Arc<Index>);

impl Filter for BloomFilter {
    fn name(&self) -> &'static str {
        "bloom"
    }

    fn component(&self) -> Component {
        Component::BloomFilter
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let rule_out = |prints: &[Fingerprint], absent: &mut Vec<bool>| self.0.rule_out(prints, absent);
        query.ask_open(rule_out, |query, position, absent| {
            let verdict = &mut query.verdicts[position];
            if absent && !query.fingerprints[position].is_zero() {
                *verdict = Verdict::NonExisting;
            } else if *verdict == Verdict::Undecided {
                *verdict = Verdict::WeakMaybe;
            }
        })
    }
}
