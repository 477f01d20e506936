//! The block index filter (dedupv1 section 3.2): the chunks that a file held before it was overwritten.
//!
//! An overwrite with mostly the same bytes (`rsync --inplace`, a dump written over yesterday's) finds its chunks in the
//! old recipe and asks no index. The old recipe's references keep these chunks alive until the new recipe is published,
//! so the answer is exact.
//!
//! Memory: at most [`BLOCK_INDEX_CHUNKS_MAX`] chunks, in two generations. When it is full, the older one is dropped:
//! content moves on through a file, and the index still knows the dropped chunks.

use std::collections::HashMap;

use dedupfs_index::Location;
use dedupfs_index::filter::{Filter, Query};
use dedupfs_store::profile::Component;
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::RwLock;

use crate::limits::BLOCK_INDEX_CHUNKS_MAX;

type Chunks = HashMap<Fingerprint, Location>;

/// The chunks of the segments that are being rewritten.
#[derive(Debug, Default)]
pub(crate) struct BlockIndex {
    /// The newest generation, and the older one.
    chunks: RwLock<(Chunks, Chunks)>,
}

impl BlockIndex {
    /// Adds the old chunks of one segment.
    pub(crate) fn extend(&self, chunks: &[Child]) {
        let mut known = self.chunks.write();
        let (newest, older) = &mut *known;
        if newest.len() + chunks.len() > BLOCK_INDEX_CHUNKS_MAX / 2 {
            *older = std::mem::take(newest);
        }
        let placed = |child: &&Child| !child.fingerprint.is_zero() && child.hint != ContainerId::NONE;
        for child in chunks.iter().filter(placed) {
            let len_bytes = u32::try_from(child.len_bytes).unwrap_or(u32::MAX);
            newest.insert(child.fingerprint, Location::new(child.hint, len_bytes));
        }
    }

    /// Whether it knows no chunk.
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.chunks.read();
        known.0.is_empty() && known.1.is_empty()
    }
}

impl Filter for BlockIndex {
    fn name(&self) -> &'static str {
        "block"
    }

    fn component(&self) -> Component {
        Component::BlockFilter
    }

    fn check(&self, query: &mut Query<'_>) -> dedupfs_store::Result<()> {
        let known = self.chunks.read();
        let open: Vec<usize> = query.open_entries().collect();
        for position in open {
            let Some(fingerprint) = query.fingerprints.get(position) else { continue };
            if let Some(location) = known.0.get(fingerprint).or_else(|| known.1.get(fingerprint)) {
                query.existing(position, *location);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_the_built_in_fingerprint_to_the_filters_behind_it() {
        let index = BlockIndex::default();
        index.extend(&[Child { fingerprint: Fingerprint::ZERO, len_bytes: 8192, hint: ContainerId(7) }]);
        assert!(index.is_empty());
    }

    #[test]
    fn regression_it_knows_the_newest_chunks_and_a_bounded_number() {
        let chunk = |number: u64| Child {
            fingerprint: Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes()),
            len_bytes: 8192,
            hint: ContainerId(7),
        };
        let index = BlockIndex::default();
        for first in (0..4 * BLOCK_INDEX_CHUNKS_MAX as u64).step_by(512) {
            index.extend(&(first..first + 512).map(chunk).collect::<Vec<_>>());
            let known = index.chunks.read();
            assert!(known.0.len() + known.1.len() <= BLOCK_INDEX_CHUNKS_MAX);
        }
        let known = index.chunks.read();
        let newest = 4 * BLOCK_INDEX_CHUNKS_MAX as u64 - BLOCK_INDEX_CHUNKS_MAX as u64 / 2;
        let all = (newest..4 * BLOCK_INDEX_CHUNKS_MAX as u64).map(|number| chunk(number).fingerprint);
        assert!(all.into_iter().all(|print| known.0.contains_key(&print) || known.1.contains_key(&print)));
    }
    /// Segments have any number of chunks.
    #[test]
    fn it_is_bounded_whatever_it_is_given_at_a_time() {
        let index = BlockIndex::default();
        for first in (0..4 * BLOCK_INDEX_CHUNKS_MAX as u64).step_by(777) {
            let chunk = |number: u64| Child {
                fingerprint: Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes()),
                len_bytes: 8192,
                hint: ContainerId(7),
            };
            index.extend(&(first..first + 777).map(chunk).collect::<Vec<_>>());
            let known = index.chunks.read();
            assert!(known.0.len() + known.1.len() <= BLOCK_INDEX_CHUNKS_MAX);
        }
    }
}
