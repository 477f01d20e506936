//! Restores from a disk with one arm, on which the content lies; the meta root does not seek.

use std::fs::File;
use std::sync::Arc;

use dedupfs::reclaim::Arranging;
use dedupfs::transfer::Patterns;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_store::device::seeking::{Figures, SeekingDisk, Spent};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use super::arranging::{Series, run};
use super::site::*;

const SERIES: Series = Series { file_bytes: 1_000_000, place_bytes: 20_000 };

struct Site {
    meta: Arc<dyn Device>,
    data: Arc<dyn Device>,
    disk: Arc<SeekingDisk>,
}

impl Site {
    fn new() -> Self {
        let disk = SeekingDisk::new(Figures::default());
        let meta: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let data: Arc<dyn Device> = Arc::new(disk.below(Arc::new(MemoryDevice::new())));
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            tanker_cells: 256,
            tanker_buckets: 4,
            ..PoolProperties::default()
        };
        format_on(&meta, &data, b"elsewhere".to_vec(), &properties, (0, 0)).expect("formats");
        Self { meta, data, disk }
    }

    /// Opens the pool, works with it, and closes it.
    fn with_pool<T>(&self, work: impl FnOnce(&Pool) -> T) -> T {
        let options = PoolOptions::default();
        let pool = Pool::open_on(&self.meta, &self.data, Vec::new(), &options, &NoProgress).expect("opens");
        let done = work(&pool);
        pool.close().expect("closes");
        done
    }

    /// The work of restoring a version from a pool that is opened anew.
    fn cost(&self, restore: impl FnOnce(&Pool)) -> Spent {
        self.with_pool(|pool| {
            let before = self.disk.spent();
            restore(pool);
            self.disk.spent().since(&before)
        })
    }
}

/// Costs of the newest version, read file by file and by `get`.
struct Costs {
    by_reading: Spent,
    by_get: Spent,
}

/// The order of reads depends on threads, so limits are wide. Measured, as a multiple of the time of the version's bytes
/// in a row: by `get` 1.7 before arranging and 0.9 to 1.2 behind it; by reading 3.6 to 5.5 and 1.7 to 2.6, as the arm goes
/// to each container's table and back.
#[test]
fn arranging_spares_the_restore_of_the_newest_version_seeks_and_bytes() {
    let site = Site::new();
    let newest = site.with_pool(|pool| SERIES.make(pool)).pop().expect("is there");
    let [before, behind] = [Arranging::Off, Arranging::All].map(|arranging| {
        site.with_pool(|pool| run(pool, arranging));
        let by_reading = site.cost(|pool| drop(tree(pool, find(pool, &newest))));
        let out = tempfile::tempdir().expect("makes");
        let to = File::open(out.path()).expect("opens").into();
        let by_get = site.cost(|pool| {
            pool.get(find(pool, &newest), (to, b"tree"), &Patterns::default(), &NoProgress).expect("gets");
        });
        Costs { by_reading, by_get }
    });
    let (figures, bytes) = (Figures::default(), SERIES.version_bytes());
    let in_a_row_ns = figures.seek_ns(figures.len_bytes) + figures.transfer_ns(bytes);
    for (before, behind) in [(before.by_reading, behind.by_reading), (before.by_get, behind.by_get)] {
        println!("{before:?}, {behind:?}, in a row {in_a_row_ns} ns");
        assert!(before.read_bytes * 2 > bytes * 3, "{before:?}");
        assert!(behind.read_bytes * 20 < bytes * 21, "{behind:?}");
        assert!(behind.seeks <= before.seeks, "{before:?}, {behind:?}");
        assert_eq!(before.written_bytes + behind.written_bytes, 0);
    }
    assert!(behind.by_reading.time_ns * 4 < before.by_reading.time_ns * 3, "{:?}", behind.by_reading);
    // In quarters of that time.
    let quarters = |spent: Spent| spent.time_ns * 4 / in_a_row_ns;
    assert!(quarters(before.by_get) >= 6 && quarters(behind.by_get) < 5, "{:?}", behind.by_get);
    assert!(quarters(before.by_reading) >= 12 && quarters(behind.by_reading) < 13, "{:?}", behind.by_reading);
}
