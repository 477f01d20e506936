//! The locality cache within the index: the reads that it saves, and that it never says more than the tankers.

use std::collections::HashMap;

use dedupfs_store::StoreError;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::ContainerTables;
use crate::lookup::Means;

const WIDE: IndexOptions = IndexOptions {
    open_bytes: 4 << 20,
    cells_per_tanker: 1 << 13,
    buckets_per_tanker: 16,
    cache_bytes: 0,
    filter_bytes: 1 << 20,
    locality_bytes: 1 << 20,
};

/// Tables as containers have them: all appended fingerprints, alive or not. A missing container cannot be read.
#[derive(Default)]
struct Tables(Mutex<HashMap<ContainerId, Vec<(Fingerprint, u32)>>>);

impl Tables {
    fn append(&self, container: u64, fingerprint: Fingerprint) {
        let location = location(container);
        self.0.lock().entry(location.container()).or_default().push((fingerprint, location.len_bytes()));
    }
}

impl ContainerTables for Tables {
    fn read_table(
        &self,
        container: ContainerId,
        each: &mut dyn FnMut(Fingerprint, u32),
    ) -> dedupfs_store::Result<bool> {
        match self.0.lock().get(&container) {
            None => Ok(false),
            Some(table) if table.is_empty() => Err(StoreError::NotFound { path: container.to_string() }),
            Some(table) => {
                table.iter().for_each(|&(fingerprint, len_bytes)| each(fingerprint, len_bytes));
                Ok(true)
            }
        }
    }
}

const CHUNKS: u64 = 512;

/// Sealed tankers of containers of 512 chunks in stream order, and their tables.
fn stream(containers: u64) -> (Arc<Tables>, Index) {
    let (_, index) = empty(WIDE);
    let tables = Arc::new(Tables::default());
    let mut changes = Vec::new();
    for number in 0..containers * CHUNKS {
        let container = 1 + number / CHUNKS;
        tables.append(container, fingerprint(number));
        changes.push(insert(number, container));
    }
    for (row, changes) in (1_u64..).zip(changes.chunks(1 << 13)) {
        index.apply(row, changes).unwrap();
        index.checkpoint(row).unwrap();
    }
    assert_eq!(index.stats().open_cells, 0);
    index.set_container_tables(tables.clone());
    (tables, index)
}

fn locate(index: &Index, numbers: &[u64]) -> Vec<Option<Location>> {
    let fingerprints: Vec<_> = numbers.iter().map(|number| fingerprint(*number)).collect();
    let (mut found, mut without) = (Vec::new(), Vec::new());
    index.locate_batch(&fingerprints, &mut found).unwrap();
    index.locate_batch_with(&fingerprints, &mut without, Means { filters: false, locality: false }).unwrap();
    assert_eq!(found, without, "the means change no answer");
    index.locate_cached(&fingerprints, &mut without).unwrap();
    assert!(found.iter().zip(&without).all(|(found, cached)| cached.is_none() || cached == found));
    found
}

#[test]
fn a_stream_that_comes_again_reads_once_for_each_two_containers() {
    let (_, index) = stream(96);
    let before = index.stats();
    let fingerprints: Vec<_> = (0..96 * CHUNKS).map(fingerprint).collect();
    let mut found = Vec::new();
    // Segments do not begin at container boundaries.
    for segment in fingerprints.chunks(500) {
        index.locate_batch(segment, &mut found).unwrap();
        assert!(found.iter().all(Option::is_some));
    }
    let after = index.stats();
    let reads = after.bucket_reads - before.bucket_reads;
    assert!(reads * 500 <= fingerprints.len() as u64, "{reads} reads for {} chunks", fingerprints.len());
    assert!(after.locality_tables_read <= 97, "{after:?}");
    assert!(after.locality_bytes <= WIDE.locality_bytes);
}

#[test]
fn lookups_in_random_order_read_few_tables() {
    let (_, index) = stream(96);
    let mut found = Vec::new();
    for round in 0..100_u64 {
        let number = round * 7919 * CHUNKS % (96 * CHUNKS) + round;
        index.locate_batch(&[fingerprint(number)], &mut found).unwrap();
    }
    let small = IndexOptions { locality_bytes: 0, ..WIDE };
    assert!(small.locality_bytes == 0 && index.stats().locality_tables_read <= 100);
}

#[test]
fn what_was_removed_or_moved_is_never_answered_from_an_old_table() {
    let (tables, index) = stream(32);
    let all: Vec<u64> = (0..32 * CHUNKS).collect();
    locate(&index, &all);
    assert!(index.stats().locality_containers > 10);
    // Removed, moved to another container, stored a second time.
    let row = index.position() + 1;
    tables.append(90, fingerprint(CHUNKS));
    tables.append(91, fingerprint(2 * CHUNKS));
    index.apply(row, &[remove(3, 1), insert(CHUNKS, 90)]).unwrap();
    index.stage(&fingerprint(2 * CHUNKS), location(91));
    let expect = |index: &Index| {
        let found = locate(index, &[3, CHUNKS, 2 * CHUNKS, 4]);
        assert_eq!(found, [None, Some(location(90)), Some(location(91)), Some(location(1))]);
    };
    expect(&index);
    index.checkpoint(row).unwrap();
    expect(&index);
    // Containers 1 and 2 have more fingerprints in their tables than in the index: they stay out.
    let before = index.stats().bucket_reads;
    for _ in 0..3 {
        locate(&index, &(0..2 * CHUNKS).collect::<Vec<_>>());
        expect(&index);
    }
    assert!(index.stats().bucket_reads - before >= 2 * CHUNKS);
}

#[test]
fn tables_that_cannot_be_read_or_tell_something_else_are_of_no_use_and_do_no_harm() {
    let (tables, index) = stream(32);
    {
        let mut tables = tables.0.lock();
        tables.remove(&ContainerId(1));
        tables.get_mut(&ContainerId(2)).unwrap().clear();
        tables.get_mut(&ContainerId(3)).unwrap().pop();
        tables.get_mut(&ContainerId(4)).unwrap()[7].0 = fingerprint(1 << 50);
        let first = tables[&ContainerId(5)][0];
        tables.get_mut(&ContainerId(5)).unwrap().push((first.0, 1));
        // A repeated entry counts once.
        let first = tables[&ContainerId(6)][0];
        tables.get_mut(&ContainerId(6)).unwrap().push(first);
    }
    for _ in 0..2 {
        let found = locate(&index, &(0..8 * CHUNKS).chain([1 << 50]).collect::<Vec<_>>());
        assert!(found[..8 * CHUNKS as usize].iter().all(Option::is_some) && found.last() == Some(&None));
    }
    let mut cached = Vec::new();
    index.locate_cached(&(0..8 * CHUNKS).map(fingerprint).collect::<Vec<_>>(), &mut cached).unwrap();
    let known: Vec<_> = cached.chunks(CHUNKS as usize).map(|chunk| chunk.iter().flatten().count() > 400).collect();
    assert_eq!(known[..5], [false; 5]);
    assert!(known[5], "{known:?}");
}

#[test]
fn lookups_with_tables_are_right_while_cells_move() {
    let (tables, index) = stream(16);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = Vec::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for container in 0..16 {
                        let numbers = container * CHUNKS..(container + 1) * CHUNKS;
                        let fingerprints: Vec<_> = numbers.map(fingerprint).collect();
                        index.locate_batch(&fingerprints, &mut found).unwrap();
                        // Even ones stay. Odd ones move from their container to number 100 + row.
                        for (number, found) in found.iter().enumerate() {
                            let found = found.expect("none is ever removed");
                            assert!(found == location(container + 1) || number % 2 == 1 && found.container().0 > 100);
                        }
                    }
                }
            });
        }
        for row in index.position() + 1..index.position() + 30 {
            let container = row % 16;
            let moved = (container * CHUNKS..(container + 1) * CHUNKS).filter(|number| number % 2 == 1);
            let mut changes = Vec::new();
            for number in moved {
                tables.append(100 + row, fingerprint(number));
                changes.push(insert(number, 100 + row));
            }
            index.apply(row, &changes).unwrap();
            index.checkpoint(row).unwrap();
            // Moved cells are never seen at their old places again.
            let numbers: Vec<_> = (container * CHUNKS..(container + 1) * CHUNKS).collect();
            for (number, found) in numbers.iter().zip(locate(&index, &numbers)) {
                let expected = if number % 2 == 1 { 100 + row } else { container + 1 };
                assert_eq!(found, Some(location(expected)));
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any history of inserting, moving and removing: the locality cache never changes an answer.
    #[test]
    fn answers_are_those_of_the_tankers(
        steps in proptest::collection::vec((0..6_u8, 0..300_u64, 1..80_u64, 1..12_u64), 1..40)
    ) {
        let options = IndexOptions { locality_bytes: 12_000, ..TINY };
        let (disk, mut index) = empty(options);
        let tables = Arc::new(Tables::default());
        index.set_container_tables(tables.clone());
        let mut truth = HashMap::new();
        let mut row = 0;
        for (kind, first, many, container) in steps {
            row += 1;
            let numbers = first..first + many;
            match kind {
                0..=2 => {
                    let changes: Vec<_> = numbers.map(|number| {
                        tables.append(container, fingerprint(number));
                        truth.insert(number, container);
                        insert(number, container)
                    }).collect();
                    index.apply(row, &changes).unwrap();
                }
                3 => {
                    let gone = numbers.filter(|number| truth.get(number) == Some(&container)).collect::<Vec<_>>();
                    let changes: Vec<_> = gone.iter().map(|number| remove(*number, container)).collect();
                    gone.iter().for_each(|number| { truth.remove(number); });
                    index.apply(row, &changes).unwrap();
                }
                4 => {
                    index.checkpoint(row).unwrap();
                    index = reopen(&disk, options);
                    index.set_container_tables(tables.clone());
                }
                _ => index.checkpoint(row).unwrap(),
            }
            let numbers: Vec<_> = (0..400).collect();
            for (number, found) in numbers.iter().zip(locate(&index, &numbers)) {
                prop_assert_eq!(found, truth.get(number).map(|&container| location(container)));
            }
        }
    }
}
