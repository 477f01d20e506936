//! A data root without space: reclaiming comes before the possibility of a recovery.

use dedupfs_store::device::Device;

use crate::tests::common::{content, read, write};
use crate::tests::export::site::{findings, formatted, open, picture, reclaim, recover, try_recover};

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
