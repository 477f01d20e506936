//! The treatment of finds: by itself trust in the fingerprint; with the byte compare filter, [`Comparing`].

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_index::filter::FilterChain;
use dedupfs_store::recipe::{Child, Node};
use dedupfs_store::{ContainerId, Fingerprint, tree};

use super::compare::Comparing;
use super::{Deduplicator, Own, Pin, Section, SegmentEntry};
use crate::containers::StreamId;

/// The treatment of content whose fingerprint is known.
pub(super) trait Finds: Send + Sync {
    /// Returns the node for one that was found. A segment has `entries`, a list has none.
    fn node(
        &self,
        dedup: &Deduplicator,
        _section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        mut node: Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        // Storing the lost chunks of a known segment heals all files that share it.
        if dedup.may_lack(node.children.iter().map(|child| &child.fingerprint)) {
            dedup.place_chunks(stream, entries, &mut node.children, &Own::default(), None)?;
        }
        Ok(found)
    }

    /// Returns the tree node for one that was found.
    fn tree_node(
        &self,
        _dedup: &Deduplicator,
        _section: &Section<'_>,
        _stream: StreamId,
        _node: tree::Node,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        Ok(found)
    }

    /// Returns the container that has the chunk found at `location`. A different length means a different chunk.
    fn chunk(&self, _print: &Fingerprint, data: &[u8], location: Location) -> Result<Option<ContainerId>> {
        Ok((location.len_bytes() as usize == data.len()).then_some(location.container()))
    }

    /// Checks the bytes of a fingerprint that occurs twice in one write.
    fn repeated(&self, _print: &Fingerprint, _first: &[u8], _data: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Trusts fingerprints.
struct Trusting;

impl Finds for Trusting {}

/// Returns the treatment that `chain` asks for.
pub(super) fn of(chain: &FilterChain) -> Box<dyn Finds> {
    match chain.compare() {
        Some(filter) => Box::new(Comparing(filter.clone())),
        None => Box::new(Trusting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_where_it_was_found_unless_its_length_is_another() {
        let location = Location::new(ContainerId(7), 3);
        let found = |data: &[u8]| Trusting.chunk(&Fingerprint([1; 32]), data, location).expect("reads nothing");
        assert_eq!(found(b"abc"), Some(ContainerId(7)));
        assert_eq!(found(b"abcd"), None);
    }
}
