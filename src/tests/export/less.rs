//! The data root gives less than it should: a recovery says so and changes nothing; when forced, it keeps everything
//! that it cannot name.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::repair::{RepairOptions, repair_on};
use dedupfs::scrub::ScrubOptions;
use dedupfs::{EngineError, NoProgress, OpenOptions, TRIAL_MEMORY_BYTES, format_on};
use dedupfs_service::{FileService as _, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerRecord, StoreError};

use crate::tests::common::{content, read, write};
use crate::tests::export::site::{
    findings, force_recover, open, open_read_only, picture, reclaim, recover_how, shared, try_open, try_recover,
    with_empty_base,
};

/// Makes a pool that was mounted once, with some files. Also returns its containers' records.
pub fn filled() -> (MemoryDevice, MemoryDevice, Vec<ContainerRecord>) {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    for number in 0..20 {
        write(&pool, &format!("file {number}"), &content(number, 30_000));
    }
    pool.close().expect("closes");
    let records = pool.core().stores.data.containers();
    assert!(records.len() > 3);
    (meta, data, records)
}

pub fn log_of(disk: &MemoryDevice) -> String {
    let logs: Vec<_> = disk.list("export").expect("lists").into_iter().filter(|e| e.name.starts_with("log-")).collect();
    assert_eq!(logs.len(), 1);
    format!("export/{}", logs[0].name)
}

pub fn damage(disk: &MemoryDevice, path: &str, offset: u64) {
    let file = disk.open(path, OpenMode::Write).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("reads");
    file.write_at(&[byte[0] ^ 1], offset).expect("writes");
}

/// Damages the log, or the base if nothing is in the log.
fn damage_names(disk: &MemoryDevice) {
    damage(disk, &log_of(disk), 100);
}

/// Writes and closes until the export's log tells something: a base that is begun late tells the first write itself.
fn write_to_log(meta: &MemoryDevice, data: &MemoryDevice, name: &str, seed: u64) {
    for attempt in 0..10 {
        let pool = open(meta, data);
        write(&pool, &format!("{name} {attempt}"), &content(seed + attempt, 30_000));
        pool.close().expect("closes");
        drop(pool);
        if !data.read_file(&log_of(data), 1 << 30).expect("reads").is_empty() {
            return;
        }
    }
    panic!("ten writes reach no log");
}

fn slot_start(record: &ContainerRecord) -> u64 {
    u64::from(record.address.slot) * u64::from(crate::tests::export::site::properties().container_bytes)
}

/// Returns every file of a disk.
pub fn everything(disk: &MemoryDevice) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for directory in ["", "containers", "export", "export/recipes"] {
        let entries = disk.list(directory).unwrap_or_default();
        for entry in entries.into_iter().filter(|entry| !entry.is_directory) {
            let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
            let bytes = disk.read_file(&path, 1 << 30).expect("reads");
            files.insert(path, bytes);
        }
    }
    files
}

fn bytes_of(disk: &MemoryDevice, records: &[ContainerRecord]) -> Vec<Vec<u8>> {
    let slot_bytes = u64::from(crate::tests::export::site::properties().container_bytes);
    let read = |record: &ContainerRecord| {
        let file = disk.open(&format!("containers/{:06}.slots", record.address.file), OpenMode::Read).expect("opens");
        let mut bytes = vec![0; record.used_bytes as usize];
        file.read_exact_at(&mut bytes, u64::from(record.address.slot) * slot_bytes).expect("reads");
        bytes
    };
    records.iter().map(read).collect()
}

#[track_caller]
fn refused(data: &MemoryDevice, why: &str) {
    let before = everything(data);
    let meta = MemoryDevice::new();
    let error = recover_how(&meta, shared(data), false).expect_err("it is less than it should be");
    assert!(matches!(error, EngineError::Store(StoreError::Corrupt { .. })), "{error:?}");
    let message = error.to_string();
    assert!(message.contains(why) && message.contains("dedupfs recover --force"), "{message}");
    assert!(everything(data) == before, "the data root was changed");
    let mut left = Vec::new();
    for directory in ["", "recovered", "recovered/recipes", "recovered/index/chunks.b"] {
        let entries = meta.list(directory).unwrap_or_default().into_iter().filter(|entry| !entry.is_directory);
        left.extend(entries.map(|entry| entry.name));
    }
    assert_eq!(left, Vec::<String>::new(), "the meta root was changed");
}

#[test]
fn regression_a_recovery_that_gets_less_is_refused_and_forced_keeps_what_it_cannot_name() {
    let (_, data, records) = filled();
    damage(&data, &log_of(&data), 100);
    refused(&data, "containers with content are named by nothing");
    let damaged_log = data.read_file(&log_of(&data), 1 << 30).expect("reads");
    let before = bytes_of(&data, &records);

    let (meta, report) = force_recover(&data).expect("recovers what is there");
    assert_eq!((report.restored.files, report.kept_slots), (0, records.len() as u64), "{report:?}");
    assert!(!report.restored.shortfall.is_empty());
    // The slots stay across mounts, writes, reclaiming, and another loss of the meta root.
    for round in 0..3 {
        let pool = open(&meta, &data);
        assert!(pool.notice().is_some_and(|notice| notice.contains("--give-up-unnamed")));
        for number in 0..10 {
            write(&pool, &format!("new {number}"), &content(100 + round * 20 + number, 30_000));
        }
        reclaim(&pool);
        assert_eq!(findings(&pool), Vec::<String>::new());
        pool.close().expect("closes");
        drop(pool);
        assert!(bytes_of(&data, &records) == before, "round {round}: written over");
    }
    let kept: Vec<_> = data.list("export/kept").expect("lists").into_iter().map(|entry| entry.name).collect();
    let log = kept.iter().find(|name| name.starts_with("log-")).expect("the damaged log is kept");
    assert!(data.read_file(&format!("export/kept/{log}"), 1 << 30).expect("reads") == damaged_log);
    let (meta, report) = try_recover(&data).expect("the new export is whole");
    assert_eq!((report.restored.files, report.restored.shortfall.len()), (10, 0), "{report:?}");
    drop(open(&meta, &data));
    assert!(bytes_of(&data, &records) == before, "written over behind another recovery");

    // They stay until the user gives them up.
    let repair = |give_up_unnamed| {
        let how = RepairOptions { apply: true, give_up_unnamed, ..RepairOptions::default() };
        let open = OpenOptions::default();
        repair_on(&shared(&meta), &shared(&data), b"elsewhere", &how, &open, &NoProgress).expect("repairs").plan
    };
    assert_eq!(repair(false), Vec::<String>::new());
    assert!(bytes_of(&data, &records) == before);
    let plan = repair(true);
    assert!(plan.len() == 1 && plan[0].contains("give up"), "{plan:?}");
    let pool = open(&meta, &data);
    assert_eq!(pool.core().exporter.kept().expect("tells"), (0, 0));
    for number in 0..30 {
        write(&pool, &format!("more {number}"), &content(500 + number, 30_000));
    }
    pool.close().expect("closes");
    assert!(read(&open(&meta, &data), "more 29") == Some(content(529, 30_000)));
}

/// Containers do not show files without content; the note of the export's progress does.
#[test]
fn regression_a_recovery_that_lacks_empty_files_is_refused() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    for number in 0..50 {
        write(&pool, &format!("{number}"), b"");
    }
    pool.close().expect("closes");
    drop(pool);
    let (_, report) = try_recover(&data.snapshot_all_synced()).expect("it is whole");
    assert_eq!(report.restored.files, 50);
    let whole = data.snapshot_all_synced();
    // Closing has synced the note, so a power loss leaves it.
    let data = data.crash(0);
    damage(&data, &log_of(&data), 100);
    refused(&data, "51 inodes");
    // Cut off between two groups, which leaves a valid log.
    let log = log_of(&whole);
    whole.open(&log, OpenMode::Write).expect("opens").set_len(0).expect("cuts");
    refused(&whole, "51 inodes");
    let (_, report) = force_recover(&whole).expect("recovers what is there");
    assert_eq!(report.restored.files, 0);
}

#[test]
fn lost_and_damaged_copies_of_recipes_are_less_than_expected() {
    let (_, data, _) = filled();
    let lost = data.snapshot_all_synced();
    for entry in lost.list("export/recipes").expect("lists") {
        lost.remove(&format!("export/recipes/{}", entry.name)).expect("removes");
    }
    refused(&lost, "copies of recipe containers are missing");
    for entry in data.list("export/recipes").expect("lists") {
        let path = format!("export/recipes/{}", entry.name);
        for offset in (0..entry.len_bytes).step_by(500) {
            damage(&data, &path, offset);
        }
    }
    refused(&data, "cannot be read");
}

#[test]
fn without_current_the_newest_whole_base_is_taken_when_it_is_forced() {
    let (_, data, _) = filled();
    data.remove("export/current").expect("removes");
    refused(&data, "export/current");
    let (meta, report) = force_recover(&data).expect("recovers");
    assert_eq!(report.restored.files, 20);
    let pool = open(&meta, &data);
    assert!(read(&pool, "file 7") == Some(content(7, 30_000)));
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    assert!(try_recover(&data).is_ok_and(|(_, report)| report.restored.files == 20));
}

/// Files are written behind the last export, and the process is killed: the containers show it.
#[test]
fn what_a_crash_left_behind_the_last_export_is_told_and_kept() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    // Tankers of the usual size, so that no checkpoint exports in between.
    let properties = PoolProperties {
        tanker_cells: PoolProperties::default().tanker_cells,
        ..crate::tests::export::site::properties()
    };
    format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = open(&meta, &data);
    write(&pool, "first", &content(3, 30_000));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&meta, &data);
    write(&pool, "later", &content(900, 200_000));
    pool.sync().expect("syncs");
    drop(pool);
    refused(&data, "named by nothing");
    let (meta, report) = force_recover(&data).expect("recovers");
    assert!(report.restored.files == 1 && report.kept_slots > 0, "{report:?}");
    let pool = open(&meta, &data);
    assert!(read(&pool, "first") == Some(content(3, 30_000)));
    assert!(!picture(&pool).contains_key(b"/later".as_slice()));
    pool.close().expect("closes");
}

/// The space of reclaimed containers was given back, but not durably: a power loss brought their content back, and the
/// recovery took it for files that were written behind the export.
#[test]
fn regression_reclaimed_containers_that_a_power_loss_brings_back_are_not_missed() {
    let (meta, data, _) = filled();
    let pool = open(&meta, &data);
    // New containers in the present epoch, some of which are garbage later.
    for number in 100..120 {
        write(&pool, &format!("later {number}"), &content(number, 30_000));
    }
    pool.sync().expect("syncs");
    let service = pool.service();
    for number in (100..120).step_by(2) {
        service.unlink(ROOT_INO, format!("later {number}").as_bytes()).expect("is removed");
    }
    reclaim(&pool);
    pool.close().expect("closes");
    drop(pool);
    let (_, report) = try_recover(&data.crash(0)).expect("is recovered without force");
    assert_eq!(report.restored.files, 30);
}

/// As above, but the daemon was killed behind the reclaim, and the next one changed nothing and closed the pool in order.
#[test]
fn regression_garbage_of_a_killed_daemon_is_not_missed_behind_the_next_orderly_close() {
    let (meta, data, _) = filled();
    let pool = open(&meta, &data);
    for number in 100..120 {
        write(&pool, &format!("later {number}"), &content(number, 30_000));
    }
    pool.sync().expect("syncs");
    let service = pool.service();
    for number in (100..120).step_by(2) {
        service.unlink(ROOT_INO, format!("later {number}").as_bytes()).expect("is removed");
    }
    drop(service);
    reclaim(&pool);
    // Killed: the disks live on, with what was not synced.
    let (meta, data) = (meta.fork(), data.fork());
    drop(pool);
    let pool = open(&meta, &data);
    pool.close().expect("closes");
    drop(pool);
    let (_, report) = try_recover(&data.crash(0)).expect("is recovered without force");
    assert_eq!(report.restored.files, 30);
}

/// A known loss made a recovery take everything else that was missing for a loss, too.
#[test]
fn regression_a_missing_file_of_containers_is_less_than_expected_whatever_was_lost_before() {
    let (meta, data, records) = filled();
    // One container goes bad, and the pool notices.
    damage(&data, &format!("containers/{:06}.slots", records[0].address.file), slot_start(&records[0]) + 200);
    let pool = open(&meta, &data);
    let scrubbed = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs");
    assert!(scrubbed.lost_chunks > 0);
    pool.close().expect("closes");
    drop(pool);
    assert!(try_recover(&data.snapshot_all_synced()).is_ok(), "what was lost before is no reason to refuse");
    let file = records.iter().map(|record| record.address.file).max().expect("there are containers");
    data.remove(&format!("containers/{file:06}.slots")).expect("removes");
    refused(&data, "not there");
    let pool = open_read_only(&meta, &data);
    let report = pool
        .trial_recovery(tempfile::tempdir().expect("a directory").path(), TRIAL_MEMORY_BYTES, &NoProgress)
        .expect("is tried");
    assert!(report.missing.iter().any(|missing| missing.contains("not there")), "{report:?}");
}

/// The copies of recipes of the second damaged export were overwritten.
#[test]
fn regression_a_second_damaged_export_is_set_aside_beside_the_first() {
    let (_, data, _) = filled();
    damage_names(&data);
    let kept = || {
        let names = data.list("export/kept").expect("lists").into_iter().map(|entry| entry.name);
        names.filter(|name| name.contains("recipes-")).count()
    };
    let mut before = 0;
    for round in 0..2 {
        let (meta, _) = force_recover(&data).expect("recovers what is there");
        let pool = open(&meta, &data);
        assert!(kept() > before, "round {round}: {} files of copies are kept", kept());
        before = kept();
        drop(pool);
        write_to_log(&meta, &data, &format!("new {round}"), 100 + 20 * round);
        damage_names(&data);
    }
}

/// A crash has left slots with content that no commit names, and `export/owner` is damaged.
fn with_a_damaged_owner() -> (MemoryDevice, MemoryDevice) {
    let (meta, data, _) = filled();
    let pool = open(&meta, &data);
    write(&pool, "begun", &content(700, 200_000));
    pool.core().stores.data.write_out().expect("writes");
    drop(pool);
    data.open("export/owner", OpenMode::Write).expect("opens").write_at(&[0; 4096], 0).expect("writes");
    (meta, data)
}

/// Each opening also kept the slots that later crashes left.
#[test]
fn regression_slots_that_a_damaged_owner_keeps_are_listed_once() {
    let (meta, data) = with_a_damaged_owner();
    let kept = || {
        let pool = open(&meta, &data);
        let kept = pool.core().exporter.kept().expect("tells").0;
        write(&pool, "begun", &content(700, 200_000));
        pool.core().stores.data.write_out().expect("writes");
        kept
    };
    let first = kept();
    assert!(first > 0);
    assert_eq!((kept(), kept()), (first, first));
    // Without an owner, too. Content that no commit names is kept now, that of later openings is not.
    data.remove("export/owner").expect("removes");
    data.remove("export/kept-slots").expect("removes");
    let second = kept();
    assert!(second > first);
    assert_eq!((kept(), kept()), (second, second));
}

/// Without an export, a missing owner was taken for that of a new pool, and what a recovery keeps was written over.
#[test]
fn regression_what_is_kept_stays_though_the_owner_is_gone_and_there_is_no_export() {
    for was_open in [false, true] {
        let (_, data, _) = filled();
        damage(&data, &log_of(&data), 100);
        let (meta, report) = force_recover(&data).expect("recovers");
        assert!(report.kept_slots > 0);
        let faulty = FaultyDevice::over_memory(&data);
        faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/base-").lasting());
        let device: Arc<dyn Device> = Arc::new(faulty);
        if was_open {
            try_open(&shared(&meta), &device).expect("opens").close().expect("closes");
        }
        data.rename("export/owner", "moved").expect("moves");
        let pool = try_open(&shared(&meta), &device).expect("opens");
        assert_eq!(pool.core().namespace.export_mark().exported.generation, 0);
        assert_eq!(pool.core().exporter.kept().expect("tells").0, report.kept_slots);
    }
}

#[test]
fn a_data_root_without_room_for_the_list_of_kept_slots_mounts() {
    let (meta, data) = with_a_damaged_owner();
    let faulty = FaultyDevice::over_memory(&data);
    faulty.add(FaultPlan::new(Fault::NoSpace, 0).path_contains("export/kept-slots").on(&[Operation::Create]).lasting());
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = try_open(&shared(&meta), &device).expect("opens");
    assert!(faulty.injected() > 0);
    assert!(read(&pool, "file 7") == Some(content(7, 30_000)));
    pool.close().expect("closes");
}

/// The note of the export's progress is gone with it: nothing else tells that the base is not all.
#[test]
fn a_missing_log_is_less_than_expected() {
    let (_, data, _) = filled();
    data.remove(&log_of(&data)).expect("removes");
    data.remove("export/reached").expect("removes");
    refused(&data, "cannot be read behind commit");
}

#[test]
fn without_current_the_base_that_was_written_last_is_taken() {
    let (meta, data, _) = filled();
    let pool = open(&meta, &data);
    pool.core().exporter.rebase().expect("writes a base");
    pool.close().expect("closes");
    drop(pool);
    assert!(!data.exists("export/base-1").expect("tells"));
    data.remove("export/current").expect("removes");
    assert_eq!(force_recover(&data).expect("recovers").1.restored.files, 20);
}
