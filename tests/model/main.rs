//! Random operations on the engine and on the in-memory reference, side by side. Content, attributes and listings must
//! be equal at all times, through remounts, power losses after a sync, and reclaiming; counts must equal marks. A version
//! must show for ever what the reference froze when it was made.

mod freezing;
mod operation;
mod puts;
mod side_by_side;
mod versions;

use proptest::prelude::*;

use operation::{Operation, operations, operations_on_versions};
use side_by_side::SideBySide;

fn run(operations: &[Operation]) {
    run_with("block,open,bloom,locality,sealed", operations);
}

fn run_with(filters: &str, operations: &[Operation]) {
    applied(filters, operations).finish();
}

fn applied(filters: &str, operations: &[Operation]) -> SideBySide {
    let mut pair = SideBySide::new(filters.parse().expect("a plan"));
    for operation in operations {
        pair.apply(operation);
    }
    pair
}

/// Number of histories: `DEDUPFS_MODEL_CASES`, else `usual`.
fn cases(usual: u32) -> u32 {
    std::env::var("DEDUPFS_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48), max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn engine_equals_reference(operations in operations()) {
        run(&operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Comparing stored chunks changes nothing visible.
    #[test]
    fn engine_that_compares_equals_reference(operations in operations()) {
        run_with("block,open,bloom,locality,sealed,compare", &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(300), max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// A version shows what was frozen, whatever happens to everything else.
    #[test]
    fn versions_equal_what_was_frozen(operations in operations_on_versions()) {
        run(&operations);
    }

    /// As many histories again, for a second core.
    #[test]
    fn versions_equal_what_was_frozen_in_further_histories(operations in operations_on_versions()) {
        run(&operations);
    }
}

/// Sequences that once went wrong, or that random choice rarely finds.
mod fixed {
    use super::Operation::*;
    use super::run;

    #[test]
    fn append_after_every_kind_of_end() {
        run(&[
            Write { file: 0, offset: 0, len: 5_000_000, seed: 1, keep_open: false },
            Append { file: 0, len: 10, seed: 2 },
            Truncate { file: 0, size: 3_000_001 },
            Append { file: 0, len: 2_000_000, seed: 3 },
            Truncate { file: 0, size: 9_000_000 },
            Append { file: 0, len: 5, seed: 4 },
            Write { file: 0, offset: 0, len: 1, seed: 5, keep_open: true },
            Append { file: 0, len: 5, seed: 6 },
            Truncate { file: 0, size: 0 },
            Append { file: 0, len: 70_000, seed: 7 },
            Remount,
        ]);
    }

    /// Unsealed containers of a crash were never chosen for reclaiming, and their space never came back.
    #[test]
    fn regression_containers_left_open_by_a_crash_are_reclaimed() {
        run(&[Write { file: 0, offset: 0, len: 1, seed: 0, keep_open: false }, Crash { seed: 0 }]);
    }

    #[test]
    fn overwrites_across_segments_and_holes() {
        run(&[
            Write { file: 1, offset: 4_000_000, len: 4_000_000, seed: 1, keep_open: true },
            Write { file: 1, offset: 3_999_000, len: 2_000, seed: 2, keep_open: true },
            Write { file: 1, offset: 100_000, len: 50_000, seed: 3, keep_open: true },
            Write { file: 1, offset: 7_000_000, len: 1_500_000, seed: 4, keep_open: false },
            Zero { file: 1, from: 4_100_000, len: 2_500_000 },
            Write { file: 1, offset: 5_000_000, len: 100, seed: 5, keep_open: false },
            Sync,
            Crash { seed: 3 },
            Write { file: 1, offset: 0, len: 8_500_000, seed: 1, keep_open: false },
            Reclaim { threshold_percent: 100 },
        ]);
    }

    #[test]
    fn clones_outlive_what_they_were_cloned_from() {
        let whole = |from, to| Clone { from, to, offset: 0, at: 0, len: u32::MAX, keep_open: false };
        run(&[
            Write { file: 0, offset: 0, len: 9_000_000, seed: 1, keep_open: true },
            whole(0, 1),
            Clone { from: 0, to: 2, offset: 1_500_001, at: 700, len: 5_000_000, keep_open: true },
            Write { file: 0, offset: 3_000_000, len: 70_000, seed: 2, keep_open: true },
            Unlink { file: 0 },
            CloseAll,
            Reclaim { threshold_percent: 100 },
            Clone { from: 1, to: 1, offset: 0, at: 4_600_000, len: 4_400_000, keep_open: true },
            Clone { from: 2, to: 1, offset: 0, at: 2_000_000, len: 2_000_000, keep_open: true },
            Unlink { file: 2 },
            Reclaim { threshold_percent: 100 },
            Sync,
            Crash { seed: 5 },
            Reclaim { threshold_percent: 100 },
            whole(1, 3),
            Unlink { file: 1 },
            Reclaim { threshold_percent: 100 },
            Remount,
        ]);
    }

    #[test]
    fn clones_of_single_chunks_are_counted() {
        let whole = |from, to| Clone { from, to, offset: 0, at: 0, len: u32::MAX, keep_open: true };
        run(&[
            Write { file: 0, offset: 0, len: 3_000, seed: 1, keep_open: false },
            whole(0, 1),
            whole(1, 2),
            Unlink { file: 0 },
            Unlink { file: 1 },
            CloseAll,
            Reclaim { threshold_percent: 100 },
            Append { file: 2, len: 10, seed: 2 },
            Clone { from: 2, to: 2, offset: 0, at: 5_000_000, len: 3_010, keep_open: false },
            Kill,
            Reclaim { threshold_percent: 100 },
        ]);
    }

    /// Else the random histories would test nothing but full reads.
    #[test]
    fn puts_take_over_what_did_not_change() {
        let change = |kind, name, other| ChangeSource { kind, name, other, seed: 1, len: 100_000 };
        let put = |name| PutVersion { into: 0, name, reads_all: false };
        let operations = [
            change(7, 0, 0),
            change(7, 6, 0),
            change(1, 6, 12),
            put(0),
            Remount,
            change(4, 0, 0),
            put(1),
            Compare { before: 0, after: 1 },
            Reclaim { threshold_percent: 100 },
            Prune { into: 0, keep_last: 1 },
            ThawTree { version: 0 },
        ];
        let pair = super::applied("block,open,bloom,locality,sealed", &operations);
        // Both names of the file that stayed as it was.
        assert_eq!(pair.versions.taken_over, 2);
        pair.finish();
    }

    #[test]
    fn the_same_content_many_times_and_gone_again() {
        let copies = (0..6).map(|file| Write { file, offset: 0, len: 2_500_000, seed: 9, keep_open: false });
        let mut operations: Vec<_> = copies.collect();
        operations.extend((0..5).map(|file| Unlink { file }));
        operations.extend([
            Reclaim { threshold_percent: 50 },
            Remount,
            Unlink { file: 5 },
            Reclaim { threshold_percent: 50 },
        ]);
        run(&operations);
    }
}
