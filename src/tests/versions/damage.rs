//! Damage of tree nodes: told exactly, healed by a snapshot of the same tree, repaired from the copy on the data root.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::check::AffectedFiles;
use dedupfs::scrub::{ScrubOptions, ScrubReport};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{Errno, FileService, Ino, Listing, ROOT_INO, Timestamp, XattrMode};
use dedupfs_store::Fingerprint;
use dedupfs_store::device::Device;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

use super::site::*;
use super::spots::*;

fn scrub(pool: &Pool) -> ScrubReport {
    let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs");
    assert!(report.finished);
    report
}

/// Paths and lost entries of all findings.
fn told(affected: &AffectedFiles) -> Vec<(String, u64)> {
    assert_eq!(affected.file_count, affected.files.len() as u64);
    affected.files.iter().flat_map(|file| file.paths.iter().map(|path| (path.clone(), file.lost_entries))).collect()
}

/// Lists a directory to its end or to an error.
fn list(pool: &Pool, ino: Ino) -> (BTreeSet<Vec<u8>>, Result<(), Errno>) {
    let (mut names, mut after) = (BTreeSet::new(), 0);
    loop {
        match pool.service().read_directory(ino, after, 50, Listing::Names) {
            Ok(page) if page.is_empty() => return (names, Ok(())),
            Ok(page) => {
                after = page.last().expect("has one").cookie;
                names.extend(page.into_iter().map(|entry| entry.name));
            }
            Err(error) => return (names, Err(error)),
        }
    }
}

/// A closed pool with a live tree and two equal versions of it; the place of the leaf with `file-77`, and its names.
fn with_versions() -> (Roots, Spot, Vec<Vec<u8>>) {
    with_versions_of(&fill)
}

fn with_versions_of(fill: &dyn Fn(&Pool, Ino)) -> (Roots, Spot, Vec<Vec<u8>>) {
    let roots = Roots::formatted();
    let pool = roots.open();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    directory(&pool, ROOT_INO, "series");
    snapshot(&pool, "live", "series", "v1");
    snapshot(&pool, "live", "series", "v2");
    let (leaf, names) = leaf_with(&pool, "file-77");
    pool.close().expect("closes");
    drop(pool);
    let pool = roots.open();
    let spot = Spot::of(&pool, &leaf);
    pool.close().expect("closes");
    (roots, spot, names)
}

fn all_versions_show(pool: &Pool, versions: &[&str]) {
    let live = tree(pool, find(pool, "live"));
    for version in versions {
        assert!(tree(pool, find(pool, &format!("series/{version}"))) == live, "{version}");
    }
}

#[test]
fn a_lost_leaf_is_an_error_the_other_leaves_go_on_and_a_snapshot_of_the_same_tree_heals_it() {
    let (roots, spot, lost) = with_versions();
    roots.spoil_both(&spot);
    let pool = roots.open();
    let service = pool.service();
    let many = find(&pool, "series/v1/many");
    let all = list(&pool, find(&pool, "live/many")).0;
    assert!(lost.len() < all.len() / 4);
    for name in &all {
        let found = service.lookup(many, name);
        match lost.contains(name) {
            true => assert_eq!(found, Err(Errno::EIO)),
            false => service.forget(found.expect("is in another leaf").ino, 1),
        }
    }
    let before: BTreeSet<Vec<u8>> = all.iter().filter(|name| **name < lost[0]).cloned().collect();
    assert!(before.len() > 10, "{}", before.len());
    assert_eq!(list(&pool, many), (before, Err(Errno::EIO)), "names before the damage, then the error");

    let report = scrub(&pool);
    assert_eq!((report.lost_nodes, report.lost_chunks, report.repaired_nodes), (1, 0, 0), "{report:?}");
    let expected = ["v1", "v2"].map(|version| (format!("series/{version}/many"), lost.len() as u64));
    assert_eq!(told(&report.affected), expected);
    assert_eq!(told(&check(&pool).affected), expected);
    assert_eq!(service.lookup(many, &lost[0]), Err(Errno::EIO));

    snapshot(&pool, "live", "series", "v3");
    all_versions_show(&pool, &["v1", "v2", "v3"]);
    assert!(scrub(&pool).is_clean());
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    service.remove_tree(ROOT_INO, b"live").expect("removes");
    forget(&pool, find(&pool, "series"), "v1");
    reclaim(&pool);
    assert_clean(&pool);
    assert_eq!(check(&pool).notes, Vec::<String>::new(), "the damaged container is gone");
    pool.close().expect("closes");
}

#[test]
fn a_lost_top_is_told_as_all_entries_of_each_version() {
    let (roots, ..) = with_versions();
    let pool = roots.open();
    let is_top = |node: &dedupfs_store::tree::Node| matches!(node, dedupfs_store::tree::Node::Top(_));
    let tops: Vec<Fingerprint> =
        tree_nodes(&pool).into_iter().filter(|(_, node)| is_top(node)).map(|(fingerprint, _)| fingerprint).collect();
    assert_eq!(tops.len(), 1, "equal versions");
    let spot = Spot::of(&pool, &tops[0]);
    pool.close().expect("closes");
    drop(pool);
    roots.spoil_both(&spot);
    let pool = roots.open();
    let report = scrub(&pool);
    assert_eq!(told(&report.affected), ["v1", "v2"].map(|version| (format!("series/{version}"), u64::MAX)));
    let version = find_version(&pool, "v1");
    assert_eq!(pool.service().lookup(version, b"many"), Err(Errno::EIO));
    let listed = pool.versions(None).expect("lists");
    assert!(listed.len() == 2 && listed.iter().all(|version| version.damaged.is_none()), "records are sound");
    snapshot(&pool, "live", "series", "v3");
    all_versions_show(&pool, &["v1", "v2", "v3"]);
    assert_clean(&pool);
    pool.close().expect("closes");
}

/// The inode of a version whose tree may be damaged.
fn find_version(pool: &Pool, name: &str) -> Ino {
    let series = find(pool, "series");
    let (ino, _) = pool.core().namespace.lookup(series, name.as_bytes()).expect("can be read").expect("is there");
    ino
}

#[test]
fn a_bad_node_is_stored_again_from_its_copy_on_the_data_root_and_nothing_is_lost() {
    let (roots, spot, _) = with_versions();
    spot.spoil(&roots.meta, OWN);
    let pool = roots.open();
    let report = scrub(&pool);
    assert_eq!((report.repaired_nodes, report.bad_nodes, report.lost_nodes), (1, 0, 0), "{report:?}");
    assert!(report.is_clean() && report.affected.files.is_empty() && report.damage_count > 0, "{report:?}");
    assert!(!pool.core().namespace.has_losses());
    all_versions_show(&pool, &["v1", "v2"]);
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    // The repaired copy is exported in its turn.
    pool.close().expect("closes");
    drop(pool);
    let pool = roots.open();
    assert_eq!(scrub(&pool).repaired_nodes, 0);
    all_versions_show(&pool, &["v1", "v2"]);
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    ["v1", "v2"].iter().for_each(|version| forget(&pool, find(&pool, "series"), version));
    reclaim(&pool);
    assert_clean(&pool);
    let stats = pool.stats().expect("has figures");
    assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0), "counts were right");
    pool.close().expect("closes");
}

/// Nodes of recipes profit as well.
#[test]
fn a_whole_damaged_container_of_recipes_is_stored_again() {
    let (roots, spot, _) = with_versions();
    let path = "recipes/000001.slots";
    let bytes = roots.meta.read_file(path, 1 << 30).expect("reads");
    let file = roots.meta.open(path, dedupfs_store::device::OpenMode::Write).expect("opens");
    file.write_at(&vec![0xa5; bytes.len()], 0).expect("writes");
    file.sync().expect("syncs");
    drop(spot);
    let pool = roots.open();
    let nodes = pool.core().indexes.nodes.stats().cells;
    let report = scrub(&pool);
    assert_eq!((report.repaired_nodes, report.bad_nodes, report.lost_nodes), (nodes, 0, 0), "{report:?}");
    all_versions_show(&pool, &["v1", "v2"]);
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    all_versions_show(&roots.open(), &["v1", "v2"]);
}

#[test]
fn a_reader_that_meets_a_bad_node_has_it_repaired() {
    let (roots, spot, lost) = with_versions();
    spot.spoil(&roots.meta, OWN);
    let pool = roots.open();
    let many = find(&pool, "series/v1/many");
    assert_eq!(pool.service().lookup(many, &lost[0]), Err(Errno::EIO), "never wrong names");
    let until = Instant::now() + Duration::from_secs(60);
    while pool.service().lookup(many, &lost[0]).is_err() {
        assert!(Instant::now() < until, "it is repaired");
        std::thread::sleep(Duration::from_millis(5));
    }
    all_versions_show(&pool, &["v1", "v2"]);
    assert!(!pool.core().namespace.has_losses());
    pool.core().quarantine(&[]).expect("waits for the one under way");
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    pool.close().expect("closes");
}

/// A node that was lost is found again when its copy is: the disk of the data root was away, say.
#[test]
fn what_is_quarantined_is_repaired_later() {
    let (roots, spot, _) = with_versions();
    let sound = roots.data.snapshot_all_synced();
    roots.spoil_both(&spot);
    let pool = roots.open();
    assert_eq!(scrub(&pool).lost_nodes, 1);
    pool.close().expect("closes");
    drop(pool);
    for entry in sound.list(COPY).expect("lists") {
        let path = format!("{COPY}/{}", entry.name);
        let bytes = sound.read_file(&path, 1 << 30).expect("reads");
        let file = roots.data.open(&path, dedupfs_store::device::OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
    }
    let pool = roots.open();
    let report = scrub(&pool);
    assert_eq!((report.repaired_nodes, report.lost_nodes), (1, 0), "{report:?}");
    assert!(!pool.core().namespace.has_losses());
    all_versions_show(&pool, &["v1", "v2"]);
    assert_clean_but_for_garbage(&pool);
    pool.close().expect("closes");
}

fn assert_clean_but_for_garbage(pool: &Pool) {
    assert_eq!(check(pool).findings, Vec::<String>::new());
}

#[test]
fn nothing_is_repaired_while_counts_are_in_doubt_or_the_pool_may_not_be_changed() {
    let (roots, spot, _) = with_versions();
    spot.spoil(&roots.meta, OWN);
    let doubtful = roots.copy();
    let pool = doubtful.open();
    pool.core().namespace.set_doubt().expect("is noted");
    let report = scrub(&pool);
    assert_eq!((report.repaired_nodes, report.bad_nodes, report.lost_nodes), (0, 1, 1), "{report:?}");
    pool.close().expect("closes");
    let pool = roots.open_with(&PoolOptions { read_only: true, ..PoolOptions::default() });
    let report = scrub(&pool);
    assert_eq!((report.repaired_nodes, report.bad_nodes, report.lost_nodes), (0, 1, 0), "{report:?}");
    assert_eq!(told(&report.affected).len(), 2);
}

/// The power goes at any operation of a scrub that repairs.
#[test]
fn a_crash_at_any_operation_of_a_repair_loses_nothing() {
    let (roots, spot, _) = with_versions_of(&|pool, live| {
        for number in 0..100 {
            file(pool, live, &format!("file-{number}"), format!("number {number}").as_bytes());
        }
        file(pool, live, "large", &bytes(1, 400_000));
    });
    spot.spoil(&roots.meta, OWN);
    let mut crashes = 0;
    for operation in 0.. {
        let memory = roots.copy();
        let faulty = FaultyDevice::over_memory(&memory.meta);
        let (meta, data): (Arc<dyn Device>, Arc<dyn Device>) = (Arc::new(faulty.clone()), memory.data());
        let pool = Pool::open_on(&meta, &data, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
        faulty.add(FaultPlan::new(Fault::Io, operation).on(&Operation::CHANGING).lasting());
        let outcome = pool.scrub(&ScrubOptions::default(), &NoProgress);
        drop(pool);
        let after = Roots { meta: memory.meta.crash(operation.wrapping_mul(0x9e37)), data: memory.data };
        crashes += 1;
        let pool = after.open();
        let report = scrub(&pool);
        assert_eq!((report.lost_nodes, report.affected.file_count), (0, 0), "after operation {operation}: {report:?}");
        all_versions_show(&pool, &["v1", "v2"]);
        assert_eq!(check(&pool).findings, Vec::<String>::new(), "after operation {operation}");
        reclaim(&pool);
        all_versions_show(&pool, &["v1", "v2"]);
        assert_clean(&pool);
        pool.close().expect("closes");
        if outcome.is_ok() {
            break;
        }
    }
    println!("{crashes} crash points");
    assert!(crashes > 10, "only {crashes} operations");
}

/// A record that cannot be read hid all versions of the pool.
#[test]
fn regression_a_damaged_record_hides_no_version() {
    let (roots, ..) = with_versions();
    let pool = roots.open();
    let names = |pool: &Pool| -> Vec<(String, bool)> {
        let listed = pool.versions(None).expect("lists");
        listed.into_iter().map(|version| (version.name, version.damaged.is_some())).collect()
    };
    assert_eq!(names(&pool), [("v1".to_owned(), false), ("v2".to_owned(), false)]);
    let v1 = find_version(&pool, "v1");
    let namespace = &pool.core().namespace;
    let change = |value: &[u8]| {
        let set =
            namespace.set_xattr(v1, dedupfs_namespace::VERSION_RECORD, value, XattrMode::Any, Timestamp::default());
        set.expect("sets");
    };
    change(b"nonsense");
    assert_eq!(names(&pool), [("v1".to_owned(), true), ("v2".to_owned(), false)]);
    let listed = pool.versions(Some(find(&pool, "series"))).expect("lists");
    assert!(!listed[0].fingerprint.is_empty() && listed[0].directory == "series", "{listed:?}");
    all_versions_show(&pool, &["v1", "v2"]);
    pool.close().expect("closes");
}

/// The frames of a container can be sound around wrong bytes. The verification of the export took such a container for
/// sound, and wrote its bytes over the only right ones.
#[test]
fn regression_a_verification_of_the_export_does_not_replace_the_right_copy_of_a_node_with_a_wrong_one() {
    let (roots, spot, _) = with_versions();
    spot.spoil(&roots.meta, OWN);
    let before = roots.data.read_file("export/recipes/000001.slots", 1 << 30).expect("reads");
    let pool = roots.open();
    let exporter = &pool.core().exporter;
    let mut check = exporter.verify(crate::durability::export::CopyDepth::Content, &mut |_| true).expect("verifies");
    exporter.renew(&mut check).expect("writes");
    let after = roots.data.read_file("export/recipes/000001.slots", 1 << 30).expect("reads");
    assert!(after[..before.len()] == before, "the copy is kept");
    assert_eq!(scrub(&pool).repaired_nodes, 1);
    all_versions_show(&pool, &["v1", "v2"]);
    pool.close().expect("closes");
}
