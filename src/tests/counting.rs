//! Rows of the operations log become counts: each thing once.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService as _, ROOT_INO};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, LogOp};

use crate::durability::commit::Applier;
use crate::tests::common::{content, write};

/// A pool with a file of one node.
fn with_a_node() -> Arc<Pool> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let pool = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    write(&pool, "file", &content(1, 1 << 20));
    pool
}

/// What a round has made durable is counted from its own list. The containers are read only where a row is replayed,
/// and never for nodes: a node is known by its own entry alone.
#[test]
fn containers_are_read_where_a_row_is_replayed_and_only_those_of_chunks() {
    let pool = with_a_node();
    pool.sync().expect("syncs");
    pool.stats().expect("settles");
    let core = pool.core();
    let applied = |kind: ContainerKind, is_replayed: bool| {
        let records = core.stores.of(kind).containers();
        let ops: Vec<LogOp> = records
            .iter()
            .map(|record| LogOp::Extend { container: record.id, kind, from_bytes: 0, to_bytes: u32::MAX })
            .collect();
        assert!(!ops.is_empty());
        let nodes = core.dedup.nodes();
        let applier = Applier { indexes: &core.indexes, nodes, stores: &core.stores, lacks: Cell::new(false) };
        let row = core.indexes.chunks.position().max(core.indexes.nodes.position()) + 1;
        let again = applier.apply(core.indexes.of(kind).position(), &ops, None).expect("applies");
        assert_eq!(again.changes, 0, "a row that the index holds was counted again");
        let changes = applier.apply(row, &ops, (!is_replayed).then_some(&[])).expect("applies").changes;
        assert!(!applier.lacks.get(), "the containers are whole");
        changes
    };
    assert_eq!(applied(ContainerKind::Data, false), 0);
    assert_eq!(applied(ContainerKind::Recipe, true), 0);
    assert!(applied(ContainerKind::Data, true) > 10);
}

#[test]
fn chunks_of_sealed_tankers_are_not_stored_again() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties =
        PoolProperties { chunk_size_bytes: 4096, tanker_cells: 64, tanker_buckets: 4, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let open = || Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    let pool = open();
    write(&pool, "one", &content(1, 1 << 20));
    let stored = pool.core().dedup.stats().chunks_stored;
    assert!(stored > 100);
    pool.close().expect("closes");
    drop(pool);
    let pool = open();
    write(&pool, "two", &[content(2, 5000), content(1, 1 << 20)].concat());
    let again = pool.core().dedup.stats().chunks_stored;
    assert!(again < stored / 10, "{again} of {stored} were stored again");
}

#[test]
fn what_nobody_syncs_is_committed_at_the_interval() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let options = PoolOptions { commit_interval: Duration::from_millis(20), ..PoolOptions::default() };
    let pool = Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens");
    let row = || pool.core().namespace.last_row();
    for name in ["first", "second"] {
        let before = row();
        write(&pool, name, &content(1, 10_000));
        let begun = Instant::now();
        while row() == before {
            assert!(begun.elapsed().as_secs() < 60, "{name} is still not durable");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A claim that does not end makes writers store the same chunks again and again.
#[test]
fn chunks_in_claimed_containers_are_stored_again_until_the_claims_end() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties { chunk_size_bytes: 4096, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    let dedup = &pool.core().dedup;
    // Other segments of the same chunks.
    let stored = |name: &str, seed: u64| {
        let before = dedup.stats().chunks_stored;
        write(&pool, name, &[content(seed, 5000), content(1, 1 << 20)].concat());
        pool.sync().expect("syncs");
        dedup.stats().chunks_stored - before
    };
    let claim = || dedup.claim_containers(pool.core().stores.data.containers().iter().map(|record| record.id));
    let first = stored("first", 2);
    claim();
    let again = stored("claimed", 3);
    assert!(first > 100 && again > first / 2, "{again} of {first}");
    claim();
    dedup.release_containers();
    let again = stored("released", 4);
    assert!(again < 10, "{again} of {first}");
    claim();
    let all: Vec<_> = pool.core().stores.data.containers().iter().map(|record| record.id).collect();
    dedup.release_containers_of(&all);
    let again = stored("released one by one", 5);
    assert!(again < 10, "{again} of {first}");
    let other = ContainerId(u64::MAX / 2);
    dedup.claim_containers([other]);
    let again = stored("beside a claim", 6);
    assert!(again < 10, "{again} of {first}");
    claim();
    dedup.release_containers_of(&[other]);
    let again = stored("still claimed", 7);
    assert!(again > first / 2, "{again} of {first}");
}

/// Returns the pool's node, counted.
fn node_of(pool: &Pool) -> (Fingerprint, dedupfs_index::Cell) {
    pool.sync().expect("syncs");
    pool.stats().expect("settles");
    let mut found = Vec::new();
    let mut note = |fingerprint, cell: dedupfs_index::Cell| {
        found.push((fingerprint, cell));
        Ok(())
    };
    pool.core().indexes.nodes.for_each(&mut note).expect("reads");
    let [node] = found[..] else { panic!("{found:?}") };
    node
}

#[test]
fn a_claimed_node_that_a_file_needs_is_not_freed_and_its_claim_ends() {
    let pool = with_a_node();
    let (node, cell) = node_of(&pool);
    let dedup = &pool.core().dedup;
    let (container, elsewhere) = (cell.location.container(), ContainerId(u64::MAX / 2));
    let claims = || dedup.claim_node(node, container).expect("tells");
    assert!(cell.references == 1 && !dedup.claim_node(node, elsewhere).expect("tells"));
    // A step that ends early leaves claims, and the next one takes the same nodes.
    assert!(claims() && !claims());
    dedup.release_nodes();
    assert!(claims());
    assert!(!dedup.free_node(0, node, container, 0).expect("tells"), "a file needs it");
    assert!(claims());
    assert!(!dedup.keep_unreadable_node(node, container).expect("tells"), "no other copy is known");
    assert!(claims());
    assert!(dedup.keep_unreadable_node(node, elsewhere).expect("tells"), "it was stored again");
    assert!(claims());
}

/// The children are counted once, whether the claimed copy is freed or not.
#[test]
fn a_claimed_node_that_is_stored_again_counts_its_children_once() {
    for is_freed in [false, true] {
        let pool = with_a_node();
        pool.service().unlink(ROOT_INO, b"file").expect("unlinks");
        let (node, cell) = node_of(&pool);
        let dedup = &pool.core().dedup;
        let container = cell.location.container();
        assert!(cell.references == 0 && dedup.claim_node(node, container).expect("tells"));
        let children = dedup.nodes().node_of(&node, container).expect("reads").references().len();
        if is_freed {
            assert!(dedup.free_node(0, node, container, children).expect("tells"));
        }
        write(&pool, "again", &content(1, 1 << 20));
        pool.sync().expect("syncs");
        pool.stats().expect("settles");
        dedup.release_nodes();
        let report = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
        assert!(report.is_clean(), "freed: {is_freed}: {:#?}", report.findings);
    }
}
