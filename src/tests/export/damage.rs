//! Damage to the export gives an error, or an older state, whole; never wrong data.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FileService as _, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use crate::tests::common::{content, write};
use crate::tests::export::site::{
    Picture, Random, findings, force_recover, formatted, open, picture, properties, recover, recover_how, shared, step,
    try_recover, with_empty_base,
};

/// Makes a pool with several groups behind a base, and the tree as of each commit.
fn exported() -> (MemoryDevice, BTreeMap<u64, Picture>) {
    let (meta, data) = formatted();
    let mut pictures = BTreeMap::new();
    let mut random = Random(5);
    let pool = open(&meta, &data);
    // The base holds the state in which the pool was opened.
    for row in 0..=pool.core().namespace.last_row() {
        pictures.insert(row, picture(&pool));
    }
    for _ in 0..6 {
        for _ in 0..8 {
            step(&pool, &mut random);
        }
        pool.sync().expect("syncs");
        pool.core().committer.export().expect("exports");
        pictures.insert(pool.core().exporter.stats().expect("tells").row, picture(&pool));
    }
    drop(pool);
    (data, pictures)
}

fn flip(disk: &MemoryDevice, path: &str, offset: u64, mask: u8) {
    let file = disk.open(path, OpenMode::Write).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("reads");
    file.write_at(&[byte[0] ^ mask], offset).expect("writes");
}

/// Recovers from a damaged disk. A recovery that succeeds must show one of the states, or lack exactly what it reports.
fn check(disk: &MemoryDevice, pictures: &BTreeMap<u64, Picture>, at: &str) -> bool {
    let Ok((meta, report)) = force_recover(disk) else { return false };
    let expected = pictures
        .get(&report.restored.row)
        .unwrap_or_else(|| panic!("{at}: row {} was never exported", report.restored.row));
    if report.rebuilt.missing > 0 {
        // A recipe is damaged: files that need it give errors when they are read, and the check reports that. If no
        // file needs it, all are whole.
        let pool = open(&meta, disk);
        assert!(!findings(&pool).is_empty() || picture(&pool) == *expected, "{at}: wrong data");
        return true;
    }
    // A log that ends between two groups is valid.
    let last = pictures.last_key_value().map(|(row, _)| *row);
    let is_told = !report.restored.shortfall.is_empty() || at.contains("cut");
    assert!(Some(report.restored.row) == last || is_told, "{at}: an older state, and nothing said");
    let pool = open(&meta, disk);
    assert!(picture(&pool) == *expected, "{at}: wrong data");
    // Damage where nothing refers to it is possible, and is found.
    if !at.contains("/recipes/") {
        // A check covers more of the export than a recovery needs.
        let mut found = findings(&pool);
        found.retain(|finding| !finding.starts_with("export on the data root"));
        assert_eq!(found, Vec::<String>::new(), "{at}");
    }
    true
}

#[test]
fn flipped_bytes_give_an_error_or_an_older_state() {
    let (data, pictures) = exported();
    let mut random = Random(17);
    let (mut tried, mut recovered) = (0, 0);
    for directory in ["export", "export/recipes"] {
        for entry in data.list(directory).expect("lists").into_iter().filter(|entry| !entry.is_directory) {
            let path = format!("{directory}/{}", entry.name);
            for number in 0..60 {
                let offset = if number < 20 { number * 7 } else { random.below(entry.len_bytes.max(1)) };
                if offset >= entry.len_bytes {
                    continue;
                }
                let disk = data.snapshot_all_synced();
                let mask = 1 << random.below(8);
                flip(&disk, &path, offset, mask);
                tried += 1;
                recovered += u64::from(check(&disk, &pictures, &format!("{path}, byte {offset}, mask {mask:#x}")));
            }
        }
    }
    println!("{tried} flipped bytes, {recovered} recovered");
    assert!(tried > 200 && recovered > 50 && recovered < tried, "{recovered} of {tried}");
}

/// The log's groups behind a read error were given up, although the disk had them.
#[test]
fn regression_a_disk_that_does_not_answer_does_not_end_the_log() {
    let (data, pictures) = exported();
    let reads = {
        let device = FaultyDevice::over_memory(&data.snapshot_all_synced());
        let meta = MemoryDevice::new();
        recover_how(&meta, Arc::new(device.clone()), true).expect("recovers");
        device.operations_of(&[Operation::Read])
    };
    let newest = pictures.last_key_value().map(|(row, _)| *row);
    let (mut failed, mut newest_anyway) = (0, 0);
    for position in 0..reads {
        let disk = data.snapshot_all_synced();
        let device = FaultyDevice::over_memory(&disk);
        device.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Read]));
        let meta = MemoryDevice::new();
        match recover_how(&meta, Arc::new(device.clone()), true) {
            Ok(report) => {
                assert_eq!(Some(report.restored.row), newest, "read {position}: an older state");
                newest_anyway += 1;
            }
            Err(_) => {
                failed += 1;
                device.heal();
                let again = recover_how(&meta, Arc::new(device), true);
                assert_eq!(
                    again.ok().map(|report| report.restored.row),
                    newest,
                    "read {position}: not recovered by trying again"
                );
            }
        }
    }
    assert!(failed > 10, "{failed} of {reads} failed, {newest_anyway} did not need what was not read");
}

#[test]
fn files_cut_off_or_gone_give_an_error_or_an_older_state() {
    let (data, pictures) = exported();
    let mut random = Random(23);
    for directory in ["export", "export/recipes"] {
        for entry in data.list(directory).expect("lists").into_iter().filter(|entry| !entry.is_directory) {
            let path = format!("{directory}/{}", entry.name);
            for number in 0..12 {
                let disk = data.snapshot_all_synced();
                if number == 0 {
                    disk.remove(&path).expect("removes");
                } else {
                    let len_bytes = random.below(entry.len_bytes.max(1));
                    disk.open(&path, OpenMode::Write).expect("opens").set_len(len_bytes).expect("cuts");
                }
                check(&disk, &pictures, &format!("{path}, cut {number}"));
            }
        }
    }
}

/// A mount notices that it cannot continue the export, and makes a new one.
#[test]
fn a_damaged_export_is_made_anew_by_the_next_mount() {
    for name in ["current", "owner"] {
        let (meta, data) = formatted();
        let mut random = Random(31);
        let pool = open(&meta, &data);
        for _ in 0..20 {
            step(&pool, &mut random);
        }
        pool.close().expect("closes");
        drop(pool);
        flip(&data, &format!("export/{name}"), 60, 4);
        let pool = open(&meta, &data);
        assert!(pool.notice().is_some_and(|notice| notice.contains("was damaged")), "{name}: nobody is told");
        step(&pool, &mut random);
        pool.sync().expect("syncs");
        let before = picture(&pool);
        pool.close().expect("closes");
        drop(pool);
        let (meta, report) = try_recover(&data).expect("recovers");
        assert_eq!(report.restored.damage, None);
        assert!(picture(&open(&meta, &data)) == before, "{name}");
    }
}

/// Children of lost nodes are not counted. Reclaiming freed them, and a recovery from the copies of the nodes had nothing left to name.
#[test]
fn regression_a_rebuild_without_recipes_frees_nothing_that_a_recovery_needs() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    (0..10).for_each(|number| write(&pool, &format!("{number}"), &content(number, 100_000)));
    pool.close().expect("closes");
    let records = pool.core().stores.recipes.containers();
    drop(pool);
    for record in records {
        let at = u64::from(record.address.slot) * u64::from(properties().container_bytes);
        let path = format!("recipes/{:06}.slots", record.address.file);
        meta.open(&path, OpenMode::Write)
            .expect("opens")
            .write_at(&vec![0xa5; record.used_bytes as usize], at)
            .expect("writes");
    }
    let options = PoolOptions { rebuild_index: true, ..PoolOptions::default() };
    let rebuild = || Pool::open_on(&shared(&meta), &shared(&data), Vec::new(), &options, &NoProgress).expect("opens");
    for round in 0..2 {
        let pool = rebuild();
        assert!(pool.core().indexes.nodes.lost() > 0, "round {round}");
        let error = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("frees nothing");
        assert!(error.to_string().contains("dedupfs recover"), "round {round}: {error}");
        pool.close().expect("closes");
    }
    let (recovered, report) = recover(&data.fork());
    assert_eq!(report.rebuilt.missing, 0);
    drop(recovered);
    // Or the files are given up.
    let pool = open(&meta, &data);
    (0..10).for_each(|number: u64| pool.service().unlink(ROOT_INO, number.to_string().as_bytes()).expect("unlinks"));
    pool.close().expect("closes");
    drop(pool);
    let pool = rebuild();
    let freed = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(freed.chunks_removed > 0, "{freed:?}");
    assert_eq!(findings(&pool), [""; 0]);
}
