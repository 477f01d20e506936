//! The cost of lookups: reads are counted here; all other tests compare answers.

use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};

use super::*;

/// Tankers large enough for the rates of filters to be meaningful.
const WIDE: IndexOptions = IndexOptions {
    open_bytes: 4 << 20,
    cells_per_tanker: 1 << 12,
    buckets_per_tanker: 16,
    cache_bytes: 0,
    filter_bytes: 1 << 20,
    locality_bytes: 1 << 20,
};

/// An index of full tankers, each of 16 containers.
fn sealed(options: IndexOptions, tankers: u64) -> (MemoryDevice, Index) {
    let (disk, index) = empty(options);
    for tanker in 0..tankers {
        let first = tanker << 12;
        let changes: Vec<_> = (first..first + (1 << 12)).map(|number| insert(number, 1 + (number >> 8))).collect();
        index.apply(tanker + 1, &changes).unwrap();
        index.checkpoint(tanker + 1).unwrap();
    }
    assert_eq!((index.stats().sealed_tankers, index.stats().open_cells), (tankers, 0));
    (disk, index)
}

fn reads_of(index: &Index, numbers: impl Iterator<Item = u64>, stored: bool) -> u64 {
    let before = index.stats().bucket_reads;
    let fingerprints: Vec<_> = numbers.map(fingerprint).collect();
    let mut found = Vec::new();
    for batch in fingerprints.chunks(100) {
        index.locate_batch(batch, &mut found).unwrap();
        assert!(found.iter().all(|found| found.is_some() == stored));
    }
    index.stats().bucket_reads - before
}

#[test]
fn absent_fingerprints_cost_no_read_and_present_ones_cost_one() {
    let (disk, index) = sealed(WIDE, 20);
    for index in [index, reopen(&disk, WIDE)] {
        let stats = index.stats();
        assert_eq!((stats.filter_bits_per_cell, stats.tankers_without_filter), (24, 0));
        assert!(stats.filter_bytes <= WIDE.filter_bytes && stats.false_reads_per_million < 300, "{stats:?}");
        let absent = reads_of(&index, 1 << 32..(1 << 32) + 10_000, false);
        assert!(absent <= 10, "{absent} reads for 10,000 absent fingerprints");
        // Far apart, and with no cache: a bucket each.
        let present = reads_of(&index, (0..20 << 12).step_by(41), true);
        let asked = (20_u64 << 12).div_ceil(41);
        assert!(present <= asked + asked / 100, "{present} reads for {asked}");
    }
}

#[test]
fn inserting_reads_no_tanker() {
    let (_, index) = sealed(WIDE, 12);
    let before = index.stats().bucket_reads;
    let changes: Vec<_> = (1 << 40..(1 << 40) + 4000).map(|number| insert(number, 99)).collect();
    index.apply(100, &changes).unwrap();
    assert!(index.stats().bucket_reads - before <= 4);
}

#[test]
fn with_less_memory_lookups_cost_reads_and_stay_right() {
    let (disk, _) = sealed(WIDE, 8);
    let mut costs = Vec::new();
    for filter_bytes in [1 << 20, 8 << 10, 40 << 10, 0] {
        let options = IndexOptions { filter_bytes, ..WIDE };
        let index = reopen(&disk.crash(0), options);
        let stats = index.stats();
        assert!(stats.filter_bytes <= filter_bytes);
        index.self_check().unwrap();
        assert_eq!(contents(&index).len(), 8 << 12);
        let reads = reads_of(&index, 1 << 32..(1 << 32) + 300, false);
        costs.push((reads, stats.false_reads_per_million, stats.tankers_without_filter));
        assert!(reads_of(&index, (0..8 << 12).step_by(97), true) > 0);
        // Growing goes on.
        let changes: Vec<_> = (1 << 33..(1 << 33) + 5000).map(|number| insert(number, 1000)).collect();
        index.apply(100, &changes).unwrap();
        index.checkpoint(100).unwrap();
        assert!(index.stats().filter_bytes <= filter_bytes);
        reads_of(&index, 1 << 33..(1 << 33) + 5000, true);
        index.self_check().unwrap();
    }
    assert!(costs[0].0 <= 2 && costs[0].2 == 0, "{costs:?}");
    assert!(costs[3].2 == 8 && costs[3].0 > costs[1].0, "{costs:?}");
    assert!(costs[1].1 > costs[2].1 && costs[2].1 > costs[0].1, "{costs:?}");
}

#[test]
fn filters_forget_what_was_removed_and_nothing_else() {
    let (disk, index) = sealed(WIDE, 2);
    let removed: Vec<_> = (0..2048).map(|number| remove(number, 1 + (number >> 8))).collect();
    index.apply(10, &removed).unwrap();
    index.checkpoint(10).unwrap();
    for index in [&index, &reopen(&disk, WIDE)] {
        let reads = reads_of(index, 0..2048, false);
        assert!(reads <= 3, "{reads} reads for what was removed");
        assert!(reads_of(index, 2048..8192, true) > 0);
        index.self_check().unwrap();
    }
}

/// Tankers of another shape than the options say: their filters are made anew, in memory at once and on disk later.
#[test]
fn filters_of_another_shape_are_made_anew() {
    let (disk, _) = sealed(WIDE, 3);
    let other = IndexOptions { cells_per_tanker: 1 << 11, ..WIDE };
    let index = reopen(&disk, other);
    assert!(reads_of(&index, 1 << 32..(1 << 32) + 1000, false) <= 60, "twice as many cells as bits were meant for");
    index.checkpoint(50).unwrap();
    let again = reopen(&disk, other);
    assert!(again.sealed_set().tankers().iter().all(|tanker| tanker.has_summary()));
    again.self_check().unwrap();
}

/// Bytes read through a device.
#[derive(Default, Debug)]
struct ReadBytes(AtomicU64);

impl Observer for ReadBytes {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let bytes = call.read().map_or(0, |(_, _, len_bytes)| len_bytes as u64);
        self.0.fetch_add(bytes, Ordering::Relaxed);
        perform()
    }
}

/// The whole index was read for each 100,000 recipe nodes that were freed.
#[test]
fn regression_buckets_whose_cells_all_have_references_are_not_read_for_others() {
    let options = IndexOptions { cells_per_tanker: 1 << 14, buckets_per_tanker: 1024, ..WIDE };
    let read = Arc::new(ReadBytes::default());
    let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(Arc::new(MemoryDevice::new()), read.clone()));
    Index::create(&device, DIRECTORY, &POOL, options).unwrap();
    let index = Index::open(&device, DIRECTORY, &POOL, options).unwrap();
    let changes: Vec<_> = (0..1 << 14).flat_map(|number| [insert(number, 1), count(number, 1)]).collect();
    index.apply(1, &changes).unwrap();
    index.checkpoint(1).unwrap();
    let drops: Vec<_> = (0..20).map(|number| count(number * 800, -1)).collect();
    index.apply(2, &drops).unwrap();
    let visit = || {
        let (before, mut found) = (read.0.load(Ordering::Relaxed), 0);
        for part in index.parts() {
            let mut each = |_, _| {
                found += 1;
                Ok(())
            };
            index.for_each_unreferenced(part, &mut each).unwrap();
        }
        (found, read.0.load(Ordering::Relaxed) - before)
    };
    // They are in memory alone.
    let counts_bytes = 4 << 14;
    assert_eq!(visit(), (20, counts_bytes));
    index.checkpoint(2).unwrap();
    let (found, read_bytes) = visit();
    assert_eq!(found, 20);
    assert!(read_bytes < counts_bytes + 20 * 64 * 44, "{read_bytes}");
}
