//! One behaviour at a time.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::{ContainerId, Fingerprint, StoreError};

use super::*;
use crate::{Inconsistency, InconsistencyKind, IndexBuilder};

#[test]
fn staged_is_seen_at_once_and_committed_by_its_row() {
    let (_, index) = empty(TINY);
    index.stage(&fingerprint(1), location(5));
    assert_eq!(index.get(&fingerprint(1)).unwrap(), Some(cell(5, 0)));
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), None);
    assert_eq!((index.len(), index.stats().recent_cells), (0, 1));

    // The row names another location than the staged one: the staged one stays until its own row comes.
    index.apply(1, &[insert(1, 4), count(1, 3)]).unwrap();
    assert_eq!(index.get(&fingerprint(1)).unwrap(), Some(cell(5, 3)));
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), Some(cell(4, 3)));
    index.apply(2, &[insert(1, 5)]).unwrap();
    assert_eq!(index.get(&fingerprint(1)).unwrap(), Some(cell(5, 3)));
    assert_eq!((index.len(), index.stats().recent_cells), (1, 0));

    index.stage(&fingerprint(3), location(6));
    index.stage(&Fingerprint::ZERO, location(6));
    assert_eq!(index.get(&Fingerprint::ZERO).unwrap(), None);
    index.apply(3, &[remove(3, 6)]).unwrap();
    assert_eq!(index.get(&fingerprint(3)).unwrap(), None, "its container is gone");
}

#[test]
fn rows_are_applied_in_order_and_once() {
    let (disk, index) = empty(TINY);
    index.apply(5, &[insert(1, 1)]).unwrap();
    index.apply(5, &[count(1, 1)]).unwrap();
    assert!(matches!(index.apply(4, &[]), Err(StoreError::Usage(_))));
    assert!(matches!(index.checkpoint(4), Err(StoreError::Usage(_))));
    index.checkpoint(7).unwrap();
    assert_eq!(index.position(), 7);
    assert!(matches!(index.apply(7, &[count(1, 1)]), Err(StoreError::Usage(_))), "in the checkpoint");
    let index = reopen(&disk, TINY);
    assert!(matches!(index.apply(7, &[count(1, 1)]), Err(StoreError::Usage(_))), "in the checkpoint");
    index.apply(8, &[count(1, 1)]).unwrap();
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), Some(cell(1, 2)));
}

#[test]
fn contradictions_are_reported_and_harmless() {
    let (_, index) = empty(TINY);
    let zero = Change::Count { fingerprint: Fingerprint::ZERO, delta: 1, hint: ContainerId::NONE };
    let report = index.apply(1, &[count(1, 2), insert(1, 1), count(1, -1), insert(2, 1), count(2, -1), zero]).unwrap();
    let kinds: Vec<_> = report.inconsistencies.iter().map(|found| found.kind).collect();
    // In the order of shards, not of changes: compare as a set.
    let expected = [
        InconsistencyKind::Unknown { delta: 2 },
        InconsistencyKind::Negative { references: 0, delta: -1 },
        InconsistencyKind::BuiltIn,
    ];
    assert!(expected.iter().all(|kind| kinds.contains(kind)) && report.count == 3, "{kinds:?}");
    assert!(report.inconsistencies.iter().all(|found| found.to_string().contains("log row 1")));
    // A fingerprint that was counted before it was known keeps its count.
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), Some(cell(1, 1)));
    assert_eq!(index.committed(&fingerprint(2)).unwrap(), Some(cell(1, u32::MAX)));
    assert_eq!((report.doubts, report.needed), (2, 1), "the built-in fingerprint has no count");

    let many: Vec<_> = (10..60).map(|number| count(number, 1)).collect();
    let report = index.apply(2, &many).unwrap();
    assert_eq!((report.inconsistencies.len(), report.count), (10, 50));
    assert_eq!(index.committed(&fingerprint(30)).unwrap(), Some(Cell { location: Location::Lost, references: 1 }));
    index.apply(3, &[insert(30, 7), count(31, -1), remove(31, 0)]).unwrap();
    assert_eq!(index.committed(&fingerprint(30)).unwrap(), Some(cell(7, 1)));
    assert_eq!(index.committed(&fingerprint(31)).unwrap(), None);
}

/// Such a count became 0, which is garbage, and nothing in the cell showed it.
#[test]
fn regression_a_count_that_would_be_negative_is_no_garbage() {
    let (disk, index) = empty(TINY);
    index.apply(1, &[insert(1, 1), count(1, 1)]).unwrap();
    let report = index.apply(2, &[count(1, -2)]).unwrap();
    assert_eq!((report.count, report.doubts), (1, 1));
    // Later counts do not matter: the true number is unknown.
    let report = index.apply(3, &[count(1, -1), count(1, 5), remove(1, 1)]).unwrap();
    assert_eq!((report.count, report.doubts), (1, 0), "a removal that is refused");
    let unknown = Some(cell(1, u32::MAX));
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), unknown);
    let occupied = index.occupied(cell(1, 0).location.container());
    assert_eq!((occupied.cells, occupied.live_cells), (1, 1), "the garbage map calls it alive");
    index.checkpoint(3).unwrap();
    assert_eq!(reopen(&disk, TINY).committed(&fingerprint(1)).unwrap(), unknown);
}

#[test]
fn full_tankers_are_sealed_in_order_of_arrival() {
    let (disk, index) = empty(TINY);
    let changes: Vec<_> = (0..150).flat_map(|number| [insert(number, 1 + number / 10), count(number, 2)]).collect();
    index.apply(1, &changes).unwrap();
    assert!(index.wants_checkpoint());
    index.checkpoint(1).unwrap();
    for index in [index, reopen(&disk, TINY)] {
        let stats = index.stats();
        assert_eq!((stats.sealed_tankers, stats.open_cells, stats.cells), (2, 150 - 128, 150));
        assert!(!index.wants_checkpoint());
        let before = index.stats();
        // The last arrivals are still open and need no disk; the others are found in their buckets.
        for number in (140..150).chain([0, 70, 127]) {
            assert_eq!(index.committed(&fingerprint(number)).unwrap(), Some(cell(1 + number / 10, 2)));
        }
        let after = index.stats();
        assert!(
            after.bucket_reads - before.bucket_reads <= 9,
            "at most two buckets and a page of counts for each of three"
        );
        assert_eq!(contents(&index).len(), 150);
        index.self_check().unwrap();
        let files = disk.list(DIRECTORY).unwrap();
        let names: Vec<_> = files.iter().map(|entry| entry.name.as_str()).collect();
        let of_tanker =
            |id| ["containers", "counts", "filter", "occupancy", "tanker"].map(|kind| format!("t-{id}-1.{kind}"));
        let mut expected = vec!["manifest".to_owned(), "open-1.cells".to_owned()];
        expected.extend([1, 2].into_iter().flat_map(of_tanker));
        assert_eq!(names, expected);
        let bytes: u64 = files.iter().filter(|entry| entry.name != "manifest").map(|entry| entry.len_bytes).sum();
        assert_eq!(stats.disk_bytes, bytes);
    }
}

/// Names of an index's files, except for those that go with the cells.
fn generations(disk: &MemoryDevice) -> Vec<String> {
    let names = disk.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| ![".filter", ".containers", ".occupancy"].iter().any(|ending| name.ends_with(ending))).collect()
}

#[test]
fn counts_alone_rewrite_no_cells_and_nothing_rewrites_nothing() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..70).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let sealed: Vec<u64> = {
        let set = index.sealed_set();
        let mut sealed = Vec::new();
        set.tankers()[0]
            .for_each(&mut |_, entry| {
                sealed.push(entry.fingerprint);
                Ok(())
            })
            .unwrap();
        (0..70).filter(|&number| sealed.contains(&fingerprint(number))).collect()
    };
    assert_eq!(sealed.len(), 64);
    assert_eq!(generations(&disk), ["manifest", "open-1.cells", "t-1-1.counts", "t-1-1.tanker"]);
    index.checkpoint(2).unwrap();
    assert_eq!(generations(&disk), ["manifest", "open-1.cells", "t-1-1.counts", "t-1-1.tanker"]);
    assert_eq!(reopen(&disk, TINY).position(), 2);

    index.apply(3, &[count(sealed[0], 5), insert(sealed[1], 1)]).unwrap();
    assert_eq!(index.committed(&fingerprint(sealed[0])).unwrap(), Some(cell(1, 5)), "from the patch");
    index.checkpoint(3).unwrap();
    assert_eq!(
        generations(&disk),
        ["manifest", "open-1.cells", "t-1-1.tanker", "t-1-3.counts"]
            .map(String::from)
            .into_iter()
            .collect::<Vec<_>>()
            .tap_sorted()
    );
    index.apply(4, &[insert(sealed[0], 9), remove(sealed[2], 1), remove(sealed[3], 2)]).unwrap();
    assert_eq!(index.committed(&fingerprint(sealed[2])).unwrap(), None, "a tombstone");
    index.checkpoint(4).unwrap();
    assert_eq!(generations(&disk), ["manifest", "open-1.cells", "t-1-4.counts", "t-1-4.tanker"]);
    for index in [&index, &reopen(&disk, TINY)] {
        assert_eq!(index.committed(&fingerprint(sealed[0])).unwrap(), Some(cell(9, 5)), "references are kept");
        assert_eq!(index.committed(&fingerprint(sealed[2])).unwrap(), None);
        assert_eq!(index.committed(&fingerprint(sealed[3])).unwrap(), Some(cell(1, 0)), "removed from elsewhere");
        assert_eq!(index.len(), 69);
        index.self_check().unwrap();
    }
}

trait TapSorted {
    fn tap_sorted(self) -> Self;
}

impl TapSorted for Vec<String> {
    fn tap_sorted(mut self) -> Self {
        self.sort();
        self
    }
}

#[test]
fn a_removed_cell_comes_back_without_references() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..64).flat_map(|number| [insert(number, 1), count(number, 7)]).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let away = |number| [count(number, -7), remove(number, 1)];
    index.apply(2, &[&away(3)[..], &[insert(3, 2)], &away(4), &[insert(4, 1)]].concat()).unwrap();
    index.checkpoint(2).unwrap();
    for index in [index, reopen(&disk, TINY)] {
        assert_eq!(index.committed(&fingerprint(3)).unwrap(), Some(cell(2, 0)));
        assert_eq!(index.committed(&fingerprint(4)).unwrap(), Some(cell(1, 0)));
        index.self_check().unwrap();
    }
}

#[test]
fn what_is_referred_to_is_never_removed() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..64).flat_map(|number| [insert(number, 1), count(number, 2)]).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let report = index.apply(2, &[remove(3, 1), count(4, -2), remove(4, 1)]).unwrap();
    let kind = InconsistencyKind::Referenced { references: 2 };
    assert_eq!(report.inconsistencies, [Inconsistency { row: 2, fingerprint: fingerprint(3), kind }]);
    index.checkpoint(2).unwrap();
    for index in [index, reopen(&disk, TINY)] {
        assert_eq!(index.committed(&fingerprint(3)).unwrap(), Some(cell(1, 2)));
        assert_eq!(index.committed(&fingerprint(4)).unwrap(), None);
    }
}

#[test]
fn what_lies_in_containers_is_told_without_the_map() {
    let (_disk, index) = empty(TINY);
    index.apply(1, &(0..64).map(|number| insert(number, 1 + number / 32)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    index.apply(2, &[insert(100, 3), insert(101, 4), insert(0, 5)]).unwrap();
    index.stage(&fingerprint(200), location(6));
    let asked: HashSet<_> = (1..9).map(ContainerId).collect();
    let placed = |index: &Index| {
        let mut placed: Vec<_> = index.placed_in(&asked).unwrap().into_iter().map(|container| container.0).collect();
        placed.sort_unstable();
        placed
    };
    assert_eq!(placed(&index), [1, 2, 3, 4, 5, 6], "sealed, open, moved, and staged");
    index.apply(3, &(0..32).map(|number| insert(number, 7)).chain([remove(101, 4)]).collect::<Vec<_>>()).unwrap();
    assert_eq!(placed(&index), [1, 2, 3, 6, 7], "the file still has them");
    index.checkpoint(3).unwrap();
    assert_eq!(placed(&index), [2, 3, 6, 7]);
}

#[test]
fn many_cells_are_those_that_single_lookups_find() {
    let (_disk, index) = empty(TINY);
    let changes: Vec<_> = (0..200).flat_map(|number| [insert(number, 1 + number / 50), count(number, 2)]).collect();
    index.apply(1, &changes).unwrap();
    index.checkpoint(1).unwrap();
    let asked: Vec<_> = (0..300).map(fingerprint).chain([Fingerprint::ZERO]).collect();
    let mut sealed = index.sealed_cells_of(&asked).unwrap();
    let agree = |sealed: &mut crate::SealedCells| {
        let cells = index.cells_of(&asked, sealed).unwrap();
        for (fingerprint, cell) in asked.iter().zip(cells) {
            assert_eq!(cell, index.get(fingerprint).unwrap(), "{fingerprint}");
        }
    };
    agree(&mut sealed);
    // An open cell that goes leaves nothing in memory.
    index.apply(2, &[insert(270, 8)]).unwrap();
    let mut with_open = index.sealed_cells_of(&asked).unwrap();
    index.apply(2, &[remove(270, 8)]).unwrap();
    agree(&mut with_open);
    // Moved, counted, removed, new and staged since, looked up before; and then sealed.
    index.apply(2, &[insert(1, 9), count(2, 5), count(3, -2), remove(3, 1), insert(250, 8), count(250, 1)]).unwrap();
    index.stage(&fingerprint(4), location(11));
    index.stage(&fingerprint(260), location(11));
    agree(&mut sealed);
    index.checkpoint(2).unwrap();
    agree(&mut sealed);
    agree(&mut crate::SealedCells::default());
}

#[test]
fn sparse_tankers_are_dissolved_and_empty_ones_dropped() {
    let (disk, index) = empty(TINY);
    let changes = |range: std::ops::Range<u64>| range.map(|number| insert(number, 1 + number / 64)).collect::<Vec<_>>();
    index.apply(1, &changes(0..128)).unwrap();
    index.checkpoint(1).unwrap();
    assert_eq!(index.stats().sealed_tankers, 2);
    let gone: Vec<_> =
        (0..128).filter(|number| !(60..64).contains(number)).map(|number| remove(number, 1 + number / 64)).collect();
    index.apply(2, &gone).unwrap();
    assert_eq!((index.len(), contents(&index).len()), (4, 4));
    index.checkpoint(2).unwrap();
    for index in [index, reopen(&disk, TINY)] {
        let stats = index.stats();
        assert_eq!((stats.sealed_tankers, stats.open_cells, stats.cells), (0, 4, 4));
        assert_eq!(index.get(&fingerprint(61)).unwrap(), Some(cell(1, 0)));
        index.self_check().unwrap();
    }
    assert_eq!(generations(&disk), ["manifest", "open-2.cells"]);
}

#[test]
fn stuck_counts_stay_stuck() {
    let (_, index) = empty(TINY);
    index.apply(1, &[insert(1, 1), count(1, i64::MAX)]).unwrap();
    index.apply(2, &[count(1, -5)]).unwrap();
    assert_eq!(index.committed(&fingerprint(1)).unwrap(), Some(cell(1, u32::MAX)));
}

#[test]
fn creating_and_opening_check_what_is_there() {
    let disk = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    assert!(Index::open(&device, DIRECTORY, &POOL, TINY).is_err());
    Index::create(&device, DIRECTORY, &POOL, TINY).unwrap();
    assert!(matches!(Index::create(&device, DIRECTORY, &POOL, TINY), Err(StoreError::Usage(_))));
    let survivor: Arc<dyn Device> = Arc::new(disk.crash(0));
    assert!(Index::open(&survivor, DIRECTORY, &POOL, TINY).unwrap().is_empty(), "creation is durable");
    assert!(matches!(Index::open(&device, DIRECTORY, &PoolId([8; 16]), TINY), Err(StoreError::Corrupt { .. })));
    for (cells_per_tanker, buckets_per_tanker) in [(0, 4), (64, 0), (64, 3), (u32::MAX, 4), (64, 1 << 20)] {
        let options = IndexOptions { cells_per_tanker, buckets_per_tanker, cache_bytes: 0, ..TINY };
        assert!(matches!(Index::open(&device, DIRECTORY, &POOL, options), Err(StoreError::Usage(_))));
    }
    // The other index of the pool under this one's name.
    Index::create(&device, "index/recipes", &POOL, TINY).unwrap();
    device.rename("index/recipes/manifest", "index/chunks/manifest").unwrap();
    assert!(Index::open(&device, DIRECTORY, &POOL, TINY).unwrap_err().to_string().contains("another index"));
}

#[test]
fn shapes_may_change_between_sessions() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..100).map(|number| insert(number, number + 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    for (row, buckets_per_tanker) in [(2_u64, 1_u32), (3, 16)] {
        let options = IndexOptions { cells_per_tanker: 20, buckets_per_tanker, cache_bytes: 0, ..TINY };
        let index = reopen(&disk, options);
        index
            .apply(row, &(row * 100..row * 100 + 30).map(|number| insert(number, number)).collect::<Vec<_>>())
            .unwrap();
        index.checkpoint(row).unwrap();
        index.self_check().unwrap();
        assert_eq!(contents(&index).len() as u64, 100 + (row - 1) * 30);
        assert_eq!(index.get(&fingerprint(50)).unwrap(), Some(cell(51, 0)));
    }
}

#[test]
fn a_rebuilt_index_holds_what_was_set_and_an_interrupted_one_is_refused() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..300).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    {
        let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
        builder.set(fingerprint(1), location(1), 0).unwrap();
        builder.cells_len().unwrap();
        assert_eq!(builder.index.committed(&fingerprint(1)).unwrap(), Some(cell(1, 0)));
    }
    let error = Index::open(&device, DIRECTORY, &POOL, TINY).unwrap_err();
    assert!(error.to_string().contains("unfinished rebuild"), "{error}");

    let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
    for number in 0..500 {
        builder.set(fingerprint(number), location(1), 0).unwrap();
        if number == 300 {
            builder.cells_len().unwrap();
        }
    }
    for number in 0..500 {
        builder.count(fingerprint(number), 2, ContainerId(number % 3)).unwrap();
    }
    builder.set(fingerprint(9), location(8), 4).unwrap();
    builder.count(fingerprint(1000), 1, ContainerId(1)).unwrap();
    builder.cells_len().unwrap();
    assert_eq!(builder.inconsistencies, 1);
    let index = builder.finish(77, b"all").unwrap();
    assert_eq!(index.position(), 77);
    for index in [index, reopen(&disk, TINY), reopen(&disk.crash(0), TINY)] {
        index.self_check().unwrap();
        assert_eq!((index.position(), index.len(), index.lost()), (77, 501, 1));
        assert!(index.get(&fingerprint(1000)).unwrap().is_some_and(|cell| cell.location.is_lost()));
        assert_eq!(index.get(&fingerprint(9)).unwrap(), Some(cell(8, 4)));
        assert!(contents(&index).values().filter(|found| **found == cell(1, 2)).count() == 499);
        index.apply(78, &[count(9, -4), remove(9, 8)]).unwrap();
        assert_eq!(index.get(&fingerprint(9)).unwrap(), None);
    }
}

#[test]
fn an_error_of_the_callback_ends_the_walk() {
    let (_, index) = empty(TINY);
    index.apply(1, &(0..100).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let mut seen = 0;
    let outcome = index.for_each(&mut |_, cell| {
        seen += 1;
        assert_eq!(cell.location.container(), ContainerId(1));
        if seen == 3 { Err(StoreError::Usage("enough".to_owned())) } else { Ok(()) }
    });
    assert!(outcome.is_err() && seen == 3);
}

/// The open tankers stay within their share of memory if nothing is applied while the index says that it is full, and
/// rows are no larger than its limits: with tankers that memory keeps small, and with memory that full ones leave over.
#[test]
fn open_tankers_stay_within_their_memory() {
    let few_patches = IndexOptions { cells_per_tanker: 1 << 16, open_bytes: 2 << 20, ..TINY };
    let many_patches = IndexOptions { cells_per_tanker: 1 << 12, open_bytes: 2 << 20, ..TINY };
    for options in [few_patches, many_patches] {
        let (_disk, index) = empty(options);
        let (mut row, mut number, mut most_bytes, mut frozen) = (0, 0, 0, None);
        while index.stats().sealed_tankers < 6 {
            if index.is_full() || (row % 7 == 6 && frozen.is_some()) {
                index.write(frozen.take().unwrap_or_else(|| index.freeze(row).unwrap())).unwrap();
                continue;
            }
            if frozen.is_none() && index.wants_checkpoint() {
                frozen = Some(index.freeze(row).unwrap());
            }
            row += 1;
            let new = index.pending_places_max() / 2;
            let mut changes: Vec<_> = (number..number + new).map(|number| insert(number, row)).collect();
            // Cells of sealed tankers change, too.
            let counted = (index.pending_max() - new).min(number);
            changes.extend((0..counted).map(|n| count((n * 7919 + row) % number, 1)));
            for change in &changes[..new as usize] {
                index.stage(change.fingerprint(), location(row));
            }
            number += new;
            index.apply(row, &changes).unwrap();
            let copy = frozen.as_ref().map_or(0, crate::Frozen::memory_bytes);
            most_bytes = most_bytes.max(index.open.sizes().memory_bytes + copy);
            assert!(most_bytes <= options.open_bytes, "{most_bytes} bytes");
        }
        assert!(most_bytes > options.open_bytes / 3, "{most_bytes} bytes: the bound is not far off");
        assert!(index.staged() == 0 && index.stats().recent_cells == 0);
        index.stage(&fingerprint(u64::MAX), location(1));
        index.stage(&fingerprint(u64::MAX), location(2));
        assert_eq!(index.staged(), 1);
    }
}

/// The leftovers of a broken-off checkpoint took space until the next one.
#[test]
fn regression_half_written_tankers_are_removed() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..200).map(|number| insert(number, number)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    drop(index);
    let named: Vec<_> = disk.list(DIRECTORY).unwrap();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    let of_tanker =
        ["tanker", "counts", "filter", "containers", "occupancy", "occupancy.new"].map(|kind| format!("t-9-7.{kind}"));
    for name in of_tanker.iter().map(String::as_str).chain(["open-7.cells"]) {
        device.replace_file(DIRECTORY, name, &[1; 300]).unwrap();
    }
    let index = reopen(&disk, TINY);
    assert_eq!(index.remove_leftovers().unwrap().bytes, 2100);
    assert_eq!(disk.list(DIRECTORY).unwrap(), named);
    assert_eq!(index.remove_leftovers().unwrap().files, 0);
    index.self_check().unwrap();
    assert_eq!(contents(&index).len(), 200);
}

#[test]
fn answers_are_kept_while_tankers_are_sealed_and_not_when_one_changes() {
    let (_disk, index) = empty(TINY);
    let apply = |row, changes: &[Change]| {
        index.apply(row, changes).unwrap();
        index.checkpoint(row).unwrap();
    };
    apply(1, &(0..64).map(|number| insert(number, 1)).collect::<Vec<_>>());
    let asked: Vec<_> = [3, 100, 500].map(fingerprint).to_vec();
    let (answers, epoch) = index.locate_to_keep(&asked).unwrap();
    let lasting = |location| Kept { location, is_lasting: true };
    assert_eq!(answers, [lasting(Some(location(1))), lasting(None), lasting(None)]);
    apply(2, &(64..192).map(|number| insert(number, 2)).collect::<Vec<_>>());
    let since = index.located_since(&asked, epoch).unwrap().unwrap();
    assert_eq!(since, [Since::AsBefore, Since::Now(Some(location(2))), Since::AsBefore]);
    index.stage(&fingerprint(500), location(7));
    let (answers, _) = index.locate_to_keep(&asked).unwrap();
    assert_eq!(answers[2], Kept { location: Some(location(7)), is_lasting: false });
    apply(3, &[remove(3, 1)]);
    assert_eq!(index.located_since(&asked, epoch).unwrap(), None);
}

/// Each checkpoint listed the directory, five files for each tanker of the pool.
#[test]
fn regression_checkpoints_look_only_at_files_that_they_replace() {
    let (disk, _) = empty(TINY);
    let device = Arc::new(FaultyDevice::over_memory(&disk));
    let index = Index::open(&(device.clone() as Arc<dyn Device>), DIRECTORY, &POOL, TINY).unwrap();
    let names = || {
        let mut names: Vec<_> = disk.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    };
    let step = |row: u64| {
        let first = row * 50;
        let changes: Vec<_> = (first..first + 50).map(|number| insert(number, row)).collect();
        let counts = (0..first).step_by(40).map(|number| count(number, 1));
        index.apply(row, &changes.into_iter().chain(counts).collect::<Vec<_>>()).unwrap();
        index.checkpoint(row).unwrap();
    };
    step(1);
    let lists = device.operations_of(&[Operation::List]);
    (2..12).for_each(step);
    assert_eq!(device.operations_of(&[Operation::List]), lists);
    // Nothing else is left.
    let before = names();
    assert_eq!(index.remove_leftovers().unwrap().files, 0);
    assert_eq!(names(), before);
    // Behind a failure all files are looked at.
    device.add(FaultPlan::new(Fault::Io, 3).on(&[Operation::Write]));
    let changes: Vec<_> = (5000..5100).map(|number| insert(number, 99)).collect();
    index.apply(12, &changes).unwrap();
    assert!(index.checkpoint(12).is_err());
    step(13);
    assert!(device.operations_of(&[Operation::List]) > lists);
    assert_eq!(index.remove_leftovers().unwrap().files, 0);
    contents(&index);
}
