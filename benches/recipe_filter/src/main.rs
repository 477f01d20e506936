//! Compares filters for one tanker of the recipe index, whose cells are routinely deleted: the index's Bloom filter,
//! rebuilt from the remaining cells, against filters that can delete.
//!
//! For tankers of 2^14 to 2^20 cells: memory, insertion, absent and present lookups, false answers of both kinds,
//! deletion of 10, 30 and 50%, saving and loading; then the behaviour of a full filter, and absent lookups in 64
//! tankers.

use std::hash::Hasher;
use std::hint::black_box;
use std::time::{Duration, Instant};

const HASHES: u64 = 12;
const BITS_PER_CELL: u64 = 24;
const LOOKUPS: u64 = 1 << 21;
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a uniform key for a number (splitmix64): fingerprints are hashes already.
fn key(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(SCATTER) ^ 0x5851_f42d_4c95_7f2d;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A cheap hasher, so that the benchmark does not measure hashing.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) + 1);
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(SCATTER);
        self.0 = (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

trait Filter: Sized {
    const NAME: &'static str;
    fn new(cells: u64) -> Self;
    /// Returns false if the filter is full.
    fn insert(&mut self, key: u64) -> bool;
    fn contains(&self, key: u64) -> bool;
    /// `None`: the filter cannot delete and must be rebuilt.
    fn remove(&mut self, key: u64) -> Option<bool>;
    fn memory_bytes(&self) -> u64;
    /// Returns its bytes on disk, if it can be loaded again.
    fn save(&self) -> Option<Vec<u8>>;
    fn load(bytes: &[u8]) -> Self;
}

/// The filter of `dedupfs-index` (`bloom/hashes.rs`): 12 places of 24 bits for each cell.
struct Bloom(Vec<u64>);

impl Bloom {
    fn places(&self, key: u64) -> impl Iterator<Item = u64> + use<> {
        let bits = self.0.len() as u64 * 64;
        let step = self::key(key) | 1;
        (0..HASHES).map(move |number| {
            let cubic = (number * number * number).wrapping_mul(SCATTER);
            let hash = key.wrapping_add(step.wrapping_mul(number)).wrapping_add(cubic);
            ((u128::from(hash) * u128::from(bits)) >> 64) as u64
        })
    }
}

impl Filter for Bloom {
    const NAME: &'static str = "Bloom, 24 bits";

    fn new(cells: u64) -> Self {
        Self(vec![0; (cells * BITS_PER_CELL / 64) as usize])
    }

    fn insert(&mut self, key: u64) -> bool {
        for place in self.places(key) {
            self.0[(place / 64) as usize] |= 1 << (place % 64);
        }
        true
    }

    fn contains(&self, key: u64) -> bool {
        self.places(key).all(|place| self.0[(place / 64) as usize] >> (place % 64) & 1 == 1)
    }

    fn remove(&mut self, _key: u64) -> Option<bool> {
        None
    }

    fn memory_bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.0.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn load(bytes: &[u8]) -> Self {
        Self(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}

impl Filter for cuckoofilter::CuckooFilter<Mix> {
    const NAME: &'static str = "cuckoofilter 0.5.0";

    fn new(cells: u64) -> Self {
        Self::with_capacity(cells as usize)
    }

    fn insert(&mut self, key: u64) -> bool {
        self.add(&key).is_ok()
    }

    fn contains(&self, key: u64) -> bool {
        Self::contains(self, &key)
    }

    fn remove(&mut self, key: u64) -> Option<bool> {
        Some(self.delete(&key))
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_usage() as u64
    }

    fn save(&self) -> Option<Vec<u8>> {
        let exported = self.export();
        Some([&exported.length.to_le_bytes()[..], &exported.values].concat())
    }

    fn load(bytes: &[u8]) -> Self {
        let (length, values) = bytes.split_first_chunk().expect("was saved");
        cuckoofilter::ExportedCuckooFilter { values: values.to_vec(), length: usize::from_le_bytes(*length) }.into()
    }
}

struct Atomic(atomic_cuckoo_filter::CuckooFilter<Mix>);

impl Filter for Atomic {
    const NAME: &'static str = "atomic-cuckoo-filter 0.3.0, 16 bits";

    fn new(cells: u64) -> Self {
        let builder = atomic_cuckoo_filter::CuckooFilterBuilder::<Mix>::default();
        Self(builder.capacity(cells as usize).fingerprint_size(16).build().expect("builds"))
    }

    fn insert(&mut self, key: u64) -> bool {
        self.0.insert(&key).is_ok()
    }

    fn contains(&self, key: u64) -> bool {
        self.0.contains(&key)
    }

    fn remove(&mut self, key: u64) -> Option<bool> {
        Some(self.0.remove(&key))
    }

    fn memory_bytes(&self) -> u64 {
        self.0.capacity() as u64 * 2
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.0.to_bytes())
    }

    fn load(bytes: &[u8]) -> Self {
        Self(atomic_cuckoo_filter::CuckooFilter::from_bytes(bytes).expect("loads"))
    }
}

impl Filter for qfilter::Filter {
    const NAME: &'static str = "qfilter 0.3.1, 2^-16";

    fn new(cells: u64) -> Self {
        Self::new(cells, 1.0 / 65_536.0).expect("makes")
    }

    fn insert(&mut self, key: u64) -> bool {
        self.insert_fingerprint(true, key).is_ok()
    }

    fn contains(&self, key: u64) -> bool {
        self.contains_fingerprint(key)
    }

    fn remove(&mut self, key: u64) -> Option<bool> {
        Some(self.remove_fingerprint(key))
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_usage() as u64
    }

    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    fn load(_bytes: &[u8]) -> Self {
        unreachable!("does not save")
    }
}

fn millions(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64() / 1e6
}

/// Makes a filter with space for `room` times the inserted keys.
fn filled<F: Filter>(from: u64, to: u64, room: u64) -> (F, u64, Duration) {
    let mut filter = F::new((to - from) * room);
    let started = Instant::now();
    let failed = (from..to).filter(|number| !filter.insert(key(*number))).count() as u64;
    (filter, failed, started.elapsed())
}

/// Returns how many of `count` lookups from `from` on the filter affirms, and the time.
fn asked<F: Filter>(filter: &F, from: u64, count: u64, modulus: u64) -> (u64, Duration) {
    let started = Instant::now();
    let held = (0..count).filter(|number| filter.contains(key(from + number % modulus))).count() as u64;
    (black_box(held), started.elapsed())
}

fn row<F: Filter>(cells: u64, room: u64) {
    let (filter, failed, inserting) = filled::<F>(0, cells, room);
    let (wrongly, absent) = asked(&filter, 1 << 40, LOOKUPS, LOOKUPS);
    let (_, present) = asked(&filter, 0, LOOKUPS, cells);
    let missed = cells - asked(&filter, 0, cells, cells).0;
    let mut deletions = String::new();
    for percent in [10, 30, 50] {
        let gone = cells * percent / 100;
        let (mut filter, _, _) = filled::<F>(0, cells, room);
        let started = Instant::now();
        let deletes = (0..gone).all(|number| filter.remove(key(number)).is_some());
        let mut elapsed = started.elapsed();
        if !deletes {
            let (anew, _, making) = filled::<F>(gone, cells, room);
            (filter, elapsed) = (anew, making);
        }
        let lost = cells - gone - asked(&filter, gone, cells - gone, cells - gone).0;
        deletions += &format!(" {:.2} ms, {lost} |", elapsed.as_secs_f64() * 1e3);
    }
    let disk = filter.save().map_or("cannot".to_owned(), |bytes| {
        let started = Instant::now();
        let loaded = F::load(&bytes);
        let elapsed = started.elapsed();
        assert_eq!(asked(&loaded, 0, cells, cells).0, cells - missed);
        format!("{:.1}, {:.2} ms", bytes.len() as f64 * 8.0 / cells as f64, elapsed.as_secs_f64() * 1e3)
    });
    println!(
        "| {}{} | {:.1} | {:.1} | {:.1} | {:.1} | {:.4} % | {failed} | {missed} |{deletions} {disk} |",
        F::NAME,
        if room > 1 { ", twice the room" } else { "" },
        filter.memory_bytes() as f64 * 8.0 / cells as f64,
        millions(cells, inserting),
        millions(LOOKUPS, absent),
        millions(LOOKUPS, present),
        wrongly as f64 / LOOKUPS as f64 * 100.0,
    );
}

/// Inserts until the filter is full, and a little more.
fn full<F: Filter>(cells: u64) {
    let mut filter = F::new(cells);
    let first = (0..2 * cells).find(|number| !filter.insert(key(*number)));
    let Some(first) = first else {
        println!("| {} | never | | |", F::NAME);
        return;
    };
    let lost = first - asked(&filter, 0, first, first).0;
    let more = first / 100;
    (first..first + more).for_each(|number| {
        filter.insert(key(number));
    });
    let later = first - asked(&filter, 0, first, first).0;
    println!("| {} | {:.1} % | {lost} | {later} |", F::NAME, first as f64 / cells as f64 * 100.0);
}

fn array<F: Filter>(tankers: u64, cells: u64, room: u64) {
    let filters: Vec<F> = (0..tankers).map(|at| filled::<F>(at * cells, (at + 1) * cells, room).0).collect();
    let count = LOOKUPS / 16;
    let started = Instant::now();
    let named: usize = (0..count).map(|at| filters.iter().filter(|f| f.contains(key((1 << 40) + at))).count()).sum();
    let elapsed = started.elapsed();
    let memory = filters.iter().map(Filter::memory_bytes).sum::<u64>() >> 20;
    let reads = named as f64 / count as f64;
    println!("| {} | {:.3} | {reads:.5} | {memory} |", F::NAME, millions(count, elapsed));
}

/// Loads bytes that were never saved.
fn hostile() {
    println!("\n**cuckoofilter from bytes that nobody saved**\n");
    std::panic::set_hook(Box::new(|_| ()));
    for len_bytes in [0, 3, 12] {
        let bytes = vec![7; 8 + len_bytes];
        let outcome = std::panic::catch_unwind(|| {
            let filter = <cuckoofilter::CuckooFilter<Mix> as Filter>::load(&bytes);
            (0..1000).filter(|number| Filter::contains(&filter, key(*number))).count()
        });
        let told = outcome.map_or("panics".to_owned(), |held| format!("is taken, and holds {held} of 1000"));
        println!("- {len_bytes} bytes of buckets: {told}");
    }
}

fn main() {
    for exponent in [14, 16, 18, 20] {
        println!("\n**2^{exponent} cells**\n");
        println!(
            "| filter | bits per cell | insertions, M/s | absent, M/s | present, M/s | false yes | insertions failed | false no | \
             deleting 10%, false no | 30% | 50% | on disk: bits per cell, loading |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
        row::<Bloom>(1 << exponent, 1);
        for room in [1, 2] {
            row::<cuckoofilter::CuckooFilter<Mix>>(1 << exponent, room);
            row::<Atomic>(1 << exponent, room);
        }
        row::<qfilter::Filter>(1 << exponent, 1);
    }
    println!("\n**Full** (made for 2^18 cells)\n");
    println!("| filter | first failure at | false no then | false no after 1% more |\n|---|---|---|---|");
    full::<Bloom>(1 << 18);
    full::<cuckoofilter::CuckooFilter<Mix>>(1 << 18);
    full::<Atomic>(1 << 18);
    full::<qfilter::Filter>(1 << 18);
    println!("\n**64 tankers of 2^18 cells, each asked**\n");
    println!("| filter | absent, M/s | false yes for each | MiB |\n|---|---|---|---|");
    array::<Bloom>(64, 1 << 18, 1);
    array::<cuckoofilter::CuckooFilter<Mix>>(64, 1 << 18, 2);
    array::<Atomic>(64, 1 << 18, 2);
    array::<qfilter::Filter>(64, 1 << 18, 1);
    hostile();
}
