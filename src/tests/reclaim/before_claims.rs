//! Runs beside which something happens between the choice of containers and their claim.

use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, NoProgress, Pool, Progress};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint, LogOp, OperationsLog};

use crate::tests::common::{content, read, write};
use crate::tests::reclaim::site::{Site, remove};
use crate::tests::reclaim::{PIECE_BYTES, assert_sound, pieces_and_every};

/// Acts once, when a run has chosen containers and before it claims any.
struct BeforeClaims<'p> {
    act: &'p (dyn Fn() + Sync),
    /// 0 before the choice; then the number of looks whether the run is cancelled, from 1 on.
    looks: AtomicU64,
}

impl<'p> BeforeClaims<'p> {
    fn new(act: &'p (dyn Fn() + Sync)) -> Self {
        Self { act, looks: AtomicU64::new(0) }
    }
}

impl Progress for BeforeClaims<'_> {
    fn start(&self, what: &str, _total: u64) {
        self.looks.store(u64::from(what == "emptying containers, MiB"), Ordering::Relaxed);
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        if self.looks.load(Ordering::Relaxed) > 0 && self.looks.fetch_add(1, Ordering::Relaxed) == 1 {
            (self.act)();
        }
        false
    }
}

/// Claims that stay would make writers store the same chunks again and again. A doubt is no lack of space.
#[test]
fn a_run_that_a_doubt_ends_says_so_and_leaves_no_claims() {
    let site = Site::new();
    let pool = site.open();
    let kept = pieces_and_every(&pool, 40, 2);
    remove(&*pool.service(), "all");
    let unknown = Child { fingerprint: Fingerprint([7; 32]), len_bytes: 4096, hint: ContainerId::NONE };
    let doubt = || {
        pool.core().namespace.log(LogOp::RootAdded(Root::Chunk(unknown)));
        pool.core().committer.settle().expect("settles");
    };
    let outcome = pool.reclaim(&ReclaimOptions::below(100), &BeforeClaims::new(&doubt));
    assert!(matches!(outcome, Err(EngineError::CountsInDoubt)), "{outcome:?}");
    let stored = || pool.core().dedup.stats().chunks_stored;
    let before = stored();
    write(&pool, "again", &[content(1000, 5000), kept.clone()].concat());
    pool.sync().expect("syncs");
    assert!(stored() - before < 6, "{} chunks are stored again", stored() - before);
    assert!(read(&pool, "kept") == Some(kept));
}

/// Writes a file of the second and third piece.
fn revive(pool: &Pool, name: &str) {
    write(pool, name, &[content(2, PIECE_BYTES), content(3, PIECE_BYTES)].concat());
    pool.core().committer.settle().expect("settles");
}

/// There may be no room for it in memory and on the disk, and copying it may not be worthwhile.
#[test]
fn a_container_in_which_something_comes_alive_before_its_claim_is_left_to_the_next_run() {
    let site = Site::new();
    let pool = site.open();
    let kept = pieces_and_every(&pool, 60, 4);
    remove(&*pool.service(), "all");
    let containers = || -> Vec<_> { pool.core().stores.data.containers().iter().map(|record| record.id).collect() };
    let first = containers()[0];
    let revive = || revive(&pool, "again");
    let report = pool.reclaim(&ReclaimOptions::below(100), &BeforeClaims::new(&revive)).expect("reclaims");
    assert!(report.containers_freed > 5 && report.stopped.is_none(), "{report:?}");
    assert!(containers().contains(&first), "it was emptied");
    let stored = || pool.core().dedup.stats().chunks_stored;
    let before = stored();
    let twice = [content(1000, 5000), content(2, PIECE_BYTES)].concat();
    write(&pool, "beside the claim", &twice);
    assert!(stored() - before < 6, "its claim has not ended: {} chunks are stored again", stored() - before);
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(!containers().contains(&first), "the next run has not emptied it");
    assert!(read(&pool, "kept") == Some(kept) && read(&pool, "beside the claim") == Some(twice));
    assert_sound(&pool);
}
