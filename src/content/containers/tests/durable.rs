//! Writing out, acknowledging, crashing, removing.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_store::Fingerprint;
use dedupfs_store::device::{Device, MemoryDevice};

use super::{Harness, chunk, open_store, options, stream};

#[test]
fn a_flush_reports_exactly_what_is_new() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    let mut reported = HashSet::new();
    for round in 0..20 {
        harness.append_all(stream(round % 2), round * 10..round * 10 + 10);
        let written = harness.commit().expect("commits");
        for extended in &written.extends {
            let record = written.records.iter().find(|record| record.id == extended.container).expect("has a record");
            assert_eq!(record.used_bytes, extended.to_bytes);
            assert!(extended.from_bytes < extended.to_bytes);
            for entry in &extended.entries {
                assert!(reported.insert(entry.fingerprint), "reported twice");
            }
        }
    }
    let all: HashSet<Fingerprint> = (0..200).map(|number| chunk(number).0).collect();
    assert_eq!(reported, all);
    let nothing = harness.store.write_out().expect("writes out");
    assert!(nothing.records.is_empty() && nothing.extends.is_empty());
    let chunks: u32 = harness.records().iter().map(|record| record.chunks).sum();
    assert_eq!(chunks, 200);
}

#[test]
fn what_was_not_acknowledged_is_reported_again_merged() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..5);
    let first = harness.store.write_out().expect("writes out");
    harness.append_all(stream(0), 5..9);
    let second = harness.store.write_out().expect("writes out");
    let third = harness.store.write_out().expect("writes out");
    assert_eq!((first.extends[0].entries.len(), second.extends[0].entries.len()), (5, 9));
    assert_eq!(second, third);
    // The first commit was late: the rest is still to be reported.
    harness.store.acknowledge(&first.records);
    let rest = harness.store.write_out().expect("writes out");
    assert_eq!((rest.extends[0].from_bytes, rest.extends[0].entries.len()), (first.extends[0].to_bytes, 4));
    assert_eq!(rest.records, second.records);
}

#[test]
fn sealing_is_reported_even_without_new_chunks() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..5);
    let open = harness.commit().expect("commits").records;
    assert!(!open[0].sealed && open[0].toc.is_none() && harness.store.closed_record(open[0].id).is_none());
    harness.store.seal_all();
    let sealed = harness.commit().expect("commits");
    assert!(sealed.records[0].sealed && sealed.records[0].toc.is_some() && sealed.extends.is_empty());
    assert!(harness.store.closed_record(open[0].id).is_some());
    harness.check_all();
    assert_eq!(harness.store.record(open[0].id), Some(sealed.records[0]));
    assert_eq!(harness.store.containers(), sealed.records);
    harness.store.seal_all();
    assert!(harness.commit().expect("commits").records.is_empty(), "nothing is sealed twice");
}

#[test]
fn committed_chunks_survive_every_power_loss() {
    let memory = MemoryDevice::new();
    let mut harness = Harness::new(Arc::new(memory.clone()), options());
    let mut number = 0;
    for round in 0..6 {
        for _ in 0..40 {
            harness.append(stream(number % 3), number).expect("appends");
            number += 1;
        }
        harness.commit().expect("commits");
        let committed = harness.placed.clone();
        // Written, never committed: may or may not be on disk.
        for _ in 0..60 {
            harness.append(stream(number % 3), number).expect("appends");
            number += 1;
        }
        if round % 2 == 0 {
            harness.store.write_out().expect("writes out");
        }
        for seed in 0..5 {
            let disk: Arc<dyn Device> = Arc::new(memory.crash(round * 100 + seed));
            let store = open_store(&disk, options(), &harness.records()).expect("opens after the crash");
            let mut after = Harness::new(Arc::new(MemoryDevice::new()), options());
            (after.store, after.device, after.placed) = (store, disk, committed.clone());
            after.check_all();
            for record in harness.records() {
                after.store.verify(record.id).expect("sound");
            }
            // Slots without a record are free, and their old content disturbs nobody.
            after.append_all(stream(0), 10_000..10_050);
            after.commit().expect("commits");
            after.check_all();
        }
    }
}

#[test]
fn an_unsealed_container_is_never_appended_to_after_opening() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..5);
    harness.commit().expect("commits");
    let before = harness.records();
    harness.open_again(options());
    harness.append_all(stream(0), 5..10);
    harness.commit().expect("commits");
    assert!(harness.records().starts_with(&before));
    assert_eq!(harness.records().len(), 2);
    harness.check_all();
    assert!(harness.store.closed_record(before[0].id).is_some());
}

#[test]
fn removed_containers_are_gone_and_their_slots_used_again() {
    let memory = MemoryDevice::new();
    let mut harness = Harness::new(Arc::new(memory.clone()), options());
    harness.append_all(stream(0), 0..200);
    harness.reopen(options());
    harness.check_all();
    let used = memory.used_bytes();
    let removed: Vec<_> = harness.records().iter().map(|record| record.id).step_by(2).collect();
    let addresses: HashSet<_> =
        harness.records().iter().filter(|record| removed.contains(&record.id)).map(|record| record.address).collect();
    harness.store.remove(&removed).expect("frees");
    harness.records.retain(|id, _| !removed.contains(id));
    assert!(memory.used_bytes() < used * 3 / 4, "the space is given back");
    for (number, container) in &harness.placed {
        let (print, data) = chunk(*number);
        let read = harness.store.read_chunk(*container, &print, Some(data.len() as u32)).expect("reads");
        assert_eq!(read.is_none(), removed.contains(container));
    }
    assert!(!harness.store.is_known(removed[0]));
    assert_eq!(harness.store.table(removed[0]).expect("asks").map(|_| ()), None);
    assert!(!harness.store.for_each_chunk(removed[0], &mut |_, _| Ok(())).expect("asks"));
    harness.store.remove(&removed).expect("nothing to free");
    harness.placed.retain(|_, container| !removed.contains(container));
    harness.append_all(stream(0), 200..400);
    harness.reopen(options());
    harness.check_all();
    assert!(harness.records().iter().any(|record| addresses.contains(&record.address)));
}

#[test]
fn an_open_container_cannot_be_removed() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..3);
    harness.commit().expect("commits");
    let id = harness.records()[0].id;
    assert!(matches!(harness.store.remove(&[id]), Err(EngineError::Store(_))));
    harness.check_all();
}

#[test]
fn records_that_contradict_the_options_are_refused() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..3);
    harness.reopen(options());
    let good = harness.records()[0];
    let mut twice = good;
    twice.id = dedupfs_store::ContainerId(99);
    let mut kind = good;
    kind.kind = dedupfs_store::ContainerKind::Recipe;
    let mut size = good;
    size.used_bytes = u32::MAX;
    for records in [vec![good, twice], vec![kind], vec![size]] {
        assert!(open_store(&harness.device, options(), &records).is_err());
    }
}
