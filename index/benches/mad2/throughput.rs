//! Section IV.E: fingerprints deduplicated in a second.
//!
//! Each stream asks the filter chain in batches of a segment (512). It stores new fingerprints as the write path does
//! (under one lock: looked up in memory again, then staged). It hands over the changes of its log rows: an insertion
//! for each new chunk and a count for each referenced one. A separate thread applies the rows and writes checkpoints.
//! The time ends when the last row is applied.
//!
//! The mixes are the paper's as far as it tells them (sections IV.A, B and E). *Workgroup*: file-level deduplication
//! left 207.9 million fingerprints; 83.7 million were new, 84.9 million zeros, and 39.2 million other duplicates.
//! *Campus*: of 132.1 million, 57.7 million were new (55 tankers), 4.0 million zeros, 70.5 million duplicates.
//! Duplicates come in runs of 128 chunks (half a megabyte) in stored order, from anywhere in the index: the paper does
//! not say how.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use dedupfs_index::filter::{FilterPlan, Query, Verdict};
use dedupfs_index::{Change, Index, IndexOptions};
use dedupfs_store::{ContainerId, Fingerprint};

use super::{MILLION, fingerprint, location, made};

const BATCH: usize = 512;
const RUN: u64 = 128;
/// Batches of a stream that make one log row.
const ROW_BATCHES: usize = 128;

/// The composition of a stream, in thousandths of its fingerprints.
struct Mix {
    name: &'static str,
    new: u64,
    zeros: u64,
    paper: &'static str,
}

const MIXES: [Mix; 4] = [
    Mix { name: "Workgroup", new: 403, zeros: 408, paper: "211,667" },
    Mix { name: "Campus", new: 437, zeros: 30, paper: "162,298" },
    Mix { name: "a first backup: all new", new: 1000, zeros: 0, paper: "" },
    Mix { name: "a following one: 2 % new", new: 20, zeros: 0, paper: "" },
];

/// A stream of fingerprints.
struct Stream<'a> {
    mix: &'a Mix,
    state: u64,
    stored: u64,
    fresh: &'a AtomicU64,
}

impl Stream<'_> {
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        fingerprint((1 << 50) + self.state).prefix()
    }

    /// Appends one run: numbers, or `None` for zeros.
    fn run(&mut self, out: &mut Vec<Option<u64>>) {
        let kind = self.draw() % 1000;
        if kind < self.mix.new {
            let first = self.fresh.fetch_add(RUN, Ordering::Relaxed);
            out.extend((first..first + RUN).map(Some));
        } else if kind < self.mix.new + self.mix.zeros {
            out.extend((0..RUN).map(|_| None));
        } else {
            let first = self.draw() % (self.stored - RUN);
            out.extend((first..first + RUN).map(Some));
        }
    }
}

fn apply(index: &Index, mut row: u64, rows: &Receiver<Vec<Change>>) -> u64 {
    for changes in rows {
        row += 1;
        assert_eq!(index.apply(row, &changes).unwrap().count, 0, "every count has its cell");
        if index.wants_checkpoint() {
            index.checkpoint(row).unwrap();
        }
    }
    row
}

pub(crate) fn run(directory: &Path, transferred: u64) {
    let stored = 16 * MILLION;
    println!(
        "\n**Fingerprints deduplicated in a second**: {} million into an index of {} million and more\n",
        transferred / MILLION,
        stored / MILLION
    );
    println!(
        "| stream | new / zeros / duplicates | streams | fingerprints/s | of it looking up, alone | reads for 1000 | paper |"
    );
    println!("|---|---|---|---|---|---|---|");
    let options = IndexOptions { filter_bytes: 256 << 20, ..IndexOptions::default() };
    let made = made(directory, options, stored);
    let (index, mut row) = (made.index.clone(), made.row);
    let fresh = AtomicU64::new(stored);
    for mix in &MIXES {
        for streams in [1_u64, 2] {
            let before = index.stats();
            let chain = FilterPlan::default().chain(&index, || unreachable!("nothing is compared"));
            let store_lock = parking_lot::Mutex::new(());
            let (sender, rows) = sync_channel(4);
            let started = Instant::now();
            row = std::thread::scope(|scope| {
                let applying = {
                    let index = Arc::clone(&index);
                    scope.spawn(move || apply(&index, row, &rows))
                };
                for number in 0..streams {
                    let (index, chain, store_lock, fresh) = (&index, &chain, &store_lock, &fresh);
                    let sender = sender.clone();
                    scope.spawn(move || {
                        let mut stream = Stream { mix, state: (number + 1) << 32, stored, fresh };
                        let (mut numbers, mut changes) = (Vec::with_capacity(BATCH), Vec::new());
                        for batch in 0..transferred as usize / BATCH / streams as usize {
                            numbers.clear();
                            while numbers.len() < BATCH {
                                stream.run(&mut numbers);
                            }
                            let prints: Vec<Fingerprint> =
                                numbers.iter().map(|number| number.map_or(Fingerprint::ZERO, fingerprint)).collect();
                            let lengths = vec![4096; prints.len()];
                            let mut query = Query::new(&prints, &lengths);
                            chain.run(&mut query, &[]).unwrap();
                            let missing: Vec<usize> =
                                (0..prints.len()).filter(|at| query.verdicts[*at] == Verdict::NonExisting).collect();
                            let wanted: Vec<Fingerprint> = missing.iter().map(|at| prints[*at]).collect();
                            if !wanted.is_empty() {
                                let _exclusive = store_lock.lock();
                                let mut found = Vec::new();
                                index.locate_in_memory(&wanted, &mut found);
                                for (at, found) in missing.iter().zip(found) {
                                    assert!(found.is_none(), "nobody else stores it");
                                    let place = location(numbers[*at].unwrap());
                                    index.stage(&prints[*at], place);
                                    changes.push(Change::Insert { fingerprint: prints[*at], location: place });
                                }
                            }
                            let counted = prints.iter().filter(|print| !print.is_zero());
                            changes.extend(counted.map(|print| Change::Count {
                                fingerprint: *print,
                                delta: 1,
                                hint: ContainerId::NONE,
                            }));
                            if batch % ROW_BATCHES == ROW_BATCHES - 1 {
                                sender.send(std::mem::take(&mut changes)).unwrap();
                            }
                        }
                        sender.send(changes).unwrap();
                    });
                }
                drop(sender);
                applying.join().unwrap()
            });
            let elapsed = started.elapsed().as_secs_f64();
            let after = index.stats();
            let looking: u64 = chain.stats().iter().map(|filter| filter.time_ns).sum();
            let reads: u64 = chain.stats().iter().map(|filter| filter.reads).sum();
            println!(
                "| {} | {:.0} / {:.0} / {:.0} % | {streams} | {:.0} | {:.0} | {:.2} | {} |",
                mix.name,
                mix.new as f64 / 10.0,
                mix.zeros as f64 / 10.0,
                100.0 - (mix.new + mix.zeros) as f64 / 10.0,
                transferred as f64 / elapsed,
                transferred as f64 * streams as f64 / (looking as f64 / 1e9),
                reads as f64 / transferred as f64 * 1000.0,
                mix.paper,
            );
            assert!(after.cells >= before.cells);
        }
    }
}
