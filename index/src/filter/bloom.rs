//! The filter of the Bloom filter array (MAD2 section III.B; dedupv1's Bloom filter, tech report section 3.2).

use std::sync::Arc;

use dedupfs_store::Result;

use super::{Filter, Query, Verdict};
use crate::index::Index;

/// Decides `NonExisting` for fingerprints that neither memory nor any tanker's filter names, and `WeakMaybe` for the
/// others.
#[derive(Clone, Debug)]
pub struct BloomFilter {
    index: Arc<Index>,
}

impl BloomFilter {
    /// Asks the filters of `index`.
    #[must_use]
    pub const fn new(index: Arc<Index>) -> Self {
        Self { index }
    }
}

impl Filter for BloomFilter {
    fn name(&self) -> &'static str {
        "bloom"
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let (positions, fingerprints) = query.gather_open();
        let mut absent = Vec::new();
        self.index.rule_out(&fingerprints, &mut absent)?;
        for (position, absent) in positions.into_iter().zip(absent) {
            let verdict = &mut query.verdicts[position as usize];
            if absent && !query.fingerprints[position as usize].is_zero() {
                *verdict = Verdict::NonExisting;
            } else if *verdict == Verdict::Undecided {
                *verdict = Verdict::WeakMaybe;
            }
        }
        Ok(())
    }
}
