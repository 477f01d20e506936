//! The meta root is lost: versions come back from the data root.

use std::sync::Arc;

use dedupfs::recover::recover_on;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, TRIAL_MEMORY_BYTES};
use dedupfs_namespace::FIRST_VERSION;
use dedupfs_service::{Errno, FileService, ROOT_INO};
use dedupfs_store::device::{Device, MemoryDevice};

use super::site::*;
use super::spots::*;

fn recovered(roots: &Roots, forced: bool) -> Roots {
    let lost = Roots { meta: MemoryDevice::new(), data: roots.data.clone() };
    let (meta, data): (Arc<dyn Device>, Arc<dyn Device>) = (lost.meta(), lost.data());
    let name = b"elsewhere".to_vec();
    let report = recover_on(&meta, &data, name, forced, &PoolOptions::default(), &NoProgress).expect("recovers");
    assert_eq!(report.rebuilt.missing, 0);
    lost
}

#[test]
fn versions_are_recovered_with_their_records_and_older_releases_are_refused() {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    directory(&pool, ROOT_INO, "series");
    snapshot(&pool, "live", "series", "v1");
    file(&pool, find(&pool, "live/many"), "file-77b", b"new");
    snapshot(&pool, "live", "series", "v2");
    let seen = ["live", "series/v1", "series/v2"].map(|name| tree(&pool, find(&pool, name)));
    let listed = pool.versions(None).expect("lists");
    assert_eq!(listed.len(), 2);
    let scratch = tempfile::tempdir().expect("makes a directory");
    pool.core().committer.export().expect("exports");
    let trial = pool.trial_recovery(scratch.path(), TRIAL_MEMORY_BYTES, &NoProgress).expect("is tried");
    assert!(trial.is_sound(), "{trial:?}");
    pool.close().expect("closes");
    drop(pool);
    let roots = recovered(&roots, false);
    let pool = roots.open();
    // Flag 8 of the header.
    assert!(pool.core().namespace.has_versions());
    assert_eq!(pool.versions(None).expect("lists"), listed);
    assert_eq!(["live", "series/v1", "series/v2"].map(|name| tree(&pool, find(&pool, name))), seen);
    assert_clean(&pool);
    forget(&pool, find(&pool, "series"), "v1");
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    reclaim(&pool);
    assert_eq!(tree(&pool, find(&pool, "series/v2")), seen[2]);
    assert_clean(&pool);
    pool.close().expect("closes");
}

#[test]
fn a_version_behind_the_export_is_missing_without_harm_and_its_number_comes_with_another_generation() {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    let before = tree(&pool, find(&pool, "v1"));
    let v1 = pool.service().attributes(find(&pool, "v1")).expect("stats");
    pool.close().expect("closes");
    drop(pool);
    let behind = roots.data.snapshot_all_synced();
    let pool = roots.open();
    file(&pool, find(&pool, "live"), "later", b"later");
    snapshot(&pool, "live", "", "v2");
    let v2 = pool.service().attributes(find(&pool, "v2")).expect("stats");
    assert_eq!(v2.ino, v1.ino + FIRST_VERSION);
    let generations =
        |pool: &Pool, ino| pool.core().namespace.inode(ino).expect("can be read").expect("is there").generation;
    let second = generations(&pool, v2.ino);
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    drop(pool);
    // The data root as it was before the second version, too: its number was never exported.
    for (data, has_second) in [(behind, false), (roots.data.snapshot_all_synced(), true)] {
        let roots = recovered(&Roots { meta: MemoryDevice::new(), data }, true);
        let pool = roots.open();
        assert!(pool.core().namespace.has_versions());
        assert_eq!(tree(&pool, find(&pool, "v1")), before);
        let found = pool.service().lookup(ROOT_INO, b"v2");
        assert_eq!(found.map(|found| found.ino), if has_second { Ok(v2.ino) } else { Err(Errno::ENOENT) });
        assert_clean(&pool);
        snapshot(&pool, "live", "", "v3");
        let v3 = pool.service().attributes(find(&pool, "v3")).expect("stats");
        assert!(v3.ino > v2.ino || generations(&pool, v3.ino) > second, "the kernel's old number must not lead here");
        assert_clean(&pool);
        pool.close().expect("closes");
    }
}

/// The notes of a put lie in the meta root; a recovery in its place took them for somebody's files and was refused.
#[test]
fn regression_a_meta_root_with_notes_of_a_put_is_replaced() {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    let before = tree(&pool, find(&pool, "v1"));
    pool.close().expect("closes");
    drop(pool);
    let (meta, data) = (roots.meta(), roots.data());
    meta.create_directory("notes").expect("makes");
    meta.replace_file("notes", "0000001000000000", b"notes").expect("writes");
    recover_on(&meta, &data, b"elsewhere".to_vec(), true, &PoolOptions::default(), &NoProgress).expect("recovers");
    assert!(meta.list("notes").expect("lists").is_empty(), "they are of what is lost");
    let pool = roots.open();
    assert_eq!(tree(&pool, find(&pool, "v1")), before);
    pool.close().expect("closes");
}

/// A repaired node lies in a new container, and that is exported: a recovery needs the old one no more.
#[test]
fn a_recovery_after_a_repair_gives_the_same() {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    let before = tree(&pool, find(&pool, "v1"));
    let (leaf, _) = leaf_with(&pool, "file-77");
    pool.close().expect("closes");
    drop(pool);
    let pool = roots.open();
    let spot = Spot::of(&pool, &leaf);
    pool.close().expect("closes");
    drop(pool);
    spot.spoil(&roots.meta, OWN);
    let pool = roots.open();
    let report = pool.scrub(&Default::default(), &NoProgress).expect("scrubs");
    assert_eq!(report.repaired_nodes, 1);
    reclaim(&pool);
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = recovered(&roots, false).open();
    assert_eq!(tree(&pool, find(&pool, "v1")), before);
    assert_clean(&pool);
    pool.close().expect("closes");
}
