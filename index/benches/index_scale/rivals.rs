//! The rivals of the index: Bloom filters one after another, a hash table in memory, and the embedded store that the
//! namespace uses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::Path;
use std::time::Instant;

use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use crate::{BATCH, MILLION, fingerprint, location, mib, per_second, resident_bytes};

/// As in the index: 24 bits for each fingerprint and 12 hash functions.
const BITS: u64 = 24 * MILLION;
const HASHES: u64 = 12;

/// Measures filters that are asked one after another.
pub(crate) fn separate_filters(stored: u64, absent: &[u64]) {
    let tankers = stored.div_ceil(MILLION);
    let mut filters = vec![vec![0_u64; (BITS / 64) as usize]; tankers as usize];
    let words = |number: u64| {
        let print = fingerprint(number);
        (print.second_word(), print.prefix() | 1)
    };
    let places = |(first, step): (u64, u64)| {
        (0..HASHES)
            .map(move |n| ((u128::from(first.wrapping_add(step.wrapping_mul(n))) * u128::from(BITS)) >> 64) as u64)
    };
    for number in 0..stored {
        let filter = &mut filters[(number / MILLION) as usize];
        places(words(number)).for_each(|place| filter[(place / 64) as usize] |= 1 << (place % 64));
    }
    let asked: Vec<_> = absent.iter().take(200_000).map(|number| words(*number)).collect();
    let started = Instant::now();
    let mut named = 0;
    for &words in &asked {
        let held =
            |filter: &&Vec<u64>| places(words).all(|place| filter[(place / 64) as usize] >> (place % 64) & 1 == 1);
        named += filters.iter().filter(held).count();
    }
    println!(
        "  separate filters       absent {:>11}   {named} named in vain; {:.0} MiB",
        per_second(asked.len() as u64, started.elapsed()),
        mib(tankers * BITS / 8)
    );
}

/// Nanoseconds of an independent random load of a word from `bytes` of memory, with its cache and page misses.
pub(crate) fn random_load_ns(bytes: u64) -> f64 {
    const LOADS: u64 = 4_000_000;
    let words: Vec<u64> = (0..(bytes / 8).max(1)).collect();
    let started = Instant::now();
    let mut sum = 0_u64;
    for load in 0..LOADS {
        // Weyl's sequence, mixed: cheaper than the load, and without a pattern.
        let mixed = load.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        sum = sum.wrapping_add(words[((u128::from(mixed) * words.len() as u128) >> 64) as usize]);
    }
    let elapsed = started.elapsed();
    std::hint::black_box(sum);
    elapsed.as_nanos() as f64 / LOADS as f64
}

/// Fingerprints are uniform: their second word is their hash.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// The lower bound: everything in memory (the standard table is hashbrown's).
pub(crate) fn hash_table(stored: u64, absent: &[u64], present: &[u64]) {
    let before = resident_bytes();
    let started = Instant::now();
    let mut table = HashMap::with_hasher(BuildHasherDefault::<WordHasher>::default());
    for number in 0..stored {
        table.insert(fingerprint(number), location(number));
    }
    let inserted = per_second(stored, started.elapsed());
    let time = |numbers: &[u64]| {
        let prints: Vec<_> = numbers.iter().map(|number| fingerprint(*number)).collect();
        let started = Instant::now();
        let found = prints.iter().filter(|print| table.contains_key(*print)).count();
        (per_second(numbers.len() as u64, started.elapsed()), found)
    };
    let ((absent, none), (present, all)) = (time(absent), time(present));
    assert!(none == 0 && all > 0);
    let bytes = resident_bytes().saturating_sub(before);
    println!(
        "  hash table in memory   absent {absent:>11}   present {present}; inserted {inserted}; {:.0} MiB",
        mib(bytes)
    );
}

/// The store that a pool uses for its namespace, used as an index.
pub(crate) fn redb(path: &Path, stored: u64, absent: &[u64], present: &[u64]) {
    const TABLE: TableDefinition<'_, &[u8; 32], (u64, u32)> = TableDefinition::new("chunks");
    let database = Database::builder().set_cache_size(256 << 20).create(path).unwrap();
    let started = Instant::now();
    for first in (0..stored).step_by(1 << 18) {
        let mut transaction = database.begin_write().unwrap();
        transaction.set_durability(Durability::Immediate).unwrap();
        {
            let mut table = transaction.open_table(TABLE).unwrap();
            for number in first..(first + (1 << 18)).min(stored) {
                let place = location(number);
                table.insert(&fingerprint(number).0, (place.container().0, place.len_bytes())).unwrap();
            }
        }
        transaction.commit().unwrap();
    }
    let inserted = per_second(stored, started.elapsed());
    let time = |numbers: &[u64]| {
        let prints: Vec<_> = numbers.iter().take(200_000).map(|number| fingerprint(*number)).collect();
        let transaction = database.begin_read().unwrap();
        let table = transaction.open_table(TABLE).unwrap();
        let started = Instant::now();
        let mut found = 0;
        for batch in prints.chunks(BATCH) {
            found += batch.iter().filter(|print| table.get(&print.0).unwrap().is_some()).count();
        }
        (per_second(prints.len() as u64, started.elapsed()), found)
    };
    let ((absent, none), (present, all)) = (time(absent), time(present));
    assert!(none == 0 && all > 0);
    drop(database);
    let bytes = std::fs::metadata(path).unwrap().len();
    std::fs::remove_file(path).unwrap();
    println!(
        "  redb, 256 MiB cache    absent {absent:>11}   present {present}; inserted {inserted}; {:.1} bytes on disk for each",
        bytes as f64 / stored as f64
    );
}
