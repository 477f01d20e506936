//! The power goes while a pool is made: afterwards there is a pool, or there is none and the error says so.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs::format_on;
use dedupfs_store::device::observed::Observer;

use crate::camera::{Camera, Ledger};
use crate::disks::{Disks, observed};
use crate::verdict;
use crate::workload::properties;

/// The message for a directory that holds no pool, or half of one.
const NO_POOL: &str = "is not a dedupfs pool (no ";

fn interrupted(two: bool) -> (usize, usize) {
    let disks = Disks::new(two);
    let camera = Arc::new(Camera::new(&disks, Ledger::default(), None));
    let observer: Arc<dyn Observer> = camera.clone();
    let roots = observed(&disks.roots(), &observer);
    format_on(&roots[0], &roots[1], disks.data_root(), &properties(), (0, 0)).expect("formats");
    camera.photograph_now();
    let photographs = camera.develop();
    let (mut seen, mut pools) = (HashSet::new(), 0);
    for photograph in &photographs {
        let is_last = photograph.operation == photographs.len() as u64 - 1;
        for variant in 0..24 {
            let image = photograph.disks.crash(variant, photograph.operation << 8);
            if !seen.insert(image.content_hash()) && !is_last {
                continue;
            }
            let at = format!("operation {}, {}, variant {variant}", photograph.operation, photograph.call);
            match verdict::examine(&image.fork().roots()) {
                Ok(found) => {
                    assert_eq!(found, "", "{at}: a new pool is empty");
                    verdict::go_on(&image, "").unwrap_or_else(|error| panic!("{at}: {error}"));
                    pools += 1;
                }
                Err(error) => {
                    assert!(!is_last, "{at}: {error}");
                    assert!(error.contains(NO_POOL), "{at}: unclear: {error}");
                }
            }
        }
    }
    (seen.len(), pools)
}

#[test]
fn an_interrupted_mkfs_is_no_pool_or_a_pool() {
    for two in [false, true] {
        let (points, pools) = interrupted(two);
        println!("{points} crash points of mkfs, {pools} times a pool");
        assert!(points > 100 && pools > 0 && pools < points);
    }
}
