//! The power goes at any device operation of a scrub that quarantines: the pool opens, no durably quarantined copy is
//! deduplicated against, the next scrub finds the rest, and the same data heals all.

use std::sync::Arc;

use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_store::container::Compression;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};

use crate::tests::common::{content, read, write};
use crate::tests::scrub::{affected, change, check, format, open, reclaim, scrub};

/// Makes a pool with damage in content and recipes, and returns its disk.
fn damaged() -> (MemoryDevice, Vec<u8>) {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    format(&device, Compression::None);
    let data = content(9, 4 << 20);
    let pool = open(&device);
    write(&pool, "one", &data);
    write(&pool, "two", &data[..2 << 20]);
    pool.close().expect("closes");
    drop(pool);
    change(&device, "containers", &mut |bytes| {
        for place in (30_000..bytes.len()).step_by(700_000) {
            bytes[place] ^= 4;
        }
    });
    let mut is_first = true;
    change(&device, "recipes", &mut |bytes| {
        if std::mem::take(&mut is_first) {
            bytes[300] ^= 4;
        }
    });
    (memory, data)
}

#[test]
fn a_crash_at_any_operation_of_a_quarantine_loses_nothing_and_heals() {
    let (disk, data) = damaged();
    let mut crashes = 0;
    for operation in 0.. {
        let memory = disk.crash(operation);
        let faulty = FaultyDevice::over_memory(&memory);
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        // From this operation on nothing reaches the disk; then the power goes.
        let Ok(pool) = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress) else {
            panic!("opens")
        };
        faulty.add(FaultPlan::new(Fault::Io, operation).on(&Operation::CHANGING).lasting());
        let outcome = pool.scrub(&ScrubOptions::default(), &NoProgress);
        drop(pool);
        let after: Arc<dyn Device> = Arc::new(memory.crash(operation.wrapping_mul(0x9e37)));
        crashes += 1;
        let pool = open(&after);
        let report = scrub(&pool);
        assert_eq!(affected(&report), ["one", "two"], "after operation {operation}");
        write(&pool, "three", &data);
        write(&pool, "four", &data[..2 << 20]);
        pool.sync().expect("syncs");
        for (name, len) in [("one", data.len()), ("two", 2 << 20), ("three", data.len()), ("four", 2 << 20)] {
            assert!(read(&pool, name).as_deref() == Some(&data[..len]), "{name} after operation {operation}");
        }
        assert_eq!(check(&pool).findings, Vec::<String>::new(), "after operation {operation}");
        reclaim(&pool);
        assert_eq!(check(&pool).findings, Vec::<String>::new(), "reclaimed, after operation {operation}");
        pool.close().expect("closes");
        if outcome.is_ok() {
            break;
        }
    }
    println!("{crashes} crash points");
    assert!(crashes > 10, "only {crashes} operations");
}
