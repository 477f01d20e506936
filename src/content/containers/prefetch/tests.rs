//! The planner of reads, and the steps along a container.

use dedupfs_store::container::{EncodedRegion, Table, TableBuilder, TableEntry};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::along::{Along, CONTAINERS};

const GAP_BYTES_MAX: u32 = 128 * 1024;
const READ_BYTES_MAX: u32 = 1 << 20;

const FRAME_BYTES: u32 = 64 * 1024;

fn plan(table: &Table, regions: Vec<usize>) -> Vec<Vec<usize>> {
    super::reads::plan(table, regions, GAP_BYTES_MAX, READ_BYTES_MAX)
}

fn print(number: u8) -> Fingerprint {
    Fingerprint([number; 32])
}

/// Consecutive regions of one chunk each: chunk `n` (from 1) in region `n - 1`.
fn table(regions: u8) -> Table {
    let mut builder = TableBuilder::new(ContainerId(1), ContainerKind::Data);
    for number in 0..regions {
        let entries = vec![TableEntry { fingerprint: print(number + 1), len_bytes: 1 }];
        let (head, frame_bytes) = (Vec::new(), FRAME_BYTES);
        let region = EncodedRegion { head, raw_follows: true, frame_bytes, entries, raw_bytes: 1 };
        builder.push_region(u32::from(number) * FRAME_BYTES, &region).expect("fits");
    }
    builder.build()
}

#[test]
fn neighbours_share_a_read_of_bounded_size() {
    let table = table(40);
    let reads = plan(&table, (0..40).collect());
    let flat: Vec<_> = reads.iter().flatten().copied().collect();
    assert_eq!(flat, (0..40).collect::<Vec<_>>());
    assert!(reads.iter().all(|read| read.len() as u32 * FRAME_BYTES <= READ_BYTES_MAX));
    assert_eq!(reads.len(), 3);
}

#[test]
fn small_gaps_are_read_along_and_large_ones_are_not() {
    let table = table(10);
    let apart = GAP_BYTES_MAX / FRAME_BYTES;
    let second = apart as usize + 1;
    assert_eq!(plan(&table, vec![0, second]), [[0, second]]);
    assert_eq!(plan(&table, vec![0, second + 1]), [[0], [second + 1]]);
}

#[test]
fn order_and_repetition_do_not_matter_and_what_is_not_there_is_left_out() {
    assert_eq!(plan(&table(4), vec![2, 0, 2, 199, 0]), [[0, 2]]);
}

#[test]
fn regions_are_asked_for_once_half_a_window_ahead() {
    let along = Along::new(100);
    let steps =
        [(1, 2..10), (2, 10..10), (5, 10..10), (6, 10..15), (7, 15..15), (11, 15..20), (30, 31..39), (2, 3..11)];
    for (number, expected) in steps {
        assert_eq!(along.read_on(ContainerId(1), number), expected, "at {number}");
    }
}

#[test]
fn readers_of_one_container_do_not_disturb_each_other() {
    let along = Along::new(100);
    let (mut behind, mut ahead) = (Vec::new(), Vec::new());
    for number in 1..40 {
        behind.extend(along.read_on(ContainerId(1), number));
        ahead.extend(along.read_on(ContainerId(1), number + 20));
    }
    assert!(behind.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{behind:?}");
    assert!(ahead.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{ahead:?}");
    // Forgotten readers request their regions again.
    for id in 2..2 + CONTAINERS as u64 {
        assert_eq!(along.read_on(ContainerId(id), 1), 2..10);
    }
    assert_eq!(along.read_on(ContainerId(1), 39), 40..48);
}

#[test]
fn a_small_cache_is_not_pushed_out() {
    let asked = |regions_max| Along::new(regions_max).read_on(ContainerId(1), 1);
    assert_eq!((asked(3), asked(4), asked(16)), (2..2, 2..3, 2..6));
}
