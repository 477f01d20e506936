//! A checkpoint that fails at any operation leaves the old state valid on disk and the memory unchanged.

use std::collections::BTreeMap;

use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

use super::*;
use crate::options::{WRITTEN_CELL_BYTES, WRITTEN_FILES_BYTES};

/// A disk with four sealed tankers and an open one, as of row 1.
pub(super) fn base() -> MemoryDevice {
    let (disk, index) = empty(TINY);
    let changes: Vec<_> = (0..280).flat_map(|number| [insert(number, 1 + number / 64), count(number, 3)]).collect();
    index.apply(1, &changes).unwrap();
    index.checkpoint(1).unwrap();
    assert_eq!(index.stats().sealed_tankers, 4);
    disk.crash(0)
}

/// Row 2: counts in one tanker, moves in the next, the third becomes sparse and the fourth empty; the open one fills
/// up.
pub(super) fn changes() -> Vec<Change> {
    let mut changes: Vec<_> = (0..10).map(|number| count(number, 1)).collect();
    changes.extend((64..80).map(|number| insert(number, 50)));
    changes.extend((128..188).flat_map(|number| [count(number, -3), remove(number, 3)]));
    changes.extend((192..256).flat_map(|number| [count(number, -3), remove(number, 4)]));
    changes.extend((1000..1060).map(|number| insert(number, 60)));
    changes
}

struct Case {
    memory: MemoryDevice,
    faulty: FaultyDevice,
    index: Index,
    old: BTreeMap<Fingerprint, Cell>,
    new: BTreeMap<Fingerprint, Cell>,
}

fn case(base: &MemoryDevice) -> Case {
    let memory = base.crash(0);
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let index = Index::open(&device, DIRECTORY, &POOL, TINY).unwrap();
    let old = contents(&index);
    index.apply(2, &changes()).unwrap();
    let new = contents(&index);
    Case { memory, faulty, index, old, new }
}

/// Checks that the disk holds the old or the new state, wholly. `acknowledged`: it must be the new one.
fn check_disk(disk: &MemoryDevice, case: &Case, acknowledged: bool) {
    let index = reopen(disk, TINY);
    index.self_check().unwrap();
    match index.position() {
        1 => {
            assert!(!acknowledged);
            assert_eq!(contents(&index), case.old);
            index.apply(2, &changes()).unwrap();
            assert_eq!(contents(&index), case.new);
        }
        // The row after it changes nothing.
        2 | 3 => assert_eq!(contents(&index), case.new),
        other => panic!("position {other}"),
    }
}

fn check_memory(case: &Case) {
    assert_eq!(contents(&case.index), case.new);
    case.index.self_check().unwrap();
    let fingerprints: Vec<_> = case.new.keys().chain(case.old.keys()).copied().collect();
    let mut found = Vec::new();
    case.index.locate_batch(&fingerprints, &mut found).unwrap();
    for (fingerprint, found) in fingerprints.iter().zip(found) {
        assert_eq!(found, case.new.get(fingerprint).map(|cell| cell.location));
    }
}

#[test]
fn a_checkpoint_may_fail_at_every_operation() {
    let base = base();
    let total = {
        let case = case(&base);
        let before = case.faulty.operations();
        case.index.checkpoint(2).unwrap();
        let total = case.faulty.operations() - before;
        check_memory(&case);
        for seed in 0..5 {
            check_disk(&case.memory.crash(seed), &case, true);
        }
        total
    };
    assert!(total > 30, "{total} operations: the checkpoint does all it can do");
    let (mut failed, mut succeeded) = (0, 0);
    for position in 0..total {
        for (fault, lasting) in
            [(Fault::Io, false), (Fault::Io, true), (Fault::NoSpace, false), (Fault::ShortWriteNoSpace, true)]
        {
            let case = case(&base);
            let plan = FaultPlan::new(fault, position).on(&Operation::ALL);
            case.faulty.add(if lasting { plan.lasting() } else { plan });
            let outcome = case.index.checkpoint(2);
            case.faulty.heal();
            // Only an operation after the switch, the removal of old files, may fail without failing the checkpoint.
            assert!(case.faulty.injected() > 0);
            assert_eq!(case.index.position(), if outcome.is_ok() { 2 } else { 1 });
            check_memory(&case);
            for seed in [0, 1, position + 2] {
                check_disk(&case.memory.crash(seed), &case, outcome.is_ok());
            }
            check_disk(&case.memory, &case, outcome.is_ok());
            if outcome.is_ok() {
                succeeded += 1;
            } else {
                failed += 1;
                // The same process goes on.
                case.index.apply(3, &[count(1000, 1), count(1000, -1)]).unwrap();
                case.index.checkpoint(3).unwrap();
                check_memory(&case);
            }
            for seed in [0, 1, position + 2] {
                check_disk(&case.memory.crash(seed), &case, true);
            }
        }
    }
    assert!(failed > 3 * succeeded && succeeded > 0, "{failed} failed, {succeeded} succeeded");
}

#[test]
fn making_a_guide_may_fail_at_every_operation() {
    let base = base();
    // Made, published with all changes, and loaded.
    let guide = |case: &Case| {
        let made = case.index.tend_guides(&mut || true);
        let published = case.index.checkpoint(2);
        case.index.load_guides(&mut || true);
        (made, published)
    };
    let total = {
        let case = case(&base);
        let before = case.faulty.operations();
        assert!(matches!(guide(&case), (Ok(true), Ok(()))));
        assert_eq!(case.index.stats().guides, 1);
        check_memory(&case);
        case.faulty.operations() - before
    };
    assert!(total > 60, "{total} operations");
    let mut unmade = 0;
    for position in 0..total {
        for (fault, lasting) in [(Fault::Io, false), (Fault::Io, true), (Fault::NoSpace, false)] {
            let case = case(&base);
            let plan = FaultPlan::new(fault, position).on(&Operation::ALL);
            case.faulty.add(if lasting { plan.lasting() } else { plan });
            let (made, published) = guide(&case);
            case.faulty.heal();
            unmade += u64::from(made.is_err());
            check_memory(&case);
            for seed in [0, position + 2] {
                check_disk(&case.memory.crash(seed), &case, published.is_ok());
            }
            check_disk(&case.memory, &case, published.is_ok());
            // The same process goes on.
            let _made = case.index.tend_guides(&mut || true).unwrap();
            case.index.checkpoint(3).unwrap();
            case.index.load_guides(&mut || true);
            check_memory(&case);
            check_disk(&case.memory.crash(1), &case, true);
        }
    }
    assert!(unmade > 10, "{unmade}");
}

#[test]
fn files_left_over_are_removed_by_the_next_checkpoint() {
    let case = case(&base());
    let names = |case: &Case| -> Vec<String> {
        case.memory.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name).collect()
    };
    let before = names(&case).len();
    // Every attempt without space is repeated, and its leftovers must not take space.
    for position in 0..20 {
        case.faulty.add(FaultPlan::new(Fault::NoSpace, position));
        case.index.checkpoint(2).unwrap_err();
        case.faulty.heal();
        assert_eq!(names(&case).iter().filter(|name| !name.ends_with(".new")).count(), before);
    }
    case.faulty.add(FaultPlan::new(Fault::Io, 5).on(&[Operation::Sync]));
    case.index.checkpoint(2).unwrap_err();
    case.faulty.heal();
    assert!(names(&case).len() > before);
    case.index.checkpoint(2).unwrap();
    let set = case.index.sealed_set();
    assert_eq!(names(&case).len(), 2 + 5 * set.tankers().len(), "{:?}", names(&case));
}

#[test]
fn applying_is_all_or_nothing_when_reads_fail() {
    let base = base();
    let reads = {
        let case = case(&base);
        case.faulty.operations_of(&[Operation::Read])
    };
    assert!(reads > 10);
    let mut failed = 0;
    for position in 0..reads {
        let memory = base.crash(0);
        let faulty = FaultyDevice::over_memory(&memory);
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        // Without a cache, so that applying reads.
        let index = Index::open(&device, DIRECTORY, &POOL, IndexOptions { cache_bytes: 0, ..TINY }).unwrap();
        let old = contents(&index);
        faulty.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Read]));
        let outcome = index.apply(2, &changes());
        faulty.heal();
        if outcome.is_err() {
            failed += 1;
            assert_eq!(contents(&index), old);
            index.apply(2, &changes()).unwrap();
        }
        let case = case(&base);
        assert_eq!(contents(&index), case.new);
    }
    assert!(failed > 5, "{failed}");
}

/// The new manifest is visible but perhaps not durable, and then the second attempt fails too.
#[test]
fn a_second_attempt_touches_nothing_that_the_first_one_may_have_made_valid() {
    let base = base();
    let switch = |case: &Case| {
        // The directory is synced twice: for the files, and for the manifest.
        case.faulty.add(FaultPlan::new(Fault::Io, 1).on(&[Operation::SyncDirectory]));
        case.index.checkpoint(2).unwrap_err();
        case.faulty.heal();
        assert_eq!((case.index.position(), reopen(&case.memory, TINY).position()), (1, 2));
    };
    let total = {
        let case = case(&base);
        switch(&case);
        let before = case.faulty.operations();
        case.index.checkpoint(2).unwrap();
        case.faulty.operations() - before
    };
    for position in 0..total {
        let case = case(&base);
        switch(&case);
        case.faulty.add(FaultPlan::new(Fault::Io, position).on(&Operation::ALL).lasting());
        let outcome = case.index.checkpoint(2);
        for disk in
            [&case.memory, &case.memory.crash(0), &case.memory.crash(position + 1), &case.memory.crash(!position)]
        {
            check_disk(disk, &case, outcome.is_ok());
        }
    }
}

/// Without its manifest an index does not exist. A manifest whose files are gone would be damage.
#[test]
fn an_index_that_is_being_removed_is_there_as_a_whole_or_not_at_all() {
    let base = base();
    let expected = contents(&reopen(&base, TINY));
    for position in 0.. {
        let disk = base.crash(0);
        let faulty = FaultyDevice::over_memory(&disk);
        faulty.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Remove, Operation::SyncDirectory]).lasting());
        let removed = Index::remove(&faulty, DIRECTORY);
        for seed in 0..8 {
            let left = disk.crash(seed);
            if left.exists(&format!("{DIRECTORY}/manifest")).unwrap() {
                assert!(removed.is_err() && contents(&reopen(&left, TINY)) == expected, "operation {position}");
            }
        }
        if removed.is_ok() {
            assert!(position > 5, "{position} operations");
            break;
        }
    }
}

#[test]
fn a_checkpoint_has_room_where_it_is_promised_and_no_more_is_asked_than_that() {
    for step in [&changes()[..10], &changes()] {
        let disk = base();
        let index = reopen(&disk, TINY);
        index.apply(2, step).unwrap();
        let stats = index.stats();
        // Four bytes for the count of each sealed cell, beside the files of the open ones.
        let sealed_cells = stats.cells - stats.open_cells;
        let least = WRITTEN_FILES_BYTES + stats.open_cells * WRITTEN_CELL_BYTES + 4 * sealed_cells + 4 * 8192;
        assert!(index.checkpoint_bytes(0) >= least && index.checkpoint_bytes(u64::MAX) >= least);
        let (frozen, before) = (index.freeze(2).unwrap(), disk.used_bytes());
        let promised = frozen.disk_bytes();
        disk.set_capacity(before + promised);
        index.write(frozen).unwrap();
        assert!(promised < 2 << 20, "{promised} bytes beside {before}");
    }
}
