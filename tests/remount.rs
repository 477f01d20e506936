//! A pool is made read-only while it is open: everything is durable then, nothing more is written, and it goes on
//! afterwards.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::device::faulty::{FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use common::{CALLER, content, read, try_write, write};

const INTERVAL: Duration = Duration::from_millis(20);

fn formatted() -> MemoryDevice {
    let disk = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 4,
        ..PoolProperties::default()
    };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    disk
}

fn open(device: Arc<dyn Device>, read_only: bool) -> Arc<Pool> {
    let options = PoolOptions { read_only, commit_interval: INTERVAL, ..PoolOptions::default() };
    Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn assert_recovered(disk: MemoryDevice, expected: &[(&str, Vec<u8>)]) {
    let pool = open(Arc::new(disk), false);
    assert!(!pool.recovery().is_needed(), "there was something to recover: {:?}", pool.recovery());
    for (name, data) in expected {
        assert!(read(&pool, name).as_deref() == Some(data), "{name}");
    }
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.close().expect("closes");
}

#[test]
fn nothing_is_lost_and_nothing_is_written_while_it_is_read_only() {
    let disk = formatted();
    let device = FaultyDevice::over_memory(&disk);
    let pool = open(Arc::new(device.clone()), false);
    write(&pool, "whole", &content(1, 900_000));
    write(&pool, "doomed", &content(3, 50_000));
    // Open for writing, and neither flushed nor closed: the kernel would refuse, but the pool makes it durable as it
    // is.
    let service = pool.service();
    let ino = service.lookup(ROOT_INO, b"whole").expect("is there").ino;
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    service.write(CALLER, ino, handle, 900_000, b"and more", WriteFlags::default()).expect("writes");
    let whole: Vec<u8> = content(1, 900_000).into_iter().chain(*b"and more").collect();
    // Unlinked; the kernel forgets it only later.
    let doomed = service.lookup(ROOT_INO, b"doomed").expect("is there").ino;
    service.unlink(ROOT_INO, b"doomed").expect("unlinks");
    service.forget(doomed, 1);

    pool.set_read_only().expect("becomes read-only");
    pool.set_read_only().expect("is so already");
    let written = device.operations_of(&Operation::CHANGING);
    assert!(service.write(CALLER, ino, handle, 0, b"no", WriteFlags::default()).is_err());
    assert!(service.unlink(ROOT_INO, b"whole").is_err());
    assert!(read(&pool, "whole").as_deref() == Some(&whole));
    pool.sync().expect("syncs");
    pool.stats().expect("has statistics");
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert!(pool.scrub(&ScrubOptions::default(), &NoProgress).expect("scrubs").is_clean());
    let reclaim = ReclaimOptions::below(100);
    assert!(pool.reclaim(&reclaim, &NoProgress).expect_err("refuses").to_string().contains("read-only"));
    std::thread::sleep(10 * INTERVAL);
    assert_eq!(device.operations_of(&Operation::CHANGING), written, "something was written");
    assert_recovered(disk.crash(1), &[("whole", whole.clone())]);

    pool.set_writable().expect("becomes writable");
    assert!(service.write(CALLER, ino, handle, 0, b"yes", WriteFlags::default()).is_ok());
    service.flush(ino, handle).expect("flushes");
    service.release(ino, handle);
    write(&pool, "new", &content(2, 300_000));
    let changed: Vec<u8> = b"yes".iter().chain(&whole[3..]).copied().collect();
    let expected = [("whole", changed), ("new", content(2, 300_000))];
    pool.reclaim(&reclaim, &NoProgress).expect("reclaims");
    // Read-only once more, and closed so: there is nothing to write.
    pool.set_read_only().expect("becomes read-only");
    let written = device.operations_of(&Operation::CHANGING);
    pool.close().expect("closes");
    assert_eq!(device.operations_of(&Operation::CHANGING), written, "closing wrote something");
    drop((service, pool));
    assert_recovered(disk, &expected);
}

/// Acknowledged writes are durable, whenever the pool becomes read-only.
#[test]
fn writers_are_cut_off_between_two_files() {
    for seed in 0..4 {
        let disk = formatted();
        let pool = open(Arc::new(disk.clone()), false);
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let (pool, stop) = (&pool, &stop);
                    scope.spawn(move || {
                        let mut done = 0;
                        while !stop.load(Ordering::Acquire) {
                            let name = format!("{writer} {done}");
                            let node = dedupfs_service::NewNode {
                                parent: ROOT_INO,
                                name: name.as_bytes(),
                                mode: 0o644,
                                umask: 0,
                            };
                            let how = OpenOptions { write: true, ..OpenOptions::default() };
                            let Ok((attributes, opened)) = pool.service().create(CALLER, node, how) else { break };
                            let data = content(writer * 1000 + done, 20_000);
                            let service = pool.service();
                            let handle = opened.handle;
                            let written =
                                service.write(CALLER, attributes.ino, handle, 0, &data, WriteFlags::default()).is_ok();
                            let flushed = service.flush(attributes.ino, handle).is_ok();
                            service.release(attributes.ino, handle);
                            if !(written && flushed) {
                                break;
                            }
                            done += 1;
                        }
                        done
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(20 + 15 * seed));
            pool.set_read_only().expect("becomes read-only");
            stop.store(true, Ordering::Release);
            let done: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("ends")).collect();
            done
        });
        assert!(done.iter().any(|done| *done > 0), "nothing was written before");
        let again = open(Arc::new(disk.crash(seed)), false);
        assert!(!again.recovery().is_needed());
        for (writer, done) in done.iter().enumerate() {
            for number in 0..*done {
                let data = content(writer as u64 * 1000 + number, 20_000);
                assert!(read(&again, &format!("{writer} {number}")).as_deref() == Some(&data), "{writer} {number}");
            }
        }
        again.close().expect("closes");
        pool.close().expect("closes");
    }
}

#[test]
fn a_pool_that_was_opened_for_reading_stays_so() {
    let disk = formatted();
    let pool = open(Arc::new(disk), true);
    pool.set_read_only().expect("is so already");
    let refused = pool.set_writable().expect_err("stays read-only").to_string();
    assert!(refused.contains("mount it for writing"), "{refused}");
    assert!(try_write_new(&pool).is_err());
    pool.close().expect("closes");
}

fn try_write_new(pool: &Pool) -> Result<(), dedupfs_service::Errno> {
    let node = dedupfs_service::NewNode { parent: ROOT_INO, name: b"new", mode: 0o644, umask: 0 };
    pool.service().create(CALLER, node, OpenOptions { write: true, ..OpenOptions::default() }).map(drop)
}

/// Changing a file fails while the pool is read-only, and works afterwards.
#[test]
fn who_has_a_file_open_is_told() {
    let disk = formatted();
    let pool = open(Arc::new(disk), false);
    write(&pool, "file", &content(1, 10_000));
    pool.set_read_only().expect("becomes read-only");
    assert!(try_write_new(&pool).is_err());
    pool.set_writable().expect("becomes writable");
    try_write(&pool, "file", &content(2, 10_000)).expect("writes");
    assert!(read(&pool, "file").as_deref() == Some(&content(2, 10_000)));
    pool.close().expect("closes");
}
