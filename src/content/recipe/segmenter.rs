//! Cutting recipe segments and list nodes by content, so that equal runs of chunks are cut equally wherever they begin
//! (the segments of Batch section 3, with boundaries as in content-defined chunking).
//!
//! A segment may end behind a chunk whose fingerprint falls below a threshold, once it holds [`SEGMENT_MIN_BYTES`]. It
//! must end before it would exceed [`SEGMENT_MAX_BYTES`]. List nodes do the same with numbers of children. Fingerprints
//! are uniform, so the mean is the target.
//!
//! In an image of a disk, small changes lie anywhere. Each stores a segment anew, with a reference to each of its chunks to count, so
//! segments are a quarter as long there ([`SegmentRule::finer`]).

use dedupfs_store::Fingerprint;

use crate::limits::{
    FINER, LIST_CHILDREN_MAX, LIST_CHILDREN_MEAN, LIST_CHILDREN_MIN, SEGMENT_ENTRIES_MAX, SEGMENT_MAX_BYTES,
    SEGMENT_MIN_BYTES, SEGMENT_TARGET_BYTES,
};

/// Upper bound of the bytes of one entry in an encoded node: fingerprint, length, hint.
const NODE_ENTRY_BYTES_MAX: usize = 64;

/// The rule for level 0.
#[derive(Clone, Copy, Debug)]
pub struct SegmentRule {
    /// A fingerprint whose second word is below this may end a segment.
    threshold: u64,
    /// Bytes from which on a segment may end, and those that it has at most.
    min_bytes: u64,
    max_bytes: u64,
    /// Entries of a segment at most: its node must fit well into a container.
    entries_max: usize,
}

impl SegmentRule {
    /// Makes the rule for chunks of this mean size in containers of this size.
    #[must_use]
    pub fn new(chunk_bytes_mean: u32, container_bytes: u32) -> Self {
        let chunks_after_minimum =
            ((SEGMENT_TARGET_BYTES - SEGMENT_MIN_BYTES) / u64::from(chunk_bytes_mean.max(1))).max(1);
        let entries_max = (container_bytes as usize / 4 / NODE_ENTRY_BYTES_MAX).clamp(1, SEGMENT_ENTRIES_MAX);
        let (min_bytes, max_bytes) = (SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES);
        Self { threshold: u64::MAX / chunks_after_minimum, min_bytes, max_bytes, entries_max }
    }

    /// The same for segments of images.
    #[must_use]
    pub fn finer(self) -> Self {
        let Self { threshold, min_bytes, max_bytes, entries_max } = self;
        let (min_bytes, max_bytes) = (min_bytes / FINER, max_bytes / FINER);
        Self { threshold: threshold.saturating_mul(FINER), min_bytes, max_bytes, entries_max }
    }

    /// Whether a segment of `bytes` and `entries` must end before a chunk of `next_bytes` is added.
    pub(crate) fn must_end_before(&self, bytes: u64, entries: usize, next_bytes: u64) -> bool {
        entries > 0 && (bytes.saturating_add(next_bytes) > self.max_bytes || entries >= self.entries_max)
    }

    /// Whether a segment that now has `bytes` ends behind the chunk `last`.
    pub(crate) fn ends_behind(&self, bytes: u64, last: &Fingerprint) -> bool {
        bytes >= self.min_bytes && !last.is_zero() && last.second_word() < self.threshold
    }
}

/// Whether a list of `children` ends behind the child `last`.
pub(crate) fn list_ends_behind(children: usize, last: &Fingerprint) -> bool {
    const THRESHOLD: u64 = u64::MAX / (LIST_CHILDREN_MEAN - LIST_CHILDREN_MIN) as u64;
    children >= LIST_CHILDREN_MAX
        || (children >= LIST_CHILDREN_MIN && !last.is_zero() && last.second_word() < THRESHOLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cheap uniform generator of fingerprints.
    fn fingerprint(seed: u64) -> Fingerprint {
        Fingerprint(*blake3::hash(&seed.to_le_bytes()).as_bytes())
    }

    fn cut(rule: &SegmentRule, chunks: &[(Fingerprint, u64)]) -> Vec<usize> {
        let (mut cuts, mut bytes, mut entries) = (Vec::new(), 0, 0);
        for (position, (print, len)) in chunks.iter().enumerate() {
            if rule.must_end_before(bytes, entries, *len) {
                cuts.push(position);
                (bytes, entries) = (0, 0);
            }
            bytes += len;
            entries += 1;
            if rule.ends_behind(bytes, print) {
                cuts.push(position + 1);
                (bytes, entries) = (0, 0);
            }
        }
        cuts
    }

    #[test]
    fn mean_segment_is_near_the_target() {
        for chunk_bytes in [4096_u32, 8192, 65536] {
            let rule = SegmentRule::new(chunk_bytes, 4 << 20);
            let chunks: Vec<_> = (0..400_000).map(|seed| (fingerprint(seed), u64::from(chunk_bytes))).collect();
            let segments = cut(&rule, &chunks).len() as u64;
            let mean = 400_000 * u64::from(chunk_bytes) / segments;
            assert!((3 << 20..5 << 20).contains(&mean), "mean {mean} at {chunk_bytes}");
            let segments = cut(&rule.finer(), &chunks).len() as u64;
            let mean = 400_000 * u64::from(chunk_bytes) / segments;
            assert!((3 << 18..5 << 18).contains(&mean), "mean {mean} at {chunk_bytes}, finer");
        }
    }

    #[test]
    fn cuts_meet_again_behind_an_insertion() {
        let rule = SegmentRule::new(8192, 4 << 20);
        let old: Vec<_> = (0..50_000).map(|seed| (fingerprint(seed), 8192)).collect();
        let mut new = old.clone();
        new.insert(1000, (fingerprint(1 << 40), 5000));
        let (old_cuts, new_cuts) = (cut(&rule, &old), cut(&rule, &new));
        let shared = old_cuts.iter().filter(|&&at| at > 1000 && new_cuts.contains(&(at + 1))).count();
        let behind = old_cuts.iter().filter(|&&at| at > 1000).count();
        assert!(shared + 5 >= behind, "{shared} of {behind}");
    }

    #[test]
    fn a_segment_never_exceeds_its_limits() {
        let rule = SegmentRule::new(8192, 4 << 20);
        let (mut bytes, mut entries) = (0, 0);
        let never_cutting = Fingerprint([0xff; 32]);
        for _ in 0..10_000 {
            if rule.must_end_before(bytes, entries, 12_288) {
                assert!(bytes <= SEGMENT_MAX_BYTES && entries <= SEGMENT_ENTRIES_MAX);
                (bytes, entries) = (0, 0);
            }
            bytes += 12_288;
            entries += 1;
            assert!(!rule.ends_behind(bytes, &never_cutting));
            assert!(bytes <= SEGMENT_MAX_BYTES);
        }
    }
}
