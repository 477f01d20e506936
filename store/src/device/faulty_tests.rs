#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

/// A history that performs every kind of operation.
fn history(device: &dyn Device) -> Result<()> {
    device.create_directory("d")?;
    let file = device.open("d/a", OpenMode::CreateNew)?;
    file.write_at(b"0123456789", 0)?;
    file.sync()?;
    file.punch(0, 2)?;
    file.set_len(8)?;
    file.write_at(b"xy", 4)?;
    device.rename("d/a", "d/b")?;
    device.sync_directory("d")?;
    device.list("d")?;
    device.open("d/b", OpenMode::Read)?.read_exact_at(&mut [0; 4], 0)?;
    device.remove("d/b")?;
    device.sync_directory("")
}

fn is_eio(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } | StoreError::SyncFailed { source, .. } if source.raw_os_error() == Some(Errno::IO.raw_os_error()))
}

#[test]
fn without_a_plan_nothing_fails_and_everything_is_counted() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    history(&device).unwrap();
    let counts = Operation::ALL.map(|operation| device.operations_of(&[operation]));
    assert_eq!(counts, [1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 1, 1]);
    assert_eq!(device.operations(), counts.iter().sum::<u64>());
    assert_eq!(device.operations_of(&[Operation::Write, Operation::Sync]), 3);
    assert_eq!(device.injected(), 0);
    device.exists("d").unwrap();
    device.space().unwrap();
    assert_eq!(device.operations(), counts.iter().sum::<u64>(), "questions are not counted");
}

#[test]
fn every_position_of_a_history_can_fail() {
    let clean = FaultyDevice::over_memory(&MemoryDevice::new());
    history(&clean).unwrap();
    for position in 0..clean.operations() {
        let device = FaultyDevice::over_memory(&MemoryDevice::new());
        device.add(FaultPlan::new(Fault::Io, position));
        assert!(is_eio(&history(&device).unwrap_err()), "{position}");
        assert_eq!((device.injected(), device.operations()), (1, position + 1));
    }
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    device.add(FaultPlan::new(Fault::Io, clean.operations()));
    history(&device).unwrap();
}

#[test]
fn plans_strike_once_or_for_good_until_healed() {
    let device = FaultyDevice::new(Arc::new(MemoryDevice::new()));
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    device.add(FaultPlan::new(Fault::NoSpace, 1));
    let results: Vec<bool> = (0..4).map(|_| file.write_at(b"x", 0).is_ok()).collect();
    assert_eq!(results, [true, false, true, true]);
    device.add(FaultPlan::new(Fault::NoSpace, 2).lasting());
    let results: Vec<bool> = (0..4).map(|_| file.write_at(b"x", 0).is_ok()).collect();
    assert_eq!(results, [true, true, false, false]);
    assert!(matches!(file.write_at(b"x", 0), Err(StoreError::NoSpace { operation: "write", .. })));
    file.read_exact_at(&mut [0], 0).unwrap();
    file.sync().unwrap();
    device.open("a", OpenMode::Write).unwrap();
    assert!(device.open("b", OpenMode::CreateNew).is_err(), "a full disk takes no new file");
    device.heal();
    file.write_at(b"x", 0).unwrap();
}

#[test]
fn plans_choose_kinds_and_paths() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    device.add(
        FaultPlan::new(Fault::Io, 0).on(&[Operation::Write, Operation::Rename]).path_contains("recipes/").lasting(),
    );
    for directory in ["recipes", "containers"] {
        device.create_directory(directory).unwrap();
    }
    let write = |path: &str| device.open(path, OpenMode::CreateOrWrite).unwrap().write_at(b"x", 0);
    assert!(write("containers/a").is_ok());
    assert!(is_eio(&write("recipes/a").unwrap_err()));
    assert!(device.rename("containers/a", "recipes/b").is_err());
    assert!(device.rename("recipes/a", "containers/b").is_err());
    assert!(device.rename("containers/a", "containers/b").is_ok());
}

#[test]
fn a_short_write_leaves_its_first_half() {
    for (fault, is_full) in [(Fault::ShortWrite, false), (Fault::ShortWriteNoSpace, true)] {
        let memory = MemoryDevice::new();
        let device = FaultyDevice::over_memory(&memory);
        device.add(FaultPlan::new(fault, 0));
        let error = device.open("a", OpenMode::CreateNew).unwrap().write_at(b"01234567", 0).unwrap_err();
        assert_eq!(matches!(error, StoreError::NoSpace { .. }), is_full);
        assert_eq!(memory.read_file("a", 100).unwrap(), b"0123");
    }
}

#[test]
fn after_a_failed_sync_a_later_one_proves_nothing() {
    let memory = MemoryDevice::new();
    let device = FaultyDevice::over_memory(&memory);
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    device.rename("a", "b").unwrap();
    device.sync_directory("").unwrap();
    file.write_at(b"lost", 0).unwrap();
    device.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]));
    assert!(is_eio(&file.sync().unwrap_err()));
    file.sync().unwrap();
    assert_eq!(memory.read_file("b", 100).unwrap(), b"lost");
    assert_eq!(memory.crash(1).read_file("b", 100).unwrap(), [0; 4]);
}

#[test]
fn after_a_failed_sync_of_a_directory_a_later_one_proves_nothing() {
    let memory = MemoryDevice::new();
    let device = FaultyDevice::over_memory(&memory).losing_names();
    device.open("a", OpenMode::CreateNew).unwrap();
    device.add(FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::SyncDirectory]));
    assert!(matches!(device.sync_directory("").unwrap_err(), StoreError::SyncFailed { .. }));
    device.open("b", OpenMode::CreateNew).unwrap();
    device.sync_directory("").unwrap();
    assert!(memory.exists("a").unwrap() && memory.exists("b").unwrap());
    assert_eq!(memory.crash(1).list("").unwrap(), []);
}

#[test]
fn regression_no_space_at_a_sync_is_no_lack_of_space_that_can_be_waited_for() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    device.add(FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::Sync]));
    let error = file.sync().unwrap_err();
    assert!(matches!(&error, StoreError::SyncFailed { .. }), "{error:?}");
    assert!(error.to_string().contains("No space left"), "{error}");
}

#[test]
fn a_short_read_gives_the_first_half_and_no_more() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(b"01234567", 0).unwrap();
    device.add(FaultPlan::new(Fault::ShortRead, 0));
    let mut bytes = [b'-'; 8];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4);
    assert_eq!(&bytes, b"0123----");
    device.add(FaultPlan::new(Fault::ShortRead, 0));
    assert!(matches!(file.read_exact_at(&mut bytes, 0), Err(StoreError::Corrupt { .. })));
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8);
}

#[test]
fn what_a_failed_sync_gave_up_is_not_seen_when_it_is_read_anew() {
    let memory = MemoryDevice::new();
    let device = FaultyDevice::over_memory(&memory);
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(b"old!", 0).unwrap();
    file.sync().unwrap();
    file.write_at(b"lost", 0).unwrap();
    device.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]));
    file.sync().unwrap_err();
    assert_eq!(memory.read_file("a", 100).unwrap(), b"lost");
    file.reread().unwrap();
    assert_eq!(memory.read_file("a", 100).unwrap(), b"old!");
    file.write_at(b"new!", 0).unwrap();
    file.reread().unwrap();
    device.sync_directory("").unwrap();
    assert_eq!(memory.crash(0).read_file("a", 100).unwrap(), b"new!");
}
