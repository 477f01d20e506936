//! Counts that cannot be right: from then on nothing is freed until the index is rebuilt. Other contradictions stop
//! nothing.

use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_index::Cell;
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint, LogOp, OperationsLog};

use crate::tests::common::{content, read, write};
use crate::tests::reclaim::assert_sound;
use crate::tests::reclaim::site::{Site, remove};

const SMALL_BYTES: usize = 600;

/// Makes a file of one chunk that stays and a deleted file of many. Returns the first one's chunk.
fn with_garbage(site: &Site) -> (Arc<Pool>, Child) {
    let pool = site.open();
    write(&pool, "kept", &content(1, SMALL_BYTES));
    write(&pool, "gone", &content(2, 1 << 20));
    pool.sync().expect("syncs");
    remove(&*pool.service(), "gone");
    pool.sync().expect("syncs");
    let service = pool.service();
    let ino = service.lookup(ROOT_INO, b"kept").expect("is there").ino;
    service.forget(ino, 1);
    let root = pool.core().namespace.inode(ino).expect("reads").expect("is there").root;
    let Root::Chunk(child) = root else { panic!("{root:?} is large") };
    let place = cell(&pool, &child).map(|cell| cell.location.container());
    assert_eq!(place, Some(child.hint), "the hint is the place");
    (pool, child)
}

/// Counts operations that no client made.
fn count(pool: &Pool, ops: impl IntoIterator<Item = LogOp>) {
    ops.into_iter().for_each(|op| pool.core().namespace.log(op));
    pool.core().committer.settle().expect("settles");
}

fn cell(pool: &Pool, child: &Child) -> Option<Cell> {
    pool.core().indexes.chunks.get(&child.fingerprint).expect("tells")
}

fn assert_frees_nothing(pool: &Pool, when: &str) {
    let before = pool.core().physical_bytes().expect("tells");
    let error = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("frees nothing");
    assert!(matches!(error, EngineError::CountsInDoubt), "{when}: {error}");
    assert!(error.to_string().contains("dedupfs fsck --rebuild-index"), "{when}: {error}");
    assert_eq!(pool.core().physical_bytes().expect("tells"), before, "{when}");
    assert!(pool.core().committer.remove_containers(vec![ContainerId(1)]).is_err(), "{when}");
    assert!(read(pool, "kept") == Some(content(1, SMALL_BYTES)), "{when}");
    assert!(pool.stats().expect("tells").counts_in_doubt && pool.reclaim_status().counts_in_doubt, "{when}");
    assert!(pool.notice().is_some_and(|notice| notice.contains("--rebuild-index")), "{when}");
}

/// A count below 0 became 0: the chunk was garbage, and the next run freed it although a file needed it.
#[test]
fn regression_from_a_count_that_cannot_be_right_on_nothing_is_freed() {
    let site = Site::new();
    let (pool, child) = with_garbage(&site);
    count(&pool, [LogOp::RootDropped(Root::Chunk(child)), LogOp::RootDropped(Root::Chunk(child))]);
    assert_eq!(cell(&pool, &child).map(|cell| cell.references), Some(u32::MAX));
    assert_frees_nothing(&pool, "at once");
    let found = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
    assert!(found.needs_rebuild && found.findings.iter().any(|found| found.contains("nothing is freed")), "{found:#?}");
    // As after a crash: the log is counted once more.
    drop(pool);
    let pool = site.open();
    assert_frees_nothing(&pool, "after a crash");
    write(&pool, "new", &content(3, 300_000));
    pool.close().expect("closes");
    drop(pool);
    // No row is left that would show the contradiction again when counted.
    let pool = site.open();
    assert_eq!(pool.recovery().rows_replayed, 0);
    assert_frees_nothing(&pool, "behind a checkpoint");
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open_rebuilding();
    assert!(!pool.core().namespace.has_doubt());
    assert_sound(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    assert_eq!(cell(&pool, &child).map(|cell| cell.references), Some(1));
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(report.containers_freed > 0, "{report:?}");
    assert!(read(&pool, "kept") == Some(content(1, SMALL_BYTES)));
    assert_sound(&pool);
}

#[test]
fn regression_a_count_of_what_the_index_does_not_have_is_a_doubt() {
    let unknown = Child { fingerprint: Fingerprint([7; 32]), len_bytes: 4096, hint: ContainerId::NONE };
    for op in [LogOp::RootAdded(Root::Chunk(unknown)), LogOp::RootDropped(Root::Chunk(unknown))] {
        let site = Site::new();
        let (pool, _) = with_garbage(&site);
        count(&pool, [op]);
        assert_frees_nothing(&pool, &format!("{op:?}"));
    }
}

/// The count is right and says that the chunk stays: nothing depends on the removal.
#[test]
fn a_removal_that_is_refused_stops_nothing() {
    let site = Site::new();
    let (pool, child) = with_garbage(&site);
    let container = cell(&pool, &child).expect("is there").location.container();
    count(&pool, [LogOp::ChunkRemoved { fingerprint: child.fingerprint, container }]);
    assert!(!pool.core().namespace.has_doubt());
    assert_eq!(cell(&pool, &child).map(|cell| cell.references), Some(1));
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    assert!(read(&pool, "kept") == Some(content(1, SMALL_BYTES)));
    assert_sound(&pool);
}

/// Their cause is known: the counts of everything else are right, so space can still be freed.
#[test]
fn chunks_that_a_crash_left_unreadable_are_lost_and_no_doubt() {
    let site = Site::new();
    let pool = site.open();
    write(&pool, "before", &content(1, 1 << 20));
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    write(&pool, "file", &content(2, 1 << 20));
    pool.sync().expect("syncs");
    let records = pool.core().stores.data.containers();
    drop(pool);
    records.iter().for_each(|record| drop(site.spoil(record)));
    let pool = site.open();
    assert!(pool.recovery().rows_replayed > 0);
    let namespace = &pool.core().namespace;
    assert!(namespace.has_losses() && !namespace.has_doubt(), "in doubt: {}", namespace.has_doubt());
    assert!(pool.core().indexes.chunks.lost() > 50);
    write(&pool, "again", &content(2, 1 << 20));
    pool.sync().expect("syncs");
    assert!(read(&pool, "file") == Some(content(2, 1 << 20)), "the next backup heals it");
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
}
