use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::slot_states::OPEN_FILES_MAX;
use super::*;
use crate::device::MemoryDevice;
use crate::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

const SLOT_BYTES: u32 = 16_384;
const PER_FILE: u32 = 4;

fn open(device: &MemoryDevice) -> SlotFiles {
    SlotFiles::open(Arc::new(device.clone()), "containers", SLOT_BYTES, PER_FILE).unwrap()
}

fn at(file: u32, slot: u32) -> SlotAddress {
    SlotAddress { file, slot }
}

fn allocate_many(slots: &SlotFiles, count: usize) -> Vec<SlotAddress> {
    (0..count).map(|_| slots.allocate().unwrap()).collect()
}

fn names(device: &MemoryDevice) -> Vec<(String, u64)> {
    let entries = device.list("containers").unwrap();
    entries.into_iter().map(|entry| (entry.name, entry.len_bytes)).collect()
}

fn slot_of(number: u8) -> Vec<u8> {
    vec![number; SLOT_BYTES as usize]
}

#[test]
fn allocates_lowest_first_and_makes_files() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    assert_eq!(allocate_many(&slots, 6), [at(1, 0), at(1, 1), at(1, 2), at(1, 3), at(2, 0), at(2, 1)]);
    assert_eq!(names(&device), [("000001.slots".to_owned(), 65_536), ("000002.slots".to_owned(), 32_768)]);
    assert_eq!((slots.taken_slots(), slots.state.lock().free.len()), (6, 2));
    slots.free(at(2, 0)).unwrap();
    slots.free(at(1, 2)).unwrap();
    assert_eq!(allocate_many(&slots, 3), [at(1, 2), at(2, 0), at(2, 2)]);
}

#[test]
fn a_row_goes_on_behind_its_last_slot_and_begins_where_there_is_room() {
    let device = MemoryDevice::new();
    let slots = SlotFiles::open(Arc::new(device), "containers", SLOT_BYTES, 64).unwrap();
    allocate_many(&slots, 40);
    // Holes of 1, of 15 and of 16.
    let holes = (2..3).chain(4..19).chain(20..36);
    holes.for_each(|slot| slots.free(at(1, slot)).unwrap());
    let first = slots.allocate_in_row(None).unwrap();
    assert_eq!(first, at(1, 20));
    assert_eq!(slots.allocate_in_row(Some(first)).unwrap(), at(1, 21));
    assert_eq!(slots.allocate().unwrap(), at(1, 2), "others take the lowest");
    // The slot behind is taken, and the next row is behind the last slot.
    assert_eq!(slots.allocate_in_row(Some(at(1, 38))).unwrap(), at(1, 40));
    // No row is left.
    while slots.state.lock().free.contains(&at(1, 50)) {
        slots.allocate_in_row(Some(at(1, 48))).unwrap();
    }
    let lowest = slots.state.lock().free.first().copied();
    assert_eq!(slots.allocate_in_row(Some(at(9, u32::MAX))).ok(), lowest);
}

#[test]
fn a_held_slot_is_given_to_nobody() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let addresses = allocate_many(&slots, 3);
    slots.free(addresses[1]).unwrap();
    assert!(slots.hold(at(1, 1)));
    assert!(!slots.hold(at(1, 1)) && !slots.hold(at(1, 0)), "it is taken");
    assert!(!slots.hold(at(7, 0)) && !slots.hold(at(1, PER_FILE)), "it does not exist");
    assert_eq!(slots.taken_slots(), 3);
    assert_eq!(slots.allocate().unwrap(), at(1, 3));
}

#[test]
fn slots_do_not_touch_each_other() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let addresses = allocate_many(&slots, 6);
    for (number, address) in (1..).zip(&addresses) {
        slots.write(*address, 0, &slot_of(number)).unwrap();
    }
    slots.free(addresses[1]).unwrap();
    for (number, address) in (1..).zip(&addresses) {
        let expected = slot_of(if number == 2 { 0 } else { number });
        assert_eq!(slots.read(*address, 0, SLOT_BYTES as usize).unwrap(), expected, "slot {number}");
    }
    let mut part = [0; 10];
    slots.read_into(addresses[3], SLOT_BYTES - 10, &mut part).unwrap();
    assert_eq!(part, [4; 10]);
}

#[test]
fn freed_space_is_given_back() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let addresses = allocate_many(&slots, 3);
    addresses.iter().for_each(|address| slots.write(*address, 0, &slot_of(7)).unwrap());
    assert_eq!(slots.allocated_bytes().unwrap(), 3 * u64::from(SLOT_BYTES));
    slots.free(addresses[1]).unwrap();
    assert_eq!(slots.allocated_bytes().unwrap(), 2 * u64::from(SLOT_BYTES));
}

/// Statistics asked each file of a pool at each call, and freeing looked at each file.
#[test]
fn regression_files_that_did_not_change_are_neither_asked_nor_looked_at() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let addresses = allocate_many(&slots, 3 * PER_FILE as usize);
    let unasked = || slots.state.lock().allocated().1.into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    addresses.iter().for_each(|address| slots.write(*address, 0, &slot_of(7)).unwrap());
    let all_bytes = slots.allocated_bytes().unwrap();
    assert_eq!((all_bytes, unasked()), (12 * u64::from(SLOT_BYTES), vec![]));
    slots.write(at(2, 1), 0, &slot_of(8)).unwrap();
    assert_eq!(unasked(), [2]);
    assert_eq!((slots.allocated_bytes().unwrap(), unasked()), (all_bytes, vec![]));
    slots.trim().unwrap();
    assert!(slots.state.lock().take_cuts(SLOT_BYTES).is_empty());
    slots.free(at(2, 3)).unwrap();
    assert!(slots.state.lock().cuttable.iter().eq(&[2]));
    assert_eq!(unasked(), [2]);
    assert_eq!(slots.trim().unwrap(), u64::from(SLOT_BYTES));
    assert!(slots.state.lock().cuttable.is_empty());
    assert_eq!((slots.allocated_bytes().unwrap(), unasked()), (11 * u64::from(SLOT_BYTES), vec![]));
    // A change while the device is asked counts.
    slots.write(at(1, 0), 0, &slot_of(9)).unwrap();
    let asked = slots.state.lock().allocated().1[0];
    slots.write(at(1, 0), 0, &slot_of(9)).unwrap();
    slots.state.lock().note_allocated(asked, 1);
    assert_eq!(slots.allocated_bytes().unwrap(), 11 * u64::from(SLOT_BYTES));
}

#[test]
fn an_end_that_could_not_be_cut_is_cut_later() {
    let device = MemoryDevice::new();
    let faulty = Arc::new(FaultyDevice::over_memory(&device));
    let slots = SlotFiles::open(Arc::clone(&faulty) as Arc<dyn Device>, "containers", SLOT_BYTES, PER_FILE).unwrap();
    let addresses = allocate_many(&slots, 2 * PER_FILE as usize);
    [3, 7].into_iter().for_each(|number| slots.free(addresses[number]).unwrap());
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::SetLen]));
    assert!(slots.trim().is_err());
    assert_eq!(slots.trim().unwrap(), 2 * u64::from(SLOT_BYTES));
}

#[test]
fn trim_cuts_the_ends_and_removes_empty_files_at_the_end() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let addresses = allocate_many(&slots, 4 * PER_FILE as usize);
    addresses.iter().for_each(|address| slots.write(*address, 0, &slot_of(3)).unwrap());
    let keep = [at(1, 1), at(3, 0)];
    addresses.iter().filter(|address| !keep.contains(address)).for_each(|address| slots.free(*address).unwrap());
    slots.trim().unwrap();
    let expected = [("000001.slots", 32_768), ("000002.slots", 0), ("000003.slots", 16_384)];
    assert_eq!(names(&device), expected.map(|(name, len)| (name.to_owned(), len)));
    for address in keep {
        assert_eq!(slots.read(address, 0, SLOT_BYTES as usize).unwrap(), slot_of(3));
    }
    // The part that was cut off can be used again, and reads as zeros until it is written.
    assert_eq!(allocate_many(&slots, 4), [at(1, 0), at(1, 2), at(1, 3), at(2, 0)]);
    assert_eq!(slots.read(at(1, 3), 0, SLOT_BYTES as usize).unwrap(), slot_of(0));
    slots.write(at(2, 0), 0, &slot_of(4)).unwrap();
    assert_eq!(slots.read(at(2, 0), 0, SLOT_BYTES as usize).unwrap(), slot_of(4));
    for address in [at(1, 0), at(1, 1), at(1, 2), at(1, 3), at(2, 0), at(3, 0)] {
        slots.free(address).unwrap();
    }
    slots.trim().unwrap();
    assert_eq!(names(&device), []);
    assert_eq!(slots.allocate().unwrap(), at(1, 0));
}

#[test]
fn a_mount_takes_what_is_recorded_and_frees_the_rest() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    for (number, address) in (1..).zip(allocate_many(&slots, 7)) {
        slots.write(address, 0, &slot_of(number)).unwrap();
    }
    drop(slots);
    let slots = open(&device);
    slots.occupy(at(1, 0)).unwrap();
    slots.occupy(at(2, 1)).unwrap();
    let twice = slots.occupy(at(2, 1)).unwrap_err().to_string();
    assert!(twice.contains("000002:1") && twice.contains("another container"), "{twice}");
    assert!(slots.occupy(at(1, PER_FILE)).is_err());
    assert!(slots.occupy(at(0, 0)).is_err());
    assert_eq!(slots.read(at(2, 1), 0, 5).unwrap(), [6; 5]);
    assert_eq!(allocate_many(&slots, 7), [at(1, 1), at(1, 2), at(1, 3), at(2, 0), at(2, 2), at(2, 3), at(3, 0)]);
}

/// A crash came between the end of the file and the commit that notes it: the next mount told of lost containers.
#[test]
fn regression_a_slot_that_is_about_to_be_freed_needs_no_file() {
    let slots = open(&MemoryDevice::new());
    slots.keep(at(1, 0)).unwrap();
    slots.keep(at(1, 1)).unwrap();
    assert_eq!(slots.missing_files(), [""; 0]);
    slots.free(at(1, 0)).unwrap();
    slots.sync_given_back().unwrap();
    slots.occupy(at(1, 2)).unwrap();
    assert_eq!(slots.missing_files(), ["containers/000001.slots"], "a record that counts needs the file");
}

#[test]
fn a_lost_file_costs_only_what_was_in_it() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    allocate_many(&slots, 5).into_iter().for_each(|address| slots.write(address, 0, &slot_of(1)).unwrap());
    drop(slots);
    device.remove("containers/000001.slots").unwrap();
    let slots = open(&device);
    (0..3).for_each(|slot| slots.occupy(at(1, slot)).unwrap());
    slots.occupy(at(2, 0)).unwrap();
    assert!(matches!(slots.read(at(1, 0), 0, 1), Err(StoreError::NotFound { .. })));
    assert_eq!(slots.read(at(2, 0), 0, 1).unwrap(), [1]);
    assert_eq!(slots.allocate().unwrap(), at(2, 1), "nothing is allocated in a file that is not there");
    slots.free(at(1, 0)).unwrap();
    assert!(slots.free(at(1, 0)).is_err(), "it is free already");
    assert_eq!(slots.missing_files(), ["containers/000001.slots"]);
    slots.sync_given_back().unwrap();
    assert_eq!(allocate_many(&slots, 3), [at(2, 2), at(2, 3), at(3, 0)]);
    slots.trim().unwrap();
    slots.allocated_bytes().unwrap();
}

#[test]
fn foreign_files_are_left_alone() {
    let device = MemoryDevice::new();
    drop(open(&device));
    for name in ["note.txt", "1.slots", "000000.slots", "0000001.slots", "+00001.slots", ".slots"] {
        device.open(&format!("containers/{name}"), OpenMode::CreateNew).unwrap();
    }
    let slots = open(&device);
    assert!(slots.state.lock().free.is_empty());
    slots.trim().unwrap();
    assert_eq!(names(&device).len(), 6);
}

#[test]
fn ranges_are_bounded() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    let address = slots.allocate().unwrap();
    assert!(slots.write(address, SLOT_BYTES - 3, b"abcd").is_err());
    assert!(slots.write(address, u32::MAX, b"a").is_err());
    assert!(slots.read(address, 1, SLOT_BYTES as usize).is_err());
    assert!(slots.read(address, 0, usize::MAX).is_err(), "and nothing is allocated for it");
    assert!(slots.read_into(address, SLOT_BYTES, &mut [0]).is_err());
    assert!(slots.read(at(1, PER_FILE), 0, 1).is_err());
    assert!(matches!(slots.write(at(1, 1), 0, b"a"), Err(StoreError::Usage(_))), "a free slot");
    assert!(matches!(slots.free(at(1, 1)), Err(StoreError::Usage(_))));
    let cut = device.open("containers/000001.slots", OpenMode::Write).unwrap();
    cut.set_len(100).unwrap();
    let error = slots.read(address, 0, 200).unwrap_err().to_string();
    assert!(error.contains("000001.slots") && error.contains("200 bytes") && error.contains("100"), "{error}");
}

#[test]
fn senseless_sizes_are_refused() {
    for (slot_bytes, slots_per_file) in [(0, 4), (4096, 0), (5000, 4)] {
        let opened = SlotFiles::open(Arc::new(MemoryDevice::new()), "containers", slot_bytes, slots_per_file);
        assert!(matches!(opened, Err(StoreError::Usage(_))));
    }
}

#[test]
fn what_was_synced_survives_a_power_loss() {
    for seed in 0..30 {
        let device = MemoryDevice::new();
        let slots = open(&device);
        let addresses = allocate_many(&slots, 6);
        for (number, address) in (1..).zip(&addresses) {
            slots.write(*address, 0, &slot_of(number)).unwrap();
        }
        slots.sync(&addresses).unwrap();
        slots.write(slots.allocate().unwrap(), 0, &slot_of(99)).unwrap();
        let after = open(&device.crash(seed));
        for (number, address) in (1..).zip(&addresses) {
            after.occupy(*address).unwrap();
            assert_eq!(after.read(*address, 0, SLOT_BYTES as usize).unwrap(), slot_of(number), "seed {seed}");
        }
        assert_eq!(after.allocate().unwrap(), at(2, 2), "what no record names is free");
    }
}

#[test]
fn each_file_is_synced_once() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let slots = SlotFiles::open(Arc::new(device.clone()), "containers", SLOT_BYTES, PER_FILE).unwrap();
    let addresses = allocate_many(&slots, 6);
    addresses.iter().for_each(|address| slots.write(*address, 0, &slot_of(1)).unwrap());
    let before = device.operations_of(&[Operation::Sync]);
    slots.sync(&addresses).unwrap();
    assert_eq!(device.operations_of(&[Operation::Sync]) - before, 2);
    slots.sync(&addresses[4..]).unwrap();
    assert_eq!(device.operations_of(&[Operation::Sync]) - before, 3);
    slots.sync(&[]).unwrap();
}

#[test]
fn failures_leave_the_slots_consistent() {
    let run = |device: &FaultyDevice| -> Result<()> {
        let slots = SlotFiles::open(Arc::new(device.clone()), "pool/containers", SLOT_BYTES, PER_FILE)?;
        let mut held = BTreeSet::new();
        let mut first = Ok(());
        let mut keep = |result: Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        for round in 0..8 {
            match slots.allocate() {
                Ok(address) => {
                    assert!(held.insert(address), "{address} was allocated twice");
                    let written = slots.write(address, 0, &slot_of(round)).and_then(|()| slots.sync(&[address]));
                    let read = written.and_then(|()| slots.read(address, 0, 4));
                    keep(read.map(|bytes| assert_eq!(bytes, [round; 4])));
                }
                Err(error) => keep(Err(error)),
            }
            assert_eq!(slots.taken_slots(), held.len() as u64);
            if round % 3 == 2
                && let Some(address) = held.pop_first()
            {
                keep(slots.free(address));
            }
        }
        while let Some(address) = held.pop_last() {
            keep(slots.free(address));
            keep(slots.trim().map(drop));
        }
        assert_eq!(slots.taken_slots(), 0);
        device.heal();
        assert!(slots.allocate().is_ok(), "it works again");
        first
    };
    let mut positions = 0;
    for (fault, is_expected) in [
        (
            Fault::Io,
            (|error| matches!(error, StoreError::Io { .. } | StoreError::SyncFailed { .. })) as fn(&StoreError) -> bool,
        ),
        (Fault::NoSpace, |error| matches!(error, StoreError::NoSpace { .. })),
        (Fault::ShortWrite, |error| matches!(error, StoreError::Io { .. })),
    ] {
        for position in 0.. {
            let device = FaultyDevice::over_memory(&MemoryDevice::new());
            device.add(FaultPlan::new(fault, position));
            let result = run(&device);
            if device.injected() == 0 {
                result.unwrap();
                break;
            }
            assert!(result.is_err_and(|error| is_expected(&error)), "{fault:?} at operation {position}");
            positions += 1;
        }
    }
    assert!(positions > 60, "{positions}");
}

#[test]
fn few_files_stay_open_but_none_with_unsynced_writes_is_closed() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let slots = SlotFiles::open(Arc::new(device.clone()), "containers", 4096, 1).unwrap();
    let addresses = allocate_many(&slots, OPEN_FILES_MAX + 50);
    assert_eq!(slots.state.lock().open.len(), OPEN_FILES_MAX);
    for address in &addresses {
        slots.write(*address, 0, &[1; 4096]).unwrap();
    }
    assert_eq!(slots.state.lock().open.len(), addresses.len(), "all of them have unsynced writes");
    slots.sync(&addresses).unwrap();
    for address in &addresses {
        assert_eq!(slots.read(*address, 0, 1).unwrap(), [1]);
    }
    let opened_before = device.operations_of(&[Operation::Open]);
    slots.allocate().unwrap();
    assert_eq!(slots.state.lock().open.len(), OPEN_FILES_MAX);
    slots.read(addresses[OPEN_FILES_MAX + 49], 0, 1).unwrap();
    assert_eq!(device.operations_of(&[Operation::Open]), opened_before, "the latest used stay open");
}

#[test]
fn threads_never_share_a_slot() {
    let device = MemoryDevice::new();
    let slots = open(&device);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let slots = &slots;
            scope.spawn(move || {
                for round in 0..60 {
                    let address = slots.allocate().unwrap();
                    slots.write(address, 0, &slot_of(thread)).unwrap();
                    slots.sync(&[address]).unwrap();
                    assert_eq!(slots.read(address, 0, SLOT_BYTES as usize).unwrap(), slot_of(thread));
                    slots.free(address).unwrap();
                    if round % 10 == 0 {
                        slots.trim().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(slots.taken_slots(), 0);
    slots.trim().unwrap();
    assert_eq!(names(&device), []);
}

#[derive(Clone, Debug)]
enum Action {
    Allocate,
    Free(prop::sample::Index),
    Trim,
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Allocate),
        3 => any::<prop::sample::Index>().prop_map(Action::Free),
        1 => Just(Action::Trim),
        1 => Just(Action::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn slots_keep_their_bytes(actions in proptest::collection::vec(action(), 1..60)) {
        let device = MemoryDevice::new();
        let mut slots = open(&device);
        let mut model: BTreeMap<SlotAddress, Vec<u8>> = BTreeMap::new();
        for (number, action) in (1..).zip(actions) {
            let chosen = |index: prop::sample::Index, model: &BTreeMap<SlotAddress, Vec<u8>>| {
                (!model.is_empty()).then(|| *model.keys().nth(index.index(model.len())).unwrap())
            };
            match action {
                Action::Allocate => {
                    let address = slots.allocate().unwrap();
                    prop_assert_eq!(slots.read(address, 0, SLOT_BYTES as usize).unwrap(), slot_of(0), "given back before");
                    slots.write(address, 0, &slot_of(number)).unwrap();
                    prop_assert!(model.insert(address, slot_of(number)).is_none());
                }
                Action::Free(index) => if let Some(address) = chosen(index, &model) {
                    slots.free(address).unwrap();
                    model.remove(&address);
                },
                Action::Trim => drop(slots.trim().unwrap()),
                Action::Reopen => {
                    slots = open(&device);
                    model.keys().for_each(|address| slots.occupy(*address).unwrap());
                }
            }
            prop_assert_eq!(slots.taken_slots(), model.len() as u64);
            for (address, bytes) in &model {
                prop_assert_eq!(&slots.read(*address, 0, SLOT_BYTES as usize).unwrap(), bytes);
            }
        }
    }
}
