//! A device that fails at every possible moment of a commit, of opening, and of reading.

use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};

use super::*;

const ROOT: Ino = ROOT_INO;

/// Work whose commit touches every table.
fn work(namespace: &Namespace, round: u8) {
    for number in 0..200_u32 {
        let xattrs = vec![(b"user.x".to_vec(), vec![round; 50])];
        let name = format!("{round}-{number}");
        let ino = namespace.make(ROOT, name.as_bytes(), &NewInode { xattrs, ..file(i64::from(round)) }).unwrap().ino;
        namespace.set_root(ino, chunk(round + 1), 100, 100, &mut kept).unwrap();
        if number % 3 == 0 {
            namespace.unlink(ROOT, name.as_bytes(), at(9)).unwrap();
        }
    }
}

type Rows = Vec<(u64, Vec<LogOp>)>;

/// Everything visible, for comparison.
fn picture(namespace: &Namespace) -> (Vec<DirItem>, Vec<Ino>, Totals, Rows) {
    (namespace.list(ROOT, 64), namespace.orphans().unwrap(), namespace.totals(), namespace.rows())
}

/// Commits with one fault at each position in turn, until a commit meets none. A failed commit must leave everything
/// visible and commit later, once. A power loss after it must give the old state.
fn every_position(fault: Fault, operations: &[Operation]) -> (u32, u32) {
    let (mut failures, mut survived) = (0, 0);
    for position in 0.. {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        work(&namespace, 0);
        namespace.save().unwrap();
        let old = picture(&namespace);
        work(&namespace, 1);
        let (names, orphans, totals) = (namespace.list(ROOT, 64), namespace.orphans().unwrap(), namespace.totals());
        let injected = device.injected();
        device.add(FaultPlan::new(fault, position).on(operations));
        namespace.freeze();
        let first = namespace.commit(CommitInput::default());
        let struck = device.injected() > injected;
        device.heal();
        // In every case nothing is lost from sight.
        assert_eq!(namespace.list(ROOT, 64), names, "position {position}");
        assert_eq!(namespace.orphans().unwrap(), orphans);
        assert_eq!(namespace.totals(), totals);
        if first.is_err() {
            failures += 1;
            for seed in 0..2 {
                assert_eq!(picture(&open(&disk.crash(seed))), old, "position {position}: the old state");
            }
            assert_eq!(namespace.rows(), old.3);
            // More work, then the retry.
            namespace.make(ROOT, b"between", &file(3)).unwrap();
            namespace.save().unwrap();
        } else {
            survived += u32::from(struck);
            namespace.make(ROOT, b"between", &file(3)).unwrap();
            namespace.save().unwrap();
        }
        let after = picture(&namespace);
        assert_eq!(after.3.iter().map(|(_, ops)| ops.len()).sum::<usize>(), 400, "each operation exactly once");
        for seed in 0..2 {
            let again = open(&disk.crash(seed));
            assert_eq!(picture(&again), after, "position {position}");
            again.assert_sound();
        }
        namespace.assert_sound();
        if !struck {
            break;
        }
    }
    (failures, survived)
}

#[test]
fn a_failed_write_leaves_everything_for_the_next_commit() {
    let (failures, survived) = every_position(Fault::Io, &[Operation::Write, Operation::SetLen]);
    assert!(failures + survived > 3, "{failures} failed, {survived} survived");
    assert!(failures > 0);
}

#[test]
fn a_full_disk_leaves_everything_for_the_next_commit() {
    assert!(every_position(Fault::NoSpace, &[Operation::Write]).0 > 0);
}

#[test]
fn a_short_write_leaves_everything_for_the_next_commit() {
    assert!(every_position(Fault::ShortWrite, &[Operation::Write]).0 > 0);
}

#[test]
fn a_full_disk_is_told_and_deleting_still_works() {
    let disk = disk();
    let namespace = open(&disk);
    work(&namespace, 0);
    namespace.save().unwrap();
    work(&namespace, 1);
    disk.set_capacity(disk.used_bytes());
    namespace.freeze();
    let error = namespace.commit(CommitInput::default()).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    // Still readable and writable in memory. The commit succeeds once there is room again.
    assert_eq!(namespace.list_names(ROOT).len(), 266);
    for item in namespace.list(ROOT, 1000) {
        namespace.unlink(ROOT, &item.name, at(3)).unwrap();
    }
    disk.set_capacity(disk.used_bytes() + (8 << 20));
    namespace.save().unwrap();
    assert!(namespace.list_names(ROOT).is_empty());
    open(&disk.crash(0)).assert_sound();
}

#[test]
fn after_a_failed_sync_everything_fails_and_a_crash_gives_old_or_new() {
    let mut positions = 0;
    for position in 0.. {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        work(&namespace, 0);
        namespace.save().unwrap();
        let old = picture(&namespace);
        work(&namespace, 1);
        let new_names = namespace.list(ROOT, 64);
        device.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Sync]));
        let Err(error) = namespace.save() else { break };
        positions += 1;
        device.heal();
        assert_eq!(class(&error), "Store", "{error}");
        fails("Store", namespace.save());
        fails("Store", namespace.make(ROOT, b"later", &file(4)));
        fails("Store", namespace.compact());
        for seed in 0..8 {
            let again = open(&disk.crash(seed));
            again.assert_sound();
            let (names, _, _, rows) = picture(&again);
            if names == old.0 {
                assert_eq!(rows, old.3);
            } else {
                assert_eq!(names, new_names, "old or new, never a mixture");
                assert_eq!(rows.len(), old.3.len() + 1);
            }
        }
    }
    assert!(positions >= 2, "two syncs in a commit: {positions}");
}

#[test]
fn a_failed_read_is_one_error_not_the_end() {
    let disk = disk();
    let namespace = open(&disk);
    // More than the smallest cache of the store holds.
    for number in 0..3000 {
        let xattrs = vec![(b"user.x".to_vec(), vec![1; 1000])];
        namespace.make(ROOT, format!("{number}").as_bytes(), &NewInode { xattrs, ..file(1) }).unwrap();
    }
    namespace.save().unwrap();
    drop(namespace);
    let device = FaultyDevice::over_memory(&disk);
    let namespace = Namespace::open(&device, 0, &|_| Ok(())).unwrap();
    let read_all = || (2..3002).filter(|&ino| namespace.xattr(ino, b"user.x").is_ok()).count();
    for round in 0..5 {
        let injected = device.injected();
        device.add(FaultPlan::new(Fault::Io, round * 100).on(&[Operation::Read]));
        assert_eq!(read_all(), 3000, "the second try answers");
        assert!(device.injected() > injected);
        device.heal();
    }
    device.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).lasting());
    fails("Store", (2..3002).try_for_each(|ino| namespace.xattr(ino, b"user.x").map(|_| ())));
    device.heal();
    assert_eq!(read_all(), 3000);
    namespace.make(ROOT, b"works", &file(5)).unwrap();
    namespace.save().unwrap();
    namespace.assert_sound();
}

#[test]
fn opening_fails_cleanly_at_every_position() {
    let disk = disk();
    let namespace = open(&disk);
    work(&namespace, 0);
    namespace.save().unwrap();
    let expected = picture(&namespace);
    drop(namespace);
    for position in 0.. {
        let device = FaultyDevice::over_memory(&disk.snapshot_all_synced());
        device.add(FaultPlan::new(Fault::Io, position));
        let opened = open_on(&device);
        if device.injected() == 0 {
            assert_eq!(picture(&opened.unwrap()), expected);
            break;
        }
        drop(opened);
        device.heal();
        assert_eq!(
            picture(&Namespace::open(&device, CACHE_BYTES, &|_| Ok(())).unwrap()),
            expected,
            "position {position}"
        );
    }
}

#[test]
fn regression_no_space_at_a_sync_is_not_waited_for() {
    let disk = disk();
    let (device, namespace) = faulty(&disk);
    work(&namespace, 0);
    device.add(FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::Sync]));
    let error = namespace.save().unwrap_err();
    assert!(error.is_failed_sync() && !error.is_no_space(), "{error}");
    // A sync would succeed now, and prove nothing.
    assert!(namespace.save().unwrap_err().is_failed_sync());
    open(&disk.crash(0)).assert_sound();
}

#[test]
fn regression_what_was_committed_is_read_on_after_a_failed_sync() {
    let disk = disk();
    let namespace = open(&disk);
    // More than the smallest cache of the store holds.
    for number in 0..3000 {
        let xattrs = vec![(b"user.x".to_vec(), vec![1; 1000])];
        namespace.make(ROOT, format!("{number}").as_bytes(), &NewInode { xattrs, ..file(1) }).unwrap();
    }
    namespace.save().unwrap();
    drop(namespace);
    for position in 0.. {
        let disk = disk.snapshot_all_synced();
        let device = FaultyDevice::over_memory(&disk);
        let namespace = Namespace::open(&device, 0, &|_| Ok(())).unwrap();
        work(&namespace, 1);
        let (names, totals) = (namespace.list(ROOT, 64), namespace.totals());
        device.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Sync]));
        if namespace.save().is_ok() {
            assert!(position >= 2, "two syncs in a commit: {position}");
            break;
        }
        let writes = device.operations_of(&Operation::CHANGING);
        assert_eq!((2..3002).filter(|&ino| namespace.xattr(ino, b"user.x").is_ok()).count(), 3000, "{position}");
        assert_eq!(namespace.list(ROOT, 64), names, "{position}");
        assert_eq!(namespace.totals(), totals);
        fails("Store", namespace.make(ROOT, b"later", &file(4)));
        fails("Store", namespace.save());
        drop(namespace);
        // Only the sync before reading again may try to change anything.
        assert!(device.operations_of(&Operation::CHANGING) <= writes + 1, "{position}: the file was written");
    }
}

/// On the same computer, pages that could not be written are still in memory and count as clean.
#[test]
fn regression_what_a_failed_sync_left_in_memory_is_not_believed_by_the_next_mount() {
    for position in 0.. {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        work(&namespace, 0);
        namespace.save().unwrap();
        work(&namespace, 1);
        device.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Sync]));
        let has_failed = namespace.save().is_err();
        drop(namespace);
        device.heal();
        let namespace = Namespace::open(&device, CACHE_BYTES, &|_| Ok(())).unwrap();
        work(&namespace, 2);
        namespace.save().unwrap();
        let expected = picture(&namespace);
        let again = open(&disk.crash(0));
        assert_eq!(picture(&again), expected, "position {position}");
        again.assert_sound();
        if !has_failed {
            assert!(position >= 2, "two syncs in a commit: {position}");
            break;
        }
    }
}

/// When the store's header could not be written, the checksums still recorded the commit as synced. A power loss right
/// after that was taken for a store that had gone back, and the pool did not open.
#[test]
fn regression_a_failed_write_and_then_a_power_loss_gives_the_old_or_the_new_state() {
    let kinds = [Operation::Write, Operation::SetLen, Operation::Sync];
    // Returns whether the write failed, and the number of operations.
    let attempt = |fault: Fault, position: u64, cut: u64| {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        namespace.make(ROOT, b"first", &file(1)).unwrap();
        namespace.save().unwrap();
        let old = namespace.list(ROOT, 64);
        namespace.make(ROOT, b"second", &file(2)).unwrap();
        let new = namespace.list(ROOT, 64);
        let before = (device.injected(), device.operations_of(&kinds));
        device.add(FaultPlan::new(fault, position).on(&[Operation::Write]));
        device.add(FaultPlan::new(Fault::Io, cut).on(&kinds).lasting());
        let is_saved = namespace.save().is_ok();
        for seed in 0..6 {
            let when = format!("{fault:?} at {position}, the end at {cut}, seed {seed}");
            let again = open_on(&disk.crash(seed)).unwrap_or_else(|error| panic!("{when}: {error}"));
            again.assert_sound();
            let found = again.list(ROOT, 64);
            assert!(found == new || (found == old && !is_saved), "{when}: {found:?}");
        }
        (device.injected() > before.0, device.operations_of(&kinds) - before.1)
    };
    let mut attempts = 0;
    for fault in [Fault::Io, Fault::ShortWrite] {
        for position in 0.. {
            let (has_failed, operations) = attempt(fault, position, u64::MAX);
            if !has_failed {
                break;
            }
            for cut in 0..operations {
                attempt(fault, position, cut);
                attempts += 1;
            }
        }
    }
    assert!(attempts > 100, "{attempts}");
}
