//! Lookups while cells move between open and sealed tankers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::open::{SHARDS, shard_of};
use crate::tests::faults;

/// Ends the other threads however this one ends.
pub(super) struct Stopping<'a>(pub(super) &'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn lookups_never_miss_a_stored_fingerprint() {
    let (disk, index) = empty(TINY);
    // Fingerprints up to this number are stored, each with its own number of references.
    let stored = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3_u64 {
            let (index, stored, stop, lookups) = (&index, &stored, &stop, &lookups);
            scope.spawn(move || {
                let mut found = Vec::new();
                let mut turn = reader;
                while !stop.load(Ordering::Relaxed) {
                    let until = stored.load(Ordering::Acquire);
                    let first = turn * 31 % until.max(1);
                    let fingerprints: Vec<_> = (first..until.min(first + 100)).map(|n| fingerprint(n * 2)).collect();
                    index.locate_batch(&fingerprints, &mut found).unwrap();
                    assert!(found.iter().all(Option::is_some), "a stored fingerprint is absent");
                    for number in (first..until.min(first + 5)).map(|n| n * 2) {
                        let cell = index.get(&fingerprint(number)).unwrap().unwrap();
                        assert_eq!(cell.references, number as u32, "a stale count");
                    }
                    lookups.fetch_add(1, Ordering::Relaxed);
                    turn += 1;
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                index.tend_guides(&mut || true).unwrap();
                std::thread::yield_now();
            }
        });
        // A check sees one moment. Once it asked new filters for cells that were removed since.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                index.check_files().unwrap();
            }
        });
        let started = Instant::now();
        let mut row = 0;
        while started.elapsed() < Duration::from_millis(800) || row < 20 {
            row += 1;
            // Even numbers stay; nine of ten odd ones are removed two rows later, so that tankers become sparse or
            // move.
            let first = stored.load(Ordering::Relaxed) * 2;
            let mut changes = Vec::new();
            for number in first..first + 80 {
                // Sparse tankers: some containers hold almost only cells that will be removed.
                let container = row * 2 + u64::from(number % 2 == 0 && number % 16 != 0);
                index.stage(&fingerprint(number), location(container));
                changes.extend([insert(number, container), count(number, number as i64)]);
            }
            for number in first.saturating_sub(160)..first.saturating_sub(80) {
                if number % 2 == 1 {
                    changes.extend([count(number, -(number as i64)), remove(number, (row - 2) * 2)]);
                }
            }
            assert_eq!(index.apply(row, &changes).unwrap(), crate::ApplyReport::default());
            stored.store((first + 80) / 2, Ordering::Release);
            index.checkpoint(row).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    index.self_check().unwrap();
    assert!(lookups.load(Ordering::Relaxed) > 10 && index.stats().guides > 0);
    let reopened = reopen(&disk, TINY);
    assert_eq!(contents(&reopened), contents(&index));
}

/// A lookup took the old set of sealed tankers; before it asked its shard, the cell moved to a new one.
#[test]
fn a_cell_that_is_sealed_during_its_lookup_is_found() {
    let (disk, index) = empty(TINY);
    let changes: Vec<_> = (0..64).map(|number| insert(number, 1)).collect();
    let sealed = {
        let other = reopen(&disk.crash(0), TINY);
        other.apply(1, &changes).unwrap();
        other.checkpoint(1).unwrap();
        other.sealed_set()
    };
    index.apply(1, &changes).unwrap();
    let wanted = fingerprint(7);
    let mut shard = index.open.write(shard_of(&wanted));
    std::thread::scope(|scope| {
        let single = scope.spawn(|| index.get(&wanted).unwrap());
        let batch = scope.spawn(|| {
            let mut found = Vec::new();
            index.locate_batch(&[wanted], &mut found).unwrap();
            found[0]
        });
        // Time for both to take the set and to wait for the shard.
        std::thread::sleep(Duration::from_millis(200));
        *index.sealed.write() = sealed;
        shard.cells = Default::default();
        drop(shard);
        assert_eq!(single.join().unwrap(), Some(cell(1, 0)));
        assert_eq!(batch.join().unwrap(), Some(location(1)));
    });
}

/// A checkpoint is stopped in the middle of its publication: moved cells are found at their new places.
#[test]
fn lookups_are_right_at_each_moment_of_a_publication() {
    let disk = faults::base();
    // Publication changes shards in ascending order: held up early, it has removed nothing yet; late, nearly
    // everything. A shard with dissolved cells (they are added first) would hold it up before anything is published.
    let dissolved: Vec<_> = (188..192).map(|number| shard_of(&fingerprint(number))).collect();
    let mut calm = (0..SHARDS).filter(|shard| !dissolved.contains(shard));
    let (early, late) = (calm.next().unwrap(), calm.next_back().unwrap());
    // With all changes, dissolved cells are sealed again at once; with 50 insertions fewer they stay open.
    let changes = faults::changes();
    let fewer = &changes[..changes.len() - 50];
    for (held_up, changes) in [(early, &*changes), (early, fewer), (late, &*changes), (late, fewer)] {
        let index = reopen(&disk.crash(0), TINY);
        index.apply(2, changes).unwrap();
        let expected = contents(&index);
        let mut asked: Vec<_> = (0..280).chain(1000..1060).map(fingerprint).collect();
        asked.retain(|fingerprint| shard_of(fingerprint) != held_up);
        let lock = index.open.read(held_up);
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| index.checkpoint(2).unwrap());
            let started = Instant::now();
            while index.sealed_set().tankers().len() == 4 && started.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // From the switch to the lock.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!checkpoint.is_finished());
            let mut found = Vec::new();
            index.locate_batch(&asked, &mut found).unwrap();
            let single: Vec<_> = asked.iter().map(|fingerprint| index.get(fingerprint).unwrap()).collect();
            drop(lock);
            for ((fingerprint, found), single) in asked.iter().zip(found).zip(single) {
                let expected = expected.get(fingerprint).copied();
                assert_eq!((found, single), (expected.map(|cell| cell.location), expected));
            }
            checkpoint.join().unwrap();
        });
        assert_eq!(contents(&index), expected);
    }
}

/// Several writers agree under a lock on the new fingerprints, as the write path does. Meanwhile rows are applied,
/// another thread writes checkpoints, and some chunks are removed and stored again. Nothing is stored twice, no stored
/// fingerprint is absent, and after a power loss at any time the log gives the same state.
#[test]
fn concurrent_writers_store_each_fingerprint_once_while_checkpoints_are_written() {
    const KEYS: u64 = 600;
    let (disk, index) = empty(TINY);
    let store_lock = Mutex::new(());
    // Stored fingerprints that are not in the log yet; the log, by row from 1 on.
    let (pending, log) = (Mutex::new(Vec::new()), Mutex::new(Vec::<Vec<Change>>::new()));
    let stores: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let removals: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let next_container = AtomicU64::new(1);
    let (stop, checkpoints) = (AtomicBool::new(false), AtomicU64::new(0));
    let (frozen, is_frozen) = (Mutex::new(None), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for writer in 0..3_u64 {
            let (index, store_lock, pending, stores) = (&index, &store_lock, &pending, &stores);
            let (next_container, stop) = (&next_container, &stop);
            scope.spawn(move || {
                let mut turn = writer * 7;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let keys: Vec<u64> = (0..20).map(|n| (turn * 37 + n * (writer + 1)) % KEYS).collect();
                    let prints: Vec<_> = keys.iter().map(|key| fingerprint(*key)).collect();
                    let epoch = index.sealed_epoch();
                    let mut found = Vec::new();
                    index.locate_batch(&prints, &mut found).unwrap();
                    let _exclusive = store_lock.lock();
                    let mut again = Vec::new();
                    index.locate_in_memory(&prints, &mut again);
                    if index.sealed_epoch() != epoch {
                        index.locate_batch(&prints, &mut again).unwrap();
                    }
                    let container = next_container.fetch_add(1, Ordering::Relaxed);
                    for ((key, print), (found, again)) in keys.iter().zip(&prints).zip(found.iter().zip(&again)) {
                        if found.is_none() && again.is_none() && index.get(print).unwrap().is_none() {
                            stores[*key as usize].fetch_add(1, Ordering::Relaxed);
                            index.stage(print, location(container));
                            pending.lock().push(insert(*key, container));
                        }
                    }
                    drop(_exclusive);
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let state = frozen.lock().take();
                match state {
                    Some(state) => {
                        index.write(state).unwrap();
                        checkpoints.fetch_add(1, Ordering::Relaxed);
                        is_frozen.store(false, Ordering::Release);
                    }
                    None => std::thread::sleep(Duration::from_micros(200)),
                }
            }
        });
        let started = Instant::now();
        let mut row = 0;
        while started.elapsed() < Duration::from_millis(1500) || checkpoints.load(Ordering::Relaxed) < 20 {
            assert!(started.elapsed() < Duration::from_secs(60), "no checkpoints");
            row += 1;
            // Nobody stores meanwhile: in the write path, removed fingerprints were claimed before.
            let _exclusive = store_lock.lock();
            let mut changes = std::mem::take(&mut *pending.lock());
            for key in (0..30).map(|n| (row * 53 + n) % KEYS) {
                let stored = changes.iter().any(|change| *change.fingerprint() == fingerprint(key));
                if !stored && let Some(cell) = index.committed(&fingerprint(key)).unwrap() {
                    changes
                        .push(Change::Remove { fingerprint: fingerprint(key), container: cell.location.container() });
                    removals[key as usize].fetch_add(1, Ordering::Relaxed);
                }
            }
            log.lock().push(changes.clone());
            assert_eq!(index.apply(row, &changes).unwrap(), crate::ApplyReport::default());
            for change in &changes {
                let there = index.committed(change.fingerprint()).unwrap().is_some();
                assert_eq!(there, matches!(change, Change::Insert { .. }), "right after {change:?}");
            }
            drop(_exclusive);
            if checkpoints.load(Ordering::Relaxed) % 3 == 1 {
                // The power fails while all this is under way: the log restores the state.
                let rows = log.lock().clone();
                let after = reopen(&disk.crash(row), TINY);
                for row in after.position() + 1..=rows.len() as u64 {
                    after.apply(row, &rows[row as usize - 1]).unwrap();
                }
                after.self_check().unwrap();
                assert_eq!(contents(&after), contents(&index));
            }
            if !is_frozen.swap(true, Ordering::Acquire) {
                *frozen.lock() = Some(index.freeze(row).unwrap());
            }
        }
    });
    index.self_check().unwrap();
    for key in 0..KEYS {
        let (stored, removed) =
            (stores[key as usize].load(Ordering::Relaxed), removals[key as usize].load(Ordering::Relaxed));
        let there = u64::from(index.get(&fingerprint(key)).unwrap().is_some());
        assert_eq!(stored, removed + there, "fingerprint {key}");
    }
    assert!(removals.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() > 100);
}

/// Reclaiming then took a sound container for a damaged one, and kept it.
#[test]
fn regression_cells_that_a_checkpoint_removes_from_memory_after_they_were_asked_for_are_not_missed() {
    let (_disk, index) = empty(TINY);
    index.apply(1, &(0..200).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    let asked: Vec<_> = (0..200).map(fingerprint).filter(|fingerprint| shard_of(fingerprint) != 0).collect();
    let epoch = index.sealed_epoch();
    let mut sealed = std::thread::scope(|scope| {
        // Publishing replaces the tankers, and waits here before it removes their cells from memory.
        let shard = index.open.read(0);
        let checkpoint = scope.spawn(|| index.checkpoint(1));
        while index.sealed_epoch() == epoch {
            std::thread::yield_now();
        }
        let sealed = index.sealed_cells_of(&asked).unwrap();
        drop(shard);
        checkpoint.join().unwrap().unwrap();
        sealed
    });
    let cells = index.cells_of(&asked, &mut sealed).unwrap();
    assert!(cells.iter().all(Option::is_some), "{cells:?}");
}
