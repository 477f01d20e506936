//! A run of reclaiming: its choices, the order of its copies, its reads, and its end. Without a mount, over in-memory
//! devices that count.

mod before_claims;
mod doubt;
mod losses;
mod readers;
pub(crate) mod site;

use std::collections::HashMap;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::{ReclaimOptions, Stopped};
use dedupfs::{NoProgress, Pool, Progress};
use dedupfs_store::{ContainerId, Fingerprint};

use crate::tests::common;
use crate::tests::common::content;
use site::{CONTAINER_BYTES, Site, remove};

/// Bytes of a piece that becomes garbage or stays.
const PIECE_BYTES: usize = 60_000;

fn assert_sound(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Writes a file of `pieces` pieces, and one of every `keep`-th of them, the last first.
fn pieces_and_every(pool: &Pool, pieces: u64, keep: u64) -> Vec<u8> {
    let all: Vec<Vec<u8>> = (0..pieces).map(|piece| content(piece + 1, PIECE_BYTES)).collect();
    common::write(pool, "all", &all.concat());
    let kept: Vec<&[u8]> = all.iter().step_by(keep as usize).rev().map(Vec::as_slice).collect();
    common::write(pool, "kept", &kept.concat());
    pool.sync().expect("syncs");
    kept.concat()
}

#[test]
fn the_emptiest_go_until_little_enough_garbage_is_left() {
    let site = Site::new();
    let pool = site.open();
    // Files of about a container each; a larger part of each next one stays.
    let mut kept = Vec::new();
    for file in 0..40_u64 {
        let all = content(file + 1, CONTAINER_BYTES as usize);
        common::write(&pool, &format!("all {file}"), &all);
        let part = all[..all.len() * file as usize / 40].to_vec();
        common::write(&pool, &format!("part {file}"), &part);
        kept.push((format!("part {file}"), part));
    }
    (0..40).for_each(|file| remove(&*pool.service(), &format!("all {file}")));
    let options = ReclaimOptions { leave_percent: 10, ..ReclaimOptions::below(100) };
    let planned = pool.reclaim(&options.planned(), &NoProgress).expect("plans");
    let done = pool.reclaim(&options, &NoProgress).expect("reclaims");
    assert!(planned.dry_run && !done.dry_run);
    assert_eq!((planned.containers_dead, planned.chunks_removed), (done.containers_dead, done.chunks_removed));
    assert_eq!((planned.containers_freed, planned.moved_bytes), (done.containers_freed, done.moved_bytes));
    assert!(done.live_bytes > 0 && done.garbage_left_bytes * 10 <= done.live_bytes, "{done:?}");
    assert!(done.garbage_left_bytes * 10 > done.live_bytes / 2, "more was emptied than was needed: {done:?}");
    let freed = done.physical_before_bytes - done.physical_after_bytes;
    assert!(freed * 10 >= done.expected_bytes * 8, "freed {freed}: {done:?}");
    // The next run has nothing to do; one that may leave no garbage has.
    let again = pool.reclaim(&options, &NoProgress).expect("reclaims");
    assert_eq!((again.containers_freed, again.chunks_moved), (0, 0), "{again:?}");
    let perfect = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(perfect.garbage_left_bytes == 0 && perfect.chunks_moved > 0, "{perfect:?}");
    kept.iter().for_each(|(name, part)| assert!(common::read(&pool, name).as_ref() == Some(part), "{name}"));
    assert_sound(&pool);
}

#[test]
fn what_is_dead_as_a_whole_is_freed_without_reading_its_content() {
    let site = Site::new();
    let pool = site.open();
    common::write(&pool, "dead", &content(1, 20 * CONTAINER_BYTES as usize));
    common::write(&pool, "alive", &content(2, 2 * CONTAINER_BYTES as usize));
    pool.sync().expect("syncs");
    remove(&*pool.service(), "dead");
    pool.close().expect("closes");
    drop(pool);
    // Nothing is cached.
    let pool = site.open();
    let before = site.data_read_bytes();
    let report = pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
    assert!(report.containers_dead >= 18 && report.chunks_moved == 0, "{report:?}");
    let read_bytes = site.data_read_bytes() - before;
    // A table for each.
    assert!(read_bytes < 20 * u64::from(CONTAINER_BYTES) / 10, "{read_bytes} bytes were read");
    assert_sound(&pool);
}

#[test]
fn looking_for_what_to_do_reads_no_container_and_no_tanker() {
    let site = Site::new();
    let pool = site.open();
    pieces_and_every(&pool, 40, 2);
    pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
    let before = (site.data_read_bytes(), site.chunk_index_read_bytes());
    let report = pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
    assert_eq!((report.containers_freed, report.chunks_removed), (0, 0));
    assert_eq!((site.data_read_bytes(), site.chunk_index_read_bytes()), before);
}

/// Each call read both indexes as a whole.
#[test]
fn regression_statistics_read_nothing_of_the_indexes() {
    let site = Site::new();
    let pool = site.open();
    pieces_and_every(&pool, 40, 2);
    remove(&*pool.service(), "all");
    // Recipes go, and chunks stay without references.
    pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
    let first = pool.stats().expect("has figures");
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    let index_bytes = || site.chunk_index_read_bytes() + site.node_index_read_bytes();
    let before = index_bytes();
    let stats = pool.stats().expect("has figures");
    assert_eq!(index_bytes(), before);
    let (mut chunks, mut nodes) = ([0; 4], [0; 2]);
    pool.core()
        .indexes
        .chunks
        .for_each(&mut |_, cell| {
            let place = if cell.references > 0 { 0 } else { 2 };
            chunks[place] += 1;
            chunks[place + 1] += u64::from(cell.location.len_bytes());
            Ok(())
        })
        .expect("reads");
    pool.core()
        .indexes
        .nodes
        .for_each(&mut |_, cell| {
            nodes[0] += 1;
            nodes[1] += u64::from(cell.location.len_bytes());
            Ok(())
        })
        .expect("reads");
    let of = |stats: &dedupfs::stats::PoolStats| {
        let unreferenced = [stats.unreferenced_chunks, stats.unreferenced_chunk_bytes];
        [[stats.unique_chunks, stats.unique_chunk_bytes], unreferenced].concat()
    };
    assert!(chunks.iter().all(|count| *count > 0) && nodes[0] > 0);
    assert_eq!((of(&stats), of(&first)), (chunks.to_vec(), chunks.to_vec()));
    assert_eq!([stats.recipe_nodes, stats.recipe_node_bytes], nodes);
    let records = pool.core().stores.data.containers();
    let used_bytes = records.iter().map(|record| u64::from(record.used_bytes)).sum::<u64>();
    let sums = (stats.data_containers.containers, stats.data_containers.used_bytes);
    assert_eq!(sums, (records.len() as u64, used_bytes));
}

/// The index was read once for each 100,000 of them.
#[test]
fn regression_freeing_many_nodes_reads_the_counts_of_their_index_once_a_level() {
    let site = Site::new();
    let pool = site.open();
    let service = pool.service();
    for file in 0..600_u64 {
        common::write(&pool, &format!("kept {file}"), &content(file, 3 * 4096));
        common::write(&pool, &format!("gone {file}"), &content(10_000 + file, 3 * 4096));
    }
    (0..600).for_each(|file| remove(&*service, &format!("gone {file}")));
    drop(service);
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    let index = &pool.core().indexes.nodes;
    assert!(index.stats().sealed_tankers >= 4, "{:?}", index.stats());
    let (cells, dead, before) = (index.len(), index.occupied_total().dead_cells(), site.node_index_read_bytes());
    let report = pool.reclaim(&ReclaimOptions::below(0), &NoProgress).expect("reclaims");
    assert!(dead >= 500 && report.nodes_freed >= dead, "{dead} of {cells}: {report:?}");
    // Each cell has 48 bytes. Claiming and freeing read buckets, and checkpoints read tankers.
    let read_bytes = site.node_index_read_bytes() - before;
    println!("{read_bytes} bytes of an index of {cells} cells");
    assert!(read_bytes < 12 * 48 * cells, "{read_bytes} bytes of an index of {cells} cells");
    assert_sound(&pool);
}

/// Returns the chunks of all data containers with their places: container and position in it.
fn places(pool: &Pool) -> HashMap<Fingerprint, (ContainerId, usize)> {
    let data = &pool.core().stores.data;
    let mut places = HashMap::new();
    for record in data.containers() {
        let table = data.table(record.id).expect("reads").expect("is there");
        for (place, entry) in table.entries.iter().enumerate() {
            places.insert(entry.fingerprint, (record.id, place));
        }
    }
    places
}

#[test]
fn what_is_moved_lies_in_the_order_of_the_newest_file() {
    let site = Site::new();
    let pool = site.open();
    let kept = pieces_and_every(&pool, 60, 3);
    let older = common::read(&pool, "all").expect("reads");
    // `newest` has the same pieces as `kept`.
    let all: Vec<&[u8]> = older.chunks(PIECE_BYTES).step_by(3).collect();
    common::write(&pool, "newest", &kept);
    remove(&*pool.service(), "all");
    remove(&*pool.service(), "kept");
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(report.chunks_moved > 100, "{report:?}");
    let places = places(&pool);
    let chunks = site.chunks_of(&pool, "newest");
    let order: Vec<_> = chunks.iter().filter_map(|fingerprint| places.get(fingerprint)).collect();
    assert_eq!(order.len(), chunks.len());
    let ascending = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
    // Chunks stored with the file itself (at the borders of its pieces) keep their places.
    assert!(ascending * 100 >= order.len() * 85, "{ascending} of {} in order", order.len());
    // The chunks of a piece follow each other in any case, so the pieces are looked at, too.
    let pieces: Vec<_> = order.chunks(order.len().div_ceil(20)).map(|piece| piece[piece.len() / 2]).collect();
    let in_order = pieces.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(in_order >= 10, "{in_order} of {} pieces in order", pieces.len());
    assert!(all.len() == 20 && common::read(&pool, "newest") == Some(kept));
    assert_sound(&pool);
}

#[test]
fn limits_end_a_run_and_the_next_goes_on() {
    let site = Site::new();
    let pool = site.open();
    let kept = pieces_and_every(&pool, 200, 4);
    remove(&*pool.service(), "all");
    let limited = ReclaimOptions { max_io_bytes: 1, ..ReclaimOptions::below(100) };
    let whole = pool.reclaim(&limited.planned(), &NoProgress).expect("plans");
    let mut containers = 0;
    for run in 0.. {
        let report = pool.reclaim(&limited, &NoProgress).expect("reclaims");
        containers += report.containers_freed;
        assert!(common::read(&pool, "kept").as_ref() == Some(&kept), "behind run {run}");
        if report.stopped.is_none() {
            break;
        }
        assert_eq!(report.stopped, Some(Stopped::Io));
        let last = pool.reclaim_status().last.expect("is noted");
        assert!(last.ended_secs > 0 && !last.is_complete);
        assert!(run < 50, "it does not come to an end");
    }
    assert!(containers >= whole.containers_freed, "{containers} of {}", whole.containers_freed);
    let status = pool.reclaim_status();
    assert!(status.last.is_some_and(|last| last.is_complete) && status.running.is_none() && !status.paused);
    assert_eq!(status.garbage_bytes, 0);
    assert_sound(&pool);
}

/// Acts on the pool (stops, pauses or closes) at the run's `at`-th announcement.
struct Interrupt<'p> {
    pool: &'p Pool,
    at: u64,
    seen: std::sync::atomic::AtomicU64,
    act: &'p (dyn Fn(&Pool) + Sync),
}

impl Progress for Interrupt<'_> {
    fn start(&self, _what: &str, _total: u64) {
        self.advance(0);
    }
    fn advance(&self, _by: u64) {
        if self.seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == self.at {
            (self.act)(self.pool);
        }
    }
    fn finish(&self) {}
}

#[test]
fn a_run_may_be_stopped_anywhere() {
    for at in 0..12 {
        let site = Site::new();
        let pool = site.open();
        let kept = pieces_and_every(&pool, 100, 3);
        remove(&*pool.service(), "all");
        let stop = |pool: &Pool| pool.reclaiming().stop();
        let interrupt = Interrupt { pool: &pool, at, seen: Default::default(), act: &stop };
        let report = pool.reclaim(&ReclaimOptions::below(100), &interrupt).expect("ends");
        assert!(report.stopped.is_none_or(|why| why == Stopped::Asked));
        assert!(report.live_bytes > 0, "what the run did not reach is told all the same: {report:?}");
        assert!(at > 0 || report.stopped.is_some(), "stopped at its beginning");
        assert_sound(&pool);
        let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("the next goes on");
        assert!(report.stopped.is_none() && report.garbage_left_bytes == 0, "{report:?}");
        assert!(common::read(&pool, "kept") == Some(kept));
        assert_sound(&pool);
    }
}

/// The pool was closed under a run, and the next mount had to recover.
#[test]
fn regression_closing_the_pool_ends_a_run_in_order() {
    for at in 0..12 {
        let site = Site::new();
        let pool = site.open();
        let kept = pieces_and_every(&pool, 100, 3);
        remove(&*pool.service(), "all");
        let report = std::thread::scope(|scope| {
            let (begun, began) = std::sync::mpsc::channel();
            let begun = std::sync::Mutex::new(begun);
            let tell = |_: &Pool| begun.lock().expect("is sound").send(()).expect("somebody waits");
            let pool = &pool;
            let closing = scope.spawn(move || {
                if began.recv().is_ok() {
                    pool.close().expect("closes");
                }
            });
            let interrupt = Interrupt { pool, at, seen: Default::default(), act: &tell };
            let report = pool.reclaim(&ReclaimOptions::below(100), &interrupt);
            // The run had ended by then.
            let _ = begun.lock().expect("is sound").send(());
            closing.join().expect("closes");
            report
        });
        if let Ok(report) = &report {
            assert!(report.stopped.is_none_or(|why| why == Stopped::Unmounted), "{report:?}");
        }
        drop(pool);
        let pool = site.open();
        assert!(!pool.recovery().is_needed(), "at {at}: {}", pool.recovery());
        pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("the next goes on");
        assert!(common::read(&pool, "kept") == Some(kept));
        assert_sound(&pool);
    }
}

/// Containers are sealed when their row is durable, and counted later. Until then they seemed dead, and freshly written
/// content was copied.
#[test]
fn regression_what_is_not_counted_yet_is_not_taken_for_dead() {
    let site = Site::new();
    let pool = site.open();
    site.slow_the_index();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for file in 0..60_u64 {
                common::write(&pool, &format!("file {file}"), &content(file + 1, 700_000));
                pool.sync().expect("syncs");
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut runs = 0;
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) || runs < 3 {
            let options = ReclaimOptions { is_background: true, ..ReclaimOptions::below(100) };
            let report = pool.reclaim(&options, &NoProgress).expect("reclaims");
            let touched = (report.chunks_moved, report.chunks_removed, report.containers_freed, report.expected_bytes);
            assert_eq!(touched, (0, 0, 0, 0), "run {runs}: nothing was deleted: {report:?}");
            runs += 1;
        }
        writing.join().expect("writes");
    });
    assert_sound(&pool);
}

#[test]
fn regression_a_run_that_cannot_be_noted_is_made_all_the_same() {
    let site = Site::new();
    let pool = site.open();
    let kept = pieces_and_every(&pool, 60, 3);
    remove(&*pool.service(), "all");
    site.refuse_history();
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(report.containers_freed > 0, "{report:?}");
    assert_eq!(pool.reclaim_status().last, None);
    assert!(common::read(&pool, "kept") == Some(kept));
    assert_sound(&pool);
}

/// A run in the background that gave way to clients without end blocked a run that was asked for.
#[test]
fn regression_a_run_in_the_background_makes_way() {
    let site = Site::new();
    let pool = site.open();
    pieces_and_every(&pool, 60, 3);
    pool.close().expect("closes");
    drop(pool);
    // No container is being filled: while clients are active, such containers are spared.
    let pool = site.open();
    remove(&*pool.service(), "all");
    let options = ReclaimOptions { is_background: true, share_percent: 0, ..ReclaimOptions::below(100) };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A client is always active.
            let begun = std::time::Instant::now();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) && begun.elapsed().as_secs() < 60 {
                pool.core().activity.note();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        for asks_for_check in [true, false] {
            pool.core().activity.note();
            let background = scope.spawn(|| pool.reclaim(&options, &NoProgress));
            while pool.reclaim_status().running.is_none() && !background.is_finished() {
                std::thread::yield_now();
            }
            if asks_for_check {
                assert_sound(&pool);
            } else {
                pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("goes first");
            }
            let report = background.join().expect("ends").expect("is ended in order");
            assert_eq!(report.stopped, Some(Stopped::Asked), "{report:?}");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Stops when the second part of a run is announced.
struct StopAtSecond<'p> {
    pool: &'p Pool,
    parts: std::sync::atomic::AtomicU64,
}

impl Progress for StopAtSecond<'_> {
    fn start(&self, _what: &str, _total: u64) {
        if self.parts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            self.pool.reclaiming().stop();
        }
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}

/// Makes a pool with some 20 dead containers: a run was cut off after their recipes and before them.
fn with_dead_containers() -> (Site, std::sync::Arc<Pool>) {
    for at in 0..12 {
        let site = Site::new();
        let pool = site.open();
        common::write(&pool, "dead", &content(1, 20 * CONTAINER_BYTES as usize));
        pool.sync().expect("syncs");
        remove(&*pool.service(), "dead");
        let stop = |pool: &Pool| pool.reclaiming().stop();
        let interrupt = Interrupt { pool: &pool, at, seen: Default::default(), act: &stop };
        let report = pool.reclaim(&ReclaimOptions::below(100), &interrupt).expect("ends");
        if report.containers_freed == 0 && pool.reclaim_status().garbage_bytes > 0 {
            return (site, pool);
        }
    }
    panic!("no run was cut off where it matters");
}

/// Repeatedly interrupted runs never freed a container: the containers that an earlier run had made dead came after all
/// recipes.
#[test]
fn regression_what_is_dead_already_is_freed_first() {
    let (_site, pool) = with_dead_containers();
    let second = StopAtSecond { pool: &pool, parts: Default::default() };
    let report = pool.reclaim(&ReclaimOptions::below(100), &second).expect("ends");
    assert_eq!(report.stopped, Some(Stopped::Asked));
    assert!(report.containers_dead >= 18, "{report:?}");
    assert_sound(&pool);
}

/// The container was tried with the dead ones and again with the chosen ones: reported twice, counted twice, and its
/// bytes expected twice.
#[test]
fn regression_a_dead_container_that_cannot_be_read_is_tried_once() {
    let (site, pool) = with_dead_containers();
    let containers = pool.core().stores.data.containers();
    let spoilt = containers.iter().find(|record| record.used_bytes > CONTAINER_BYTES / 2).expect("some are full");
    pool.close().expect("closes");
    drop(pool);
    drop(site.spoil(spoilt));
    let pool = site.open();
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert_eq!((report.containers_damaged, report.stopped), (1, None), "{report:?}");
    assert!(report.containers_dead >= 17 && report.garbage_left_bytes > u64::from(CONTAINER_BYTES) / 2, "{report:?}");
    let used_bytes: u64 = containers.iter().map(|record| u64::from(record.used_bytes)).sum();
    assert!(report.expected_bytes <= used_bytes + (64 << 10), "{} of {used_bytes}", report.expected_bytes);
}

#[test]
fn nothing_begins_while_reclaiming_is_paused() {
    let site = Site::new();
    let pool = site.open();
    pool.reclaiming().pause(true);
    let error = pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect_err("is paused");
    assert!(error.to_string().contains("--resume"), "{error}");
    pool.reclaim(&ReclaimOptions::default().planned(), &NoProgress).expect("a plan changes nothing");
    assert!(pool.reclaim_status().paused);
    pool.reclaiming().pause(false);
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("goes on");
}

#[test]
fn when_everything_is_deleted_the_pool_is_empty() {
    let site = Site::new();
    let pool = site.open();
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    let empty = pool.stats().expect("tells");
    pieces_and_every(&pool, 100, 3);
    (0..200_u64).for_each(|file| common::write(&pool, &format!("small {file}"), &content(file, 500 + file as usize)));
    pool.sync().expect("syncs");
    for name in ["all", "kept"].map(str::to_owned).into_iter().chain((0..200).map(|file| format!("small {file}"))) {
        remove(&*pool.service(), &name);
    }
    let report = pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    let stats = pool.stats().expect("tells");
    assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0), "{report:?}");
    assert_eq!((stats.data_containers.containers, stats.recipe_containers.containers), (0, 0), "{report:?}");
    assert!(stats.physical_bytes <= empty.physical_bytes + (64 << 10), "{stats:?}");
    assert_sound(&pool);
}

/// Collects the names of steps.
#[derive(Default)]
struct Steps(parking_lot::Mutex<Vec<String>>);

impl Progress for Steps {
    fn start(&self, what: &str, _total: u64) {
        self.0.lock().push(what.to_owned());
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}

/// Scripts read the steps in the output of `dedupfs-gc`.
#[test]
fn regression_the_steps_of_both_kinds_have_their_names() {
    let site = Site::new();
    let pool = site.open();
    let steps = Steps::default();
    pool.reclaim(&ReclaimOptions::default(), &steps).expect("reclaims");
    let steps = steps.0.into_inner();
    for name in ["emptying containers, MiB", "emptying recipe containers, MiB"] {
        assert!(steps.iter().any(|step| step == name), "{name}: {steps:?}");
    }
}

#[test]
fn containers_that_are_being_filled_are_spared_in_the_background_while_clients_are_active() {
    let site = Site::new();
    let pool = site.open();
    common::write(&pool, "file", &content(1, PIECE_BYTES));
    pool.sync().expect("syncs");
    let is_open = || pool.core().stores.data.containers().iter().any(|record| !record.sealed);
    let run = |is_background| {
        pool.core().activity.note();
        let options = ReclaimOptions { is_background, ..ReclaimOptions::below(100) };
        pool.reclaim(&options, &NoProgress).expect("reclaims")
    };
    let report = run(true);
    assert!(report.spared_open && report.open_bytes > 0 && is_open(), "{report:?}");
    let report = run(false);
    assert!(!report.spared_open && !is_open(), "{report:?}");
}
