//! The containers of a tanker's cells.
//!
//! For each container the list has the number of the tanker's cells in it and the sum of their fingerprints' words.
//! Number and sum, added up over all sealed tankers, equal those of the container's own table exactly if the sealed
//! tankers name every chunk of the container and no other chunk in it. The locality cache checks this before it answers
//! from that table. 20 bytes for each container, some 2,000 to 4,000 of them in a tanker of 2^20 cells.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::{ContainerId, Fingerprint, Result};

pub(crate) const SHARE_BYTES: usize = 8 + 4 + 8;

/// A digest of a set of fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Share {
    pub(crate) cells: u32,
    /// Wrapping sum of the words of all of them.
    pub(crate) sum: u64,
}

impl Share {
    pub(crate) fn add(&mut self, fingerprint: &Fingerprint) {
        self.cells = self.cells.saturating_add(1);
        // Two words, so that the sum does not depend only on the bits that choose shards or buckets.
        self.sum = self.sum.wrapping_add(fingerprint.prefix() ^ fingerprint.second_word().rotate_left(32));
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.cells = self.cells.saturating_add(other.cells);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// The list, in order of container.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct ContainerShares {
    shares: Vec<(ContainerId, Share)>,
}

impl ContainerShares {
    /// Makes the list of these cells, in any order.
    pub(crate) fn new<'a>(cells: impl Iterator<Item = (ContainerId, &'a Fingerprint)>) -> Self {
        let mut shares = std::collections::HashMap::<ContainerId, Share>::new();
        for (container, fingerprint) in cells {
            shares.entry(container).or_default().add(fingerprint);
        }
        let mut shares: Vec<_> = shares.into_iter().collect();
        shares.sort_unstable_by_key(|(container, _)| *container);
        Self { shares }
    }

    pub(crate) fn of(&self, container: ContainerId) -> Option<Share> {
        let place = self.shares.binary_search_by_key(&container, |(container, _)| *container).ok()?;
        self.shares.get(place).map(|(_, share)| *share)
    }

    /// The first and the last container; of an empty list a span that has none.
    pub(crate) fn span(&self) -> (ContainerId, ContainerId) {
        let of = |share: Option<&(ContainerId, Share)>| share.map(|(container, _)| *container);
        of(self.shares.first()).zip(of(self.shares.last())).unwrap_or((ContainerId(u64::MAX), ContainerId(0)))
    }

    pub(crate) fn len(&self) -> usize {
        self.shares.len()
    }

    pub(crate) fn cells(&self) -> u64 {
        self.shares.iter().map(|(_, share)| u64::from(share.cells)).sum()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.shares.capacity() * size_of::<(ContainerId, Share)>()) as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = ByteWriter::with_capacity(self.shares.len() * SHARE_BYTES);
        for (container, share) in &self.shares {
            bytes.u64(container.0);
            bytes.u32(share.cells);
            bytes.u64(share.sum);
        }
        bytes.as_slice().to_vec()
    }

    /// Decodes bytes with a verified checksum.
    pub(crate) fn decode(what: &str, bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, what);
        let count = bytes.len() / SHARE_BYTES;
        let mut shares = Vec::with_capacity(count);
        let mut previous = None;
        for _ in 0..count {
            let container = ContainerId(reader.u64()?);
            let share = Share { cells: reader.u32()?, sum: reader.u64()? };
            if previous >= Some(container) || share.cells == 0 {
                return Err(reader.corrupt("containers in order, none without cells", container));
            }
            previous = Some(container);
            shares.push((container, share));
        }
        reader.finish()?;
        Ok(Self { shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fingerprint;

    #[test]
    fn shares_round_trip_and_add_up() {
        let prints: Vec<_> = (0..100).map(fingerprint).collect();
        let cells = |range: std::ops::Range<usize>| {
            ContainerShares::new(prints[range].iter().map(|print| (ContainerId(print.prefix() % 3 + 1), print)))
        };
        let whole = cells(0..100);
        assert_eq!((whole.len(), whole.cells(), whole.of(ContainerId(9))), (3, 100, None));
        assert_eq!(ContainerShares::decode("list", &whole.encode()).unwrap(), whole);
        let mut joined = cells(0..40).of(ContainerId(2)).unwrap();
        joined.join(cells(40..100).of(ContainerId(2)).unwrap());
        assert_eq!(Some(joined), whole.of(ContainerId(2)));
        let mut other = cells(0..40).of(ContainerId(2)).unwrap();
        other.join(cells(41..100).of(ContainerId(2)).unwrap_or_default());
        other.add(&fingerprint(1000));
        assert_ne!(Some(other), whole.of(ContainerId(2)));
    }

    #[test]
    fn nonsense_is_an_error() {
        let sound =
            ContainerShares::new([(ContainerId(1), &fingerprint(1)), (ContainerId(2), &fingerprint(2))].into_iter());
        let bytes = sound.encode();
        let swapped = [&bytes[SHARE_BYTES..], &bytes[..SHARE_BYTES]].concat();
        let mut empty = bytes.clone();
        empty[8..12].fill(0);
        for damaged in [&swapped[..], &empty, &bytes[..SHARE_BYTES + 3]] {
            assert!(ContainerShares::decode("list", damaged).is_err());
        }
    }
}
