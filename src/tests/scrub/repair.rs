//! Every kind of damage that can be made is planned for, repaired, and gone at the second look.

use std::sync::Arc;

use dedupfs::repair::{RepairOptions, RepairReport, repair_on};
use dedupfs::{NoProgress, OpenOptions as PoolOptions};
use dedupfs_service::{FileService, NewNode, NodeContent, ROOT_INO};
use dedupfs_store::container::Compression;
use dedupfs_store::device::{Device, OpenMode};

use crate::tests::common::{CALLER, content, read, write};
use crate::tests::scrub::{change, formatted, open};

fn repair(device: &Arc<dyn Device>, apply: bool, read_data: bool) -> RepairReport {
    let how = RepairOptions { apply, read_data, ..RepairOptions::default() };
    repair_on(device, device, b".", &how, &PoolOptions::default(), &NoProgress).expect("repairs")
}

fn pool_with_files() -> (Arc<dyn Device>, Vec<u8>) {
    let device = formatted(Compression::None);
    let pool = open(&device);
    let data = content(1, 3 << 20);
    write(&pool, "file", &data);
    write(&pool, "small", &data[..5000]);
    let node = NewNode { parent: ROOT_INO, name: b"directory", mode: 0o755, umask: 0 };
    pool.service().make(CALLER, node, NodeContent::Directory).expect("makes");
    pool.close().expect("closes");
    (device, data)
}

/// Plans without changing, repairs, and finds nothing at the second look.
fn planned_repaired_and_gone(
    damage: &dyn Fn(&Arc<dyn Device>),
    part_of_plan: &str,
    read_data: bool,
) -> (Arc<dyn Device>, Vec<u8>) {
    let (device, data) = pool_with_files();
    assert!(repair(&device, false, read_data).plan.is_empty(), "nothing to do on a sound pool");
    damage(&device);
    for _ in 0..2 {
        let plan = repair(&device, false, read_data).plan;
        assert!(plan.iter().any(|line| line.contains(part_of_plan)), "{plan:?}");
    }
    let repaired = repair(&device, true, read_data);
    assert!(repaired.plan.iter().any(|line| line.contains(part_of_plan)), "{:?}", repaired.plan);
    let second = repair(&device, false, read_data);
    assert_eq!(second.plan, Vec::<String>::new());
    (device, data)
}

fn whole(device: &Arc<dyn Device>, data: &[u8]) {
    assert!(repair(device, false, true).is_clean());
    let pool = open(device);
    assert!(read(&pool, "file").as_deref() == Some(data));
    assert!(read(&pool, "small").as_deref() == Some(&data[..5000]));
    pool.close().expect("closes");
}

fn flip(device: &Arc<dyn Device>, path: &str, at: usize) {
    let mut bytes = device.read_file(path, 1 << 30).expect("reads");
    bytes[at] ^= 1;
    let file = device.open(path, OpenMode::Write).expect("opens");
    file.write_at(&bytes, 0).expect("writes");
    file.sync().expect("syncs");
}

#[test]
fn a_damaged_superblock_is_written_again_from_the_other() {
    for name in ["dedupfs.meta", "dedupfs.data"] {
        let (device, data) = planned_repaired_and_gone(&|device| flip(device, name, 100), name, false);
        whole(&device, &data);
        let (device, data) = planned_repaired_and_gone(&|device| device.remove(name).expect("removes"), name, false);
        whole(&device, &data);
    }
}

/// Bits flipped in both; a world found that there was no way out, though the frame of one was sound.
#[test]
fn regression_two_damaged_superblocks_are_written_again_if_the_frame_of_one_is_sound() {
    for (meta, data) in [(3000, 2000), (100, 3000), (3000, 100)] {
        let damage = |device: &Arc<dyn Device>| {
            flip(device, "dedupfs.meta", meta);
            flip(device, "dedupfs.data", data);
        };
        let (device, data) = planned_repaired_and_gone(&damage, "both superblocks", false);
        whole(&device, &data);
    }
    let (device, _) = pool_with_files();
    flip(&device, "dedupfs.meta", 100);
    flip(&device, "dedupfs.data", 100);
    let how = RepairOptions { apply: true, ..RepairOptions::default() };
    let refused =
        repair_on(&device, &device, b".", &how, &PoolOptions::default(), &NoProgress).expect_err("is refused");
    assert!(refused.to_string().contains("A copy of either file"), "{refused}");
}

#[test]
fn a_missing_or_damaged_index_is_made_anew() {
    for directory in ["index/chunks", "index/recipes"] {
        let manifest = format!("{directory}/manifest");
        let anew = "make the indexes anew";
        let (device, data) =
            planned_repaired_and_gone(&|device| device.remove(&manifest).expect("removes"), anew, false);
        whole(&device, &data);
        let (device, data) = planned_repaired_and_gone(&|device| flip(device, &manifest, 80), anew, false);
        whole(&device, &data);
    }
}

/// A check ended with the error that advises a rebuild, and so did the repair.
#[test]
fn regression_a_damaged_page_of_an_index_is_made_anew() {
    let damage = |device: &Arc<dyn Device>| {
        let entries = device.list("index/chunks").expect("lists");
        let counts = entries.iter().find(|entry| entry.name.ends_with(".counts")).expect("a tanker is sealed");
        flip(device, &format!("index/chunks/{}", counts.name), counts.len_bytes as usize / 2);
    };
    let (device, data) = planned_repaired_and_gone(&damage, "make the indexes anew", false);
    whole(&device, &data);
}

#[test]
fn files_left_over_are_removed() {
    let leave = |device: &Arc<dyn Device>| {
        device.open("dedupfs.meta.new", OpenMode::CreateNew).expect("creates").sync().expect("syncs");
        device.sync_directory("").expect("syncs");
    };
    let (device, data) = planned_repaired_and_gone(&leave, "dedupfs.meta.new", false);
    whole(&device, &data);
}

#[test]
fn bad_content_is_quarantined_and_the_second_look_has_nothing_more_to_do() {
    let damage = |device: &Arc<dyn Device>| {
        change(device, "containers", &mut |bytes| bytes[40_000] ^= 1);
    };
    let (device, data) = planned_repaired_and_gone(&damage, "quarantine", true);
    let report = repair(&device, false, true);
    assert!(!report.is_clean(), "what is lost stays lost");
    let affected = report.check.expect("was checked").affected;
    assert!(affected.files.iter().any(|file| file.paths == ["file"]), "{affected:?}");
    let pool = open(&device);
    write(&pool, "again", &data);
    write(&pool, "small again", &data[..5000]);
    pool.close().expect("closes");
    drop(pool);
    whole(&device, &data);
}
