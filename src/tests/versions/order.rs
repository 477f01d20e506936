//! The power goes within a snapshot, whose nodes become durable piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::{Origin, Pool, Progress};
use dedupfs_service::{Errno, FileService, ROOT_INO};
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
/// durable before the first of them is. The canary of this order: `allow_versions` behind the building of the tree.
#[test]
fn a_snapshot_that_a_power_loss_ends_leaves_a_pool_that_older_releases_refuse_and_only_garbage() {
    let device = MemoryDevice::new();
    format(&shared(&device));
    let pool = open(&shared(&device));
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    pool.sync().expect("syncs");
    assert!(!pool.core().namespace.has_versions());
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
