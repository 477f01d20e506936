//! Guides to old tankers in a whole pool: the thread makes them, checkpoints publish them, and nothing is stored twice or lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{content, read, write};

const FILE_BYTES: usize = 3 << 20;

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    let options = PoolOptions { commit_interval: Duration::from_millis(50), ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn guided_tankers(pool: &Pool) -> u64 {
    pool.core().indexes.chunks.stats().guided_tankers
}

fn stored(pool: &Pool) -> u64 {
    pool.core().dedup.stats().chunks_stored
}

fn make() -> MemoryDevice {
    make_with(PoolProperties {
        chunk_size_bytes: 4096,
        tanker_cells: 256,
        tanker_buckets: 4,
        ..PoolProperties::default()
    })
}

fn make_with(properties: PoolProperties) -> MemoryDevice {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    memory
}

/// Writes files until there are guides; returns their number.
fn fill(pool: &Pool) -> u64 {
    let begun = Instant::now();
    let mut files = 0;
    while guided_tankers(pool) < 8 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", pool.core().indexes.chunks.stats());
        write(pool, &format!("{files}"), &content(files, FILE_BYTES));
        pool.core().committer.checkpoint().expect("checkpoints");
        files += 1;
    }
    files
}

/// The last rounds of a close raise the number of the row and log nothing. A mount took them for rows to replay, and loaded all filters of
/// guides before it served.
#[test]
fn regression_a_mount_behind_an_orderly_close_has_no_rows_to_replay() {
    // Tankers of the usual size: a file that fills one brings a checkpoint of its own, which leaves no rows.
    let device: Arc<dyn Device> = Arc::new(make_with(PoolProperties::default()));
    let pool = open(&device);
    write(&pool, "file", &content(1, FILE_BYTES));
    let begins_behind = |pool: &Pool| {
        let indexes = &pool.core().indexes;
        let position = indexes.chunks.position().min(indexes.nodes.position());
        let namespace = &pool.core().namespace;
        (namespace.last_row() > position, namespace.has_log_after(position).expect("reads"))
    };
    pool.sync().expect("syncs");
    assert_eq!(begins_behind(&pool), (true, true), "a crash leaves rows");
    pool.close().expect("closes");
    drop(pool);
    assert_eq!(begins_behind(&open(&device)), (true, false));
}

/// A read-only mount had filters of guides only if it replayed rows.
#[test]
fn regression_a_read_only_mount_loads_the_filters_of_guides() {
    let device: Arc<dyn Device> = Arc::new(make());
    let pool = open(&device);
    fill(&pool);
    pool.close().expect("closes");
    drop(pool);
    let options = PoolOptions { read_only: true, ..PoolOptions::default() };
    let pool = Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens");
    assert!(guided_tankers(&pool) >= 8);
    let begun = Instant::now();
    while pool.core().indexes.chunks.stats().guide_bits_per_cell == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", pool.core().indexes.chunks.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn guides_are_made_while_a_pool_grows_and_lead_to_all_of_it() {
    let memory = make();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let pool = open(&device);
    let files = fill(&pool);
    pool.sync().expect("syncs");
    // The power fails, and comes back.
    let device: Arc<dyn Device> = Arc::new(memory.crash(7));
    drop(pool);
    let pool = open(&device);
    assert!(guided_tankers(&pool) >= 8);
    (0..files).for_each(|file| write(&pool, &format!("again {file}"), &content(file, FILE_BYTES)));
    assert_eq!(stored(&pool), 0, "all of it is known");
    (0..files).step_by(2).for_each(|file| {
        for name in [format!("{file}"), format!("again {file}")] {
            pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
        }
    });
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    for file in (1..files).step_by(2) {
        assert!(read(&pool, &format!("{file}")) == Some(content(file, FILE_BYTES)), "{file}");
    }
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.core().indexes.chunks.self_check().expect("is sound");
    pool.close().expect("closes");
}
