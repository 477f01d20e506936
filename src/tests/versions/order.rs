//! What happens within a snapshot, whose nodes become durable piece by piece: the power goes, the live tree goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::retention::Rules;
use dedupfs::{EngineError, NoProgress, Origin, Pool, Progress};
use dedupfs_service::{Errno, FileService, ROOT_INO};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, MemoryDevice};

use super::site::*;

/// One in so many entries is followed by a commit and a power loss.
const ONE_IN: u64 = 23;

fn shared(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

/// Commits what there is of the tree, and keeps the disk as a power loss would leave it.
struct Losses<'a> {
    pool: &'a Pool,
    device: &'a MemoryDevice,
    entries: AtomicU64,
    disks: std::sync::Mutex<Vec<MemoryDevice>>,
}

impl Progress for Losses<'_> {
    fn start(&self, _what: &str, _total: u64) {}

    fn advance(&self, by: u64) {
        if self.entries.fetch_add(by, Ordering::Relaxed).is_multiple_of(ONE_IN) {
            self.pool.sync().expect("syncs");
            self.disks.lock().expect("locks").push(self.device.crash(0));
        }
    }

    fn finish(&self) {}
}

/// An older release that counted a pool with tree nodes would free what they name. So the flag that it refuses is
/// durable before the first of them is.
#[test]
fn a_snapshot_that_a_power_loss_ends_leaves_a_pool_that_older_releases_refuse_and_only_garbage() {
    let device = MemoryDevice::new();
    format(&shared(&device));
    let pool = open(&shared(&device));
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    pool.sync().expect("syncs");
    // As a release without versions made it.
    pool.core().namespace.force_no_versions();
    let refused = pool.snapshot(live, (ROOT_INO, b"v"), &Origin::default(), &NoProgress).expect_err("has no versions");
    assert!(matches!(refused, EngineError::NoVersions), "{refused}");
    pool.set_series(ROOT_INO, Some(Rules { keep_none: true, ..Rules::default() }.into()))
        .expect("lets it have versions");
    let before = tree(&pool, live);
    let nodes = |pool: &Pool| {
        pool.core().committer.commit().expect("commits");
        pool.stats().expect("has figures").recipe_nodes
    };
    let without = nodes(&pool);
    let losses =
        Losses { pool: &pool, device: &device, entries: AtomicU64::new(0), disks: std::sync::Mutex::default() };
    pool.snapshot(live, (ROOT_INO, b"v"), &Origin::default(), &losses).expect("makes a version");
    let mut disks = losses.disks.into_inner().expect("locks");
    assert!(disks.len() > 5);
    // Not durable yet.
    disks.push(device.crash(0));
    let mut with_tree_nodes = 0;
    for disk in disks {
        let pool = open(&shared(&disk));
        assert_clean(&pool);
        with_tree_nodes += u64::from(nodes(&pool) > without);
        assert!(pool.core().namespace.has_versions() || nodes(&pool) == without, "tree nodes without the flag");
        assert!(pool.core().namespace.has_versions());
        assert_eq!(pool.service().lookup(ROOT_INO, b"v"), Err(Errno::ENOENT));
        assert!(pool.versions(None).expect("lists").is_empty());
        reclaim(&pool);
        assert_clean(&pool);
        assert_eq!(nodes(&pool), without, "the tree is garbage");
        assert_eq!(tree(&pool, find(&pool, "live")), before);
        // It is made again.
        snapshot(&pool, "live", "", "v");
        assert_eq!(tree(&pool, find(&pool, "v")), before);
        assert_clean(&pool);
    }
    assert!(with_tree_nodes > 5, "commits within the snapshot have nodes of it");
    // Durable with the next commit.
    pool.sync().expect("syncs");
    let pool = open(&shared(&device.crash(0)));
    assert_eq!(tree(&pool, find(&pool, "v")), before);
    assert_clean(&pool);
}

/// Removes the live tree as soon as the first of its names is read, and asks for its space.
struct Removes<'a> {
    pool: &'a Pool,
    is_done: AtomicBool,
}

impl Progress for Removes<'_> {
    fn start(&self, _what: &str, _total: u64) {}

    fn advance(&self, _by: u64) {
        if !self.is_done.swap(true, Ordering::Relaxed) {
            self.pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
            self.pool.sync().expect("syncs");
            let reclaimed = self.pool.reclaim(&ReclaimOptions::below(100), &NoProgress);
            assert!(matches!(reclaimed, Err(EngineError::Store(StoreError::Busy { .. }))), "{reclaimed:?}");
        }
    }

    fn finish(&self) {}
}

/// Nothing counts that content between the removal and the leaf that names it.
#[test]
fn content_that_loses_its_last_live_name_within_a_snapshot_stays() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    let before = tree(&pool, live);
    let removes = Removes { pool: &pool, is_done: AtomicBool::new(false) };
    pool.snapshot(live, (ROOT_INO, b"v"), &Origin::default(), &removes).expect("makes a version");
    assert_eq!(pool.service().lookup(ROOT_INO, b"live"), Err(Errno::ENOENT));
    for _ in 0..2 {
        assert_eq!(tree(&pool, find(&pool, "v")), before);
        assert_clean(&pool);
        reclaim(&pool);
    }
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_eq!(tree(&pool, find(&pool, "v")), before);
    assert_clean(&pool);
}

#[test]
fn a_check_tells_tree_nodes_in_a_pool_that_does_not_say_that_it_has_versions() {
    let pool = open(&formatted());
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    snapshot(&pool, "live", "", "v");
    assert_clean(&pool);
    pool.core().namespace.force_no_versions();
    let findings = check(&pool).findings;
    assert!(matches!(&findings[..], [one] if one.contains("tree nodes") && one.contains("series set")), "{findings:?}");
    pool.set_series(ROOT_INO, Some(Rules { keep_none: true, ..Rules::default() }.into())).expect("says it");
    assert_clean(&pool);
}
