//! The indexes are made anew for a pool with versions.

use std::collections::BTreeMap;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FileService, ROOT_INO};

use super::site::*;
use super::spots::*;

type Cells = [BTreeMap<[u8; 32], (u64, u32, u32)>; 2];

fn cells(pool: &Pool) -> Cells {
    pool.core().committer.settle().expect("counts");
    [&pool.core().indexes.chunks, &pool.core().indexes.nodes].map(|index| {
        let mut cells = BTreeMap::new();
        let mut visit = |fingerprint: dedupfs_store::Fingerprint, cell: dedupfs_index::Cell| {
            cells.insert(fingerprint.0, (cell.location.container().0, cell.location.len_bytes(), cell.references));
            Ok(())
        };
        index.for_each(&mut visit).expect("can be read");
        cells
    })
}

fn rebuilding() -> PoolOptions {
    PoolOptions { rebuild_index: true, ..PoolOptions::default() }
}

/// A closed pool with a live tree, and three versions that share most of their trees.
fn with_versions() -> Roots {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    let many = find(&pool, "live/many");
    pool.service().unlink(many, b"file-5").expect("unlinks");
    file(&pool, many, "file-77b", b"new");
    snapshot(&pool, "live", "", "v2");
    snapshot(&pool, "live", "", "v3");
    // Nothing of this is left after reclaiming, and a rebuild counts no garbage.
    file(&pool, many, "file-6b", b"newer");
    snapshot(&pool, "live", "", "gone");
    forget(&pool, ROOT_INO, "gone");
    reclaim(&pool);
    pool.close().expect("closes");
    roots
}

fn trees(pool: &Pool) -> Vec<BTreeMap<String, Seen>> {
    ["live", "v1", "v2", "v3"].iter().map(|name| tree(pool, find(pool, name))).collect()
}

#[test]
fn a_rebuilt_index_is_the_one_that_was_counted() {
    let roots = with_versions();
    let pool = roots.open();
    let (before, seen) = (cells(&pool), trees(&pool));
    assert_ne!(seen[1], seen[2]);
    assert_eq!(seen[2], seen[3]);
    let tops = tree_nodes(&pool).iter().filter(|(_, node)| node.level() == dedupfs_store::tree::TOP_LEVEL).count();
    assert_eq!(tops, 2);
    pool.close().expect("closes");
    drop(pool);
    for reads_data in [false, true] {
        let copy = roots.copy();
        let pool = copy.open_with(&PoolOptions { rebuild_reads_data: reads_data, ..rebuilding() });
        let report = *pool.rebuilt().expect("was rebuilt");
        assert_eq!((report.missing, report.lost_nodes, report.lost_chunks), (0, 0, 0));
        assert!(cells(&pool) == before, "other cells");
        assert_clean(&pool);
        assert!(trees(&pool) == seen);
        // Counts are good enough to take everything back.
        pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
        ["v1", "v2", "v3"].iter().for_each(|name| forget(&pool, ROOT_INO, name));
        reclaim(&pool);
        let stats = pool.stats().expect("has figures");
        assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0));
        pool.close().expect("closes");
    }
}

/// Decision 0031: what only a lost leaf names looks unused.
#[test]
fn a_leaf_lost_for_a_rebuild_sets_doubt_and_nothing_is_freed_until_it_is_there_again() {
    let roots = with_versions();
    let pool = roots.open();
    let seen = trees(&pool);
    let (leaf, names) = leaf_with(&pool, "file-77b");
    let spot = Spot::of(&pool, &leaf);
    pool.close().expect("closes");
    drop(pool);
    let sound = roots.copy();
    spot.spoil(&roots.meta, OWN);
    let pool = roots.open_with(&rebuilding());
    let report = *pool.rebuilt().expect("was rebuilt");
    assert_eq!(report.lost_nodes, 1, "{report:?}");
    assert!(pool.core().namespace.has_doubt() && pool.core().namespace.has_losses());
    let chunks = cells(&pool)[0].len();
    let refused = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("counts are in doubt");
    assert!(matches!(refused, EngineError::CountsInDoubt), "{refused}");
    assert_eq!(cells(&pool)[0].len(), chunks);
    let affected = check(&pool).affected;
    let told: Vec<_> = affected.files.iter().map(|file| (file.paths[0].as_str(), file.lost_entries)).collect();
    assert_eq!(told, [("v2/many", names.len() as u64), ("v3/many", names.len() as u64)]);
    pool.close().expect("closes");
    drop(pool);

    // The node is put back: another rebuild finds all.
    let again = Roots { meta: roots.meta.snapshot_all_synced(), data: roots.data.snapshot_all_synced() };
    for entry in dedupfs_store::device::Device::list(&sound.meta, OWN).expect("lists") {
        let path = format!("{OWN}/{}", entry.name);
        let bytes = dedupfs_store::device::Device::read_file(&sound.meta, &path, 1 << 30).expect("reads");
        let file = again.meta().open(&path, dedupfs_store::device::OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
    }
    let pool = again.open_with(&rebuilding());
    assert_eq!(pool.rebuilt().expect("was rebuilt").missing, 0);
    assert!(!pool.core().namespace.has_doubt());
    assert!(trees(&pool) == seen);
    assert_clean(&pool);
    reclaim(&pool);
    assert!(trees(&pool) == seen);
    pool.close().expect("closes");

    // Or a snapshot of the same live tree stores it again.
    let pool = roots.open();
    pool.service().unlink(find(&pool, "live/many"), b"file-6b").expect("unlinks");
    snapshot(&pool, "live", "", "v4");
    let healed = |pool: &Pool| {
        assert!(tree(pool, find(pool, "v4")) == tree(pool, find(pool, "live")));
        assert!(["v1", "v2", "v3"].iter().zip(&seen[1..]).all(|(name, seen)| tree(pool, find(pool, name)) == *seen));
    };
    healed(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = roots.open_with(&rebuilding());
    assert!(!pool.core().namespace.has_doubt());
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    reclaim(&pool);
    healed(&pool);
    assert_clean(&pool);
    pool.close().expect("closes");
}

#[test]
fn the_plan_of_a_reclaiming_after_a_removal_is_what_it_does() {
    let roots = with_versions();
    let pool = roots.open();
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    ["v2", "v3"].iter().for_each(|name| forget(&pool, ROOT_INO, name));
    let options = ReclaimOptions { leave_percent: 0, ..ReclaimOptions::below(100) };
    let planned = pool.reclaim(&ReclaimOptions { dry_run: true, ..options }, &NoProgress).expect("plans");
    let v1 = tree(&pool, find(&pool, "v1"));
    let done = pool.reclaim(&options, &NoProgress).expect("reclaims");
    assert_eq!(planned.nodes_freed, done.nodes_freed);
    assert!(done.nodes_freed > 0);
    assert_eq!(planned.chunks_removed, done.chunks_removed);
    assert_eq!(tree(&pool, find(&pool, "v1")), v1);
    assert_clean(&pool);
    pool.close().expect("closes");
}
