//! The life of an export without crashes.

use std::sync::Arc;

use dedupfs::export::CopyDepth;
use dedupfs_service::{FileService as _, RenameFlags, XattrMode};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice};
use dedupfs_store::device::{Device, MemoryDevice};

use crate::tests::common::{CALLER, content, read, write};
use crate::tests::export::less::log_of;
use crate::tests::export::site::{
    Random, findings, force_recover, format, formatted, open, open_read_only, picture, reclaim, recover, shared, step,
    try_open, try_recover, with_empty_base,
};

#[test]
fn a_lost_meta_root_is_made_anew() {
    for seed in 1..9 {
        let (mut meta, data) = (MemoryDevice::new(), MemoryDevice::new());
        format(&meta, &data);
        let mut random = Random(seed);
        for round in 0..5 {
            let pool = open(&meta, &data);
            for _ in 0..40 {
                step(&pool, &mut random);
                match random.below(8) {
                    0 => pool.sync().expect("syncs"),
                    1 => reclaim(&pool),
                    2 => pool.core().committer.export().expect("exports"),
                    _ => {}
                }
            }
            pool.sync().expect("syncs");
            let before = picture(&pool);
            pool.close().expect("closes");
            drop(pool);
            let (new, report) = recover(&data);
            assert_eq!(report.restored.damage, None);
            assert_eq!((report.rebuilt.missing, report.restored.recipes_damaged), (0, 0), "seed {seed}, round {round}");
            meta = new;
            let pool = open(&meta, &data);
            assert_eq!(picture(&pool), before, "seed {seed}, round {round}");
            assert_eq!(findings(&pool), Vec::<String>::new(), "seed {seed}, round {round}");
            pool.close().expect("closes");
        }
    }
}

/// A commit with many names is a group of several frames.
#[test]
fn a_commit_of_many_long_names_is_recovered() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "first", &content(1, 10_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    (0..8000).for_each(|number| write(&pool, &format!("{number:0>250}"), b""));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let before = picture(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&recover(&data).0, &data);
    assert!(picture(&pool) == before, "something else is recovered");
    assert_eq!(findings(&pool), Vec::<String>::new());
}

#[test]
fn an_old_meta_root_is_refused_after_a_recovery() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "file", &content(1, 100_000));
    pool.close().expect("closes");
    drop(pool);
    let older = meta.snapshot_all_synced();
    // Opened once more: its epoch is ahead of the one that the data root knows of the copy.
    open(&meta, &data).close().expect("closes");
    let refused = |meta: &MemoryDevice, why: &str| {
        for _ in 0..3 {
            let error = try_open(&shared(meta), &shared(&data)).map(|_| ()).expect_err("is refused").to_string();
            assert!(error.contains(why) && error.contains("dedupfs recover"), "{error}");
        }
    };
    refused(&older, "older copy");
    let (new, _) = recover(&data);
    refused(&meta, "another meta root");
    refused(&older, "another meta root");
    let pool = open(&new, &data);
    assert!(read(&pool, "file").is_some());
    pool.close().expect("closes");
}

#[test]
fn what_is_no_data_root_or_has_no_export_is_refused() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    assert!(try_recover(&data).is_err());
    format(&meta, &data);
    let error = try_recover(&data).expect_err("was never mounted").to_string();
    assert!(error.contains("no export"), "{error}");
}

#[test]
fn container_ids_are_never_used_twice() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "first", &content(1, 300_000));
    pool.close().expect("closes");
    drop(pool);
    // Later changes are in no export: the process is killed.
    let pool = open(&meta, &data);
    write(&pool, "second", &content(2, 300_000));
    pool.sync().expect("syncs");
    let used = pool.core().stores.data.containers().iter().map(|record| record.id).max().expect("has some");
    let epoch = pool.core().namespace.writer_epoch();
    drop(pool);
    let (meta, _) = force_recover(&data).expect("recovers");
    let pool = open(&meta, &data);
    assert!(pool.core().namespace.writer_epoch() > epoch);
    write(&pool, "third", &content(3, 300_000));
    pool.sync().expect("syncs");
    let newest = pool.core().stores.data.containers().iter().map(|record| record.id).max().expect("has some");
    assert!(newest > used);
    assert!(read(&pool, "third") == Some(content(3, 300_000)) && read(&pool, "first") == Some(content(1, 300_000)));
    pool.close().expect("closes");
}

#[test]
fn what_is_exported_is_in_proportion_to_what_changed() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    // Tankers of the usual size, so that no checkpoint exports in between.
    let properties = dedupfs_store::superblock::PoolProperties { chunk_size_bytes: 4096, ..Default::default() };
    dedupfs::format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = open(&meta, &data);
    for number in 0..2000 {
        write(&pool, &format!("a file with a name of some length {number}"), &content(number, 100));
    }
    pool.core().committer.commit().expect("commits");
    pool.core().committer.export().expect("exports");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("is later").as_secs();
    let stats = pool.core().exporter.stats().expect("tells");
    assert!((now - 60..=now).contains(&stats.time_secs), "{stats:?} at {now}");
    let all = stats.written_bytes;
    assert!(all < 2000 * 400, "{all} bytes for 2000 files");
    let written = |change: &dyn Fn()| {
        let before = pool.core().exporter.stats().expect("tells").written_bytes;
        change();
        pool.core().committer.commit().expect("commits");
        pool.core().committer.export().expect("exports");
        pool.core().exporter.stats().expect("tells").written_bytes - before
    };
    assert_eq!(written(&|| {}), 0, "nothing changed");
    let one = written(&|| write(&pool, "another", &content(5000, 100)));
    assert!(one <= 16 << 10, "{one} bytes for one file");
    // The file's keys are noted ten times and looked up once.
    let log_bytes = || pool.core().exporter.stats().expect("tells").namespace_bytes;
    let before = log_bytes();
    written(&|| {
        for number in 0..10 {
            write(&pool, "another", &content(6000 + number, 100));
            pool.core().committer.commit().expect("commits");
        }
    });
    let often = log_bytes() - before;
    assert!(often <= 8 << 10, "{often} bytes for one file that changed ten times");
    pool.close().expect("closes");
}

#[test]
fn an_emptied_pool_exports_next_to_nothing() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    pool.core().committer.export().expect("exports");
    for number in 0..3000 {
        write(&pool, &format!("{number}"), &content(number, 3000));
    }
    write(&pool, "large", &content(9999, 6 << 20));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let full = pool.core().exporter.stats().expect("tells");
    for number in 0..3000 {
        let name = format!("{number}");
        dedupfs_service::FileService::unlink(&*pool.service(), 1, name.as_bytes()).expect("unlinks");
    }
    dedupfs_service::FileService::unlink(&*pool.service(), 1, b"large").expect("unlinks");
    reclaim(&pool);
    let empty = pool.core().exporter.stats().expect("tells");
    assert!(full.namespace_bytes > 100_000 && full.recipe_bytes > 0, "{full:?}");
    assert!(empty.namespace_bytes < 70_000, "{empty:?}");
    assert_eq!(empty.recipe_bytes, 0, "{empty:?}");
    pool.close().expect("closes");
    drop(pool);
    let left: Vec<_> = data.list("export").expect("lists").into_iter().map(|entry| entry.name).collect();
    assert_eq!(left.len(), 6, "one base, its log, current, owner, reached, recipes: {left:?}");
}

#[test]
fn a_pool_of_one_root_is_recovered_in_place() {
    let device = MemoryDevice::new();
    let both = shared(&device);
    dedupfs::format_on(&both, &both, b".".to_vec(), &crate::tests::export::site::properties(), (0, 0))
        .expect("formats");
    let pool = try_open(&both, &both).expect("opens");
    let mut random = Random(77);
    for _ in 0..60 {
        step(&pool, &mut random);
    }
    // The history of reclaiming once prevented a recovery.
    reclaim(&pool);
    pool.sync().expect("syncs");
    assert!(device.exists(dedupfs::reclaim::HISTORY_FILE).expect("tells"));
    let before = picture(&pool);
    pool.close().expect("closes");
    drop(pool);
    let options = dedupfs::OpenOptions::default();
    let again =
        |replaces| dedupfs::recover::recover_on(&both, &both, b".".to_vec(), replaces, &options, &dedupfs::NoProgress);
    let error = again(false).expect_err("it is whole").to_string();
    assert!(error.contains("--force"), "{error}");
    device.remove("namespace.redb").expect("removes");
    again(false).expect("recovers");
    let pool = try_open(&both, &both).expect("opens");
    assert_eq!(picture(&pool), before);
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    // A damaged namespace is replaced when the caller allows it.
    let file = device.open("namespace.redb", dedupfs_store::device::OpenMode::Write).expect("opens");
    file.write_at(&vec![0x5a; file.len().expect("has a length") as usize], 0).expect("writes");
    drop(file);
    assert!(try_open(&both, &both).is_err());
    again(true).expect("recovers");
    let pool = try_open(&both, &both).expect("opens");
    assert_eq!(picture(&pool), before);
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
}

#[test]
fn a_deleted_directory_is_made_anew() {
    let directory = tempfile::tempdir().expect("makes a directory");
    let (meta, data) = (directory.path().join("ssd"), directory.path().join("hdd"));
    dedupfs::format(&meta, Some(&data), &dedupfs_store::superblock::PoolProperties::default()).expect("formats");
    let options = dedupfs::OpenOptions::default();
    let open = || dedupfs::Pool::open(&meta, &options).expect("opens");
    let pool = open();
    for number in 0..50 {
        write(&pool, &format!("{number}"), &content(number, 10_000));
    }
    write(&pool, "large", &content(99, 24 << 20));
    pool.sync().expect("syncs");
    let before = picture(&pool);
    let recover = |replaces| dedupfs::recover::recover(&meta, &data, replaces, &options, &dedupfs::NoProgress);
    let error = recover(true).expect_err("is in use").to_string();
    assert!(error.contains("use"), "{error}");
    pool.close().expect("closes");
    drop(pool);
    assert!(recover(false).is_err(), "it is whole");
    std::fs::remove_dir_all(&meta).expect("removes");
    let report = recover(false).expect("recovers");
    println!("{report:?}");
    assert_eq!((report.restored.files, report.rebuilt.missing), (51, 0));
    let pool = open();
    assert_eq!(picture(&pool), before);
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    // The namespace is beyond repair, and in its place.
    std::fs::write(meta.join("namespace.redb"), b"nonsense").expect("writes");
    assert!(dedupfs::Pool::open(&meta, &options).is_err());
    recover(true).expect("recovers");
    let pool = open();
    assert_eq!(picture(&pool), before);
    pool.close().expect("closes");
    assert!(!meta.join("recovered").exists(), "where it was made is gone");
}

/// Names and inodes of removed files would stay in a large base until its log is as long.
#[test]
fn a_base_of_removed_files_is_replaced_though_its_log_is_short() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let exporter = &pool.core().exporter;
    for number in 0..4000 {
        write(&pool, &format!("{number}"), b"");
    }
    pool.sync().expect("syncs");
    exporter.rebase().expect("writes a base");
    let bases = || {
        let names = data.list("export").expect("lists").into_iter().map(|entry| entry.name);
        names.filter(|name| name.starts_with("base-")).collect::<Vec<_>>()
    };
    let before = bases();
    exporter.shrink().expect("has nothing to do");
    assert_eq!(bases(), before, "the base is as large as its files need");
    for round in 0..2 {
        for number in 0..4000 {
            let (from, to) =
                (format!("{}{number}", "moved ".repeat(round)), format!("{}{number}", "moved ".repeat(round + 1)));
            let moved = pool.service().rename(1, from.as_bytes(), 1, to.as_bytes(), RenameFlags::default());
            moved.expect("renames");
        }
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("exports");
    }
    exporter.shrink().expect("writes a base");
    assert_ne!(bases(), before, "the log is long beside the base");
    let before = bases();
    // The base alone is too large for what is left.
    for number in 0..4000 {
        let name = format!("moved moved {number}");
        pool.service().unlink(1, name.as_bytes()).expect("unlinks");
    }
    pool.sync().expect("syncs");
    let full = exporter.stats().expect("tells").namespace_bytes;
    pool.core().committer.export().expect("exports");
    exporter.shrink().expect("writes a base");
    assert_ne!(bases(), before, "{full} bytes for no file");
}

/// The thread that exports does it, as nobody else looks at the length of the log.
#[test]
fn a_log_that_has_outgrown_its_base_is_replaced() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    let (core, service) = (pool.core(), pool.service());
    let first = log_of(&data);
    let is_first = || data.exists(&first).expect("tells");
    for number in 0..150 {
        let name = format!("{number}");
        write(&pool, &name, b"");
        let ino = service.lookup(1, name.as_bytes()).expect("is there").ino;
        let value = content(number, 60_000);
        service.set_xattr(CALLER, ino, b"user.large", &value, XattrMode::Any).expect("sets");
    }
    pool.sync().expect("syncs");
    assert!(is_first());
    core.committer.export().expect("exports");
    core.exporter.request();
    let begun = std::time::Instant::now();
    while is_first() {
        assert!(begun.elapsed().as_secs() < 60, "the first base still counts");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    pool.close().expect("closes");
    drop(pool);
    assert_eq!(recover(&data).1.restored.files, 150);
}

/// A crash before the next commit: the namespace does not know the export, which is its own.
#[test]
fn an_export_that_no_commit_has_noted_is_continued() {
    for is_written in [false, true] {
        let (meta, data) = formatted();
        let faulty = FaultyDevice::over_memory(&data);
        faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let pool = try_open(&shared(&meta), &device).expect("opens");
        if is_written {
            write(&pool, "file", &content(1, 30_000));
            pool.sync().expect("syncs");
        }
        faulty.heal();
        pool.core().committer.export().expect("exports");
        let mark = pool.core().namespace.export_mark();
        assert_eq!(mark.exported.generation, 0, "a commit has noted it");
        let (meta, data) = (meta.fork(), data.fork());
        let bases = || data.list("export").expect("lists").into_iter().filter(|entry| entry.name.starts_with("base-"));
        let before: Vec<_> = bases().map(|entry| entry.name).collect();
        assert_eq!(before.len(), 1, "{before:?}");
        let check = open_read_only(&meta, &data).core().exporter.verify(CopyDepth::Content, &mut |_| true);
        let check = check.expect("verifies");
        assert!(check.is_there && check.is_sound(), "{check:?}");
        let pool = open(&meta, &data);
        pool.core().committer.export().expect("exports");
        assert_eq!(bases().map(|entry| entry.name).collect::<Vec<_>>(), before, "written: {is_written}");
        pool.close().expect("closes");
    }
}
