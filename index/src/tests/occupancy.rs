//! The garbage map: missing and damaged lists, and the work that goes on while they are made anew. Each test that asks
//! for [`contents`], and every step of the model, checks that the map agrees with the cells.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_store::StoreError;
use dedupfs_store::device::OpenMode;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

use super::*;
use crate::tests::concurrent::Stopping;
use crate::tests::faults;

/// Names of the lists, with the numbers of their tankers.
fn lists(disk: &MemoryDevice) -> Vec<(u64, String)> {
    let names = disk.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name);
    let lists = names.filter(|name| name.ends_with(".occupancy"));
    lists.map(|name| (name.split('-').nth(1).unwrap().parse().unwrap(), name)).collect()
}

/// Makes the index look like one of an older version without lists, or one that lost them.
pub(super) fn remove_lists(disk: &MemoryDevice, is_gone: impl Fn(u64) -> bool) {
    for (_, name) in lists(disk).into_iter().filter(|(tanker, _)| is_gone(*tanker)) {
        disk.remove(&format!("{DIRECTORY}/{name}")).unwrap();
    }
    disk.sync_directory(DIRECTORY).unwrap();
}

fn missing(index: &Index) -> u64 {
    index.stats().tankers_without_occupancy
}

#[test]
fn what_is_dead_and_what_is_alive_is_told_of_each_container() {
    let (disk, index) = empty(TINY);
    let changes: Vec<_> = (0..100).map(|number| insert(number, 1 + number / 50)).collect();
    index.apply(1, &changes).unwrap();
    let dead = |cells: u64, len: u64| Occupied { cells, bytes: cells * len, ..Occupied::default() };
    let alive =
        |cells: u64, live: u64, len: u64| Occupied { live_cells: live, live_bytes: live * len, ..dead(cells, len) };
    assert_eq!((index.occupied(ContainerId(1)), index.occupied(ContainerId(2))), (dead(50, 1001), dead(50, 1002)));
    index.apply(2, &(0..60).map(|number| count(number, 2)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(2).unwrap();
    assert_eq!(index.occupied(ContainerId(2)), alive(50, 10, 1002));
    // To 0 and back; a lost cell is in no container.
    index.apply(3, &[count(0, -2), count(1, -1), count(2, -2), count(2, 1), lose(3, 1), count(999, 4)]).unwrap();
    assert_eq!(index.occupied(ContainerId(1)), alive(49, 48, 1001));
    assert_eq!(index.occupied(ContainerId(1)).dead_bytes(), 1001);
    // A copy moved forward, another removed.
    index.apply(4, &[insert(1, 7), remove(0, 1), remove(2, 8)]).unwrap();
    assert_eq!(
        (index.occupied(ContainerId(1)), index.occupied(ContainerId(7))),
        (alive(47, 47, 1001), alive(1, 1, 1007))
    );
    contents(&index);
    index.checkpoint(4).unwrap();
    contents(&index);
    let references = |number| {
        let cell = index.committed(&fingerprint(number)).unwrap();
        cell.map_or(0, |cell| i64::from(cell.references))
    };
    let away = |number| {
        let removals = [1, 2, 7].map(|container| remove(number, container));
        [count(number, -references(number))].into_iter().chain(removals)
    };
    let all: Vec<_> = (0..100).flat_map(away).collect();
    index.apply(5, &all).unwrap();
    assert_eq!((index.occupied_total(), index.stats().occupied_containers), (Occupied::default(), 0));
    assert_eq!(index.stats().cells, 2, "what is lost");
    index.checkpoint(5).unwrap();
    contents(&reopen(&disk, TINY));
}

#[test]
fn counts_alone_write_the_lists_of_their_tankers_and_no_other() {
    let disk = faults::base();
    let index = reopen(&disk, TINY);
    let before = lists(&disk);
    assert_eq!(before.len(), 4);
    index.apply(2, &[count(0, 1), count(64, -3)]).unwrap();
    index.checkpoint(2).unwrap();
    let after = lists(&disk);
    assert_eq!(before.iter().zip(&after).filter(|(before, after)| before != after).count(), 2, "{after:?}");
    assert_eq!(missing(&reopen(&disk, TINY)), 0);
    contents(&reopen(&disk, TINY));
}

/// The files of an index that an older version wrote, and goes on using.
#[test]
fn pools_without_lists_open_and_get_them() {
    let disk = faults::base();
    remove_lists(&disk, |_| true);
    let index = reopen(&disk, TINY);
    assert_eq!(missing(&index), 4);
    // Nothing is known yet, and no figure is below zero.
    assert_eq!(index.occupied(ContainerId(1)), Occupied::default());
    index.apply(2, &faults::changes()).unwrap();
    index.self_check().unwrap();
    assert_eq!(index.occupied(ContainerId(4)), Occupied::default());
    let copy = reopen(&disk.crash(0), TINY);
    copy.apply(2, &faults::changes()).unwrap();
    complete(&copy).unwrap();
    let expected = contents(&copy);
    assert_eq!((missing(&copy), missing(&index)), (0, 4));
    // A checkpoint writes the lists of the tankers that it writes, and from then on the map has their content.
    index.checkpoint(2).unwrap();
    assert_eq!(missing(&index), 0);
    assert_eq!(contents(&index), expected);
    assert_eq!(missing(&reopen(&disk, TINY)), 0);
    contents(&reopen(&disk, TINY));
}

#[test]
fn lists_that_were_made_anew_are_there_the_next_time() {
    let disk = faults::base();
    let before: Vec<_> =
        lists(&disk).iter().map(|(_, name)| disk.read_file(&format!("{DIRECTORY}/{name}"), 1 << 20).unwrap()).collect();
    remove_lists(&disk, |tanker| tanker != 2);
    let index = reopen(&disk, TINY);
    assert_eq!(missing(&index), 3);
    complete(&index).unwrap();
    index.self_check().unwrap();
    contents(&index);
    // Durably, and bit for bit.
    let disk = disk.crash(0);
    let after: Vec<_> =
        lists(&disk).iter().map(|(_, name)| disk.read_file(&format!("{DIRECTORY}/{name}"), 1 << 20).unwrap()).collect();
    assert_eq!(before, after);
    let index = reopen(&disk, TINY);
    assert_eq!(missing(&index), 0);
    let bytes: u64 = disk.list(DIRECTORY).unwrap().iter().map(|entry| entry.len_bytes).sum();
    let manifest_bytes = disk.read_file(&format!("{DIRECTORY}/manifest"), 1 << 20).unwrap().len() as u64;
    assert_eq!(index.stats().disk_bytes, bytes - manifest_bytes);
}

#[test]
fn every_damage_to_a_list_is_noticed_and_mended() {
    let disk = faults::base();
    let truth = contents(&reopen(&disk, TINY));
    let (mut flipped, all) = (0, lists(&disk));
    let is_mended = |copy: &MemoryDevice, what: &dyn Fn() -> String| {
        let index = reopen(copy, TINY);
        assert_eq!(missing(&index), 1, "{}", what());
        assert_eq!(contents(&index), truth);
        index.self_check().unwrap();
        complete(&index).unwrap();
        assert_eq!(contents(&index), truth);
        assert_eq!(missing(&reopen(copy, TINY)), 0);
    };
    for (_, name) in &all {
        let path = format!("{DIRECTORY}/{name}");
        let len = disk.read_file(&path, 1 << 20).unwrap().len() as u64;
        for position in 0..len {
            for mask in [0x01, 0x80] {
                let copy = disk.crash(0);
                let file = copy.open(&path, OpenMode::Write).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, position).unwrap();
                file.write_at(&[byte[0] ^ mask], position).unwrap();
                is_mended(&copy, &|| format!("byte {position} of {name}"));
                flipped += 1;
            }
        }
        for len in [0, 1, 63, 64, len - 64, len - 1, len + 1, len + 64, 1 << 16] {
            let copy = disk.crash(0);
            copy.open(&path, OpenMode::Write).unwrap().set_len(len).unwrap();
            is_mended(&copy, &|| format!("{name} of {len} bytes"));
        }
        for (_, other) in all.iter().filter(|(_, other)| other != name) {
            let copy = disk.crash(0);
            let bytes = copy.read_file(&format!("{DIRECTORY}/{other}"), 1 << 20).unwrap();
            copy.replace_file(DIRECTORY, name, &bytes).unwrap();
            is_mended(&copy, &|| format!("{other} as {name}"));
        }
    }
    assert!(flipped >= 4 * 2 * 128, "{flipped}");
}

/// An older version wrote other counts in an attempt of the same number: the list beside them belongs to the attempt
/// before.
#[test]
fn a_list_of_other_counts_of_the_same_name_is_not_believed() {
    let disk = faults::base();
    let other = disk.crash(0);
    let attempt = |disk: &MemoryDevice, changes: &[Change]| {
        let index = reopen(disk, TINY);
        index.apply(2, changes).unwrap();
        index.checkpoint(2).unwrap();
    };
    attempt(&disk, &[count(0, -3)]);
    attempt(&other, &[count(0, 1), count(1, -3)]);
    let (_, name) = lists(&disk).into_iter().find(|(_, name)| name.contains("-1-2.")).unwrap();
    let bytes = other.read_file(&format!("{DIRECTORY}/{name}"), 1 << 20).unwrap();
    disk.replace_file(DIRECTORY, &name, &bytes).unwrap();
    let index = reopen(&disk, TINY);
    assert_eq!(missing(&index), 1);
    complete(&index).unwrap();
    contents(&index);
}

/// Wrong numbers of cells would free containers that are still in use: the tanker's other list must agree.
#[test]
fn a_list_of_other_containers_is_not_believed() {
    let disk = faults::base();
    let index = reopen(&disk, TINY);
    let set = index.sealed_set();
    let tanker = &set.tankers()[1];
    let mut tally = crate::occupancy::Tally::default();
    let list = tanker.read_occupancy(index.writer()).unwrap();
    list.iter().for_each(|(container, occupied)| tally.add(ContainerId(container.0 + 1), occupied));
    tanker.replace_occupancy(index.writer(), &crate::sealed::OccupancyList::from(&tally)).unwrap();
    let after = reopen(&disk, TINY);
    assert_eq!(missing(&after), 1);
    complete(&after).unwrap();
    assert_eq!(contents(&after), contents(&index));
}

#[test]
fn the_check_finds_a_wrong_map_and_a_wrong_list() {
    let disk = faults::base();
    let index = reopen(&disk, TINY);
    index.self_check().unwrap();
    let message = |index: &Index| match index.self_check() {
        Err(StoreError::Corrupt { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let wrong = Occupied { live_cells: 1, ..Occupied::default() };
    index.occupancy.add([(ContainerId(2), wrong)].into_iter());
    assert!(message(&index).contains("garbage map"), "{}", message(&index));
    // A sound file with false content, for the right number of cells.
    let index = reopen(&disk, TINY);
    let set = index.sealed_set();
    let tanker = &set.tankers()[0];
    let mut tally = crate::occupancy::Tally::default();
    for (container, mut occupied) in tanker.read_occupancy(index.writer()).unwrap().iter() {
        occupied.live_cells -= 1;
        occupied.live_bytes -= 1000;
        tally.add(container, occupied);
    }
    tanker.replace_occupancy(index.writer(), &crate::sealed::OccupancyList::from(&tally)).unwrap();
    assert!(message(&index).contains("occupancy list"), "{}", message(&index));
    assert!(message(&reopen(&disk, TINY)).contains("occupancy list"));
}

#[test]
fn making_lists_anew_may_fail_at_every_operation() {
    let base = faults::base();
    remove_lists(&base, |_| true);
    let (mut position, mut failed) = (0, 0);
    loop {
        let memory = base.crash(0);
        let faulty = FaultyDevice::over_memory(&memory);
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let index = Index::open(&device, DIRECTORY, &POOL, TINY).unwrap();
        index.apply(2, &faults::changes()).unwrap();
        faulty.add(FaultPlan::new(Fault::Io, position).on(&Operation::ALL));
        let outcome = complete(&index);
        let is_done = faulty.injected() == 0;
        faulty.heal();
        index.self_check().unwrap();
        if outcome.is_err() {
            failed += 1;
            complete(&index).unwrap();
        }
        // A list that could not be written is in memory nevertheless.
        assert_eq!(missing(&index), 0);
        let truth = contents(&index);
        for seed in 0..3 {
            let disk = memory.crash(seed);
            let after = reopen(&disk, TINY);
            after.apply(2, &faults::changes()).unwrap();
            after.self_check().unwrap();
            complete(&after).unwrap();
            assert_eq!(contents(&after), truth);
        }
        if is_done {
            break;
        }
        position += 1;
    }
    assert!(position > 20 && failed > 4, "{failed} of {position}");
}

/// A checkpoint of tankers without lists that fails in the middle has learnt the content of some of them.
#[test]
fn a_checkpoint_without_lists_may_fail_at_every_operation() {
    let base = faults::base();
    remove_lists(&base, |_| true);
    let (mut position, mut failed) = (0, 0);
    loop {
        let memory = base.crash(0);
        let faulty = FaultyDevice::over_memory(&memory);
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let index = Index::open(&device, DIRECTORY, &POOL, TINY).unwrap();
        index.apply(2, &faults::changes()).unwrap();
        faulty.add(FaultPlan::new(Fault::Io, position).on(&Operation::ALL));
        let outcome = index.checkpoint(2);
        let is_done = faulty.injected() == 0;
        faulty.heal();
        failed += u64::from(outcome.is_err());
        index.self_check().unwrap();
        if position % 2 == 0 {
            complete(&index).unwrap();
            contents(&index);
        }
        index.apply(3, &[count(0, -4), insert(70, 51), remove(130, 3)]).unwrap();
        index.checkpoint(3).unwrap();
        assert_eq!(missing(&index), 0);
        index.self_check().unwrap();
        let truth = contents(&index);
        let after = reopen(&memory.crash(position), TINY);
        assert_eq!((missing(&after), contents(&after)), (0, truth));
        if is_done {
            break;
        }
        position += 1;
    }
    assert!(failed > 20, "{failed} of {position}");
}

/// Rows, checkpoints that replace and dissolve tankers, lists made anew and readers of the map, all at once.
#[test]
fn lists_are_made_anew_while_tankers_are_replaced() {
    const KEYS: u64 = 2000;
    for round in 0..6_u64 {
        let (disk, index) = empty(TINY);
        let first: Vec<_> = (0..KEYS).flat_map(|key| [insert(key, 1 + key / 40), count(key, 1)]).collect();
        index.apply(1, &first).unwrap();
        index.checkpoint(1).unwrap();
        drop(index);
        remove_lists(&disk, |_| true);
        let index = reopen(&disk, TINY);
        assert_eq!(missing(&index), KEYS / 64);
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stopping = Stopping(&stop);
            let applying = scope.spawn(|| {
                for row in 2..40 {
                    let key = |n: u64| (row * 71 + n * 13 + round) % KEYS;
                    let mut changes: Vec<_> = (0..30).map(|n| count(key(n), if n % 3 == 0 { 1 } else { -1 })).collect();
                    changes.extend((30..40).map(|n| insert(key(n), 100 + row)));
                    // A tanker's keys at a time: it becomes sparse and is dissolved.
                    let purged = (row * 3 % 50) + 1;
                    let keys = (purged - 1) * 40..purged * 40;
                    changes.extend(keys.flat_map(|key| [count(key, -100), remove(key, purged)]));
                    index.apply(row, &changes).unwrap();
                    if row % 3 == round % 3 {
                        index.checkpoint(row).unwrap();
                    }
                }
            });
            let completing = scope.spawn(|| complete(&index).unwrap());
            scope.spawn(|| {
                // Once more at the end, so that it is seen under any scheduling of threads.
                let mut is_last = false;
                while !is_last {
                    is_last = stop.load(Ordering::Relaxed);
                    index.for_each_occupied(&mut |container, occupied| {
                        assert!(container != ContainerId::NONE && occupied.cells <= KEYS);
                        seen.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
            applying.join().unwrap();
            completing.join().unwrap();
        });
        assert_eq!(missing(&index), 0);
        index.self_check().unwrap();
        contents(&index);
        let reopened = reopen(&disk, TINY);
        reopened.self_check().unwrap();
        assert_eq!(missing(&reopened), 0);
        contents(&reopened);
        assert!(seen.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn memory_is_some_bytes_for_each_container() {
    let (_disk, index) = empty(IndexOptions { open_bytes: 1 << 30, cells_per_tanker: 1 << 20, ..TINY });
    let changes: Vec<_> = (0..200_000).map(|number| insert(number, 1 + number / 2)).collect();
    index.apply(1, &changes).unwrap();
    let bytes = index.stats().occupancy_bytes;
    assert!((32 * 100_000..48 * 100_000).contains(&bytes), "{bytes}");
    let changes: Vec<_> = (0..200_000).map(|number| remove(number, 1 + number / 2)).collect();
    index.apply(2, &changes).unwrap();
    assert_eq!(index.stats().occupied_containers, 0);
}
