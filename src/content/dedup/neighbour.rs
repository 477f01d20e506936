//! The scope of a put: chunks of its former version, and those in memory. Others are stored again, without a look at the index.
//!
//! This is the neighbour-duplicate-focus indexing of MFDedup (section 4.1). A chunk that skipped versions is stored a second time; when
//! its row is counted the new copy takes the place of the old one, which is garbage then. So at rest the pool is exact again.
//!
//! Memory: 8 bytes for each chunk of the former version.

use std::sync::Arc;

use dedupfs_index::Index;
use dedupfs_index::filter::{Filter, Query, Verdict};
use dedupfs_store::Fingerprint;
use dedupfs_store::profile::Component;

/// The chunks of a former version, and the index's memory.
pub struct Neighbour {
    /// The beginnings of their fingerprints, in order. A chunk that only begins like one of them is looked up in vain.
    beginnings: Vec<u64>,
    index: Arc<Index>,
}

impl Neighbour {
    /// Makes an empty scope.
    #[must_use]
    pub fn new(index: Arc<Index>) -> Self {
        Self { beginnings: Vec::new(), index }
    }

    /// Adds a chunk of the former version.
    pub fn add(&mut self, chunk: &Fingerprint) {
        self.beginnings.push(beginning(chunk));
    }

    /// Puts the chunks in order, when all have been added. Before that most are not found.
    pub fn complete(&mut self) {
        self.beginnings.sort_unstable();
        self.beginnings.dedup();
        self.beginnings.shrink_to_fit();
    }
}

fn beginning(fingerprint: &Fingerprint) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = fingerprint.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl Filter for Neighbour {
    fn name(&self) -> &'static str {
        "neighbour"
    }

    fn component(&self) -> Component {
        Component::NeighbourFilter
    }

    fn check(&self, query: &mut Query<'_>) -> dedupfs_store::Result<()> {
        let is_far = |position: &usize| {
            let fingerprint = query.fingerprints.get(*position);
            fingerprint
                .is_some_and(|print| !print.is_zero() && self.beginnings.binary_search(&beginning(print)).is_err())
        };
        let far: Vec<usize> = query.open_entries().filter(is_far).collect();
        let fingerprints: Vec<Fingerprint> =
            far.iter().filter_map(|position| query.fingerprints.get(*position).copied()).collect();
        let mut found = Vec::new();
        self.index.locate_in_memory(&fingerprints, &mut found);
        for (position, found) in far.into_iter().zip(found) {
            match (found, query.verdicts.get_mut(position)) {
                (Some(location), _) => query.existing(position, location),
                (None, Some(verdict)) => *verdict = Verdict::NonExisting,
                (None, None) => {}
            }
        }
        Ok(())
    }
}
