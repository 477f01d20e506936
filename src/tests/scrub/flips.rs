//! Random flipped bytes: exactly the unreadable files are named, and a second backup heals them all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dedupfs::{OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FileService, NewNode, NodeContent, ROOT_INO};

use dedupfs_store::container::Compression;
use dedupfs_store::device::Device;

use crate::tests::common::{CALLER, content, read, write};
use crate::tests::scrub::{Random, affected, check, formatted, open, open_with, reclaim, scrub, spoil_copies};

/// Returns names and contents; small and large, some of them alike, some with a second name.
fn files(small: u64) -> BTreeMap<String, Vec<u8>> {
    let mut random = Random(77);
    let mut files = BTreeMap::new();
    for number in 0..small {
        let len = 200 + random.below(40_000) as usize;
        // Every fifth has the content of an earlier one.
        let seed = if number % 5 == 4 { number - 3 } else { number };
        files.insert(format!("small {number:04}"), content(1000 + seed, len));
    }
    for number in 0..6 {
        let mut data = content(number, (1 + random.below(5) as usize) << 20);
        data.extend(content(500, 1 << 20));
        files.insert(format!("large {number}"), data);
    }
    files
}

fn filled(device: &Arc<dyn Device>, files: &BTreeMap<String, Vec<u8>>) {
    let pool = open(device);
    for (name, data) in files {
        write(&pool, name, data);
    }
    let service = pool.service();
    let node = NewNode { parent: ROOT_INO, name: b"directory", mode: 0o755, umask: 0 };
    let directory = service.make(CALLER, node, NodeContent::Directory).expect("makes").ino;
    for (number, name) in files.keys().enumerate().filter(|(number, _)| number % 7 == 0) {
        let ino = service.lookup(ROOT_INO, name.as_bytes()).expect("is there").ino;
        let second = format!("link {number}");
        service.link(ino, directory, second.as_bytes()).expect("links");
        service.forget(ino, 2);
    }
    pool.close().expect("closes");
}

/// Reads every file and returns all names of those that give errors.
fn unreadable(device: &Arc<dyn Device>, files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let pool = open_with(device, &PoolOptions { read_only: true, ..PoolOptions::default() });
    let mut names = BTreeSet::new();
    for (number, (name, data)) in files.iter().enumerate() {
        match read(&pool, name) {
            Some(found) => assert!(found == *data, "{name}: wrong bytes"),
            None => {
                names.insert(name.clone());
                if number % 7 == 0 {
                    names.insert(format!("directory/link {number}"));
                }
            }
        }
    }
    pool.close().expect("closes");
    names.into_iter().collect()
}

fn flip(device: &Arc<dyn Device>, directory: &str, count: u64, seed: u64) {
    let mut random = Random(seed);
    let slots = device.list(directory).expect("lists").len() as u64;
    let each = count / slots;
    let mut left = count;
    crate::tests::scrub::change(device, directory, &mut |bytes| {
        let here = if left < 2 * each { left } else { each };
        left -= here;
        let mut places = BTreeSet::new();
        while (places.len() as u64) < here {
            places.insert(random.below(bytes.len() as u64) as usize);
        }
        for place in places {
            bytes[place] ^= 1 << random.below(8);
        }
    });
    assert_eq!(left, 0, "all were flipped");
}

fn all_whole(pool: &Pool, files: &BTreeMap<String, Vec<u8>>) {
    for (name, data) in files {
        assert!(read(pool, name).as_ref() == Some(data), "{name} is whole");
    }
}

fn named_and_healed(directory: &str, small: u64, count: u64, seed: u64, compression: Compression) {
    let device = formatted(compression);
    let files = files(small);
    filled(&device, &files);
    flip(&device, directory, count, seed);
    spoil_copies(&device);
    let expected = unreadable(&device, &files);
    let names = files.len() + files.len().div_ceil(7);
    assert!(!expected.is_empty() && expected.len() < names * 3 / 4, "{} of {names}", expected.len());
    println!("{count} flipped bytes in {directory}: {} of {names} names are affected", expected.len());

    let pool = open(&device);
    let report = scrub(&pool);
    assert_eq!(affected(&report), expected, "exactly these");
    assert!(!report.is_clean() && report.damage_count > 0);
    // A check names the same files, and so does a second scrub.
    let found = check(&pool);
    let mut names: Vec<String> = found.affected.files.iter().flat_map(|file| file.paths.clone()).collect();
    names.sort();
    assert_eq!(names, expected);
    let again = scrub(&pool);
    assert_eq!((again.bad_chunks, again.bad_nodes, affected(&again)), (0, 0, expected.clone()), "known already");
    pool.close().expect("closes");
    drop(pool);
    // Quarantine does not change which files can be read.
    assert_eq!(unreadable(&device, &files), expected);

    // Another backup of the same data.
    let pool = open(&device);
    for (name, data) in &files {
        write(&pool, &format!("again {name}"), data);
    }
    pool.sync().expect("syncs");
    all_whole(&pool, &files);
    let report = scrub(&pool);
    assert!(report.is_clean() && report.affected.files.is_empty(), "{report:?}");
    assert!(!pool.core().namespace.has_losses(), "nothing is lost any more");
    let found = check(&pool);
    assert_eq!(found.findings, Vec::<String>::new());
    assert!(!found.notes.is_empty(), "what is damaged and not needed is still there");
    reclaim(&pool);
    let found = check(&pool);
    assert_eq!((found.findings, found.notes), (Vec::new(), Vec::new()), "and now it is gone");
    all_whole(&pool, &files);
    pool.close().expect("closes");
    drop(pool);
    assert_eq!(unreadable(&device, &files), Vec::<String>::new());
}

#[test]
fn a_thousand_flipped_bytes_in_containers_name_exactly_the_affected_files_and_heal() {
    named_and_healed("containers", 4000, 1000, 3, Compression::Zstd(1));
}

#[test]
fn flipped_bytes_in_uncompressed_containers() {
    named_and_healed("containers", 400, 100, 4, Compression::None);
}

#[test]
fn flipped_bytes_in_recipes() {
    named_and_healed("recipes", 400, 3, 5, Compression::Zstd(1));
}

/// A read-only pool is scrubbed but not changed; the scrub names the same files.
#[test]
fn a_pool_that_may_not_be_changed_names_the_files_too() {
    let device = formatted(Compression::Zstd(1));
    let files = files(400);
    filled(&device, &files);
    flip(&device, "containers", 60, 6);
    let expected = unreadable(&device, &files);
    let pool = open_with(&device, &PoolOptions { read_only: true, ..PoolOptions::default() });
    let report = scrub(&pool);
    assert_eq!(affected(&report), expected);
    assert_eq!(report.lost_chunks, 0, "nothing was noted");
    pool.close().expect("closes");
}
