//! Work of the thread that tends the indexes as a pool grows and rests: memory of filters, and checkpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::config::{Fingerprints, MIB};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{content, read, write};
use crate::upkeep::growth::follow_to;
use crate::upkeep::quiet::{Limits, Quiet};

const FILES: u64 = 16;
const FILE_BYTES: usize = 4 << 20;

fn make() -> MemoryDevice {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    memory
}

fn open(memory: &MemoryDevice) -> Arc<Pool> {
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let options = PoolOptions { memory_bytes: 256 * MIB, ..PoolOptions::default() };
    Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens")
}

/// The limits and the use of the parts of memory.
fn part(pool: &Pool, name: &str) -> (u64, u64) {
    let memory = pool.stats().expect("has figures").memory;
    let sum: u64 = memory.parts.iter().map(|part| part.limit_bytes).sum();
    assert!(sum <= memory.limit_bytes, "{memory:?}");
    let part = memory.parts.into_iter().find(|part| part.name == name).expect("is a part");
    (part.limit_bytes, part.used_bytes.unwrap_or(0))
}

/// The division of memory stayed as of the mount, so a pool that grew from nothing kept a tenth for filters.
#[test]
fn regression_filters_take_memory_from_regions_while_a_pool_grows() {
    let pool = open(&make());
    (0..FILES).for_each(|file| write(&pool, &file.to_string(), &content(file, FILE_BYTES)));
    pool.sync().expect("syncs");
    let read_all = || {
        (0..FILES).for_each(|file| assert!(read(&pool, &file.to_string()) == Some(content(file, FILE_BYTES))));
    };
    read_all();
    let ((filters, _), (regions, used)) = (part(&pool, "filters"), part(&pool, "regions"));
    assert!(used > regions / 2, "reading fills the cache, or the test shows nothing: {used} of {regions}");
    let limits = || [&pool.core().indexes.chunks, &pool.core().indexes.nodes].map(|index| index.filter_limit_bytes());
    // Filters want 4.5 bytes for each.
    let chunks_for = |percent: u64| Fingerprints { chunks: filters / 100 * percent / 9 * 2, nodes: 0 };
    let before = limits();
    follow_to(pool.core(), chunks_for(110));
    assert_eq!((part(&pool, "filters").0, limits()), (filters, before), "less than a step");
    let many_nodes = Fingerprints { nodes: chunks_for(65).chunks, ..chunks_for(65) };
    for grown in [chunks_for(115), many_nodes, chunks_for(1000)] {
        let ((filters, _), before) = (part(&pool, "filters"), limits());
        follow_to(pool.core(), grown);
        assert!(part(&pool, "filters").0 > filters, "{grown:?}");
        assert!(limits().iter().zip(before).all(|(now, before)| *now >= before), "{:?} behind {before:?}", limits());
        assert!(limits().iter().sum::<u64>() <= part(&pool, "filters").0);
        let (limit, used) = part(&pool, "regions");
        assert!(used <= limit, "{used} of {limit}");
    }
    let (limit, _) = part(&pool, "regions");
    assert!((regions / 2..regions / 2 + 2).contains(&limit), "{limit} of {regions}");
    read_all();
    read_all();
    let (_, used) = part(&pool, "regions");
    assert!(used <= limit && used > limit / 2, "the smaller cache is used: {used} of {limit}");
    // A pool that becomes smaller keeps them.
    let before = limits();
    follow_to(pool.core(), Fingerprints::default());
    assert_eq!(limits(), before);
}

#[test]
fn a_pool_in_which_nothing_happens_gets_a_checkpoint() {
    let memory = make();
    let pool = open(&memory);
    let committer = &pool.core().committer;
    let position = || pool.core().indexes.chunks.position();
    let store = |name: &str, seed| {
        write(&pool, name, &content(seed, FILE_BYTES));
        committer.settle().expect("counts");
        committer.uncheckpointed()
    };
    let settled = || {
        // A checkpoint that was asked for begins with the next round, and another thread writes it.
        committer.settle().expect("counts");
        let begun = Instant::now();
        while committer.uncheckpointed() > 0 && begun.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(5));
        }
        committer.uncheckpointed()
    };
    let limits = |quiet, changes_min| Limits { quiet, changes_min, between: Duration::from_secs(600) };
    let (at_once, hour) = (Duration::ZERO, Duration::from_secs(3600));
    let changes = store("file", 1);
    assert!(changes > 100);
    for limits in [limits(hour, 1), limits(at_once, changes + 1)] {
        let mut quiet = Quiet::new(limits);
        quiet.look(pool.core());
        quiet.look(pool.core());
        assert_eq!(settled(), changes, "{limits:?}");
    }
    // Counting is no quiet, either.
    let mut quiet = Quiet::new(limits(Duration::from_millis(300), 1));
    std::thread::sleep(Duration::from_millis(400));
    quiet.look(pool.core());
    assert_eq!(settled(), changes, "they were not there at the last look");
    let before = position();
    std::thread::sleep(Duration::from_millis(400));
    quiet.look(pool.core());
    assert_eq!(settled(), 0);
    committer.checkpoint().expect("waits for it");
    assert!(position() > before);
    // It asks once in ten minutes, whatever became of the checkpoint.
    let changes = store("another", 2);
    std::thread::sleep(Duration::from_millis(400));
    (0..3).for_each(|_| quiet.look(pool.core()));
    assert_eq!(settled(), changes);
    // Another watch has not asked yet.
    Quiet::new(limits(at_once, 1)).look(pool.core());
    assert_eq!(settled(), 0);
    committer.checkpoint().expect("waits for it");
    // The power fails: nothing is left to count.
    let crashed = memory.crash(3);
    drop(pool);
    let pool = open(&crashed);
    assert_eq!(pool.recovery().rows_replayed, 0);
    (1..3).zip(["file", "another"]).for_each(|(seed, name)| {
        assert!(read(&pool, name) == Some(content(seed, FILE_BYTES)));
    });
}
