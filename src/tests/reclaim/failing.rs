//! Runs that fail, and runs beside which clients change what they have chosen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, Progress, format_on};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{content, read, write};
use crate::tests::reclaim::site::{CONTAINER_BYTES, Site, remove};
use crate::tests::reclaim::{PIECE_BYTES, assert_sound, pieces_and_every};

fn open(faulty: &FaultyDevice) -> Arc<Pool> {
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens")
}

/// Claims that stay make writers store the same chunks again and again. An error of the disk is no lack of space.
#[test]
fn a_run_that_fails_says_so_and_leaves_no_claims() {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: CONTAINER_BYTES,
        slots_per_file: 8,
        tanker_cells: 256,
        tanker_buckets: 4,
        ..PoolProperties::default()
    };
    let (mut failed, mut is_over) = (0, false);
    for position in 0.. {
        let memory = MemoryDevice::new();
        let faulty = FaultyDevice::new(Arc::new(memory.clone()));
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
        let pool = open(&faulty);
        let kept = pieces_and_every(&pool, 40, 2);
        pool.close().expect("closes");
        drop(pool);
        let pool = open(&faulty);
        remove(&*pool.service(), "all");
        pool.core().committer.settle().expect("settles");
        let before = faulty.injected();
        faulty.add(FaultPlan::new(Fault::Io, position * 3).on(&[Operation::Read]).path_contains("index/chunks"));
        let outcome = pool.reclaim(&ReclaimOptions::below(100), &NoProgress);
        is_over |= faulty.injected() == before;
        faulty.heal();
        if let Ok(report) = &outcome {
            assert_eq!(report.containers_without_space, 0, "at {position}: {report:?}");
        }
        failed += u64::from(outcome.is_err());
        // After a failure of counting, claims stay until the next mount.
        if pool.core().committer.failure().is_none() {
            let stored = || pool.core().dedup.stats().chunks_stored;
            let before = stored();
            write(&pool, "again", &[content(1000, 5000), kept.clone()].concat());
            pool.sync().expect("syncs");
            assert!(
                stored() - before < 20,
                "at {position}: {} chunks were stored again: {outcome:?}",
                stored() - before
            );
            assert!(read(&pool, "kept").as_ref() == Some(&kept), "at {position}");
            let report = pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks");
            assert!(report.is_clean(), "at {position}: {:#?}", report.findings);
        }
        if is_over {
            break;
        }
    }
    assert!(failed > 2, "{failed} runs failed: this test proves nothing");
}

/// Writes a file of pieces that are garbage, when the run has chosen containers and before it claims any.
struct Revive<'p> {
    pool: &'p Pool,
    /// 0 before the choice; then the number of looks whether the run is cancelled, from 1 on.
    looks: AtomicU64,
}

impl Progress for Revive<'_> {
    fn start(&self, what: &str, _total: u64) {
        self.looks.store(u64::from(what == "emptying containers, MiB"), Ordering::Relaxed);
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        if self.looks.load(Ordering::Relaxed) > 0 && self.looks.fetch_add(1, Ordering::Relaxed) == 1 {
            revive(self.pool, "again");
        }
        false
    }
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
    let revive_once = Revive { pool: &pool, looks: AtomicU64::new(0) };
    let report = pool.reclaim(&ReclaimOptions::below(100), &revive_once).expect("reclaims");
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
