//! The checksums beside the store reveal changes by the disk. A crash is not taken for one, and the checksums may be
//! lost.

use dedupfs_store::device::{Device, OpenMode};

use super::super::page_sums::{BLOCK_BYTES, SUMS_FILES};
use super::*;

const ROOT: Ino = ROOT_INO;
const NAMES: u32 = 1500;

fn filled() -> MemoryDevice {
    let disk = disk();
    let namespace = open(&disk);
    for number in 0..NAMES {
        namespace.make(ROOT, name(number).as_bytes(), &file(i64::from(number))).unwrap();
    }
    namespace.save().unwrap();
    drop(namespace);
    disk
}

fn name(number: u32) -> String {
    format!("a name of some length {number}")
}

fn blocks(disk: &MemoryDevice) -> u64 {
    disk.open(NAMESPACE_FILE, OpenMode::Read).unwrap().len().unwrap() / BLOCK_BYTES as u64
}

fn flip(disk: &MemoryDevice, offset: u64) {
    let file = disk.open(NAMESPACE_FILE, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_at(&[byte[0] ^ 4], offset).unwrap();
}

/// Looks up every name; returns the number of errors. No other answer may be wrong.
fn errors(namespace: &Namespace) -> u32 {
    let mut errors = 0;
    for number in 0..NAMES {
        match namespace.lookup(ROOT, name(number).as_bytes()) {
            Ok(found) => assert!(found.is_some(), "{number} has vanished"),
            Err(_) => errors += 1,
        }
    }
    errors
}

/// Nothing but redb's pages vouches for keys and branches, so names vanished.
#[test]
fn regression_turned_bits_make_no_name_vanish() {
    let disk = filled();
    let (mut refused, mut partly) = (0, 0);
    for block in 1..blocks(&disk) {
        let damaged = disk.snapshot_all_synced();
        flip(&damaged, block * BLOCK_BYTES as u64 + 13 + block * 37 % 600);
        match Namespace::open(&damaged, CACHE_BYTES, &|_| Ok(())) {
            Err(error) => {
                assert!(error.to_string().contains("recover"), "{error}");
                refused += 1;
            }
            Ok(namespace) => partly += u32::from(errors(&namespace) > 0),
        }
    }
    assert!(refused > 0 && partly > 5, "{refused} refused, {partly} answered in part");
}

/// A store without checksums (from an earlier release) is verified once and has them from then on.
#[test]
fn a_store_without_checksums_gets_them() {
    let disk = filled();
    for missing in SUMS_FILES {
        disk.remove(missing).unwrap();
    }
    drop(open(&disk));
    let namespace = open(&disk);
    assert_eq!(errors(&namespace), 0);
    drop(namespace);
    let mut found = 0;
    for block in 1..blocks(&disk) {
        let damaged = disk.snapshot_all_synced();
        flip(&damaged, block * BLOCK_BYTES as u64 + 20);
        found += Namespace::open(&damaged, CACHE_BYTES, &|_| Ok(())).map_or(1, |namespace| errors(&namespace).min(1));
    }
    assert!(found > 5, "{found} found");
}

/// Checksums of another time say nothing about the store. They are rebuilt, and no block is taken for damaged.
#[test]
fn old_checksums_are_not_believed() {
    let disk = filled();
    let old = disk.snapshot_all_synced();
    for round in 0..3 {
        let namespace = open(&disk);
        namespace.make(ROOT, format!("later {round}").as_bytes(), &file(5)).unwrap();
        namespace.save().unwrap();
    }
    for path in SUMS_FILES {
        let bytes = old.read_file(path, 1 << 30).unwrap();
        disk.replace_file("", path, &bytes).unwrap();
    }
    let namespace = open(&disk);
    assert_eq!(errors(&namespace), 0);
    namespace.assert_sound();
}

/// A disk that lost the last writes shows an older tree, whole and with good checksums of its own.
#[test]
fn regression_a_store_that_went_back_is_refused() {
    let disk = filled();
    let old = disk.snapshot_all_synced();
    let namespace = open(&disk);
    namespace.make(ROOT, b"later", &file(5)).unwrap();
    namespace.save().unwrap();
    drop(namespace);
    let bytes = old.read_file(NAMESPACE_FILE, 1 << 30).unwrap();
    disk.replace_file("", NAMESPACE_FILE, &bytes).unwrap();
    let error = Namespace::open(&disk, CACHE_BYTES, &|_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("commit") && error.contains("recover"), "{error}");
}

/// After any power loss, everything that the last commit refers to has its checksums.
#[test]
fn what_a_commit_rests_on_is_known_after_every_power_loss() {
    let disk = disk();
    let namespace = open(&disk);
    let mut names = 0;
    // Enough rounds to write bases to both files, several times.
    for round in 0..120_u32 {
        for number in 0..5 {
            namespace.make(ROOT, format!("{round}-{number}").as_bytes(), &file(1)).unwrap();
        }
        namespace.save().unwrap();
        names += 5;
        for number in 0..3 {
            // Uncommitted, to disturb the committed names.
            namespace.make(ROOT, format!("{round}+{number}").as_bytes(), &file(1)).unwrap();
        }
        names += 3;
        let crashed = disk.crash(u64::from(round));
        let again = open(&crashed);
        again.assert_sound();
        assert_eq!(again.list(ROOT, 64).len() as u32, names - 3);
        assert!(again.verify_store().unwrap());
    }
    for path in SUMS_FILES {
        assert!(disk.open(path, OpenMode::Read).unwrap().len().unwrap() > 0, "{path} was used");
    }
}

/// A store that was damaged before it had checksums is read as far as possible.
#[test]
fn a_damaged_store_without_checksums_is_opened() {
    let disk = filled();
    for missing in SUMS_FILES {
        disk.remove(missing).unwrap();
    }
    let opened = (1..blocks(&disk)).filter(|block| {
        let damaged = disk.snapshot_all_synced();
        flip(&damaged, block * BLOCK_BYTES as u64 + 3000);
        Namespace::open(&damaged, CACHE_BYTES, &|_| Ok(())).is_ok()
    });
    assert!(opened.count() > 5);
}
