//! The export is read back: any difference from what was written is found, reported, and written anew.

use std::sync::Arc;

use dedupfs::config::EXPORT_VERIFY_KEYS;
use dedupfs::export::{CopyDepth, ExportCheck};
use dedupfs::repair::{RepairOptions, repair_on};
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions, Pool};
use dedupfs_namespace::Item;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use crate::tests::common::{content, write};
use crate::tests::export::site::{
    Random, exported_on_failing, findings, formatted, open, open_read_only, picture, recover, shared, step, try_open,
};
use crate::tests::reclaim::site::Site;

/// Makes a pool with a base and several groups behind it, closed.
fn exported() -> (MemoryDevice, MemoryDevice) {
    let (meta, data) = formatted();
    let mut random = Random(7);
    let pool = open(&meta, &data);
    for _ in 0..30 {
        step(&pool, &mut random);
    }
    pool.sync().expect("syncs");
    pool.core().exporter.rebase().expect("writes a base");
    for _ in 0..4 {
        for _ in 0..10 {
            step(&pool, &mut random);
        }
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("exports");
    }
    pool.close().expect("closes");
    (meta, data)
}

fn verify(pool: &Pool, depth: CopyDepth) -> ExportCheck {
    // A base may be due meanwhile, which ends a verification; on a busy machine it takes a while.
    for _ in 0..6000 {
        let check = pool.core().exporter.verify(depth, &mut |_| true).expect("verifies");
        if !check.stopped {
            return check;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no verification comes to its end");
}

fn flip(disk: &MemoryDevice, path: &str, offset: u64, mask: u8) {
    let file = disk.open(path, OpenMode::Write).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("reads");
    file.write_at(&[byte[0] ^ mask], offset).expect("writes");
}

/// Returns the export's files whose names begin with `start`, with their lengths.
fn files(disk: &MemoryDevice, directory: &str, start: &str) -> Vec<(String, u64)> {
    let entries = disk.list(directory).expect("lists").into_iter().filter(|entry| !entry.is_directory);
    let files = entries.filter(|entry| entry.name.starts_with(start));
    files.map(|entry| (format!("{directory}/{}", entry.name), entry.len_bytes)).collect()
}

fn one(disk: &MemoryDevice, start: &str) -> (String, u64) {
    let found = files(disk, "export", start);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().expect("there is one")
}

#[test]
fn a_sound_export_is_found_sound_at_any_time() {
    for seed in 1..5 {
        let (meta, data) = formatted();
        let mut random = Random(seed);
        for _ in 0..3 {
            let pool = open(&meta, &data);
            for number in 0..40 {
                step(&pool, &mut random);
                match random.below(8) {
                    0 => pool.sync().expect("syncs"),
                    1 => crate::tests::export::site::reclaim(&pool),
                    2 => pool.core().committer.export().expect("exports"),
                    3 => pool.core().exporter.rebase().expect("writes a base"),
                    _ => {}
                }
                let check = verify(&pool, CopyDepth::Content);
                assert_eq!(check.findings, Vec::<String>::new(), "seed {seed}, step {number}");
            }
            pool.sync().expect("syncs");
            // As after a crash: the changes behind the export are left out.
            let crashed = open_read_only(&meta.snapshot_all_synced(), &data.snapshot_all_synced());
            let check = verify(&crashed, CopyDepth::Content);
            assert_eq!(check.findings, Vec::<String>::new(), "seed {seed}, not closed");
            pool.close().expect("closes");
            drop(pool);
            let check = verify(&open_read_only(&meta, &data), CopyDepth::Content);
            assert!(check.is_there && check.is_sound() && check.items > 5, "{check:?}");
        }
    }
}

#[test]
fn every_flipped_byte_of_names_is_found() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let mut random = Random(3);
    let mut tried = 0;
    for start in ["base-", "log-", "current", "owner"] {
        let (path, len_bytes) = one(&data, start);
        // The heads of the frames and the bytes behind them, byte for byte; then some of each block.
        let offsets = (0..200).chain((200..).step_by(13)).take_while(|offset| *offset < len_bytes);
        for offset in offsets.chain([len_bytes - 1]) {
            let is_zero_behind = start == "current" || start == "owner";
            if is_zero_behind && offset >= 128 {
                // The bytes behind the one frame are never read.
                break;
            }
            let mask = 1 << random.below(8);
            flip(&data, &path, offset, mask);
            let check = verify(&pool, CopyDepth::Ends);
            assert!(!check.is_sound(), "{path}, byte {offset}, mask {mask:#x}");
            flip(&data, &path, offset, mask);
            tried += 1;
        }
    }
    assert!(verify(&pool, CopyDepth::Content).is_sound());
    assert!(tried > 500, "{tried}");
    println!("{tried} flipped bytes");
}

#[test]
fn every_flipped_byte_of_copies_is_found_and_copied_again() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let slot_bytes = u64::from(crate::tests::export::site::properties().container_bytes);
    let mut random = Random(5);
    let mut tried = 0;
    for record in pool.core().stores.recipes.containers() {
        let path = format!("export/recipes/{:06}.slots", record.address.file);
        for _ in 0..60 {
            let offset = u64::from(record.address.slot) * slot_bytes + random.below(record.used_bytes.into());
            flip(&data, &path, offset, 1 << random.below(8));
            let mut check = verify(&pool, CopyDepth::Content);
            assert!(!check.is_sound(), "{path}, byte {offset}");
            pool.core().exporter.renew(&mut check).expect("writes it anew");
            assert!(check.renewed && verify(&pool, CopyDepth::Content).is_sound(), "{path}, byte {offset}: {check:?}");
            tried += 1;
        }
    }
    assert!(tried >= 60, "{tried}");
}

#[test]
fn both_ends_of_each_copy_are_compared_each_time() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let slot_bytes = u64::from(crate::tests::export::site::properties().container_bytes);
    for record in pool.core().stores.recipes.containers() {
        let path = format!("export/recipes/{:06}.slots", record.address.file);
        for offset in [0, record.used_bytes - 1] {
            let offset = u64::from(record.address.slot) * slot_bytes + u64::from(offset);
            flip(&data, &path, offset, 1);
            assert!(!verify(&pool, CopyDepth::Ends).is_sound(), "{path}, byte {offset}");
            flip(&data, &path, offset, 1);
            assert!(verify(&pool, CopyDepth::Ends).is_sound(), "{path}, byte {offset}");
        }
    }
    assert_eq!(verify(&pool, CopyDepth::Ends).copies, pool.core().stores.recipes.containers().len() as u64);
}

/// The sound copy is the only good one when the container on the meta root is damaged.
#[test]
fn a_sound_copy_is_not_replaced_by_a_damaged_container() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let record = pool.core().stores.recipes.containers()[0];
    let slot_bytes = u64::from(crate::tests::export::site::properties().container_bytes);
    let at = u64::from(record.address.slot) * slot_bytes + 100;
    let of = |disk: &MemoryDevice, path: &str| {
        let mut byte = [0];
        disk.open(path, OpenMode::Read).expect("opens").read_exact_at(&mut byte, at).expect("reads");
        byte
    };
    let copy = format!("export/recipes/{:06}.slots", record.address.file);
    let before = of(&data, &copy);
    flip(&meta, &format!("recipes/{:06}.slots", record.address.file), at, 8);
    let mut check = verify(&pool, CopyDepth::Content);
    let is_on_both = |check: &ExportCheck| check.findings.iter().any(|finding| finding.contains("on both roots"));
    assert!(!is_on_both(&check), "{:?}", check.findings);
    pool.core().exporter.renew(&mut check).expect("has nothing to do");
    assert_eq!(of(&data, &copy), before);
    flip(&data, &copy, at, 4);
    assert!(is_on_both(&verify(&pool, CopyDepth::Content)));
}

/// Damages the disk of a data root.
type Damage<'a> = &'a dyn Fn(&MemoryDevice);

/// Damage of each kind is done to the closed pool. A check finds it, a scrub reports it and writes the export anew, and
/// then a lost meta root comes back whole.
#[test]
fn regression_a_damaged_export_is_found_told_and_written_anew() {
    let damages: [(&str, Damage<'_>); 8] = [
        ("byte 100 of the log", &|disk| flip(disk, &one(disk, "log-").0, 100, 1)),
        ("a cut base", &|disk| {
            let (path, len_bytes) = one(disk, "base-");
            disk.open(&path, OpenMode::Write).expect("opens").set_len(len_bytes / 2).expect("cuts");
        }),
        ("a missing base", &|disk| disk.remove(&one(disk, "base-").0).expect("removes")),
        ("a cut log", &|disk| {
            let (path, len_bytes) = one(disk, "log-");
            disk.open(&path, OpenMode::Write).expect("opens").set_len(len_bytes / 2).expect("cuts");
        }),
        ("a missing current", &|disk| disk.remove("export/current").expect("removes")),
        ("a missing owner", &|disk| disk.remove("export/owner").expect("removes")),
        ("lost copies", &|disk| {
            for (path, _) in files(disk, "export/recipes", "") {
                disk.remove(&path).expect("removes");
            }
        }),
        ("a damaged copy", &|disk| {
            let (path, _) = files(disk, "export/recipes", "").remove(0);
            flip(disk, &path, 300, 4);
        }),
    ];
    let (meta, data) = exported();
    let before = picture(&open_read_only(&meta, &data));
    for (what, damage) in damages {
        let (meta, data) = (meta.snapshot_all_synced(), data.snapshot_all_synced());
        damage(&data);
        let found = findings(&open_read_only(&meta, &data));
        assert!(found.iter().any(|finding| finding.contains("export")), "{what}: a check found {found:?}");
        let pool = open(&meta, &data);
        let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress);
        let export = report.expect("scrubs").export.expect("looked at the export");
        assert!(!export.is_sound() && export.renewed, "{what}: {export:?}");
        let again = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress);
        let again = again.expect("scrubs").export.expect("looked at the export");
        assert!(again.is_sound(), "{what}: {again:?}");
        pool.close().expect("closes");
        drop(pool);
        assert_eq!(findings(&open_read_only(&meta, &data)), Vec::<String>::new(), "{what}");
        let (meta, report) = recover(&data);
        assert_eq!(
            (report.restored.damage, report.rebuilt.missing, report.restored.recipes_damaged),
            (None, 0, 0),
            "{what}"
        );
        assert!(picture(&open(&meta, &data)) == before, "{what}: another tree");
    }
}

/// A log that ends early, with sound checksums.
#[test]
fn a_log_that_ends_with_an_earlier_group_is_found() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "file", &content(1, 10_000));
    pool.sync().expect("syncs");
    pool.core().exporter.rebase().expect("writes a base");
    let log = one(&data, "log-").0;
    let bytes = |path: &str| data.read_file(path, 1 << 20).expect("reads");
    let older = bytes(&log);
    write(&pool, "second", &content(2, 10_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    assert!(verify(&pool, CopyDepth::Content).is_sound());
    let newer = bytes(&log);
    let file = data.open(&log, OpenMode::Write).expect("opens");
    file.set_len(older.len() as u64).expect("cuts");
    assert!(!verify(&pool, CopyDepth::Content).is_sound());
    file.write_at(&newer, 0).expect("writes");
    assert!(verify(&pool, CopyDepth::Content).is_sound());
}

/// For each part of a log that fits into memory, the base and the whole log were read again, and all names walked.
#[test]
fn regression_a_long_log_is_compared_in_one_walk() {
    let site = Site::new();
    let pool = site.open();
    let exporter = &pool.core().exporter;
    write(&pool, "first", b"content");
    pool.sync().expect("syncs");
    exporter.rebase().expect("writes a base");
    for group in 0..40 {
        for file in 0..40 {
            write(&pool, &format!("{group:02}-{file:02}"), b"content");
        }
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("exports");
    }
    let (mut items, before) = (0, site.export_read_bytes());
    let check = verify(&pool, CopyDepth::Ends);
    let read_bytes = site.export_read_bytes() - before;
    assert!(check.is_sound(), "{check:?}");
    let mut count = |_: Item<'_>| {
        items += 1;
        Ok(())
    };
    pool.core().namespace.export_source().expect("reads").for_each(&mut count).expect("walks");
    assert_eq!(check.items, items);
    assert!(items > 50 * EXPORT_VERIFY_KEYS, "{items} records are few ranges");
    let whole_bytes = site.export_bytes();
    println!("{read_bytes} bytes read of an export of {whole_bytes}");
    // Three readings of all, and each group once for each of the few ranges that it has keys of. By the least and the greatest key of each
    // frame it was 10 times and grew with the number of groups, because each group has the record of the directory.
    assert!(read_bytes < 8 * whole_bytes, "{read_bytes} bytes of {whole_bytes}");
}

/// The survey's sample gives few bounds for so many keys, so ranges are too large for memory until a finer sample divides them.
#[test]
fn regression_ranges_with_too_many_keys_are_divided() {
    /// Most ranges that a survey's sample of 512 keys bounds.
    const SURVEYED_RANGES: u64 = 512;
    let site = Site::new();
    let pool = site.open();
    pool.core().exporter.rebase().expect("writes a base");
    // A file has an inode and a name, and a range at most twice the keys that it should have.
    let files = SURVEYED_RANGES * EXPORT_VERIFY_KEYS + 1;
    (0..files).for_each(|file| write(&pool, &format!("{file}"), b""));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let check = verify(&pool, CopyDepth::Ends);
    assert!(check.is_sound() && check.items > 2 * files, "{check:?}");
}

/// Two pools that were one until a moment ago: the meta root of one meets the export of the other. Every frame of it is
/// whole and its numbers are the expected ones. Only its records show the difference.
#[test]
fn an_export_of_another_tree_with_sound_checksums_is_found_record_by_record() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "both", &content(1, 10_000));
    pool.close().expect("closes");
    drop(pool);
    for is_base in [false, true] {
        let branch = |name: &str, seed| {
            let (meta, data) = (meta.snapshot_all_synced(), data.snapshot_all_synced());
            let pool = open(&meta, &data);
            write(&pool, name, &content(seed, 10_000));
            write(&pool, "both", &content(seed + 1, 10_000));
            pool.sync().expect("syncs");
            if is_base {
                pool.core().exporter.rebase().expect("writes a base");
            }
            pool.close().expect("closes");
            (meta, data)
        };
        // Threads decide how many commits that takes: only twins with the same number fit together.
        let compared = (0..50).find_map(|_| {
            let ((meta, own_data), (_, data)) = (branch("one", 10), branch("two", 20));
            assert!(verify(&open_read_only(&meta, &own_data), CopyDepth::Ends).is_sound());
            let check = verify(&open_read_only(&meta, &data), CopyDepth::Ends);
            assert!(!check.is_sound());
            (check.items > 0).then_some(check)
        });
        let check = compared.expect("two of a hundred pools have as many commits");
        let found = |pattern: &str| check.findings.iter().any(|finding| finding.contains(pattern));
        assert!(found("name \"one\" in directory 1 is not exported"), "base {is_base}: {:?}", check.findings);
        assert!(found("is exported with another record"), "base {is_base}: {:?}", check.findings);
        let beyond = if is_base {
            "name \"two\" in directory 1 is exported and does not exist"
        } else {
            "records are in the export's log"
        };
        assert!(found(beyond), "base {is_base}: {:?}", check.findings);
    }
}

#[test]
fn a_verification_gives_way_to_a_base_and_to_closing() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let check = pool.core().exporter.verify(CopyDepth::Content, &mut |_| false).expect("ends");
    assert!(check.stopped && check.is_sound(), "{check:?}");
    let exporter = pool.core().exporter.clone();
    let mut looks = 0;
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let base = scope.spawn({
            let exporter = exporter.clone();
            move || {
                begins.recv().expect("the verification has begun");
                exporter.rebase()
            }
        });
        let check = exporter.verify(CopyDepth::Content, &mut |_| {
            begun.send(()).ok();
            std::thread::sleep(std::time::Duration::from_millis(5));
            looks += 1;
            looks < 2000
        });
        assert!(check.expect("ends").stopped);
        base.join().expect("runs").expect("writes a base");
    });
    assert!(looks < 2000, "it did not give way");
    assert!(verify(&pool, CopyDepth::Content).is_sound());
    pool.close().expect("closes");
}

/// Found by a soak: opening the pool for the repair's plan noted the owner anew, so the repair found nothing to repair.
#[test]
fn regression_a_damaged_owner_is_repaired() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "file", &content(1, 100_000));
    pool.close().expect("closes");
    drop(pool);
    let owner = data.open("export/owner", OpenMode::Write).expect("opens");
    owner.write_at(&[0; 4096], 0).expect("writes");
    let repair = |apply| {
        let how = RepairOptions { apply, ..RepairOptions::default() };
        repair_on(&shared(&meta), &shared(&data), b"elsewhere", &how, &OpenOptions::default(), &NoProgress)
    };
    assert!(!repair(false).expect("plans").plan.is_empty());
    assert!(!repair(true).expect("repairs").plan.is_empty());
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let pool = Pool::open_on(&shared(&meta), &shared(&data), Vec::new(), &options, &NoProgress).expect("opens");
    assert_eq!(findings(&pool), Vec::<String>::new());
}

/// The export was damaged at opening, and there was no space for another one: it was called sound, or written anew.
#[test]
fn regression_no_export_is_not_called_sound() {
    let (meta, data) = exported();
    flip(&data, &one(&data, "log-").0, 100, 1);
    data.remove("export/current").expect("removes");
    data.set_capacity(data.used_bytes());
    let pool = open(&meta, &data);
    assert!(pool.core().exporter.rebase().is_ok(), "lack of space is tried again");
    let scrub = || {
        let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress);
        report.expect("scrubs").export.expect("looked at the export")
    };
    for _ in 0..2 {
        let check = scrub();
        assert!(check.is_bad() && !check.renewed, "{check:?}");
    }
    data.set_capacity(u64::MAX / 2);
    assert!(scrub().renewed);
    // The owner could not be noted either.
    assert!((0..2).any(|_| scrub().is_sound()));
}

/// What a verification found before it read the files of an export made anew at opening counted as renewed with it.
#[test]
fn regression_a_finding_behind_one_of_opening_is_renewed_by_itself() {
    let (meta, data) = exported();
    flip(&data, &one(&data, "log-").0, 100, 1);
    data.remove("export/current").expect("removes");
    let pool = open(&meta, &data);
    pool.core().exporter.rebase().expect("makes the export anew");
    data.remove("export/current").expect("removes");
    let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress);
    let check = report.expect("scrubs").export.expect("looked at the export");
    // Another base may have brought the file back meanwhile.
    assert!(check.renewed, "{check:?}");
    assert!(data.exists("export/current").expect("is looked for"), "called renewed, and gone");
}

/// A waiting verification ignored its caller for as long as the mount's background work took.
#[test]
fn regression_who_waits_to_verify_can_be_ended() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let exporter = pool.core().exporter.clone();
    let (begun, begins) = std::sync::mpsc::channel();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let first = scope.spawn({
            let exporter = exporter.clone();
            move || {
                let mut is_begun = false;
                exporter.verify(CopyDepth::Content, &mut |_| {
                    if !std::mem::replace(&mut is_begun, true) {
                        begun.send(()).expect("is waited for");
                        end.recv().ok();
                    }
                    true
                })
            }
        });
        begins.recv().expect("it has begun");
        let check = exporter.verify(CopyDepth::Content, &mut |_| false).expect("ends");
        assert!(check.stopped);
        drop(ends);
        assert!(first.join().expect("runs").expect("verifies").is_sound());
    });
}

#[test]
fn what_is_sound_or_never_was_is_not_told_as_written_anew() {
    let (meta, data) = exported();
    let pool = open(&meta, &data);
    let mut check = verify(&pool, CopyDepth::Content);
    pool.core().exporter.renew(&mut check).expect("has nothing to do");
    assert!(check.is_there && check.is_sound() && !check.renewed, "{check:?}");
    let (meta, data) = formatted();
    let check = verify(&open_read_only(&meta, &data), CopyDepth::Content);
    assert!(!check.is_there && check.is_sound() && !check.renewed, "{check:?}");
}

#[test]
fn an_owner_that_cannot_be_written_anew_is_not_told_as_done() {
    for (fault, is_failure) in [(Fault::NoSpace, false), (Fault::Io, true)] {
        let (_meta, data, faulty, pool) = exported_on_failing();
        flip(&data, "export/owner", 70, 1);
        let mut check = verify(&pool, CopyDepth::Content);
        assert!(check.is_bad());
        faulty.add(FaultPlan::new(fault, 0).path_contains("export/owner").lasting());
        assert_eq!(pool.core().exporter.renew(&mut check).is_err(), is_failure, "{fault:?}");
        assert!(check.is_bad(), "{fault:?}: {check:?}");
        faulty.heal();
        pool.core().exporter.renew(&mut check).expect("writes it anew");
        assert!(is_failure || check.renewed && verify(&pool, CopyDepth::Content).is_sound(), "{check:?}");
    }
}

/// Nothing was found at opening, but the first base of a new pool has failed.
#[test]
fn a_first_export_that_has_failed_is_told() {
    let (meta, data) = formatted();
    let faulty = FaultyDevice::over_memory(&data);
    faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = try_open(&shared(&meta), &device).expect("opens");
    pool.core().committer.export().expect("lack of space is no failure");
    assert!(faulty.injected() > 0);
    let check = verify(&pool, CopyDepth::Content);
    assert!(check.is_there && check.is_bad(), "{check:?}");
}
