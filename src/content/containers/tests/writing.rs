//! Appending: where chunks go, sizes, duplicates, limits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_store::container::Compression;
use dedupfs_store::device::MemoryDevice;
use dedupfs_store::{Fingerprint, StoreError};

use super::{CONTAINER_BYTES, Harness, chunk, open_store, options, stream};
use crate::containers::ContainerOptions;

fn harness(options: ContainerOptions) -> Harness {
    Harness::new(Arc::new(MemoryDevice::new()), options)
}

#[test]
fn chunks_are_readable_at_every_moment() {
    let mut harness = harness(options());
    for number in 0..600 {
        harness.append(stream(number / 7 % 2), number).expect("appends");
        harness.check(number);
        harness.check(number / 2);
        harness.store.self_check();
        if number % 97 == 0 {
            harness.commit().expect("commits");
        }
    }
    harness.check_all();
    harness.reopen(options());
    harness.check_all();
    for record in harness.records() {
        assert!(record.sealed);
        harness.store.verify(record.id).expect("sound");
    }
}

#[test]
fn containers_never_exceed_their_slots_whatever_the_content() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        for flush_every in [3, 50, 10_000] {
            let options = ContainerOptions { compression, ..options() };
            let mut harness = harness(options.clone());
            for number in 0..300 {
                // Only incompressible chunks: they come closest to the bounds.
                harness.append(stream(0), number * 3).expect("appends");
                if number % flush_every == 0 {
                    harness.commit().expect("commits");
                }
            }
            harness.reopen(options);
            let records = harness.records();
            assert!(records.len() > 5);
            assert!(records.iter().all(|record| record.used_bytes <= CONTAINER_BYTES && record.sealed));
            let full = records.iter().filter(|record| record.used_bytes > CONTAINER_BYTES / 2).count();
            assert!(full + 1 >= records.len() || flush_every < 50, "sealed early: {full} of {}", records.len());
            harness.check_all();
        }
    }
}

#[test]
fn a_stream_keeps_its_container_and_streams_do_not_mix() {
    let mut harness = harness(options());
    let mut owners: HashMap<_, HashSet<u64>> = HashMap::new();
    let mut changes = HashMap::new();
    for number in 0..800 {
        let writer = number % 4;
        let container = harness.append(stream(writer), number).expect("appends");
        owners.entry(container).or_default().insert(writer);
        changes.entry(writer).or_insert_with(Vec::new).push(container);
    }
    assert!(owners.values().all(|writers| writers.len() == 1));
    for mut containers in changes.into_values() {
        let appended = containers.len();
        containers.dedup();
        let distinct: HashSet<_> = containers.iter().collect();
        assert_eq!(distinct.len(), containers.len(), "a stream never comes back to a container it left");
        assert!(containers.len() < appended / 5);
    }
}

#[test]
fn more_streams_than_open_containers_share() {
    let mut harness = harness(options());
    for number in 0..40 {
        harness.append(stream(number), number).expect("appends");
    }
    assert_eq!(harness.store.stats().filling, 4);
    harness.check_all();
}

#[test]
fn streams_beyond_the_limit_of_open_containers_meet_few_others() {
    let mut harness = harness(options());
    let mut writers: HashMap<_, HashSet<u64>> = HashMap::new();
    for number in 0..3000 {
        let container = harness.append(stream(number % 12), number).expect("appends");
        writers.entry(container).or_default().insert(number % 12);
    }
    assert!(writers.len() > 20);
    assert!(writers.values().all(|writers| writers.len() <= 3), "twelve streams share four containers: {writers:?}");
    harness.reopen(options());
    harness.check_all();
}

#[test]
fn open_containers_keep_their_memory_within_its_bound() {
    let options = ContainerOptions { open_limit: 256, ..options() };
    let mut harness = harness(options.clone());
    let (most, bound) = (harness.store.shared.open_max(), harness.store.shared.open_bytes_max());
    assert!((20..100).contains(&most), "{most} containers");
    let mut writers: HashMap<_, HashSet<u64>> = HashMap::new();
    for number in 0..4000 {
        let writer = number % most as u64;
        let container = harness.append(stream(writer), number).expect("appends");
        writers.entry(container).or_default().insert(writer);
        assert!(harness.store.shared.opened.bytes() <= bound);
        harness.store.self_check();
    }
    assert!(writers.values().all(|writers| writers.len() == 1));
    for number in 0..500 {
        harness.append(stream(number % 200), 5000 + number).expect("appends");
        assert!(harness.store.stats().filling <= most as u64);
        assert!(harness.store.shared.opened.bytes() <= bound);
    }
    harness.reopen(options);
    assert_eq!(harness.store.shared.opened.bytes(), 0);
    harness.check_all();
}

#[test]
fn long_tables_of_open_containers_are_sealed_early() {
    let mut harness = harness(options());
    let bound = harness.store.shared.open_bytes_max();
    let print = |number: u64| Fingerprint(std::array::from_fn(|at| number.to_le_bytes()[at % 8] ^ at as u8));
    let mut placed = Vec::new();
    for number in 0..4000_u64 {
        let container = harness.store.append(stream(number % 4), &[(print(number), &[number as u8])]).expect("appends");
        placed.push(container[0]);
        assert!(harness.store.shared.opened.bytes() <= bound);
    }
    harness.reopen(options());
    assert!(harness.records().len() > 4, "sealed before they were full");
    for (number, container) in placed.into_iter().enumerate() {
        let read = harness.store.read_chunk(container, &print(number as u64), Some(1)).expect("reads");
        assert_eq!(read.as_deref(), Some(&[number as u8][..]));
    }
}

#[test]
fn a_chunk_in_the_same_container_is_stored_once() {
    let mut harness = harness(options());
    let (print, data) = chunk(1);
    let containers = harness.store.append(stream(0), &[(print, &data), (print, &data)]).expect("appends");
    let again = harness.store.append(stream(0), &[(print, &data)]).expect("appends");
    assert!(containers.iter().chain(&again).all(|container| *container == containers[0]));
    let written = harness.commit().expect("commits");
    assert_eq!(written.extends[0].entries.len(), 1);
    assert_eq!((written.records[0].chunks, written.records[0].chunk_bytes), (1, data.len() as u64));
}

#[test]
fn a_large_chunk_gets_a_region_of_its_own() {
    let mut harness = harness(options());
    harness.append(stream(0), 1).expect("appends");
    let large: Vec<u8> = (0..30_000_u32).map(|number| ((number * number) >> 7) as u8).collect();
    let print = Fingerprint([9; 32]);
    let container = harness.store.append(stream(0), &[(print, &large)]).expect("appends")[0];
    harness.append(stream(0), 2).expect("appends");
    harness.commit().expect("commits");
    let table = harness.store.table(container).expect("reads").expect("is there");
    let region = table.find(&print).expect("is there").region as usize;
    assert_eq!(table.regions[region].entry_count, 1);
    let read = harness.store.read_chunk(container, &print, Some(30_000)).expect("reads");
    assert_eq!(read.as_deref(), Some(&large[..]));
    harness.check_all();
}

#[test]
fn what_cannot_be_stored_is_refused_and_stops_nothing() {
    let mut harness = harness(options());
    let too_large = vec![1; CONTAINER_BYTES as usize];
    let far_too_large = vec![1; 17 << 20];
    for (print, data) in [
        (Fingerprint([1; 32]), &too_large[..]),
        (Fingerprint([1; 32]), &far_too_large),
        (Fingerprint([1; 32]), &[]),
        (Fingerprint::ZERO, &[1]),
    ] {
        let refused = harness.store.append(stream(0), &[(print, data)]);
        assert!(matches!(refused, Err(EngineError::Store(StoreError::Usage(_)))), "{refused:?}");
    }
    harness.append_all(stream(0), 0..50);
    harness.reopen(options());
    harness.check_all();
}

#[test]
fn options_that_cannot_work_are_refused() {
    for wrong in [
        ContainerOptions { container_bytes: 65_000, ..options() },
        ContainerOptions { container_bytes: 8192, ..options() },
        ContainerOptions { container_bytes: u32::MAX - 4095, ..options() },
        ContainerOptions { region_raw_bytes: 0, ..options() },
    ] {
        let device: Arc<dyn dedupfs_store::device::Device> = Arc::new(MemoryDevice::new());
        let slots = dedupfs_store::container::SlotFiles::open(device, "containers", 65_536, 8).expect("opens");
        let workers = Arc::new(crate::workers::WorkerPool::new(0));
        let ids = Arc::new(|| Err(EngineError::NoSpace));
        let refused = crate::containers::ContainerStore::open(slots, wrong, workers, &[], ids);
        assert!(matches!(refused, Err(EngineError::Store(StoreError::Usage(_)))));
    }
}

#[test]
fn wait_for_room_brings_the_bytes_in_flight_below_the_limit() {
    let limited = ContainerOptions { in_flight_limit_bytes: 16 * 1024, ..options() };
    let mut harness = harness(limited);
    for number in 0..400 {
        harness.store.wait_for_room().expect("makes room");
        assert!(harness.store.in_flight_bytes() <= 16 * 1024);
        harness.append(stream(number % 3), number).expect("appends");
    }
    // Whole blocks cannot reach this limit: the call must return all the same.
    let least = ContainerOptions { in_flight_limit_bytes: 0, ..options() };
    harness.store = open_store(&harness.device, least, &[]).expect("opens");
    for number in 0..100 {
        harness.store.wait_for_room().expect("makes room");
        harness.append(stream(number % 3), number).expect("appends");
    }
}
