//! Clients that read the files of a version one after another.

use std::time::{Duration, Instant};

use dedupfs::Pool;
use dedupfs_service::ROOT_INO;

use super::site::*;

const FILES: u64 = 60;
/// More than fit into two containers.
const FILE_BYTES: usize = 20 << 10;

fn content(number: u64) -> Vec<u8> {
    bytes(number + 1, FILE_BYTES)
}

fn name(number: u64) -> String {
    format!("{number:03}")
}

/// Regions that were read by a reader or ahead of it.
fn regions_read(pool: &Pool) -> u64 {
    let stats = pool.stats().expect("counts").data_containers;
    stats.region_reads + stats.prefetched_regions
}

#[test]
fn behind_two_files_of_a_version_the_next_ones_are_read_ahead() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    for number in 0..FILES {
        file(&pool, live, &name(number), &content(number));
    }
    snapshot(&pool, "live", "", "v");
    pool.close().expect("closes");
    drop(pool);

    let pool = open(&device);
    let read = |number: u64| assert!(read(&pool, find(&pool, &format!("v/{}", name(number)))) == content(number));
    read(3);
    read(4);
    // Four regions fill a container. Reading ahead along it ends there.
    let began = Instant::now();
    while regions_read(&pool) < 6 {
        assert!(began.elapsed() < Duration::from_secs(30), "{} regions are read", regions_read(&pool));
        std::thread::sleep(Duration::from_millis(1));
    }
    // To the end of the tree and beyond.
    (5..FILES).for_each(read);
    read(0);
    assert_clean(&pool);
}
