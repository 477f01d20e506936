//! Ranges of fingerprints.

use std::ops::Range;

use dedupfs_store::Fingerprint;

use crate::sealed::bucket_of_prefix;

/// All fingerprints whose first eight bytes, as a number, lie between two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefixes {
    first: u64,
    /// The last one of the range.
    last: u64,
}

impl Prefixes {
    /// All fingerprints.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Returns one of `count` ranges of the same width that together have all fingerprints: the first is number 0.
    pub(crate) fn part(number: u32, count: u32) -> Self {
        let count = u128::from(count.max(1));
        // Both are below 2^64.
        let begin = |part: u128| ((part << u64::BITS) / count) as u64;
        let next = u128::from(number) + 1;
        Self { first: begin(next - 1), last: if next >= count { u64::MAX } else { begin(next) - 1 } }
    }

    /// Returns all `count` ranges in order; one if `count` is 0.
    pub fn split(count: u32) -> impl Iterator<Item = Self> {
        (0..count.max(1)).map(move |number| Self::part(number, count))
    }

    /// Whether a fingerprint lies in the range.
    #[must_use]
    pub fn has(&self, fingerprint: &Fingerprint) -> bool {
        self.has_prefix(fingerprint.prefix())
    }

    /// Whether fingerprints with these first eight bytes, as a number, lie in the range.
    pub(crate) fn has_prefix(&self, prefix: u64) -> bool {
        (self.first..=self.last).contains(&prefix)
    }

    /// The place of a fingerprint of the range if the range is divided into `places` equal parts.
    #[must_use]
    pub fn place_of(&self, fingerprint: &Fingerprint, places: u32) -> u32 {
        let width = u128::from(self.last - self.first) + 1;
        let within = u128::from(fingerprint.prefix().saturating_sub(self.first));
        // Below `places`, for fingerprints of the range.
        ((within * u128::from(places)) / width).min(u128::from(places.saturating_sub(1))) as u32
    }

    /// The buckets, of so many, in which fingerprints of the range can be.
    pub(crate) fn buckets(&self, buckets: u32) -> Range<u32> {
        bucket_of_prefix(self.first, buckets)..bucket_of_prefix(self.last, buckets) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fingerprint;

    #[test]
    fn each_fingerprint_lies_in_one_range_and_in_its_buckets() {
        for count in [0, 1, 2, 3, 7, 1000] {
            let ranges: Vec<_> = Prefixes::split(count).collect();
            assert_eq!(ranges.len(), count.max(1) as usize);
            let ends = [Fingerprint([0; 32]), Fingerprint([0xff; 32])];
            for fingerprint in (0..500).map(fingerprint).chain(ends) {
                let own: Vec<_> = ranges.iter().filter(|range| range.has(&fingerprint)).collect();
                assert_eq!(own.len(), 1, "{fingerprint} of {count}");
                for buckets in [1, 4, 2048] {
                    let bucket = bucket_of_prefix(fingerprint.prefix(), buckets);
                    assert!(own[0].buckets(buckets).contains(&bucket));
                }
                assert!(own[0].place_of(&fingerprint, 10) < 10);
            }
        }
        let mut sorted: Vec<_> = (0..500).map(fingerprint).collect();
        sorted.sort_unstable();
        assert!(sorted.is_sorted_by_key(|fingerprint| Prefixes::ALL.place_of(fingerprint, 1000)));
    }
}
