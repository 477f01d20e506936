//! Building an index in steps: after any failure, and after a power loss at any time, the next attempt goes on from the
//! last checkpoint, and nothing is counted twice or missed.

use std::collections::BTreeMap;

use dedupfs_store::StoreError;
use dedupfs_store::device::OpenMode;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice};

use super::*;
use crate::options::PROGRESS_BYTES_MAX;
use crate::{Continued, IndexBuilder};

const STEPS: u64 = 12;

/// The cells and counts of a step, including earlier fingerprints and one that no container has.
fn step(builder: &mut IndexBuilder, step: u64) -> Result<(), StoreError> {
    for number in step * 25..step * 25 + 25 {
        builder.set(fingerprint(number), location(step + 1), 0)?;
    }
    for number in (0..step * 25 + 25).step_by(3) {
        builder.count(fingerprint(number), 1 + i64::try_from(step).unwrap(), ContainerId(number % 3))?;
    }
    builder.count(fingerprint(10_000 + step % 4), 1, ContainerId::NONE)
}

fn notes(steps: u64) -> Vec<u8> {
    steps.to_le_bytes().to_vec()
}

/// Builds the remaining steps, with a checkpoint after every other step.
fn build(device: &Arc<dyn Device>) -> Result<(u64, Index), StoreError> {
    let (mut builder, done) = match IndexBuilder::resume(device, DIRECTORY, &POOL, TINY)? {
        Some(Continued { builder, notes, finished }) => {
            let done = u64::from_le_bytes(notes.try_into().unwrap());
            assert_eq!(finished, (done == STEPS).then_some(77), "only the last notes are those of a complete index");
            (builder, done)
        }
        None => (IndexBuilder::new(device, DIRECTORY, &POOL, TINY)?, 0),
    };
    for number in done..STEPS {
        step(&mut builder, number)?;
        if number % 2 == 1 && number + 1 < STEPS {
            builder.checkpoint(&notes(number + 1))?;
        }
    }
    Ok((done, builder.finish(77, &notes(STEPS))?))
}

fn expected() -> BTreeMap<Fingerprint, Cell> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let (_, index) = build(&device).unwrap();
    assert_eq!((index.len(), index.lost()), (25 * STEPS + 4, 4));
    contents(&index)
}

#[test]
fn a_build_survives_an_error_or_a_power_loss_at_every_operation() {
    let expected = expected();
    let (mut position, mut continued) = (0, 0);
    loop {
        let memory = MemoryDevice::new();
        let faulty = FaultyDevice::over_memory(&memory);
        // From here on every operation fails: the process or the machine dies.
        faulty.add(FaultPlan::new(Fault::Io, position).lasting());
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let outcome = build(&device);
        let is_whole = faulty.injected() == 0;
        faulty.heal();
        if is_whole {
            assert_eq!(contents(&outcome.unwrap().1), expected);
            break;
        }
        // The same process again; after a power loss that keeps none, or some, of the unsynced writes.
        for disk in [memory.snapshot_all_synced(), memory.crash(0), memory.crash(position + 1)] {
            let device: Arc<dyn Device> = Arc::new(disk.clone());
            let complete = Index::open(&device, DIRECTORY, &POOL, TINY);
            if let Ok(index) = &complete {
                assert_eq!(contents(index), expected, "position {position}");
            }
            let (done, index) = build(&device).unwrap();
            continued += u64::from(done > 0);
            index.self_check().unwrap();
            assert_eq!(contents(&index), expected, "position {position}, continued after {done}");
            assert_eq!((index.lost(), index.stats().tankers_without_occupancy), (4, 0));
            drop(index);
            Index::forget_progress(&*device, DIRECTORY).unwrap();
            assert!(IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().is_none(), "it is in use now");
            let index = reopen(&disk, TINY);
            assert_eq!((contents(&index) == expected, index.lost()), (true, 4));
            assert_eq!(index.stats().tankers_without_occupancy, 0, "a rebuild writes the lists of the garbage map");
            assert!(Index::remove(&*device, DIRECTORY).unwrap().bytes > 0);
            assert_eq!(Index::disk_bytes(&*device, DIRECTORY).unwrap(), 0);
            assert!(device.list(DIRECTORY).unwrap().is_empty());
        }
        position += 1;
    }
    assert!(position > 200 && continued > 2 * position, "{continued} of {position}");
}

#[test]
fn damaged_notes_are_not_believed() {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
    assert!(IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().is_none(), "nothing was noted");
    step(&mut builder, 0).unwrap();
    builder.checkpoint(b"one step").unwrap();
    drop(builder);
    let path = format!("{DIRECTORY}/progress-1");
    let len = device.read_file(&path, 1 << 20).unwrap().len() as u64;
    for offset in 0..len {
        let disk = memory.snapshot_all_synced();
        let file = disk.open(&path, OpenMode::Write).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_at(&[byte[0] ^ 0x10], offset).unwrap();
        let device: Arc<dyn Device> = Arc::new(disk);
        assert!(IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().is_none(), "byte {offset}");
    }
    // The notes of the pool's other index.
    let left = IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().unwrap();
    assert_eq!((left.notes.as_slice(), left.finished), (&b"one step"[..], None));
    drop(left);
    let mut other = IndexBuilder::new(&device, "index/recipes", &POOL, TINY).unwrap();
    other.checkpoint(b"of nodes").unwrap();
    device.rename("index/recipes/progress-1", &path).unwrap();
    assert!(IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().is_none());
}

#[test]
fn notes_that_could_not_be_read_again_are_not_written() {
    let disk = MemoryDevice::new();
    disk.create_directory(DIRECTORY).unwrap();
    let write = |len: u64| crate::progress::write(&disk, DIRECTORY, &POOL, 1, &vec![1; len as usize]);
    assert!(write(PROGRESS_BYTES_MAX / 2 + 1).is_err());
    write(PROGRESS_BYTES_MAX / 2).unwrap();
    assert_eq!(crate::progress::read(&disk, DIRECTORY, &POOL, 1).unwrap().len() as u64, PROGRESS_BYTES_MAX / 2);
}

/// More cells without references than memory has room for changes, in sealed tankers and in memory.
#[test]
fn cells_without_references_are_removed_and_all_others_stay() {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
    for number in 0..1000 {
        builder.set(fingerprint(number), location(number / 100 + 1), 0).unwrap();
        if builder.wants_checkpoint() {
            builder.checkpoint(b"set").unwrap();
        }
    }
    let is_kept = |number: u64| number.is_multiple_of(9) || (300..400).contains(&number);
    for number in (0..1000).filter(|number| is_kept(*number)) {
        builder.count(fingerprint(number), 3, ContainerId(number % 4)).unwrap();
    }
    builder.relocate(fingerprint(9), location(50)).unwrap();
    builder.relocate(fingerprint(18), Location::Lost).unwrap();
    // Neither counted nor stored: it goes like any other.
    builder.relocate(fingerprint(10), Location::Lost).unwrap();
    builder.remove_unreferenced(b"removed").unwrap();
    assert_eq!(
        (builder.cells_len().unwrap(), builder.lost_len().unwrap()),
        ((0..1000).filter(|n| is_kept(*n)).count() as u64, 1)
    );
    let looked_at = builder.so_far();
    assert!(looked_at.stats().sealed_tankers > 1, "{:?}", looked_at.stats());
    drop(looked_at);
    let index = builder.finish(5, b"all").unwrap();
    for index in [index, reopen(&memory.crash(0), TINY)] {
        index.self_check().unwrap();
        let expected = |number: u64| match number {
            9 => cell(50, 3),
            18 => Cell { location: Location::Lost, references: 3 },
            other => cell(other / 100 + 1, 3),
        };
        let expected: BTreeMap<_, _> =
            (0..1000).filter(|number| is_kept(*number)).map(|number| (fingerprint(number), expected(number))).collect();
        assert_eq!(contents(&index), expected);
    }
}

/// Lookups between changes see all of them, hinted or not.
#[test]
fn a_builder_is_asked_for_cells_between_changes() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
    for number in 0..300 {
        builder.set(fingerprint(number), location(number / 30 + 1), 0).unwrap();
        if number % 50 == 0 {
            builder.checkpoint(b"").unwrap();
        }
        builder.count(fingerprint(number / 2), 1, ContainerId::NONE).unwrap();
    }
    let fingerprints: Vec<_> = (0..310).map(fingerprint).collect();
    let hints: Vec<_> = (0..200).map(|number| ContainerId(number % 12)).collect();
    let cells = builder.cells_near(&fingerprints, &hints).unwrap();
    for (number, found) in (0..).zip(cells) {
        let expected = cell(number / 30 + 1, if number < 150 { 2 } else { 0 });
        assert_eq!(found, (number < 300).then_some(expected), "{number}");
    }
    let still_held = builder.so_far();
    let error = builder.finish(5, b"all").unwrap_err();
    assert!(error.to_string().contains("still looked at"), "{error}");
    drop(still_held);
}

/// A rebuild that is broken off between the completion of both indexes goes on: its checkpoints have lower numbers than the row.
#[test]
fn regression_a_complete_index_is_built_on() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let mut builder = IndexBuilder::new(&device, DIRECTORY, &POOL, TINY).unwrap();
    step(&mut builder, 0).unwrap();
    builder.checkpoint(&notes(1)).unwrap();
    step(&mut builder, 1).unwrap();
    drop(builder.finish(5000, &notes(2)).unwrap());
    let resume = || IndexBuilder::resume(&device, DIRECTORY, &POOL, TINY).unwrap().unwrap();
    let left = resume();
    assert_eq!((left.finished, left.notes), (Some(5000), notes(2)));
    let mut builder = left.builder;
    step(&mut builder, 2).unwrap();
    builder.checkpoint(&notes(3)).unwrap();
    drop(builder);
    let left = resume();
    assert_eq!((left.finished, left.notes), (None, notes(3)));
    let index = left.builder.finish(5000, &notes(3)).unwrap();
    index.self_check().unwrap();
    assert_eq!((index.position(), index.len(), index.lost()), (5000, 3 * 25 + 3, 3));
}
