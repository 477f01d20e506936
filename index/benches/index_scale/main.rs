//! The index at scale: the cost of lookups, insertions and opening from one to hundreds of millions of fingerprints.
//!
//! ```text
//! cargo bench -p dedupfs-index --bench index_scale -- --max 64M --dir /var/tmp
//! ```
//!
//! Fingerprints are synthetic: number *n* is chunk *n* mod 512 of container *n* / 512. At each size from 1 million on
//! (times four each, and `--max`) the index is closed and opened, and asked in batches of 512:
//! - *absent*: fingerprints that were never stored;
//! - *random*: stored ones, each from a different container;
//! - *backup*: runs of 64 containers in stored order, as a backup repeats them.
//!
//! No printed time includes making fingerprints or making up the tables of containers. The promised limits of reads and
//! memory are asserted, those of reads unless `--filter-mib` is given. Beside the rate of absent lookups, two figures show how far it is from the machine's own limit:
//! the rows of the filter array that one lookup asks, by formula, and the time of a random load from as much memory.
//!
//! All files lie below `--dir` and are removed at the end. They are as warm in the page cache as memory allows: reads
//! are counted, not timed apart. `rivals` has the stores that the index is compared with.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod rivals;
mod timed;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedupfs_index::{Change, ContainerTables, Index, IndexOptions, IndexStats, Location};
use dedupfs_store::device::{Device, FileDevice};
use dedupfs_store::{ContainerId, Fingerprint, PoolId};

use timed::TimedDevice;

const POOL: PoolId = PoolId([1; 16]);
const DIRECTORY: &str = "index";
pub(crate) const MILLION: u64 = 1 << 20;
const CHUNKS_PER_CONTAINER: u64 = 512;
pub(crate) const BATCH: usize = 512;
const ROW: u64 = 1 << 16;

/// A fingerprint of a number: splitmix64, as uniform as a hash.
pub(crate) fn fingerprint(number: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    let mut state = number.wrapping_mul(0xd129_0d3c_8b2a_71e5) ^ 0x5851_f42d_4c95_7f2d;
    for word in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    Fingerprint(bytes)
}

pub(crate) fn location(number: u64) -> Location {
    Location::new(ContainerId(1 + number / CHUNKS_PER_CONTAINER), 8192)
}

/// The number of a stored fingerprint for a position in a random order.
fn scattered(position: u64, stored: u64) -> u64 {
    ((u128::from(fingerprint(position ^ 0xabcd_0000_0000).prefix()) * u128::from(stored)) >> 64) as u64
}

/// From this size on an index takes 48 bits for each fingerprint instead of 24, if there is memory. The benchmark
/// measures both.
const DOUBLED_FROM: u64 = 128 * MILLION;

/// Most reads of the index for 500 chunks in the order of a backup: a bucket, and a page of a guide.
const READS_FOR_500_MAX: f64 = 1.5;

/// Most reads for a stored fingerprint in random order, and the longest read.
const READS_RANDOM_MAX: f64 = 2.1;
const READ_BYTES_MAX: u64 = 48 << 10;

/// Tables of the containers that hold the first `stored` numbers.
#[derive(Default)]
struct Tables {
    stored: AtomicU64,
    /// Time for making them up: on a real pool a table is read, not computed.
    spent_ns: AtomicU64,
}

impl ContainerTables for Tables {
    fn read_table(
        &self,
        container: ContainerId,
        each: &mut dyn FnMut(Fingerprint, u32),
    ) -> dedupfs_store::Result<bool> {
        let started = Instant::now();
        let (first, stored) = ((container.0 - 1) * CHUNKS_PER_CONTAINER, self.stored.load(Ordering::Relaxed));
        let prints: Vec<_> = (first..(first + CHUNKS_PER_CONTAINER).min(stored)).map(fingerprint).collect();
        self.spent_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        prints.into_iter().for_each(|print| each(print, 8192));
        Ok(first < stored)
    }
}

struct Arguments {
    max: u64,
    directory: PathBuf,
    ram_max: u64,
    redb_max: u64,
    filter_bytes: Option<u64>,
    cache_bytes: u64,
    has_guides: bool,
}

/// Parses a number: "64M" is 64 times 2^20.
fn number(text: &str) -> u64 {
    let (digits, factor) = match text.strip_suffix('M') {
        Some(digits) => (digits, MILLION),
        None => (text, 1),
    };
    digits.parse::<u64>().expect("a number such as 16M") * factor
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        max: MILLION,
        directory: std::env::temp_dir(),
        ram_max: 16 * MILLION,
        redb_max: MILLION,
        filter_bytes: None,
        cache_bytes: 64 << 20,
        has_guides: true,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().expect("an option has a value");
        match name.as_str() {
            "--max" => found.max = number(&value()),
            "--dir" => found.directory = value().into(),
            "--ram-max" => found.ram_max = number(&value()),
            "--redb-max" => found.redb_max = number(&value()),
            "--filter-mib" => found.filter_bytes = Some(number(&value()) << 20),
            "--cache-mib" => found.cache_bytes = number(&value()) << 20,
            "--without-guides" => found.has_guides = false,
            // Cargo's own option.
            "--bench" => {}
            other => panic!(
                "{other}? known are --max, --dir, --ram-max, --redb-max, --filter-mib, --cache-mib and --without-guides"
            ),
        }
    }
    found
}

/// Resident bytes of this process.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

pub(crate) fn per_second(count: u64, elapsed: Duration) -> String {
    let rate = count as f64 / elapsed.as_secs_f64();
    if rate > 1e6 { format!("{:.2} M/s", rate / 1e6) } else { format!("{:.0} k/s", rate / 1e3) }
}

/// Makes guides until none is due; returns the time that it took. A mount does it in a thread of its own.
fn tend_guides(index: &Index, row: u64) -> Duration {
    let started = Instant::now();
    while index.tend_guides(&mut || true).unwrap() {
        index.checkpoint(row).unwrap();
    }
    started.elapsed()
}

/// Inserts a range of numbers and writes a checkpoint; returns the times that the index took for that, and for guides.
fn insert(index: &Index, from: u64, to: u64, row: &mut u64, has_guides: bool) -> (Duration, Duration) {
    let mut guiding = Duration::ZERO;
    let mut changes = Vec::with_capacity(ROW as usize);
    let mut elapsed = Duration::ZERO;
    for first in (from..to).step_by(ROW as usize) {
        changes.clear();
        changes.extend(
            (first..(first + ROW).min(to))
                .map(|number| Change::Insert { fingerprint: fingerprint(number), location: location(number) }),
        );
        let started = Instant::now();
        *row += 1;
        index.apply(*row, &changes).unwrap();
        if index.wants_checkpoint() {
            index.checkpoint(*row).unwrap();
            elapsed += started.elapsed();
            if has_guides {
                guiding += tend_guides(index, *row);
            }
        } else {
            elapsed += started.elapsed();
        }
    }
    let started = Instant::now();
    index.checkpoint(*row).unwrap();
    elapsed += started.elapsed();
    (elapsed, if has_guides { guiding + tend_guides(index, *row) } else { guiding })
}

/// Asks all `numbers` in batches and prints the cost; returns the reads for each.
fn ask((index, device): (&Index, &TimedDevice), tables: &Tables, what: &str, numbers: &[u64], present: bool) -> f64 {
    let fingerprints: Vec<_> = numbers.iter().map(|number| fingerprint(*number)).collect();
    let before = index.stats();
    tables.spent_ns.store(0, Ordering::Relaxed);
    device.take_read_time();
    let started = Instant::now();
    let mut found = Vec::new();
    for batch in fingerprints.chunks(BATCH) {
        index.locate_batch(batch, &mut found).unwrap();
        assert!(found.iter().all(|found| found.is_some() == present), "a wrong answer");
    }
    let elapsed = started.elapsed() - Duration::from_nanos(tables.spent_ns.load(Ordering::Relaxed));
    let reading = device.take_read_time();
    let after = index.stats();
    let asked = numbers.len() as f64;
    let reads = (after.bucket_reads - before.bucket_reads) as f64;
    let bytes = (after.bucket_read_bytes - before.bucket_read_bytes) as f64;
    let tables = (after.locality_tables_read - before.locality_tables_read) as f64;
    println!(
        "  {what:<22} {:>11}   {:.6} reads and {:>7.1} bytes for each ({:.1} KiB a read), {:.2} reads and {:.2} tables for 500; a read takes \
         {:.0} us, without reads {}",
        per_second(numbers.len() as u64, elapsed),
        reads / asked,
        bytes / asked,
        bytes / reads.max(1.0) / 1024.0,
        reads / asked * 500.0,
        tables / asked * 500.0,
        reading.as_secs_f64() * 1e6 / reads.max(1.0),
        per_second(numbers.len() as u64, elapsed.saturating_sub(reading)),
    );
    reads / asked
}

/// Average number of rows that an absent fingerprint asks of a group of `tankers` full filters with `bits` bits for
/// each cell. Asking goes on while any of them has all bits so far, and takes at least two rows with few tankers and
/// four with more.
fn rows_for_absent(tankers: u64, bits: u64) -> f64 {
    let set = 1.0 - (-12.0 / bits as f64).exp();
    let goes_on = |rows: i32| 1.0 - (1.0 - set.powi(rows)).powf(tankers as f64);
    let ahead = if tankers <= 4 { 2 } else { 4 };
    f64::from(ahead) + (ahead..12).map(goes_on).sum::<f64>()
}

/// Opens the index and asks for fingerprints that were never stored.
fn open_and_ask_absent(
    device: &TimedDevice,
    options: IndexOptions,
    stored: u64,
    absent: &[u64],
) -> (Index, Arc<Tables>) {
    let dynamic: Arc<dyn Device> = Arc::new(device.clone());
    device.take_read_time();
    let started = Instant::now();
    let index = Index::open(&dynamic, DIRECTORY, &POOL, options).unwrap();
    let (elapsed, reading) = (started.elapsed(), device.take_read_time());
    let started = Instant::now();
    let loading = if index.stats().guides > 0 {
        index.load_guides(&mut || true);
        started.elapsed()
    } else {
        Duration::ZERO
    };
    let stats = index.stats();
    println!(
        "  opened in {:.0} ms, threads together read for {:.0} ms, filters of guides loaded behind that in {:.0} ms; {} guides with up from {} \
         bits to {} tankers; {} tankers with {} bits for each fingerprint, imbalance at most {}, fullest bucket {:.1} KiB; {:.1} bytes on \
         disk for each fingerprint",
        elapsed.as_secs_f64() * 1e3,
        reading.as_secs_f64() * 1e3,
        loading.as_secs_f64() * 1e3,
        stats.guides,
        stats.guide_bits_per_cell,
        stats.guided_tankers,
        stats.sealed_tankers,
        stats.filter_bits_per_cell,
        stats.bucket_imbalance_max,
        stats.bucket_cells_max as f64 * 44.0 / 1024.0,
        stats.disk_bytes as f64 / stored as f64
    );
    let tables = Arc::new(Tables { stored: AtomicU64::new(stored), ..Tables::default() });
    index.set_container_tables(tables.clone());
    ask((&index, device), &tables, "absent", absent, false);
    println!(
        "  {:<22} {:.1} rows for each by formula; a random load from {:.0} MiB takes {:.1} ns",
        "",
        rows_for_absent(stats.sealed_tankers, stats.filter_bits_per_cell),
        mib(stats.filter_bytes),
        rivals::random_load_ns(stats.filter_bytes)
    );
    (index, tables)
}

fn show(stats: &IndexStats, budget_bytes: u64) {
    let directories = stats.memory_bytes - stats.filter_bytes - stats.cache_bytes - stats.locality_bytes;
    println!(
        "  memory: filters {:.1} MiB ({} bits for each fingerprint, {} tankers without), buckets {:.1}, locality {:.1}, open tanker and \
         directories {:.1}; filters and caches {:.1} of {:.1} MiB; resident {:.1} MiB",
        mib(stats.filter_bytes),
        stats.filter_bits_per_cell,
        stats.tankers_without_filter,
        mib(stats.cache_bytes),
        mib(stats.locality_bytes),
        mib(directories),
        mib(stats.memory_bytes - directories),
        mib(budget_bytes),
        mib(resident_bytes()),
    );
    assert!(stats.memory_bytes - directories <= budget_bytes, "over the budget");
    assert!(stats.bucket_cells_max * 44 <= READ_BYTES_MAX, "a long read");
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn main() {
    let arguments = arguments();
    let home = tempfile::tempdir_in(&arguments.directory).unwrap();
    let timed = TimedDevice::new(Arc::new(FileDevice::open(home.path()).unwrap()));
    let device: Arc<dyn Device> = Arc::new(timed.clone());
    // 24 bits for each fingerprint, and the groups' rounding.
    let filter_bytes = arguments.filter_bytes.unwrap_or_else(|| arguments.max.div_ceil(MILLION).max(8) * (7 << 19));
    let options = IndexOptions { filter_bytes, cache_bytes: arguments.cache_bytes, ..IndexOptions::default() };
    let budget_bytes = options.filter_bytes + options.cache_bytes + options.locality_bytes;
    Index::create(&device, DIRECTORY, &POOL, options).unwrap();
    let (mut stored, mut row) = (0, 0);
    let mut index = Index::open(&device, DIRECTORY, &POOL, options).unwrap();
    let sizes = [1, 4, 16, 64, 256, 1024].map(|millions| millions * MILLION);
    let sizes: Vec<u64> = sizes.into_iter().filter(|size| *size < arguments.max).chain([arguments.max]).collect();
    for size in sizes {
        let (elapsed, guiding) = insert(&index, stored, size, &mut row, arguments.has_guides);
        let share = guiding.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
        println!(
            "{} M fingerprints: inserted {}; {share:.0}% more time for guides",
            size / MILLION,
            per_second(size - stored, elapsed)
        );
        stored = size;
        drop(index);
        let absent: Vec<u64> = (1 << 40..(1 << 40) + (2 << 20)).collect();
        let tables;
        (index, tables) = open_and_ask_absent(&timed, options, stored, &absent);
        let random: Vec<u64> = (0..20_000).map(|position| scattered(position, stored)).collect();
        let reads = ask((&index, &timed), &tables, "present, random", &random, true);
        assert!(arguments.filter_bytes.is_some() || reads <= READS_RANDOM_MAX, "{reads} reads in random order");
        let run = 64 * CHUNKS_PER_CONTAINER;
        let starts = (0..32).map(|start| scattered(start + (1 << 30), stored - run) / BATCH as u64 * BATCH as u64);
        let backup: Vec<u64> = starts.flat_map(|start| start + 77..start + 77 + run - BATCH as u64).collect();
        let reads = ask((&index, &timed), &tables, "present, backup order", &backup, true) * 500.0;
        assert!(
            arguments.filter_bytes.is_some() || reads <= READS_FOR_500_MAX,
            "{reads} reads for 500 in the order of a backup"
        );
        show(&index.stats(), budget_bytes);
        if size >= DOUBLED_FROM {
            println!("  with memory for 48 bits:");
            drop(index);
            let doubled = IndexOptions { filter_bytes: options.filter_bytes * 2, ..options };
            open_and_ask_absent(&timed, doubled, stored, &absent);
            index = Index::open(&device, DIRECTORY, &POOL, options).unwrap();
        }
        rivals::separate_filters(stored, &absent);
        if stored <= arguments.ram_max {
            rivals::hash_table(stored, &absent, &random);
        }
        if stored <= arguments.redb_max {
            rivals::redb(&home.path().join("redb"), stored, &absent, &random);
        }
    }
}
