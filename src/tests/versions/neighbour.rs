//! Series whose new content is compared with the former version alone: content that skipped a version is stored a second time, and
//! at rest only once.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use dedupfs::retention::{Count, Rules};
use dedupfs::transfer::{BaseChoice, Patterns, PutOptions, VersionOptions};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Origin, Pool, Scope, SeriesRecord};
use dedupfs_service::{Caller, FileService, ROOT_INO, RenameFlags, XattrMode};
use dedupfs_store::device::Device;

use super::site::*;

const FILES: u64 = 8;

/// The files of a version: `skipping` ones are in the first and in the third version alone.
fn tree(version: u64) -> tempfile::TempDir {
    let top = tempfile::tempdir().expect("makes");
    for number in 0..FILES {
        fs::write(top.path().join(format!("stays {number}")), bytes(number, 60_000)).expect("writes");
        fs::write(top.path().join(format!("new {number}")), bytes(100 * version + number, 3_000)).expect("writes");
        if version != 2 {
            // Neither equal segments nor equal files: only chunks return.
            let content = [bytes(1_000 + number, 50_000), bytes(10_000 * version + number, 9_000)].concat();
            fs::write(top.path().join(format!("skips {version} {number}")), content).expect("writes");
        }
    }
    top
}

/// Puts a version as `dedupfs put` does: into a directory of work, from which it gets its name. Found by reading the code for another
/// command: the scope was looked for at that directory, so no put of the tool had one.
fn put(pool: &Pool, from: &Path, name: &str) -> u64 {
    let service = pool.service();
    let work = directory(pool, ROOT_INO, ".dedupfs-put-1");
    service.set_xattr(Caller::default(), work, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    let origin = Origin { source: b"/source".to_vec(), host: b"here".to_vec() };
    let version =
        VersionOptions { origin, base: BaseChoice::LastIn(ROOT_INO), racy_ms: 0, ..VersionOptions::default() };
    let options = PutOptions { version: Some(version), ..PutOptions::default() };
    let before = pool.stats().expect("tells").session.bytes_stored;
    let from = File::open(from).expect("opens").into();
    let report = pool.put(&options, from, (work, name.as_bytes()), &NoProgress).expect("puts");
    assert_eq!(report.problem_count, 0, "{report:?}");
    let name = name.as_bytes();
    service.rename(work, name, ROOT_INO, name, RenameFlags::default()).expect("renames");
    service.remove_directory(ROOT_INO, b".dedupfs-put-1").expect("removes");
    pool.stats().expect("tells").session.bytes_stored - before
}

fn assert_whole(pool: &Pool, name: &str, source: &Path) {
    let out = tempfile::tempdir().expect("makes");
    let to = File::open(out.path()).expect("opens").into();
    pool.get(find(pool, name), (to, b"out"), &Patterns::default(), &NoProgress).expect("gets");
    let entries = fs::read_dir(source).expect("lists").map(|entry| entry.expect("is there").file_name());
    let names: Vec<_> = entries.collect();
    assert_eq!(fs::read_dir(out.path().join("out")).expect("lists").count(), names.len());
    for name in names {
        let restored = fs::read(out.path().join("out").join(&name)).expect("reads");
        assert!(restored == fs::read(source.join(&name)).expect("reads"), "{name:?}");
    }
}

/// Puts three versions, each in a new mount, so that their chunks are in sealed tankers. Returns the bytes stored by each.
fn series(device: &Arc<dyn Device>, scope: Scope, trees: &[tempfile::TempDir]) -> Vec<u64> {
    let rules = Rules { keep_last: Some(Count::new(9)), ..Rules::default() };
    let stored = (1..).zip(trees).map(|(version, tree)| {
        let pool = open(device);
        pool.set_series(ROOT_INO, Some(SeriesRecord { rules, scope })).expect("sets");
        let stored = put(&pool, tree.path(), &version.to_string());
        pool.close().expect("closes");
        stored
    });
    stored.collect()
}

#[test]
fn content_that_skipped_a_version_is_stored_again_and_once_at_rest() {
    let trees: Vec<_> = (1..=3).map(tree).collect();
    let (exact, near) = (formatted(), formatted());
    let stored_exact = series(&exact, Scope::Pool, &trees);
    let stored_near = series(&near, Scope::Neighbour, &trees);
    assert_eq!(stored_exact[..2], stored_near[..2], "without skipping");
    // All but the chunk at the change returns.
    assert!(stored_near[2] > stored_exact[2] + FILES * 30_000, "{stored_near:?} {stored_exact:?}");
    let at_rest = |device: &Arc<dyn Device>| {
        let pool = open(device);
        let report = reclaim(&pool);
        assert_clean(&pool);
        (1..).zip(&trees).for_each(|(version, tree)| assert_whole(&pool, &version.to_string(), tree.path()));
        let stats = pool.stats().expect("tells");
        assert_eq!((report.garbage_left_bytes, stats.unreferenced_chunk_bytes), (0, 0));
        (stats.unique_chunks, stats.unique_chunk_bytes, stats.data_containers.stored_bytes)
    };
    assert_eq!(at_rest(&near), at_rest(&exact), "chunks, their bytes, and those in containers");
    // The index that is made anew from the containers says the same.
    let rebuilt = PoolOptions { rebuild_index: true, ..PoolOptions::default() };
    drop(Pool::open_on(&near, &near, Vec::new(), &rebuilt, &NoProgress).expect("opens"));
    assert_eq!(at_rest(&near), at_rest(&exact));
}

#[test]
fn removed_versions_leave_what_others_need() {
    let trees: Vec<_> = (1..=3).map(tree).collect();
    let device = formatted();
    series(&device, Scope::Neighbour, &trees);
    let pool = open(&device);
    // The copies of the third version have taken the places of those of the first.
    forget(&pool, ROOT_INO, "1");
    reclaim(&pool);
    assert_clean(&pool);
    assert_whole(&pool, "3", trees[2].path());
    assert_whole(&pool, "2", trees[1].path());
    forget(&pool, ROOT_INO, "3");
    reclaim(&pool);
    assert_clean(&pool);
    assert_whole(&pool, "2", trees[1].path());
    assert!(pool.service().lookup(ROOT_INO, b"3").is_err());
}
