//! Workers in parallel with reclaiming.

use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, Pool};
use dedupfs_service::FileService;

/// Runs workers, numbered from 0, while all garbage is reclaimed again and again.
pub fn beside_reclaiming(pool: &Pool, workers: u64, work: impl Fn(&dyn FileService, u64) + Sync) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| {
            let mut runs = 0;
            while !done.load(Ordering::Relaxed) {
                let options = ReclaimOptions::below(100);
                pool.reclaim(&options, &NoProgress).expect("reclaims");
                runs += 1;
            }
            runs
        });
        let workers: Vec<_> = (0..workers)
            .map(|worker| {
                let (service, work) = (pool.service(), &work);
                scope.spawn(move || work(&*service, worker))
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(reclaiming.join().expect("reclaiming ends") > 0);
        outcomes.into_iter().for_each(|outcome| outcome.expect("a worker failed"));
    });
}
