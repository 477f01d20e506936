//! A data root without space: reclaiming comes before the possibility of a recovery.

use std::sync::Arc;

use dedupfs::export::CopyDepth;
use dedupfs::repair::{RepairOptions, repair_on};
use dedupfs::{NoProgress, OpenOptions as PoolOptions};
use dedupfs_service::{FileService as _, ROOT_INO};
use dedupfs_store::device::Device;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

use crate::config::EXPORT_FAILURES_MAX;
use crate::tests::common::{content, read, write};
use crate::tests::export::site::{
    assert_recovers, exported_on_failing, findings, formatted, open, picture, reclaim, recover, shared, try_recover,
    with_empty_base,
};

#[test]
fn a_full_data_root_can_be_reclaimed() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    for number in 0..20 {
        write(&pool, &format!("{number}"), &content(number, 200_000));
    }
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    assert!(pool.core().exporter.stats().expect("tells").row > 0);
    for number in 0..20 {
        let name = format!("{number}");
        dedupfs_service::FileService::unlink(&*pool.service(), 1, name.as_bytes()).expect("unlinks");
    }
    // Open containers would need space to be sealed.
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&meta, &data);
    let row = pool.core().exporter.stats().expect("tells").row;
    assert!(row > 0);
    // Not a page is left, not even for the smallest group.
    data.set_capacity(data.used_bytes());
    let full_bytes = data.used_bytes();
    reclaim(&pool);
    assert!(!data.exists("export/base-1").expect("tells"), "the export that named what was freed is gone");
    assert!(!data.exists("export/current").expect("tells"), "it still counts");
    assert!(data.used_bytes() < full_bytes / 4, "{} of {full_bytes} bytes are left", data.used_bytes());
    data.set_capacity(u64::MAX / 2);
    // There is space now: the next export starts anew.
    write(&pool, "new", &content(77, 100_000));
    pool.sync().expect("syncs");
    let before = picture(&pool);
    pool.close().expect("closes");
    drop(pool);
    let (meta, report) = recover(&data);
    assert_eq!(report.rebuilt.missing, 0);
    let pool = open(&meta, &data);
    assert_eq!(picture(&pool), before);
    assert!(read(&pool, "new") == Some(content(77, 100_000)));
    assert_eq!(findings(&pool), Vec::<String>::new());
}

#[test]
fn without_room_and_without_need_the_export_stays_as_it_was() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "old", &content(1, 100_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let (row, before) = (pool.core().exporter.stats().expect("tells").row, picture(&pool));
    data.set_capacity(data.used_bytes());
    dedupfs_service::FileService::unlink(&*pool.service(), 1, b"old").expect("unlinks");
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("is tried again");
    assert_eq!(pool.core().exporter.stats().expect("tells").row, row);
    let disk = data.snapshot_all_synced();
    disk.set_capacity(u64::MAX / 2);
    let (meta, report) = try_recover(&disk).expect("recovers");
    assert_eq!(report.restored.row, row);
    assert_eq!(picture(&open(&meta, &disk)), before);
}

/// The first group of each mount tells its writer epoch. Without room for it, a sound export was given up after some minutes.
#[test]
fn regression_an_idle_pool_on_a_full_disk_keeps_its_export() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    (0..5).for_each(|number| write(&pool, &format!("{number}"), &content(number, 50_000)));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&meta, &data);
    data.set_capacity(data.used_bytes());
    for _ in 0..2 * EXPORT_FAILURES_MAX {
        pool.core().committer.export().expect("is tried again");
    }
    assert!(data.exists("export/current").expect("tells"), "it counts no more");
    data.set_capacity(u64::MAX / 2);
    assert_recovers(&data, pool);
}

/// A killed process had exported that the containers leave, and had not freed them yet.
#[test]
fn regression_containers_that_no_export_names_make_room_on_a_full_disk() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    (0..10).for_each(|number| write(&pool, &format!("{number}"), &content(number, 100_000)));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&meta, &data);
    (0..9).for_each(|number: u64| pool.service().unlink(ROOT_INO, number.to_string().as_bytes()).expect("unlinks"));
    let held = pool.core().exporter.hold();
    reclaim(&pool);
    pool.core().committer.export().expect("exports");
    let (meta, data) = (meta.fork(), data.fork());
    drop(held);
    let pool = open(&meta, &data);
    assert!(!pool.core().namespace.leaving_containers().expect("tells").is_empty());
    let full_bytes = data.used_bytes();
    data.set_capacity(full_bytes);
    pool.core().committer.export().expect("frees");
    assert!(data.used_bytes() < full_bytes / 2, "{} of {full_bytes} bytes are left", data.used_bytes());
    assert!(data.exists("export/current").expect("tells"), "it counts no more");
}

/// It said that the export was written, and beside that there is none.
#[test]
fn regression_a_repair_without_room_does_not_say_that_it_wrote_the_export() {
    for has_room in [false, true] {
        let (meta, data) = with_empty_base();
        let pool = open(&meta, &data);
        write(&pool, "file", &content(1, 100_000));
        pool.close().expect("closes");
        drop(pool);
        data.remove("export/current").expect("removes");
        let faulty = FaultyDevice::over_memory(&data);
        if !has_room {
            faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
        }
        let (how, device) =
            (RepairOptions { apply: true, ..RepairOptions::default() }, Arc::new(faulty) as Arc<dyn Device>);
        let report = repair_on(&shared(&meta), &device, b"elsewhere", &how, &PoolOptions::default(), &NoProgress);
        let report = report.expect("repairs");
        let is_written = report.plan.iter().any(|line| line.contains("write the export"));
        let export = report.check.as_ref().and_then(|check| check.export.as_ref()).expect("is checked");
        assert_eq!(export.is_sound(), has_room, "{report:?}");
        assert!(has_room || !is_written, "{report:?}");
    }
}

/// The log is no shorter afterwards, and the export that counts goes on.
#[test]
fn a_verification_without_room_leaves_the_export_that_counts() {
    let (_meta, data, faulty, pool) = exported_on_failing();
    let exporter = &pool.core().exporter;
    let row = exporter.stats().expect("tells").row;
    write(&pool, "new", &content(50, 100_000));
    faulty.add(FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::Write]).path_contains("export/log-").lasting());
    pool.sync().expect("syncs");
    let check = exporter.verify(CopyDepth::Content, &mut |_| true).expect("verifies");
    assert!(faulty.injected() > 0);
    assert!(check.is_there && check.is_sound(), "{check:?}");
    assert_eq!((exporter.stats().expect("tells").row, check.row), (row, row));
    faulty.heal();
    pool.close().expect("closes");
    assert_eq!(recover(&data).1.restored.files, 11);
}

/// The only copy of the names must not go for a base that may find room later.
#[test]
fn a_stale_export_makes_room_for_a_base_only_if_containers_wait_for_it() {
    for waits in [false, true] {
        let (_meta, data, faulty, pool) = exported_on_failing();
        faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
        faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]).path_contains("export/log-"));
        write(&pool, "new", &content(50, 100_000));
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("is made anew later");
        assert_eq!(pool.core().exporter.stats().expect("tells").row, 0, "it can be continued");
        if waits {
            pool.service().unlink(ROOT_INO, b"3").expect("unlinks");
            reclaim(&pool);
        }
        pool.core().committer.export().expect("lack of space is no failure");
        assert_eq!(data.exists("export/current").expect("tells"), !waits);
        faulty.heal();
        pool.close().expect("closes");
    }
}
