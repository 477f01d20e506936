//! Names, links, attributes, holes and directories of the greatest size, in versions by snapshot and by put.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use dedupfs::transfer::{PutOptions, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool};
use dedupfs_service::{
    AttributeChanges, FileService, Ino, Listing, NodeContent, OpenOptions, ROOT_INO, SeekTarget, XattrMode,
};

use super::site::*;

/// Entries of the largest directory. `DEDUPFS_ENTRIES` sets another number.
const ENTRIES: u64 = 100_000;
const LINKS: u64 = 10_000;
/// Levels of directories whose names are as long as they may be: their paths are longer than the kernel takes.
const LEVELS: usize = 40;
const TIB: u64 = 1 << 40;
/// The unit of holes on most disks.
const BLOCK_BYTES: usize = 4096;
const ATTRIBUTE_BYTES: usize = 64 << 10;
/// What any disk keeps.
const SHORT_ATTRIBUTE_BYTES: usize = 2000;

fn entries() -> u64 {
    std::env::var("DEDUPFS_ENTRIES").ok().map_or(ENTRIES, |entries| entries.parse().expect("is a number"))
}

/// Any bytes but `/` and NUL, as many as a name may have.
fn longest_name(seed: u64) -> Vec<u8> {
    bytes(seed, 255).into_iter().map(|byte| if byte == 0 || byte == b'/' { 0xff } else { byte }).collect()
}

fn make_bytes(pool: &Pool, parent: Ino, name: &[u8], content: NodeContent<'_>) -> Ino {
    let made = pool.service().make(CALLER, node(parent, name, 0o700), content).expect("makes").ino;
    pool.service().forget(made, 1);
    made
}

fn find_bytes(pool: &Pool, parent: Ino, name: &[u8]) -> Ino {
    let found = pool.service().lookup(parent, name).expect("is there").ino;
    pool.service().forget(found, 1);
    found
}

fn make_extremes(pool: &Pool, top: Ino, attribute_bytes: usize) {
    let service = pool.service();
    let many = directory(pool, top, "many");
    for number in 0..entries() {
        make(pool, many, &format!("{number}"), NodeContent::Regular);
    }
    let linked = file(pool, top, "linked", b"of many names");
    let links = directory(pool, top, "links");
    for number in 1..LINKS {
        service.link(linked, links, format!("{number}").as_bytes()).expect("links");
        service.forget(linked, 1);
    }
    let attributed = file(pool, top, "attributed", b"");
    for ino in [attributed, links] {
        let value = bytes(ino, attribute_bytes);
        service.set_xattr(CALLER, ino, b"user.large", &value, XattrMode::Any).expect("sets");
    }
    let mut deep = directory(pool, top, "deep");
    for level in 0..LEVELS as u64 {
        deep = make_bytes(pool, deep, &longest_name(level), NodeContent::Directory);
    }
    let name = longest_name(99);
    write(pool, make_bytes(pool, deep, &name, NodeContent::Regular), 0, b"at the end of a long path");
    let sparse = file(pool, top, "sparse", &bytes(1, BLOCK_BYTES));
    write(pool, sparse, 3 * TIB, &bytes(2, BLOCK_BYTES));
    let hole = make(pool, top, "hole", NodeContent::Regular);
    let size_bytes = Some(5 * TIB);
    service.set_attributes(CALLER, hole, AttributeChanges { size_bytes, ..Default::default() }).expect("extends");
}

fn assert_extremes(pool: &Pool, version: &str, attribute_bytes: usize) {
    let service = pool.service();
    let at = |name: &str| find(pool, &format!("{version}/{name}"));
    let stat = |ino: Ino| service.attributes(ino).expect("stats");
    let many = at("many");
    let (mut after, mut seen) = (0, vec![false; entries() as usize]);
    loop {
        let page = service.read_directory(many, after, 1000, Listing::Names).expect("lists");
        let Some(last) = page.last() else { break };
        after = last.cookie;
        for entry in &page {
            let number: usize = std::str::from_utf8(&entry.name).expect("is text").parse().expect("is a number");
            assert!(!std::mem::replace(&mut seen[number], true), "{number} is listed twice");
        }
    }
    assert!(seen.iter().all(|&is_seen| is_seen));
    for number in (0..entries()).step_by(997) {
        let ino = find_bytes(pool, many, format!("{number}").as_bytes());
        assert_eq!((stat(ino).nlink, stat(ino).size_bytes), (1, 0));
    }
    let (linked, links) = (at("linked"), at("links"));
    assert_eq!(u64::from(stat(linked).nlink), LINKS);
    for number in (1..LINKS).step_by(7) {
        assert_eq!(find_bytes(pool, links, format!("{number}").as_bytes()), linked);
    }
    assert_eq!(read(pool, linked), b"of many names");
    let values = [at("attributed"), links].map(|ino| service.xattr(ino, b"user.large").expect("has it"));
    assert!(values.iter().all(|value| value.len() == attribute_bytes) && values[0] != values[1]);
    let deep = (0..LEVELS as u64).fold(at("deep"), |deep, level| find_bytes(pool, deep, &longest_name(level)));
    assert_eq!(read(pool, find_bytes(pool, deep, &longest_name(99))), b"at the end of a long path");
    let (sparse, hole) = (at("sparse"), at("hole"));
    assert_eq!((stat(sparse).size_bytes, stat(hole).size_bytes), (3 * TIB + BLOCK_BYTES as u64, 5 * TIB));
    assert_eq!((stat(sparse).blocks, stat(hole).blocks), (16, 0));
    let handle =
        service.open(CALLER, sparse, OpenOptions { read: true, ..OpenOptions::default() }).expect("opens").handle;
    let read_at = |offset, len| {
        let mut into = Vec::new();
        service.read(sparse, handle, offset, len, &mut into).expect("reads");
        into
    };
    assert_eq!(read_at(0, 5000), [bytes(1, BLOCK_BYTES), vec![0; 5000 - BLOCK_BYTES]].concat());
    assert_eq!(read_at(3 * TIB - 2, 10_000), [vec![0; 2], bytes(2, BLOCK_BYTES)].concat());
    assert_eq!(read_at(TIB + 12_345, 1000), [0; 1000]);
    assert_eq!(service.seek(sparse, handle, TIB, SeekTarget::Data), Ok(3 * TIB));
    service.release(sparse, handle);
}

#[test]
fn a_snapshot_keeps_what_is_largest() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    make_extremes(&pool, live, ATTRIBUTE_BYTES);
    let report = snapshot(&pool, "live", "", "v");
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    reclaim(&pool);
    assert_extremes(&pool, "v", ATTRIBUTE_BYTES);
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_extremes(&pool, "v", ATTRIBUTE_BYTES);
    assert_eq!(pool.versions(None).expect("lists")[0].fingerprint, report.fingerprint);
    forget(&pool, ROOT_INO, "v");
    reclaim(&pool);
    let stats = pool.stats().expect("has figures");
    assert_eq!((stats.unique_chunk_bytes, stats.recipe_nodes), (0, 0), "nothing is left");
}

#[test]
fn a_put_keeps_what_is_largest_and_is_the_tree_of_the_snapshot() {
    let from = open(&formatted());
    let live = directory(&from, ROOT_INO, "live");
    make_extremes(&from, live, SHORT_ATTRIBUTE_BYTES);
    let taken = snapshot(&from, "live", "", "v");
    let disk = tempfile::tempdir().expect("makes");
    let opened = |path: &Path| OwnedFd::from(File::open(path).expect("opens"));
    let got = from
        .get(find(&from, "v"), (opened(disk.path()), b"tree"), &dedupfs::transfer::Patterns::default(), &NoProgress)
        .expect("gets");
    assert_eq!(got.problem_count, 0, "{:?}", got.problems);
    let pool = open(&formatted());
    let origin = Origin { source: b"/source".to_vec(), host: b"here".to_vec() };
    let version = Some(VersionOptions { origin, ..VersionOptions::default() });
    let options = PutOptions { version, ..PutOptions::default() };
    let tree = disk.path().join("tree");
    let put = pool.put(&options, opened(&tree), (ROOT_INO, b"v"), &NoProgress).expect("puts");
    assert_eq!(put.problem_count, 0, "{:?}", put.problems);
    assert_eq!(put.version.expect("is a version").fingerprint, taken.fingerprint);
    assert_extremes(&pool, "v", SHORT_ATTRIBUTE_BYTES);
    assert_clean(&pool);
}
