//! A pool before and after its recovery: the diagnosis, the actions and report of the recovery, and that reading
//! changes nothing.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, UnrecoveredPool, format_on};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;

use common::{content, read, write};

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

fn options(read_only: bool) -> PoolOptions {
    PoolOptions { read_only, ..PoolOptions::default() }
}

fn open(device: Arc<dyn Device>, read_only: bool) -> dedupfs::Result<Arc<Pool>> {
    Pool::open_on(&device, &device, Vec::new(), &options(read_only), &NoProgress)
}

fn over(disk: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(disk.clone())
}

fn contents() -> Vec<(String, Vec<u8>)> {
    (0..6).map(|number| (format!("file {number}"), content(number, 200_000 << (number % 3)))).collect()
}

/// Returns the disk after a crash: files were synced, one more was unlinked while it was open, and much was begun.
fn crashed(seed: u64) -> MemoryDevice {
    let disk = formatted();
    let pool = open(over(&disk), false).expect("opens");
    for (name, data) in contents() {
        write(&pool, &name, &data);
    }
    write(&pool, "unlinked", b"while it is open");
    let service = pool.service();
    let ino = service.lookup(ROOT_INO, b"unlinked").expect("is there").ino;
    let how = dedupfs_service::OpenOptions { read: true, ..Default::default() };
    let _open = service.open(Default::default(), ino, how).expect("opens");
    service.unlink(ROOT_INO, b"unlinked").expect("unlinks");
    pool.sync().expect("syncs");
    write(&pool, "begun", &content(99, 900_000));
    disk.crash(seed)
}

fn everything(disk: &MemoryDevice) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in disk.list(&directory).expect("lists") {
            let path = if directory.is_empty() { entry.name.clone() } else { format!("{directory}/{}", entry.name) };
            if entry.is_directory {
                directories.push(path);
            } else {
                let bytes = disk.read_file(&path, u64::MAX).expect("reads");
                found.insert(path, bytes);
            }
        }
    }
    found
}

fn assert_whole(pool: &Pool) {
    for (name, data) in contents() {
        assert!(read(pool, &name).as_deref() == Some(&data), "{name}");
    }
}

#[test]
fn reading_a_crashed_pool_changes_nothing_on_its_disk() {
    for seed in 0..4 {
        let disk = crashed(seed);
        let before = everything(&disk);
        let device = FaultyDevice::over_memory(&disk);
        let pool = open(Arc::new(device.clone()), true).expect("opens");
        assert_whole(&pool);
        assert!(pool.recovery().rows_replayed > 0, "there was nothing to recover");
        let report =
            pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
        pool.stats().expect("has statistics");
        let service = pool.service();
        service.unlink(ROOT_INO, b"file 0").expect_err("nothing can be changed");
        pool.close().expect("closes");
        drop((service, pool));
        assert_eq!(device.operations_of(&Operation::CHANGING), 0, "something was written");
        assert!(everything(&disk) == before, "the disk is another");
        // The read-only pool showed the same state that is now recovered for good.
        let pool = open(over(&disk), false).expect("opens");
        assert_whole(&pool);
        pool.close().expect("closes");
    }
}

#[test]
fn a_plan_of_what_is_reclaimed_after_a_crash_changes_nothing_and_is_what_a_run_does() {
    for seed in 0..4 {
        let disk = crashed(seed);
        let pool = open(over(&disk), false).expect("opens");
        pool.service().unlink(ROOT_INO, b"file 2").expect("unlinks");
        pool.sync().expect("syncs");
        write(&pool, "begun again", &content(98, 300_000));
        let disk = disk.crash(seed);
        drop(pool);
        let before = everything(&disk);
        let device = FaultyDevice::over_memory(&disk);
        let plan = |pool: &Pool| {
            let options = ReclaimOptions { dry_run: true, ..ReclaimOptions::default() };
            pool.reclaim(&options, &NoProgress).expect("plans")
        };
        let pool = open(Arc::new(device.clone()), true).expect("opens");
        let planned = plan(&pool);
        pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect_err("it was opened for reading only");
        pool.close().expect("closes");
        drop(pool);
        assert_eq!(device.operations_of(&Operation::CHANGING), 0, "something was written");
        assert!(everything(&disk) == before, "the disk is another");
        let pool = open(over(&disk), false).expect("opens");
        let figures = |report: &ReclaimReport| {
            let moved = (report.chunks_moved, report.moved_bytes);
            (report.nodes_freed, report.chunks_removed, moved, report.containers_freed, report.garbage_left_bytes)
        };
        assert_eq!(figures(&plan(&pool)), figures(&planned));
        let done = pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
        assert!(done.nodes_freed > 0, "there was nothing to reclaim: {done:?}");
        assert_eq!(figures(&done), figures(&planned));
        pool.close().expect("closes");
    }
}

#[test]
fn a_pool_whose_index_is_damaged_can_be_read_and_says_so() {
    for (part, keeps) in [("index/chunks/manifest", 40), ("index/recipes/manifest", 0), ("index/chunks/", 100)] {
        let disk = crashed(1);
        let before = everything(&disk);
        for path in before.keys().filter(|path| path.starts_with(part)) {
            disk.open(path, OpenMode::Write).expect("opens").set_len(keeps).expect("is cut");
        }
        let error = open(over(&disk), false).err().expect("is refused").to_string();
        assert!(error.contains("--rebuild-index"), "{error}");
        let before = everything(&disk);
        let pool = open(over(&disk), true).expect("opens");
        assert_whole(&pool);
        assert!(pool.notice().expect("says so").contains("in memory"), "{:?}", pool.notice());
        let report = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
        assert!(report.findings.iter().any(|finding| finding.contains("index")), "{:?}", report.findings);
        pool.close().expect("closes");
        assert!(everything(&disk) == before, "the disk is another");
    }
}

#[test]
fn diagnosis_says_what_recovery_does() {
    let disk = crashed(2);
    let device = over(&disk);
    let unrecovered = UnrecoveredPool::open(&device, &device, &options(false)).expect("is found");
    let diagnosis = unrecovered.diagnose().expect("is told");
    assert!(!diagnosis.is_clean() && diagnosis.index_damage.is_none(), "{diagnosis:?}");
    assert_eq!(diagnosis.orphans, 1);
    let pool = unrecovered.recover(Arc::default(), &NoProgress).expect("is recovered");
    let report = *pool.recovery();
    assert_eq!(
        (report.rows_replayed, report.containers_cut, report.orphans_dropped),
        (diagnosis.rows_to_replay, diagnosis.containers_cut, diagnosis.orphans)
    );
    assert!(report.rows_replayed > 0 && report.containers_cut > 0 && report.is_needed(), "{report:?}");
    assert_whole(&pool);
    pool.close().expect("closes");
    drop(pool);
    let unrecovered = UnrecoveredPool::open(&device, &device, &options(false)).expect("is found");
    assert!(unrecovered.diagnose().expect("is told").is_clean());
    let pool = unrecovered.recover(Arc::default(), &NoProgress).expect("is recovered");
    assert!(!pool.recovery().is_needed(), "{:?}", pool.recovery());
}

/// Files of an unfinished checkpoint, and slots of containers that no record names.
#[test]
fn what_never_came_to_count_is_removed() {
    let disk = formatted();
    let faulty = FaultyDevice::over_memory(&disk);
    let pool = open(Arc::new(faulty.clone()), false).expect("opens");
    for (name, data) in contents() {
        write(&pool, &name, &data);
    }
    pool.sync().expect("syncs");
    // The power goes while a checkpoint is written: its manifest is renamed last.
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Rename]).path_contains("index/").lasting());
    pool.close().expect_err("cannot write its checkpoint");
    drop(pool);
    let stray = disk.open("containers/000099.slots", OpenMode::CreateNew).expect("creates");
    stray.write_at(&[7; 10_000], 0).expect("writes");
    drop(stray);
    let files = |disk: &MemoryDevice| everything(disk).into_keys().collect::<Vec<_>>();
    let before = files(&disk);
    let pool = open(over(&disk), false).expect("opens");
    let report = *pool.recovery();
    assert!(report.files_removed > 0, "{report:?}, {before:?}");
    assert!(report.bytes_trimmed >= 10_000, "{report:?}");
    assert!(!files(&disk).contains(&"containers/000099.slots".to_owned()));
    assert_whole(&pool);
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.close().expect("closes");
}
