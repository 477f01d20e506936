//! The segments of an image that detection in stages reads: 2 MiB, as in "Parallel batch deduplication for VM backup", section 3. Larger ones
//! than the changes themselves, because a cut chunk at each end of a range costs a read and a new chunk.

use dedupfs::transfer::{Change, Changes};

use crate::changes::{joined, union};

/// Length of a segment.
pub(crate) const SEGMENT_BYTES: u64 = 2 << 20;
const TAIL_BYTES: u64 = 1 << 20;

/// Returns the ranges of whole segments that hold changes, in order and disjoint. The end is always among them: an image that
/// became shorter is cut there, and the daemon wants its last mebibyte. Ranges of zeros keep only their whole segments.
pub(crate) fn segments(changes: &Changes, size_bytes: u64) -> Vec<Change> {
    let up = |at: u64| at.checked_next_multiple_of(SEGMENT_BYTES).unwrap_or(u64::MAX).min(size_bytes);
    let down = |at: u64| at - at % SEGMENT_BYTES;
    let data = |from: u64, to: u64| Change { from: down(from), to: up(to), is_zero: false };
    let (mut holes, mut changed) = (Vec::new(), Vec::new());
    for change in changes.ranges() {
        let (first, last) = (up(change.from), if change.to == size_bytes { size_bytes } else { down(change.to) });
        if !change.is_zero || first >= last {
            changed.push(data(change.from, change.to));
            continue;
        }
        holes.push(Change { from: first, to: last, is_zero: true });
        for (from, to) in [(change.from, first), (last, change.to)] {
            if from < to {
                changed.push(data(from, to));
            }
        }
    }
    let tail = size_bytes.saturating_sub(TAIL_BYTES);
    if size_bytes > 0 && holes.last().is_none_or(|hole| hole.to != size_bytes || hole.from > tail) {
        changed.push(data(tail, size_bytes));
    }
    union(joined(changed, 0), holes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn change(from: u64, to: u64, is_zero: bool) -> Change {
        Change { from, to, is_zero }
    }

    #[test]
    fn changes_are_rounded_to_segments_and_the_end_is_always_read() {
        let changes = Changes::new(vec![change(5 * MIB, 5 * MIB + 1, false), change(7 * MIB, 13 * MIB, true)]).unwrap();
        let expected = [
            change(4 * MIB, 8 * MIB, false),
            change(8 * MIB, 12 * MIB, true),
            change(12 * MIB, 14 * MIB, false),
            change(20 * MIB, 21 * MIB, false),
        ];
        assert_eq!(segments(&changes, 21 * MIB), expected);
        assert_eq!(segments(&Changes::default(), 0), []);
        assert_eq!(segments(&Changes::default(), 5), [change(0, 5, false)]);
    }

    proptest! {
        #[test]
        fn every_change_is_covered_and_zeros_stay_zeros(cuts in proptest::collection::btree_set(0..64 * MIB, 0..40), size_bytes in 1..64 * MIB) {
            let cuts: Vec<u64> = cuts.into_iter().map(|cut| cut.min(size_bytes)).collect();
            let ranges = cuts.chunks_exact(2).enumerate().filter(|(_, cut)| cut[0] < cut[1]);
            let ranges: Vec<_> = ranges.map(|(number, cut)| change(cut[0], cut[1], number % 2 == 0)).collect();
            let found = segments(&Changes::new(ranges.clone()).unwrap(), size_bytes);
            prop_assert!(found.is_sorted_by(|one, other| one.to <= other.from));
            prop_assert!(found.iter().all(|found| found.from < found.to && found.to <= size_bytes));
            prop_assert!(found.last().is_some_and(|last| last.to == size_bytes));
            for found in found.iter().filter(|found| found.is_zero) {
                prop_assert!(ranges.iter().any(|range| range.is_zero && range.from <= found.from && found.to <= range.to));
            }
            for range in ranges {
                let covered: u64 = found.iter().map(|found| found.to.min(range.to).saturating_sub(found.from.max(range.from))).sum();
                prop_assert_eq!(covered, range.to - range.from);
            }
        }
    }
}
