//! The block index filter (dedupv1 section 3.2): what this file held here before it was overwritten.
//!
//! An overwrite with mostly the same bytes (`rsync --inplace`, a dump written over yesterday's) finds its chunks in
//! the old recipe and asks no index. The old recipe's references keep these chunks alive until the new one is
//! published, so the answer is exact.

use std::collections::HashMap;

use dedupfs_index::Location;
use dedupfs_index::filter::{Filter, Query};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint};
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
        let placed = |child: &&Child| !child.fingerprint.is_zero() && child.hint != ContainerId::NONE;
        for child in chunks.iter().filter(placed) {
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
        let open: Vec<usize> = query.open_entries().collect();
        for position in open {
            if let Some(location) = query.fingerprints.get(position).and_then(|fingerprint| known.get(fingerprint)) {
                query.existing(position, *location);
            }
        }
        Ok(())
    }
}
