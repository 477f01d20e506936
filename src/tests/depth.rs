//! Work that is not for content reads and writes no more in a large pool than in small ones, for each chunk, and the indexes take no more
//! memory: the small version of the bench `depth`.

use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, Pool};

use crate::tests::common::{content, write};
use crate::tests::reclaim::site::{Site, remove};

/// A file has some 256 chunks, which fill a tanker.
const FILE_BYTES: usize = 1 << 20;
/// More than a check has ranges, which are small in tests: each reads its buckets alone.
const BUCKETS: u32 = 128;
/// Files of each pool. The first two are the line that the last one is compared with.
const FILES: [u64; 3] = [24, 48, 96];
/// Reading and writing that no line tells of: a directory of a tanker more, and work of a background thread, now and then.
const SLACK_BYTES: f64 = 600_000.0;

/// Bytes read and written by each kind of work, and bytes of memory.
type Row = Vec<(&'static str, u64)>;

/// Writes files, and makes guides to their tankers as the thread for it would.
fn fill(pool: &Pool, files: u64) {
    for file in 0..files {
        write(pool, &file.to_string(), &content(file, FILE_BYTES));
        pool.core().committer.checkpoint().expect("checkpoints");
        while pool.core().indexes.chunks.tend_guides(&mut || true).expect("makes guides") {
            pool.core().committer.checkpoint().expect("checkpoints");
        }
    }
}

fn measure(files: u64) -> Row {
    let site = Site::with_buckets(BUCKETS);
    let pool = site.open();
    fill(&pool, files);
    pool.close().expect("closes");
    drop(pool);
    let mut row = Row::new();
    let mut note = |name, work: &mut dyn FnMut()| {
        let before = site.moved_bytes();
        work();
        row.push((name, site.moved_bytes() - before));
    };
    let mut opened = None;
    note("opening", &mut || opened = Some(site.open()));
    let pool: Arc<Pool> = opened.expect("is open");
    assert!(pool.core().indexes.chunks.stats().guided_tankers > files / 2);
    note("statistics", &mut || drop(pool.stats().expect("has figures")));
    let committer = &pool.core().committer;
    // Settled each time, or the content would be written in the next work.
    let store = |name: &str, content: &[u8]| {
        write(&pool, name, content);
        committer.settle().expect("counts");
    };
    note("storing new content", &mut || store("new", &content(1000, FILE_BYTES)));
    // Not as a whole: its segments are others.
    note("storing known content", &mut || store("again", &content(files / 2, FILE_BYTES)[10_000..]));
    // An export begins behind a checkpoint by itself, and is awaited.
    let put_down = || {
        committer.checkpoint().expect("checkpoints");
        committer.export().expect("exports");
    };
    note("a checkpoint and an export", &mut || put_down());
    ["new", "again"].into_iter().for_each(|name| remove(&*pool.service(), name));
    let mut reclaim = || {
        pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
        put_down();
    };
    reclaim();
    note("reclaiming nothing", &mut reclaim);
    (0..files).step_by(12).for_each(|file| remove(&*pool.service(), &file.to_string()));
    note("reclaiming a twelfth", &mut reclaim);
    note("a check", &mut || {
        let report = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
    });
    let scratch = tempfile::tempdir().expect("is made");
    note("a trial recovery", &mut || {
        let trial = pool.trial_recovery(scratch.path(), 1 << 30, &NoProgress).expect("recovers");
        assert!(trial.is_sound(), "{trial:#?}");
    });
    let memory_bytes = pool.stats().expect("has figures").memory.index_bytes;
    pool.close().expect("closes");
    drop(pool);
    note("a rebuild", &mut || site.open_rebuilding().close().expect("closes"));
    row.push(("memory of the indexes", memory_bytes));
    row
}

#[test]
fn nothing_takes_more_than_a_line_through_smaller_pools_says() {
    let rows = FILES.map(measure);
    let [small, middle, large] = &rows;
    for ((name, small), ((_, middle), (_, large))) in small.iter().zip(middle.iter().zip(large)) {
        println!("{name}: {small}, {middle}, {large} bytes");
        let (small, middle, large) = (*small as f64, *middle as f64, *large as f64);
        // The last pool has twice as many files as the middle one, and that twice as many as the first.
        let line = middle + 2.0 * (middle - small).max(0.0);
        assert!(large <= 1.2 * line + SLACK_BYTES, "{name}: {small}, {middle}, {large} bytes");
    }
}
