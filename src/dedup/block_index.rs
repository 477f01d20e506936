//! The block index filter (dedupv1 section 3.2): what this file held here before it was overwritten.
//!
//! An overwrite with mostly the same bytes (`rsync --inplace`, a dump written over yesterday's) finds its chunks in
//! the old recipe and asks no index. The old recipe's references keep these chunks alive until the new one is
//! published, so the answer is exact.

use std::collections::HashMap;

use dedupfs_index::Location;
use dedupfs_index::filter::{Filter, Query, Verdict};
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Child;
use parking_lot::RwLock;

/// Chunks of the segments that are being rewritten.
#[derive(Debug, Default)]
pub struct BlockIndex {
    chunks: RwLock<HashMap<Fingerprint, Location>>,
}

impl BlockIndex {
    /// Adds the old chunks of one segment.
    pub fn extend(&self, chunks: &[Child]) {
        let mut known = self.chunks.write();
        for child in chunks.iter().filter(|child| !child.fingerprint.is_zero()) {
            let len_bytes = u32::try_from(child.len_bytes).unwrap_or(u32::MAX);
            known.insert(child.fingerprint, Location { container: child.hint, len_bytes });
        }
    }

    /// Whether it knows nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.read().is_empty()
    }
}

impl Filter for BlockIndex {
    fn name(&self) -> &'static str {
        "block"
    }

    fn check(&self, query: &mut Query<'_>) -> dedupfs_store::Result<()> {
        let known = self.chunks.read();
        for (fingerprint, verdict) in query.fingerprints.iter().zip(&mut query.verdicts) {
            if !verdict.is_final()
                && let Some(location) = known.get(fingerprint)
            {
                *verdict = Verdict::Existing(*location);
            }
        }
        Ok(())
    }
}
