//! Several threads at once. Each test would hang, read wrong bytes or lose chunks if a transition were not safe.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupfs_store::container::SlotFiles;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::{ContainerId, ContainerRecord};
use parking_lot::Mutex;

use super::{DIRECTORY, POOL, ask_for, chunk, open_store, options, stream};
use crate::containers::{ContainerOptions, ContainerStore};

type Placed = Mutex<Vec<(u64, ContainerId)>>;

fn check(store: &ContainerStore, number: u64, container: ContainerId) {
    let (print, data) = chunk(number);
    let read = store.read_chunk(container, &print, Some(data.len() as u32)).expect("reads");
    assert_eq!(read.as_deref(), Some(&data[..]), "chunk {number} in {container}");
}

#[test]
fn writers_readers_and_writing_out_at_once() {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let small_cache = ContainerOptions { region_cache_bytes: 40_000, in_flight_limit_bytes: 64 * 1024, ..options() };
    let store = open_store(&device, small_cache, &[]).expect("opens");
    let placed: Placed = Mutex::new(Vec::new());
    let committed: Mutex<HashMap<ContainerId, ContainerRecord>> = Mutex::default();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (store, placed) = (&store, &placed);
                scope.spawn(move || {
                    for number in 0..400 {
                        store.wait_for_room().expect("makes room");
                        let number = writer * 1000 + number;
                        let (print, data) = chunk(number);
                        let container = store.append(stream(writer), &[(print, &data)]).expect("appends")[0];
                        check(store, number, container);
                        placed.lock().push((number, container));
                    }
                })
            })
            .collect();
        for reader in 0..2_usize {
            let (store, placed, is_done) = (&store, &placed, &is_done);
            scope.spawn(move || {
                let mut turn = reader;
                while !is_done.load(Ordering::Relaxed) {
                    turn = turn.wrapping_mul(31).wrapping_add(7);
                    let some = {
                        let placed = placed.lock();
                        placed.get(turn % placed.len().max(1)).copied()
                    };
                    if let Some((number, container)) = some {
                        ask_for(store, &[(container, chunk(number).0)]);
                        check(store, number, container);
                    }
                }
            });
        }
        let writing_out = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let before: Vec<_> = placed.lock().clone();
                let written = store.write_out().expect("writes out");
                store.acknowledge(&written.records);
                let mut committed = committed.lock();
                committed.extend(written.records.iter().map(|record| (record.id, *record)));
                // All chunks appended before the `flush` survive a power loss after it.
                let records: Vec<_> = committed.values().cloned().collect();
                let disk: Arc<dyn Device> = Arc::new(memory.crash(before.len() as u64));
                let after = open_store(&disk, options(), &records).expect("opens");
                before.iter().step_by(17).for_each(|(number, container)| check(&after, *number, *container));
                store.self_check();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("writes"));
        is_done.store(true, Ordering::Relaxed);
        writing_out.join().expect("writes out");
    });
    store.seal_all();
    let written = store.write_out().expect("writes out");
    store.acknowledge(&written.records);
    // A worker may still be about to subtract its bytes.
    let started = std::time::Instant::now();
    while store.in_flight_bytes() > 0 && started.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!(store.in_flight_bytes(), 0, "what is in flight is accounted for exactly");
    let mut committed = committed.into_inner();
    committed.extend(written.records.into_iter().map(|record| (record.id, record)));
    let records: Vec<_> = committed.into_values().collect();
    assert!(records.iter().all(|record| record.sealed));
    let chunks: u32 = records.iter().map(|record| record.chunks).sum();
    assert_eq!(chunks, 1600);
    let after = open_store(&device, options(), &records).expect("opens");
    for (number, container) in placed.into_inner() {
        check(&store, number, container);
        check(&after, number, container);
    }
    records.iter().for_each(|record| after.verify(record.id).expect("sound"));
}

#[test]
fn readers_of_a_container_that_is_removed_and_overwritten_get_data_or_nothing() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    // Practically no cache: every read goes to the disk.
    let uncached = ContainerOptions { region_cache_bytes: 0, table_cache_bytes: 0, ..options() };
    let store = open_store(&device, uncached, &[]).expect("opens");
    let current: Placed = Mutex::new(Vec::new());
    let is_done = AtomicBool::new(false);
    let commit = |store: &ContainerStore| {
        store.seal_all();
        let written = store.write_out().expect("writes out");
        store.acknowledge(&written.records);
        written.records
    };
    std::thread::scope(|scope| {
        for reader in 0..3_usize {
            let (store, current, is_done) = (&store, &current, &is_done);
            scope.spawn(move || {
                let (mut turn, mut found) = (reader, 0);
                while !is_done.load(Ordering::Relaxed) {
                    turn = turn.wrapping_mul(31).wrapping_add(7);
                    let some = {
                        let current = current.lock();
                        current.get(turn % current.len().max(1)).copied()
                    };
                    let Some((number, container)) = some else { continue };
                    let (print, data) = chunk(number);
                    ask_for(store, &[(container, print)]);
                    let read = store.read_chunk(container, &print, Some(data.len() as u32));
                    if let Some(read) = read.expect("a removed container is no damage") {
                        assert_eq!(&read[..], data);
                        found += 1;
                    }
                    store.table(container).expect("a removed container is no damage");
                    store.verify(container).expect("a removed container is no damage");
                }
                assert!(found > 0);
            });
        }
        for round in 0..60_u64 {
            let numbers = round * 100..round * 100 + 60;
            let appended: Vec<_> = numbers
                .map(|number| {
                    let (print, data) = chunk(number);
                    (number, store.append(stream(0), &[(print, &data)]).expect("appends")[0])
                })
                .collect();
            let records = commit(&store);
            *current.lock() = appended;
            std::thread::sleep(Duration::from_millis(3));
            let removed: Vec<_> = records.iter().map(|record| record.id).collect();
            // The readers keep requesting the removed chunks.
            store.remove(&removed).expect("frees");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let slots = SlotFiles::open(device, DIRECTORY, options().container_bytes, 8).expect("opens");
    assert_eq!(slots.taken_slots(), 0);
    assert_eq!(options().pool, POOL);
}

#[test]
fn sealing_while_others_append_loses_nothing() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let store = open_store(&device, options(), &[]).expect("opens");
    let placed: Placed = Mutex::new(Vec::new());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (store, placed) = (&store, &placed);
                // All writers share one stream.
                scope.spawn(move || {
                    for number in writer * 1000..writer * 1000 + 300 {
                        let (print, data) = chunk(number);
                        let container = store.append(stream(0), &[(print, &data)]).expect("appends")[0];
                        placed.lock().push((number, container));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store.seal_all();
                let written = store.write_out().expect("writes out");
                store.acknowledge(&written.records);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("writes"));
        is_done.store(true, Ordering::Relaxed);
    });
    store.seal_all();
    store.acknowledge(&store.write_out().expect("writes out").records);
    for (number, container) in placed.into_inner() {
        check(&store, number, container);
        assert!(store.closed_record(container).is_some());
    }
    assert_eq!(store.stats().filling, 0);
}

/// Statistics held the directory while they waited for the streams; a writer that opens a container takes them the other way round.
#[test]
fn regression_statistics_hold_no_lock_while_they_wait_for_another() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let store = open_store(&device, options(), &[]).expect("opens");
    let streams = store.streams.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| store.stats());
        for _ in 0..200 {
            assert!(store.shared.directory.try_write_for(Duration::from_secs(10)).is_some(), "a writer waits for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(streams);
    });
}
