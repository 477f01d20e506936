//! Caches, tables, prefetching.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dedupfs_store::container::{EncodedRegion, TableBuilder, TableEntry};
use dedupfs_store::device::MemoryDevice;
use dedupfs_store::device::seeking::{Figures, SeekingDisk};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::{Harness, ask_for, chunk, eventually, options, stream};
use crate::containers::read::{CachedTable, Caches};
use crate::containers::{ContainerOptions, ForwardingNote};
use crate::workers::WorkerPool;

fn wanted(harness: &Harness) -> Vec<(ContainerId, Fingerprint)> {
    let mut numbers: Vec<_> = harness.placed.keys().copied().collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| (harness.placed[&number], chunk(number).0)).collect()
}

#[test]
fn prefetched_chunks_are_read_without_the_disk() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options());
    let wanted = wanted(&harness);
    assert!(wanted.iter().all(|(container, print)| !harness.store.cached(*container, print)));
    eventually("everything is loaded", || {
        ask_for(&harness.store, &wanted);
        eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
        wanted.iter().all(|(container, print)| harness.store.cached(*container, print))
    });
    let loaded = harness.store.stats();
    assert!(loaded.prefetched_regions > 10 && loaded.region_reads == 0);
    harness.check_all();
    let read = harness.store.stats();
    assert_eq!((read.region_reads, read.read_bytes), (0, loaded.read_bytes));
    assert!(read.region_hits >= 150);
}

#[test]
fn prefetching_an_open_container_loads_what_left_the_memory() {
    let options = ContainerOptions { container_bytes: 1 << 20, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options);
    harness.append_all(stream(0), 0..60);
    harness.commit().expect("commits");
    harness.append_all(stream(0), 60..70);
    let wanted = wanted(&harness);
    eventually("everything is loaded", || {
        ask_for(&harness.store, &wanted);
        eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
        wanted.iter().all(|(container, print)| harness.store.cached(*container, print))
    });
    assert!(harness.store.stats().prefetched_regions > 3);
    harness.check_all();
    assert_eq!(harness.store.stats().region_reads, 0);
}

/// Found on a disk that seeks: an aged version lies in some fifty containers, of which its readers need a region by turns. Each cost a seek.
#[test]
fn regression_readers_that_go_on_in_many_containers_by_turns_cost_few_seeks() {
    let seeks = [Duration::ZERO, Duration::from_millis(8)].map(|seek| {
        let disk = SeekingDisk::new(Figures::default());
        // Containers far apart, so that no gap between them is passed over.
        let options = ContainerOptions { container_bytes: 4 << 20, ..options() };
        let mut harness = Harness::new(Arc::new(disk.below(Arc::new(MemoryDevice::new()))), options.clone());
        for number in 0..1500 {
            harness.append(stream(number % 4), number).expect("appends");
        }
        harness.reopen(options);
        harness.store.shared.seeks.set(seek);
        let before = disk.spent();
        for (container, print) in wanted(&harness) {
            if !harness.store.cached(container, &print) {
                ask_for(&harness.store, &[(container, print)]);
                eventually("it is loaded", || harness.store.prefetch_is_idle());
            }
        }
        let seeks = disk.spent().since(&before).seeks;
        harness.check_all();
        seeks
    });
    assert!(seeks[1] * 3 < seeks[0], "{seeks:?}");
}

/// The first chunk of each region of the container with the most regions, and that container.
fn region_by_region(harness: &Harness) -> (ContainerId, Vec<TableEntry>) {
    let tables = harness.records().into_iter().map(|record| (record.id, harness.store.table(record.id)));
    let tables = tables.map(|(id, table)| (id, table.expect("reads").expect("is there")));
    let (id, table) = tables.max_by_key(|(_, table)| table.regions.len()).expect("has containers");
    (id, table.regions.iter().map(|region| table.region_entries(region)[0]).collect())
}

#[test]
fn who_reads_along_a_container_is_kept_ahead() {
    let options = ContainerOptions { container_bytes: 1 << 20, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options);
    let (container, firsts) = region_by_region(&harness);
    assert!(firsts.len() > 20);
    let mut waited_for = 0;
    for first in &firsts {
        waited_for += u64::from(!harness.store.cached(container, &first.fingerprint));
        harness.store.read_chunk(container, &first.fingerprint, None).expect("reads").expect("is there");
        harness.store.read_on(container, &first.fingerprint);
        eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    }
    assert_eq!(waited_for, 2, "the first two show that somebody reads along");
    let stats = harness.store.stats();
    assert_eq!((stats.region_reads, stats.prefetched_regions), (2, firsts.len() as u64 - 2));
}

#[test]
fn who_reads_here_and_there_is_not_kept_ahead() {
    let options = ContainerOptions { container_bytes: 1 << 20, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options);
    let (container, firsts) = region_by_region(&harness);
    // The first region shows no direction; for the others, one or both regions before are missing.
    for at in [0, 3, 4, 8, 12, 13, 17, firsts.len() - 1] {
        harness.store.read_chunk(container, &firsts[at].fingerprint, None).expect("reads").expect("is there");
        harness.store.read_on(container, &firsts[at].fingerprint);
    }
    harness.store.read_on(container, &chunk(1_000_000).0);
    harness.store.read_on(ContainerId(12_345), &firsts[0].fingerprint);
    eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    assert_eq!(harness.store.stats().prefetched_regions, 0);
}

/// Keeps all workers busy until the returned sender is dropped.
fn hold_workers(workers: &WorkerPool) -> crossbeam_channel::Sender<()> {
    let (release, held) = crossbeam_channel::bounded(0);
    for _ in 0..workers.threads() {
        let held = held.clone();
        workers.submit(Box::new(move || {
            let _released = held.recv();
        }));
    }
    release
}

/// Readers request in steps, and a step can end within a container: the second step's requests were dropped.
#[test]
fn regression_what_is_asked_for_while_a_table_is_on_its_way_is_loaded_too() {
    let options = ContainerOptions { container_bytes: 1 << 20, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options.clone());
    let (container, firsts) = region_by_region(&harness);
    // `region_by_region` has read the tables.
    harness.open_again(options);
    let release = hold_workers(&harness.store.shared.workers);
    let asked = [0, 5, 12].map(|number| firsts[number].fingerprint);
    asked.iter().for_each(|print| drop(ask_for(&harness.store, &[(container, *print)])));
    drop(release);
    eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    assert!(asked.iter().all(|print| harness.store.cached(container, print)));
    assert_eq!(harness.store.stats().prefetched_regions, asked.len() as u64);
}

#[test]
fn a_reader_is_told_when_it_has_asked_for_enough() {
    let options = ContainerOptions { container_bytes: 1 << 20, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..240);
    harness.reopen(options.clone());
    let (container, firsts) = region_by_region(&harness);
    let regions_max = (options.region_cache_bytes / 2 / u64::from(options.region_raw_bytes)) as usize;
    let window = regions_max - regions_max / 4;
    assert!(firsts.len() > regions_max);
    let store = &harness.store;
    let mut asking = store.ask_ahead(0).expect("nothing is ahead");
    let added = firsts.iter().take_while(|first| asking.add(container, &first.fingerprint, 1)).count();
    assert_eq!((added, asking.regions()), (window, window));
    assert!(asking.add(container, &firsts[0].fingerprint, 1), "it costs nothing more");
    assert!(asking.add(ContainerId(12_345), &firsts[0].fingerprint, 1), "the container of the chunk before has it");
    assert!(!asking.add(ContainerId(12_345), &Fingerprint([9; 32]), 1), "it must be looked up, and may cost a region");
    assert!(!store.prefetch_is_idle());
    drop(asking);
    assert!(store.prefetch_is_idle(), "what is not started is on nobody's way");
    assert_eq!(store.stats().prefetched_regions, 0);
    // A few at once are not worthwhile.
    assert!(store.ask_ahead(window - window / 4).is_none());
    let mut asking = store.ask_ahead(window - window / 4 - 1).expect("that is worth it");
    assert_eq!(firsts.iter().take_while(|first| asking.add(container, &first.fingerprint, 1)).count(), window / 4 + 1);
    drop(asking);
    // Other readers have taken all the room.
    let others = [(0, window), (window, regions_max - window)].map(|(from, room)| {
        let mut asking = store.ask_ahead(0).expect("nothing is ahead");
        let added = firsts[from..].iter().take_while(|first| asking.add(container, &first.fingerprint, 1)).count();
        assert_eq!(added, room);
        asking
    });
    let mut asking = store.ask_ahead(0).expect("nothing is ahead");
    assert!(asking.add(container, &firsts[0].fingerprint, 1), "it is on its way");
    assert!(!asking.add(container, &firsts[regions_max].fingerprint, 1));
    drop(others);
    assert!(asking.add(container, &firsts[regions_max].fingerprint, 1));
    drop(asking);
    assert!(store.prefetch_is_idle());
}

#[test]
fn what_lies_behind_a_table_counts_as_its_bytes_or_as_its_places() {
    let options = ContainerOptions { container_bytes: 128 << 10, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options.clone());
    let (container, firsts) = region_by_region(&harness);
    let other = harness.records().into_iter().map(|record| record.id).find(|id| *id != container).expect("has two");
    harness.open_again(options.clone());
    let raw_bytes = u64::from(options.region_raw_bytes);
    let regions_max = (options.region_cache_bytes / 2 / raw_bytes) as usize;
    let window = regions_max - regions_max / 4;
    let print = firsts[0].fingerprint;
    let added = |containers: &[ContainerId], len_bytes| {
        let mut asking = harness.store.ask_ahead(0).expect("nothing is ahead");
        let added = containers.iter().cycle().take(1000).take_while(|id| asking.add(**id, &print, len_bytes)).count();
        (added, asking.regions())
    };
    assert_eq!(added(&[container], 1), (1000, 1));
    assert_eq!(added(&[container], raw_bytes / 2), (2 * window - 1, window));
    assert_eq!(added(&[container], raw_bytes), (window - 1, window));
    assert_eq!(added(&[container], 4 * raw_bytes), (window / 4, window + 1));
    assert_eq!(added(&[container, other], raw_bytes / 2), (window, window));
    assert_eq!(added(&[container, container, other, other], raw_bytes / 2), (window, window));
    // No written file has chunks of zero bytes: only the number of requests bounds them.
    let mut asking = harness.store.ask_ahead(0).expect("nothing is ahead");
    let added = (0..1 << 20).take_while(|_| asking.add(container, &print, 0)).count();
    assert!((10_000..100_000).contains(&added), "{added}");
    drop(asking);
    let mut asking = harness.store.ask_ahead(0).expect("nothing is ahead");
    assert!(asking.add(container, &print, u64::MAX) && !asking.add(other, &print, 1));
    drop(asking);
    assert!(harness.store.prefetch_is_idle());
    assert_eq!(harness.store.stats().read_bytes, 0);
}

/// Found by review: jobs kept the store, with its files and caches, until they were done.
#[test]
fn regression_reads_that_wait_do_not_keep_a_store_that_nobody_has() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options());
    let wanted = wanted(&harness);
    let workers = Arc::clone(&harness.store.shared.workers);
    let release = hold_workers(&workers);
    ask_for(&harness.store, &wanted);
    assert!(!harness.store.prefetch_is_idle());
    let store = Arc::downgrade(&harness.store.shared);
    harness.open_again(options());
    assert!(store.upgrade().is_none());
    drop(release);
    drop(workers);
    harness.check_all();
}

/// A region cached when it was requested was pushed out by further requests, and read again.
#[test]
fn regression_what_is_there_when_it_is_asked_for_stays_until_it_is_read() {
    let options = ContainerOptions { container_bytes: 1 << 20, region_cache_bytes: 60_000, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options.clone());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options);
    let (container, firsts) = region_by_region(&harness);
    let is_cached = |number: usize| harness.store.cached(container, &firsts[number].fingerprint);
    let ask = |number: usize| {
        ask_for(&harness.store, &[(container, firsts[number].fingerprint)]);
        eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    };
    // Regions that come into an empty cache stay longer.
    (0..20).chain([20, 21, 20]).for_each(ask);
    let last = (22..firsts.len()).find(|number| {
        ask(*number);
        !is_cached(21)
    });
    assert!(last.is_some(), "the cache holds all of it");
    assert!(is_cached(20));
}

#[test]
fn prefetching_nonsense_does_nothing() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..10);
    harness.reopen(options());
    let known = harness.records()[0].id;
    let wanted = [(ContainerId(12_345), chunk(1).0), (known, Fingerprint([3; 32])), (ContainerId::NONE, chunk(2).0)];
    assert_eq!(ask_for(&harness.store, &wanted), [chunk(1).0, chunk(2).0]);
    eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    assert_eq!(harness.store.stats().prefetched_regions, 0);
}

#[test]
fn a_small_cache_is_kept_and_still_reads_everything() {
    let small = ContainerOptions { region_cache_bytes: 20_000, table_cache_bytes: 4_000, ..options() };
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..150);
    harness.reopen(small.clone());
    for round in 0..3 {
        ask_for(&harness.store, &wanted(&harness));
        harness.check_all();
        let stats = harness.store.stats();
        assert!(stats.region_cache_bytes <= small.region_cache_bytes, "round {round}: {stats:?}");
        assert!(stats.table_cache_bytes <= small.table_cache_bytes);
    }
    let none = ContainerOptions { region_cache_bytes: 0, table_cache_bytes: 0, ..options() };
    harness.open_again(none);
    ask_for(&harness.store, &wanted(&harness));
    harness.check_all();
}

#[test]
fn a_region_is_read_once_for_all_its_chunks() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..100);
    harness.reopen(options());
    harness.check_all();
    harness.check_all();
    let tables = harness.records().into_iter().map(|record| harness.store.table(record.id).expect("reads"));
    let regions: usize = tables.map(|table| table.expect("is there").regions.len()).sum();
    assert_eq!(harness.store.stats().region_reads, regions as u64);
}

#[test]
fn tables_name_every_chunk_of_open_and_closed_containers() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..100);
    harness.commit().expect("commits");
    for closed in [false, true] {
        for (number, container) in &harness.placed {
            let table = harness.store.table(*container).expect("reads").expect("is there");
            let (print, data) = chunk(*number);
            assert_eq!(table.find(&print).expect("is there").len_bytes as usize, data.len());
        }
        let mut seen = 0;
        for record in harness.records() {
            let visit = &mut |print: &Fingerprint, data: &[u8]| {
                let number = harness.placed.keys().find(|number| chunk(**number).0 == *print).expect("is ours");
                assert_eq!(chunk(*number).1, data);
                seen += 1;
                Ok(())
            };
            assert!(harness.store.for_each_chunk(record.id, visit).expect("reads"));
        }
        assert_eq!(seen, 100);
        if !closed {
            harness.reopen(options());
        }
    }
}

#[test]
fn chunks_that_a_container_does_not_hold_are_absent() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    let container = harness.append(stream(0), 1).expect("appends");
    for _ in 0..2 {
        assert!(harness.store.read_chunk(container, &chunk(2).0, Some(10)).expect("reads").is_none());
        let (print, data) = chunk(1);
        assert!(
            harness.store.read_chunk(container, &print, Some(data.len() as u32 + 1)).is_err(),
            "another length is damage"
        );
        harness.reopen(options());
    }
    assert!(harness.store.read_chunk(ContainerId::NONE, &chunk(1).0, Some(10)).expect("reads").is_none());
}

/// A container of tiny chunks has a table of megabytes. No shard accepted it, so it was built anew for each chunk read.
#[test]
fn regression_the_largest_tables_are_cached() {
    const REGION_ENTRIES: u32 = 1000;
    let container_bytes = 4 << 20;
    let table = |id: u64| {
        let mut builder = TableBuilder::new(ContainerId(id), ContainerKind::Data);
        // As many chunks as there is room for their fingerprints.
        for region in 0..container_bytes / 36 / REGION_ENTRIES {
            let entry = |number: u32| TableEntry {
                fingerprint: Fingerprint(std::array::from_fn(|at| if at < 4 { number.to_le_bytes()[at] } else { 1 })),
                len_bytes: 1,
            };
            let entries: Vec<_> = (0..REGION_ENTRIES).map(|number| entry(region * REGION_ENTRIES + number)).collect();
            let encoded = EncodedRegion {
                head: Vec::new(),
                raw_follows: true,
                frame_bytes: 64,
                entries,
                raw_bytes: REGION_ENTRIES,
            };
            builder.push_region(region * 64, &encoded).unwrap();
        }
        CachedTable::sound(Arc::new(builder.build()))
    };
    let large = table(1);
    assert!(large.table.entries.len() > 100_000);
    // The shares of 256 MiB, 512 MiB and 4 GiB.
    for table_cache_bytes in [14 << 20, 29 << 20, 234 << 20] {
        let caches = Caches::new(1 << 20, table_cache_bytes, options().region_raw_bytes, container_bytes);
        for id in 1..20 {
            caches.tables.insert(ContainerId(id), large.clone());
            assert!(caches.tables.get(&ContainerId(id)).is_some(), "{table_cache_bytes} bytes, container {id}");
        }
        assert!(caches.tables.weight() <= table_cache_bytes);
    }
}

#[test]
fn notes_lead_from_containers_that_are_gone_to_the_copies() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..150);
    harness.reopen(options());
    let (wanted_before, placed_before) = (wanted(&harness), harness.placed.clone());
    harness.append_all(stream(1), 0..150);
    harness.reopen(options());
    let mut moved = BTreeMap::<ContainerId, BTreeSet<ContainerId>>::new();
    for (number, before) in &placed_before {
        moved.entry(*before).or_default().insert(harness.placed[number]);
    }
    let gone: Vec<ContainerId> = moved.keys().copied().collect();
    harness.store.remove(&gone).expect("removes");
    let unplaced = || {
        let mut asking = harness.store.ask_ahead(0).expect("nothing is ahead");
        let added = wanted_before.iter().take_while(|(container, print)| asking.add(*container, print, 1)).count();
        assert_eq!(added, wanted_before.len());
        asking.start()
    };
    let all: Vec<Fingerprint> = wanted_before.iter().map(|(_, print)| *print).collect();
    assert_eq!(unplaced(), all, "without notes");
    harness.store.add_forwarding_notes(moved.iter().filter_map(|(from, to)| ForwardingNote::new(*from, to)));
    assert_eq!(unplaced(), all, "without tables");
    for container in moved.values().flatten() {
        assert!(harness.store.table(*container).expect("reads").is_some());
    }
    eventually("everything is loaded", || {
        ask_for(&harness.store, &wanted_before);
        eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
        wanted_before.iter().all(|(container, print)| harness.store.cached(*container, print))
    });
    for (number, before) in &placed_before {
        assert_eq!(harness.store.successor(*before, &chunk(*number).0), Some(harness.placed[number]));
    }
    assert_eq!(harness.store.successor(gone[0], &Fingerprint([9; 32])), None);
    assert_eq!(harness.store.forwarding_notes().len(), gone.len());
    // Notes are dropped when what they lead to is gone.
    let earlier = ForwardingNote::new(ContainerId(u64::MAX), &BTreeSet::from([gone[0]]));
    harness.store.add_forwarding_notes(earlier);
    let present: Vec<ContainerId> = moved.values().flatten().copied().collect();
    assert_eq!(harness.store.forwarding_notes().len(), gone.len(), "a note may lead through later containers only");
    harness.store.remove(&present).expect("removes");
    assert_eq!(harness.store.forwarding_notes(), []);
    assert_eq!(harness.store.stats().region_reads, 0);
}

#[test]
fn notes_that_lead_in_a_circle_end_a_search() {
    let harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    let note = |from: u64, to: u64| ForwardingNote::new(ContainerId(from), &BTreeSet::from([ContainerId(to)]));
    harness.store.add_forwarding_notes([note(1, 2), note(2, 3), note(3, 1)].into_iter().flatten());
    let all = ForwardingNote { from: ContainerId(4), first: ContainerId(1), others: u64::MAX };
    harness.store.add_forwarding_notes([all]);
    for gone in 1..6 {
        assert_eq!(harness.store.successor(ContainerId(gone), &chunk(1).0), None);
    }
}
