//! The bounds of memory: threads that make changes wait for rounds and for counting, exactly from the bounds on.
//!
//! No times are measured. The disk hangs for as long as a test wants.

use std::sync::Arc;
use std::time::Duration;

use dedupfs::Pool;
use dedupfs_index::Location;
use dedupfs_service::ROOT_INO;
use dedupfs_store::device::observed::Call;
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint, LogOp, OperationsLog};

use crate::config::ROUND_OPERATIONS;
use crate::tests::held::counting::{counts, end, open, prepared, prepared_with};
use crate::tests::held::gate::{Closed, Gate};
use crate::tests::held::site::{Met, beside};

/// Time in which a round that should not begin would have begun.
const A_WHILE: Duration = Duration::from_millis(200);

fn commits(call: &Call<'_>) -> bool {
    matches!(call, Call::Sync { path } if path.starts_with("namespace.redb"))
}

/// Logs one operation that counts nothing and has the weight of `changes`.
fn log(pool: &Pool, changes: u64) {
    let changes = usize::try_from(changes).expect("fits");
    pool.core().namespace.log_counting(LogOp::RootAdded(Root::Empty), changes);
}

/// Returns the changes that a row has at most.
fn row_changes_max(pool: &Pool) -> u64 {
    pool.core().committer.row_bounds().0
}

/// `add` adds to something of which `half` starts a round and `most` makes others wait for it.
fn assert_bound(half: u64, most: u64, pool: &Pool, gate: &Arc<Gate>, add: &dyn Fn(u64)) {
    let committer = &pool.core().committer;
    let relieve = || committer.relieve().expect("the pool works");
    pool.sync().expect("syncs");
    let before = committer.rounds();
    add(half - 1);
    relieve();
    std::thread::sleep(A_WHILE);
    assert_eq!(committer.rounds(), before, "a round is made for little");
    let closed = gate.close(1, commits);
    add(1);
    relieve();
    closed.wait();
    add(most - half - 1);
    closed.goes_on("a change below the bound", relieve);
    add(1);
    std::thread::scope(|scope| {
        let asked = beside(scope, || {
            committer.relieve().expect("the pool works");
            Ok(())
        });
        assert_eq!(asked.met("a change at the bound"), Met::Announcement, "nothing bounds the memory");
        drop(closed);
        asked.outcome().expect("goes on");
    });
    assert!(committer.rounds() >= before + 2, "{} rounds", committer.rounds() - before);
    assert_eq!(pool.core().namespace.pending_operations(), 0);
}

#[test]
fn changes_of_the_indexes_wait_for_a_round_at_the_size_of_a_row() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    let most = row_changes_max(&pool);
    assert_bound(most / 2, most, &pool, &gate, &|changes| log(&pool, changes));
    end(pool, &device);
}

/// Only new places fill the open tankers, so a row may have more changes of other kinds if there is memory for them.
#[test]
fn new_places_wait_for_a_round_at_their_own_bound() {
    let gate = Arc::new(Gate::default());
    let device = prepared_with(gate.clone(), 1 << 17);
    let pool = open(&device);
    let (changes, places) = pool.core().committer.row_bounds();
    assert!(changes > 4 * places, "{changes} changes, {places} places");
    assert_bound(changes / 2, changes, &pool, &gate, &|changes| log(&pool, changes));
    assert_bound(places / 2, places, &pool, &gate, &|more| {
        // Without an operation, a round has nothing to make durable.
        log(&pool, 0);
        let staged = pool.core().indexes.chunks.staged();
        (staged..staged + more).for_each(|number| stage(&pool, number));
    });
    drop(pool);
}

#[test]
fn changes_of_names_start_a_round_and_wait_for_one_when_they_are_many() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    let half = pool.core().memory_at_opening.pending_operations_max() as u64;
    let start = half.min(ROUND_OPERATIONS as u64);
    assert_bound(start, 2 * half, &pool, &gate, &|operations| (0..operations).for_each(|_| log(&pool, 0)));
    end(pool, &device);
}

/// Stages a fingerprint that nobody stored.
fn stage(pool: &Pool, number: u64) {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    pool.core().indexes.chunks.stage(&Fingerprint(bytes), Location::new(ContainerId(1), 1000));
}

/// Returns a chunk of a file that another session wrote.
fn chunk_of(pool: &Pool, name: &str) -> Child {
    let core = pool.core();
    let (ino, _) = core.namespace.lookup(ROOT_INO, name.as_bytes()).expect("looks").expect("is there");
    let root = core.namespace.inode(ino).expect("looks").expect("is there").root;
    let Root::Node { level, child } = root else { panic!("a file of segments, not {root:?}") };
    (0..=level).rev().fold(child, |node, level| core.dedup.nodes().node(level, &node).expect("reads").children()[0])
}

/// Makes a durable row of so many changes whose counting hangs.
fn hold_counting(pool: &Pool, gate: &Arc<Gate>, changes: u64) -> Closed {
    let root = Root::Chunk(chunk_of(pool, "kept"));
    let closed = gate.close(1, counts);
    // In the end nothing is counted.
    pool.core().namespace.log(LogOp::RootAdded(root));
    pool.core().namespace.log(LogOp::RootDropped(root));
    log(pool, changes - 2);
    pool.sync().expect("syncs");
    closed.wait();
    assert_eq!(pool.core().committer.backlog_changes(), changes);
    closed
}

/// A thread waits at the bound and begins again when it is below, whatever it was when it came.
#[track_caller]
fn assert_waits(closed: Closed, what: &str, action: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let asked = beside(scope, || {
            action();
            Ok(())
        });
        assert_eq!(asked.met(what), Met::Announcement, "{what}: nothing bounds the memory");
        std::thread::sleep(A_WHILE);
        drop(closed);
        asked.outcome().expect("goes on");
    });
}

/// Only counting ends staged fingerprints. Those of both indexes are bounded together.
#[test]
fn staged_fingerprints_wait_for_the_counting_at_the_size_of_a_row() {
    for above in [0, 1] {
        let gate = Arc::new(Gate::default());
        let device = prepared(gate.clone());
        let pool = open(&device);
        let (core, most) = (pool.core(), row_changes_max(&pool));
        let closed = hold_counting(&pool, &gate, 2);
        (1..most).for_each(|number| stage(&pool, number));
        closed.goes_on("a change below the bound", || core.committer.relieve().expect("the pool works"));
        (most..=most + above).for_each(|number| stage(&pool, number));
        assert_waits(closed, "a change at the bound", || {
            core.committer.relieve().expect("the pool works");
            assert_eq!(core.committer.backlog_changes(), 0, "it has not waited for the counting");
        });
        drop(pool);
    }
}

/// So the rows of clients that sync meanwhile have room.
#[test]
fn work_in_the_background_waits_while_half_a_row_is_uncounted() {
    for above in [0, 1] {
        let gate = Arc::new(Gate::default());
        let device = prepared(gate.clone());
        let pool = open(&device);
        let committer = &pool.core().committer;
        let half = row_changes_max(&pool) / 2;
        let closed = hold_counting(&pool, &gate, half - 1);
        closed.goes_on("work below the bound", || committer.pace().expect("the pool works"));
        log(&pool, 1 + above);
        closed.goes_on("a sync", || pool.sync().expect("syncs"));
        // Whoever syncs is answered before the row is handed over.
        while committer.backlog_changes() < half {
            std::thread::yield_now();
        }
        assert_waits(closed, "work at the bound", || {
            committer.pace().expect("the pool works");
            assert!(committer.backlog_changes() < half, "it has not waited for the counting");
        });
        end(pool, &device);
    }
}
