//! Failing disks and panics: no acknowledged chunk is lost, and no chunk is reported durable too early (I-1, I-7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::EngineError;
use dedupfs_store::container::Compression;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, DeviceFile, Entry, MemoryDevice, OpenMode, Space};

use super::{Harness, ask_for, eventually, open_store, options, stream};
use crate::containers::ContainerOptions;

const WRITING: [Operation; 5] =
    [Operation::Create, Operation::Write, Operation::Sync, Operation::SetLen, Operation::SyncDirectory];

/// Appends and commits in rounds of `chunks` chunks; retries a failed commit once. Returns whether the store stopped.
fn work(harness: &mut Harness, chunks: u64) -> bool {
    for round in 0..5 {
        harness.append_all(stream(round % 2), round * chunks..(round + 1) * chunks);
        if harness.commit().is_err() {
            // After any failure the appended chunks can still be read.
            harness.check_all();
            if harness.store.failure().is_some() {
                assert!(harness.store.write_out().is_err(), "a stopped store stays stopped");
                assert!(harness.append(stream(9), 9_999).is_err());
                return true;
            }
            harness.commit().expect("a second attempt of a failed write succeeds");
        }
    }
    false
}

#[test]
fn every_failing_operation_is_survived_or_stops_the_store() {
    every_operation_fails(&options(), 20);
}

/// The frames of such regions use bytes in place that others read and that are used again afterwards.
#[test]
fn every_failing_operation_is_survived_with_large_incompressible_regions() {
    let (container_bytes, region_raw_bytes) = (512 << 10, 80_000);
    let large = ContainerOptions { compression: Compression::None, container_bytes, region_raw_bytes, ..options() };
    every_operation_fails(&large, 70);
}

fn every_operation_fails(options: &ContainerOptions, chunks: u64) {
    for fault in [Fault::Io, Fault::NoSpace, Fault::ShortWrite, Fault::ShortWriteNoSpace] {
        let (mut position, mut stops, mut struck) = (0, 0, 0);
        loop {
            let memory = MemoryDevice::new();
            let faulty = FaultyDevice::over_memory(&memory);
            let mut harness = Harness::new(Arc::new(faulty.clone()), options.clone());
            let kinds: &[Operation] = match fault {
                Fault::Io => &WRITING,
                Fault::NoSpace => &[Operation::Create, Operation::Write],
                Fault::ShortWrite | Fault::ShortWriteNoSpace => &[Operation::Write],
                Fault::ShortRead => &[Operation::Read],
                Fault::NotFound => &[Operation::Open, Operation::Create],
            };
            faulty.add(FaultPlan::new(fault, position).on(kinds));
            let stopped = work(&mut harness, chunks);
            stops += u32::from(stopped);
            faulty.heal();
            if !stopped {
                harness.check_all();
            }
            let disk: Arc<dyn Device> = Arc::new(memory.crash(position));
            let records = harness.records();
            let after = open_store(&disk, options.clone(), &records).expect("opens after the crash");
            for record in &records {
                after.verify(record.id).expect("what was committed is sound");
            }
            struck += faulty.injected();
            if faulty.injected() == 0 {
                break;
            }
            position += 1;
        }
        assert!(struck > 5, "{fault:?} struck {struck} times");
        assert_eq!(stops > 0, fault == Fault::Io, "only a failed sync stops the store");
    }
}

#[test]
fn a_failed_sync_stops_the_store_for_ever() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let mut harness = Harness::new(Arc::new(faulty.clone()), options());
    harness.append_all(stream(0), 0..10);
    harness.commit().expect("commits");
    harness.append_all(stream(0), 10..20);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]));
    let first = harness.store.write_out().expect_err("the sync fails").to_string();
    faulty.heal();
    assert_eq!(harness.store.write_out().expect_err("a second sync proves nothing").to_string(), first);
    assert!(harness.append(stream(0), 20).is_err());
    assert!(harness.store.wait_for_room().is_err());
    assert!(harness.store.failure().is_some());
    harness.check_all();
}

#[test]
fn a_full_disk_is_reported_and_forgotten_when_there_is_space_again() {
    let memory = MemoryDevice::with_capacity(200 * 1024);
    let mut harness = Harness::new(Arc::new(memory.clone()), options());
    let mut number = 0;
    let error = loop {
        if let Err(error) = harness.store.wait_for_room() {
            break error;
        }
        harness.append(stream(number % 3), number).expect("appends");
        number += 1;
        assert!(number < 10_000, "a full disk must be noticed");
    };
    assert!(error.is_no_space(), "{error}");
    assert!(harness.store.write_out().expect_err("is full").is_no_space());
    assert!(harness.store.failure().is_none());
    harness.check_all();
    // Callers that do not wait for room are stopped too, so that memory stays bounded.
    let refused = loop {
        if let Err(error) = harness.append(stream(number % 3), number) {
            break error;
        }
        number += 1;
        assert!(number < 10_000, "memory must stay bounded");
    };
    assert!(refused.is_no_space());
    memory.set_capacity(64 << 20);
    harness.commit().expect("there is space again");
    harness.store.wait_for_room().expect("there is room again");
    harness.append_all(stream(0), number..number + 10);
    harness.reopen(options());
    harness.check_all();
}

#[test]
fn failing_reads_are_errors_and_not_cached() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let mut harness = Harness::new(Arc::new(faulty.clone()), options());
    harness.append_all(stream(0), 0..40);
    harness.reopen(options());
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).lasting());
    for (number, container) in &harness.placed {
        let (print, data) = super::chunk(*number);
        assert!(harness.store.read_chunk(*container, &print, Some(data.len() as u32)).is_err());
        ask_for(&harness.store, &[(*container, print)]);
    }
    eventually("the prefetcher is idle", || harness.store.prefetch_is_idle());
    faulty.heal();
    harness.check_all();
}

#[test]
fn a_failing_free_leaves_the_others_freed() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let mut harness = Harness::new(Arc::new(faulty.clone()), options());
    harness.append_all(stream(0), 0..100);
    harness.reopen(options());
    let all: Vec<_> = harness.records().iter().map(|record| record.id).collect();
    assert!(all.len() > 2);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Punch]));
    assert!(harness.store.remove(&all).is_err());
    assert!(all.iter().all(|id| !harness.store.is_known(*id)));
    harness.placed.clear();
    harness.records.clear();
    harness.append_all(stream(0), 0..100);
    harness.reopen(options());
    harness.check_all();
}

/// A device whose writes panic on demand: stands for a bug in a worker's job.
#[derive(Debug, Clone)]
struct Panicking {
    inner: MemoryDevice,
    armed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct PanickingFile {
    inner: Arc<dyn DeviceFile>,
    armed: Arc<AtomicBool>,
}

impl Device for Panicking {
    fn open(&self, path: &str, mode: OpenMode) -> dedupfs_store::Result<Arc<dyn DeviceFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(PanickingFile { inner, armed: Arc::clone(&self.armed) }))
    }
    fn remove(&self, path: &str) -> dedupfs_store::Result<()> {
        self.inner.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> dedupfs_store::Result<()> {
        self.inner.rename(from, to)
    }
    fn rename_absent(&self, from: &str, to: &str) -> dedupfs_store::Result<()> {
        self.inner.rename_absent(from, to)
    }
    fn create_directory(&self, path: &str) -> dedupfs_store::Result<()> {
        self.inner.create_directory(path)
    }
    fn list(&self, path: &str) -> dedupfs_store::Result<Vec<Entry>> {
        self.inner.list(path)
    }
    fn sync_directory(&self, path: &str) -> dedupfs_store::Result<()> {
        self.inner.sync_directory(path)
    }
    fn exists(&self, path: &str) -> dedupfs_store::Result<bool> {
        self.inner.exists(path)
    }
    fn space(&self) -> dedupfs_store::Result<Space> {
        self.inner.space()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl DeviceFile for PanickingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> dedupfs_store::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, buffer: &[u8], offset: u64) -> dedupfs_store::Result<()> {
        assert!(!self.armed.load(Ordering::Relaxed), "on purpose");
        self.inner.write_at(buffer, offset)
    }
    fn sync(&self) -> dedupfs_store::Result<()> {
        self.inner.sync()
    }
    fn len(&self) -> dedupfs_store::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len_bytes: u64) -> dedupfs_store::Result<()> {
        self.inner.set_len(len_bytes)
    }
    fn punch(&self, offset: u64, len_bytes: u64) -> dedupfs_store::Result<()> {
        self.inner.punch(offset, len_bytes)
    }
    fn allocated_bytes(&self) -> dedupfs_store::Result<u64> {
        self.inner.allocated_bytes()
    }
}

#[test]
fn a_panic_on_a_worker_stops_the_store_and_hangs_nobody() {
    let device = Panicking { inner: MemoryDevice::new(), armed: Arc::new(AtomicBool::new(false)) };
    let armed = Arc::clone(&device.armed);
    let limited = ContainerOptions { in_flight_limit_bytes: u64::MAX / 4, ..options() };
    let mut harness = Harness::new(Arc::new(device), limited);
    harness.append_all(stream(0), 0..10);
    harness.commit().expect("commits");
    armed.store(true, Ordering::Relaxed);
    for number in 10..200 {
        if harness.append(stream(0), number).is_err() {
            break;
        }
    }
    eventually("the store has stopped", || harness.store.failure().is_some());
    assert!(matches!(harness.store.write_out(), Err(EngineError::ReadOnly(_))));
    assert!(harness.append(stream(1), 500).is_err());
    harness.check_all();
}
