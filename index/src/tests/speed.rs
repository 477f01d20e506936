//! Figures, on demand: `cargo test --release -p dedupfs-index -- --ignored --nocapture speed`.

use std::time::Duration;

use super::*;

/// Processor time of this thread so far: other processes do not disturb it much.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
#[ignore = "measures; run it in release mode"]
fn speed_of_batches() {
    const CELLS: u64 = 4 << 20;
    let options = IndexOptions { cells_per_tanker: 1 << 20, buckets_per_tanker: 1024, cache_bytes: 512 << 20 };
    let report = |what: &str, items: u64, started: Duration| {
        let seconds = (processor_time() - started).as_secs_f64();
        println!("{what}: {items} in {seconds:.2} s = {:.2} M/s", items as f64 / seconds / 1e6);
    };
    let (disk, index) = empty(options);
    let all: Vec<Change> = (0..CELLS).map(|number| insert(number, 1 + number / 500)).collect();
    let (early, late) = all.split_at(all.len() - (1 << 19));
    let started = processor_time();
    for (row, batch) in (1..).zip(early.chunks(10_000)) {
        index.apply(row, batch).unwrap();
    }
    report("insert, all open", early.len() as u64, started);
    let started = processor_time();
    index.checkpoint(1000).unwrap();
    report("checkpoint that seals", early.len() as u64, started);
    let started = processor_time();
    for (row, batch) in (2000..).zip(late.chunks(10_000)) {
        index.apply(row, batch).unwrap();
    }
    report("insert, with sealed tankers and no filter", late.len() as u64, started);
    let mut found = Vec::new();
    for (what, first) in [("locate, open", CELLS - (1 << 19)), ("locate, sealed", 0), ("locate, absent", 2 * CELLS)] {
        let fingerprints: Vec<_> = (first..first + (1 << 18)).map(fingerprint).collect();
        let started = processor_time();
        for batch in fingerprints.chunks(512) {
            index.locate_batch(batch, &mut found).unwrap();
            assert_eq!(found[0].is_some(), first < CELLS);
        }
        report(what, fingerprints.len() as u64, started);
    }
    let started = processor_time();
    for (row, batch) in (3000..).zip(all[..1 << 19].chunks(10_000)) {
        let counts: Vec<_> =
            batch.iter().map(|change| Change::Count { fingerprint: *change.fingerprint(), delta: 1 }).collect();
        index.apply(row, &counts).unwrap();
    }
    report("count, sealed", 1 << 19, started);
    let started = processor_time();
    index.checkpoint(5000).unwrap();
    report("checkpoint of counts", 1 << 19, started);
    let started = processor_time();
    drop(reopen(&disk, options));
    report("open", CELLS, started);
    println!("{:?}", index.stats());
}
