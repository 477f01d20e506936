//! Refusals by the data root are reported truthfully, stop nothing that can go on, and cost space at most.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedupfs::export::CopyDepth;
use dedupfs::scrub::{ScrubOptions, ScrubReport};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use crate::tests::common::{content, read, write};
use crate::tests::export::less::{damage, filled, log_of};
use crate::tests::export::site::{
    exported_on_failing, findings, force_recover, formatted, open, reclaim, recover_how, shared, try_open,
    with_empty_base,
};

fn one(data: &MemoryDevice, directory: &str, start: &str) -> String {
    let entry = data.list(directory).expect("lists").into_iter().find(|entry| entry.name.starts_with(start));
    format!("{directory}/{}", entry.expect("there is one").name)
}

fn scrub(pool: &Pool) -> ScrubReport {
    pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs")
}

/// The scrub said "written anew", although the damaged base still counted.
#[test]
fn regression_a_renewal_that_fails_is_not_told_as_done() {
    let (meta, data, faulty, pool) = exported_on_failing();
    damage(&data, &one(&data, "export", "base-"), 100);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Write]).path_contains("export/base-").lasting());
    assert!(scrub(&pool).is_export_bad(), "says it was written anew");
    faulty.heal();
    pool.close().expect("closes");
    drop(pool);
    // The export may rest until the next mount.
    let pool = open(&meta, &data);
    pool.core().committer.export().expect("exports");
    assert!(!scrub(&pool).is_export_bad());
    assert!(scrub(&pool).export.is_some_and(|export| export.is_sound()));
    pool.close().expect("closes");
}

/// The next sync of the same file succeeded and proved nothing; and closing the pool waited for all copies.
#[test]
fn regression_copies_that_cannot_be_written_anew_or_are_given_up_are_not_told_as_done() {
    let (_meta, data, faulty, pool) = exported_on_failing();
    let verify = || pool.core().exporter.verify(CopyDepth::Content, &mut |_| true).expect("verifies");
    damage(&data, &one(&data, "export/recipes", ""), 100);
    let mut check = verify();
    assert!(check.is_bad());
    pool.core().exporter.hurry(true);
    pool.core().exporter.renew(&mut check).expect("gives up");
    pool.core().exporter.hurry(false);
    assert!(check.is_bad(), "says that it was written anew though it gave up");

    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]).path_contains("export/recipes"));
    pool.core().exporter.renew(&mut check).expect("an export that fails is no failure of the pool");
    assert!(check.is_bad(), "says that it was written anew though its sync failed");
    pool.core().committer.export().expect("exports");
    assert!(verify().is_sound());
    pool.close().expect("closes");
    let data = data.crash(1);
    let report = crate::tests::export::site::recover(&data).1;
    assert_eq!((report.restored.files, report.rebuilt.missing), (10, 0));
}

/// One unreadable sector of a file that recovery can do without.
#[test]
fn regression_notes_that_cannot_be_read_do_not_keep_a_forced_recovery_or_a_mount_away() {
    let (_, data, _) = filled();
    for name in ["reached", "owner"] {
        let faulty = FaultyDevice::over_memory(&data.fork());
        faulty.add(
            FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains(&format!("export/{name}")).lasting(),
        );
        let device: Arc<dyn Device> = Arc::new(faulty);
        let error = recover_how(&MemoryDevice::new(), device.clone(), false).expect_err("nobody forced it").to_string();
        assert!(name != "reached" || error.contains("dedupfs recover --force"), "{error}");
        let report = recover_how(&MemoryDevice::new(), device, true).expect(name);
        assert_eq!((report.restored.files, report.rebuilt.missing), (20, 0), "{name}: {report:?}");
    }

    damage(&data, &log_of(&data), 100);
    let (meta, report) = force_recover(&data).expect("recovers what is there");
    assert!(report.kept_slots > 0);
    let faulty = FaultyDevice::over_memory(&data);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains("export/kept-slots").lasting());
    let device: Arc<dyn Device> = Arc::new(faulty);
    for read_only in [true, false] {
        let options = PoolOptions { read_only, ..PoolOptions::default() };
        let pool = Pool::open_on(&shared(&meta), &device, Vec::new(), &options, &NoProgress).expect("opens");
        let (slots, _) = pool.core().exporter.kept().expect("tells");
        assert!(read_only || slots >= report.kept_slots, "{slots} of {}", report.kept_slots);
        pool.close().expect("closes");
    }
}

/// Every mount was refused, without a way out.
#[test]
fn regression_an_owner_that_can_never_be_read_is_moved_away() {
    let (meta, data, _) = filled();
    for read_only in [true, false] {
        let faulty = FaultyDevice::over_memory(&data);
        faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains("export/owner").lasting());
        let options = PoolOptions { read_only, ..PoolOptions::default() };
        let device: Arc<dyn Device> = Arc::new(faulty);
        let opened = Pool::open_on(&shared(&meta), &device, Vec::new(), &options, &NoProgress);
        let refused = opened.err().expect("is refused");
        assert!(refused.to_string().contains("move this file away"), "{refused}");
    }
    data.rename("export/owner", "moved away").expect("moves");
    let pool = open(&meta, &data);
    assert_eq!(findings(&pool), [""; 0]);
    pool.close().expect("closes");
    assert!(data.exists("export/owner").expect("tells"), "it is made anew");
}

/// Beside the export the missing owner then looked like a lost one, and garbage was kept for good.
#[test]
fn regression_an_export_that_counts_has_an_owner() {
    let (meta, data) = formatted();
    let faulty = FaultyDevice::over_memory(&data);
    faulty.add(FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::Create]).path_contains("export/owner").lasting());
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = Pool::open_on(&shared(&meta), &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    write(&pool, "file", &content(1, 30_000));
    pool.sync().expect("syncs");
    assert!(!data.exists("export/current").expect("tells"), "nobody would know whose export it is");
    faulty.heal();
    pool.core().committer.export().expect("exports");
    assert!(data.exists("export/current").expect("tells") && data.exists("export/owner").expect("tells"));
    pool.close().expect("closes");
}

/// On a filesystem that needs space to free some, the pool became read-only.
#[test]
fn regression_a_data_root_without_space_to_clean_up_does_not_end_the_pool() {
    let cleaning = [Operation::Punch, Operation::Remove, Operation::SyncDirectory, Operation::SetLen];
    let with_writes = [&cleaning[..], &[Operation::Write, Operation::Create]].concat();
    for (fault, operations) in
        [(Fault::NoSpace, &cleaning[..]), (Fault::NoSpace, &with_writes[..]), (Fault::Io, &[Operation::Punch])]
    {
        let (_meta, data, faulty, pool) = exported_on_failing();
        faulty.add(FaultPlan::new(fault, 0).on(operations).path_contains("export").lasting());
        for round in 0..6 {
            write(&pool, &format!("new {round}"), &content(100 + round, 200_000));
            pool.service().unlink(ROOT_INO, format!("{round}").as_bytes()).expect("unlinks");
            pool.sync().expect("syncs");
            pool.core().committer.export().expect("lack of space is no failure of the pool");
            reclaim(&pool);
            let _full = pool.core().exporter.rebase();
            let failure = pool.core().committer.failure();
            assert!(failure.is_none(), "{fault:?} of {operations:?}: {failure:?}");
        }
        faulty.heal();
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("exports");
        assert_eq!(findings(&pool), Vec::<String>::new(), "{fault:?} of {operations:?}");
        pool.close().expect("closes");
        drop(pool);
        let report = crate::tests::export::site::recover(&data).1;
        assert_eq!((report.restored.files, report.rebuilt.missing), (10, 0), "{fault:?} of {operations:?}");
    }
}

fn replace(path: &Path) {
    let bytes = fs::read(path).expect("reads");
    fs::remove_file(path).expect("removes");
    fs::write(path, bytes).expect("writes");
}

/// Returns every file below a directory, with its content.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), fs::read(&path).expect("reads")));
        }
    }
    found.sort();
    found
}

/// Another process had the pool, and its export was cut off and overwritten.
#[test]
fn regression_whoever_lost_the_lock_writes_nothing_to_export_or_containers() {
    let directory = tempfile::tempdir().expect("makes a directory");
    let root = directory.path().join("pool");
    dedupfs::format(&root, None, &crate::tests::export::site::properties()).expect("formats");
    // No commit of its own finds the lock gone.
    let options = PoolOptions { commit_interval: Duration::from_secs(3600), ..PoolOptions::default() };
    let pool = Pool::open(&root, &options).expect("opens");
    let core = pool.core();
    write(&pool, "old", &content(1, 100_000));
    write(&pool, "gone", &content(2, 100_000));
    pool.sync().expect("syncs");
    core.committer.export().expect("exports");
    pool.service().unlink(ROOT_INO, b"gone").expect("unlinks");
    write(&pool, "new", &content(3, 100_000));
    pool.sync().expect("syncs");
    // Content that waits to be written out.
    write(&pool, "newer", &content(4, 20_000));
    for name in ["dedupfs.meta", "dedupfs.data", "lock"] {
        replace(&root.join(name));
    }
    let before = [files(&root.join("export")), files(&root.join("containers"))];
    let error = core.exporter.verify(CopyDepth::Content, &mut |_| true).expect_err("appends to the log").to_string();
    assert!(error.contains("was removed or replaced"), "{error}");
    // The thread that exports ends the pool.
    core.exporter.request();
    let begun = std::time::Instant::now();
    while core.committer.failure().is_none() {
        assert!(begun.elapsed().as_secs() < 60, "the pool goes on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(core.exporter.rebase().is_err());
    assert!(core.exporter.export().is_err());
    assert!(pool.sync().is_err());
    assert!(pool.close().is_err());
    assert!([files(&root.join("export")), files(&root.join("containers"))] == before, "something was written");
}

/// Neither a mount nor a reclaim was possible, and nothing else frees space.
#[test]
fn regression_a_full_data_root_that_keeps_slots_mounts() {
    let (_, data, _) = filled();
    damage(&data, &log_of(&data), 100);
    let log = log_of(&data);
    let damaged = data.read_file(&log, 1 << 30).expect("reads");
    let (meta, _) = force_recover(&data).expect("recovers what is there");
    let faulty = FaultyDevice::over_memory(&data);
    faulty.add(
        FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::CreateDirectory]).path_contains("export/kept").lasting(),
    );
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = try_open(&shared(&meta), &device).expect("opens");
    write(&pool, "new", &content(100, 100_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("lack of space is no failure");
    reclaim(&pool);
    assert!(data.read_file(&log, 1 << 30).expect("is there") == damaged, "the damaged export is not kept");
    faulty.heal();
    pool.core().committer.export().expect("exports");
    let kept = log.replace("export/", "export/kept/");
    assert!(data.read_file(&kept, 1 << 30).expect("was set aside") == damaged);
    pool.close().expect("closes");
    drop(pool);
    let (meta, report) = crate::tests::export::site::recover(&data);
    assert_eq!((report.restored.files, report.restored.shortfall.len()), (1, 0), "{report:?}");
    assert!(read(&open(&meta, &data), "new") == Some(content(100, 100_000)));
}

/// The number of the next base began at 0 again, or the daemon ended.
#[test]
fn regression_a_file_with_the_number_of_no_export_is_no_base() {
    let (meta, data) = with_empty_base();
    data.open(&format!("export/base-{}", u64::MAX), OpenMode::CreateNew).expect("creates");
    let pool = open(&meta, &data);
    write(&pool, "file", &content(1, 100_000));
    pool.core().exporter.rebase().expect("writes a base");
    pool.close().expect("closes");
    drop(pool);
    assert_eq!(crate::tests::export::site::recover(&data).1.restored.files, 1);
}
