//! Tests of the index as a whole.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basic;
mod compare;
mod concurrent;
mod corruption;
mod faults;
mod filters;
mod guides;
mod locality;
mod lost;
mod model;
mod occupancy;
mod reads;
mod rebuild;

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::{ContainerId, Fingerprint, PoolId};

use crate::{Cell, Change, Index, IndexOptions, Kept, Location, NewLists, Occupied, Prefixes, Since};

pub(crate) const DIRECTORY: &str = "index/chunks";
pub(crate) const POOL: PoolId = PoolId([7; 16]);

/// Tankers so small that everything happens often.
pub(crate) const TINY: IndexOptions = IndexOptions {
    cells_per_tanker: 64,
    buckets_per_tanker: 4,
    cache_bytes: 20_000,
    open_bytes: 20_000,
    filter_bytes: 20_000,
    locality_bytes: 20_000,
};

/// A fingerprint of a number, uniformly distributed.
pub(crate) fn fingerprint(number: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    for (position, word) in bytes.chunks_exact_mut(8).enumerate() {
        let hash = twox_hash::XxHash3_64::oneshot_with_seed(position as u64, &number.to_le_bytes());
        word.copy_from_slice(&hash.to_le_bytes());
    }
    Fingerprint(bytes)
}

pub(crate) fn location(container: u64) -> Location {
    Location::new(ContainerId(container), 1000 + (container % 1000) as u32)
}

pub(crate) fn insert(number: u64, container: u64) -> Change {
    Change::Insert { fingerprint: fingerprint(number), location: location(container) }
}

/// Its hint may be right, wrong or none.
pub(crate) fn count(number: u64, delta: i64) -> Change {
    Change::Count { fingerprint: fingerprint(number), delta, hint: ContainerId(number % 4) }
}

pub(crate) fn remove(number: u64, container: u64) -> Change {
    Change::Remove { fingerprint: fingerprint(number), container: ContainerId(container) }
}

pub(crate) fn lose(number: u64, container: u64) -> Change {
    Change::Lose { fingerprint: fingerprint(number), container: ContainerId(container) }
}

pub(crate) fn cell(container: u64, references: u32) -> Cell {
    Cell { location: location(container), references }
}

/// An empty index on a new disk.
pub(crate) fn empty(options: IndexOptions) -> (MemoryDevice, Index) {
    let disk = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    Index::create(&device, DIRECTORY, &POOL, options).unwrap();
    (disk, Index::open(&device, DIRECTORY, &POOL, options).unwrap())
}

pub(crate) fn reopen(disk: &MemoryDevice, options: IndexOptions) -> Index {
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    Index::open(&device, DIRECTORY, &POOL, options).unwrap()
}

/// Completes the garbage map.
pub(crate) fn complete(index: &Index) -> dedupfs_store::Result<()> {
    assert!(index.complete_occupancy(NewLists::Written, &mut || true)?);
    Ok(())
}

/// The occupancy of containers by cells, counted one by one.
pub(crate) fn placed<'c>(cells: impl Iterator<Item = &'c Cell>) -> BTreeMap<ContainerId, Occupied> {
    let mut containers = BTreeMap::<ContainerId, Occupied>::new();
    for cell in cells.filter(|cell| !cell.location.is_lost()) {
        let occupied = containers.entry(cell.location.container()).or_default();
        occupied.cells += 1;
        occupied.bytes += u64::from(cell.location.len_bytes());
        if cell.references > 0 {
            occupied.live_cells += 1;
            occupied.live_bytes += u64::from(cell.location.len_bytes());
        }
    }
    containers
}

/// Checks that the garbage map has the expected containers, and no others.
pub(crate) fn check_occupied(index: &Index, expected: &BTreeMap<ContainerId, Occupied>) {
    let (mut found, mut total) = (BTreeMap::new(), Occupied::default());
    index.for_each_occupied(&mut |container, occupied| {
        assert!(found.insert(container, occupied).is_none(), "{container} twice");
    });
    assert_eq!(&found, expected);
    for (container, occupied) in expected {
        assert_eq!(index.occupied(*container), *occupied);
        total.cells += occupied.cells;
        total.live_cells += occupied.live_cells;
        total.bytes += occupied.bytes;
        total.live_bytes += occupied.live_bytes;
    }
    assert_eq!(index.occupied_total(), total);
    assert_eq!(index.stats().occupied_containers, expected.len() as u64);
    for nowhere in [ContainerId::NONE, ContainerId(u64::MAX)] {
        assert_eq!(index.occupied(nowhere), Occupied::default());
    }
}

/// Checks that a visit of all parts shows the cells without references. No checkpoint may run.
pub(crate) fn check_unreferenced(index: &Index, cells: &BTreeMap<Fingerprint, Cell>) {
    let mut unreferenced = BTreeMap::new();
    for part in index.parts() {
        index
            .for_each_unreferenced(part, &mut |fingerprint, cell| {
                unreferenced.insert(fingerprint, cell);
                Ok(())
            })
            .unwrap();
    }
    assert!(cells.iter().filter(|(_, cell)| cell.references == 0).eq(&unreferenced));
}

/// All committed cells. Also checks that the garbage map, if complete, agrees.
pub(crate) fn contents(index: &Index) -> BTreeMap<Fingerprint, Cell> {
    let mut cells = BTreeMap::new();
    index
        .for_each(&mut |fingerprint, cell| {
            assert!(cells.insert(fingerprint, cell).is_none(), "{fingerprint} twice");
            Ok(())
        })
        .unwrap();
    assert_eq!(cells.len() as u64, index.len());
    if index.stats().tankers_without_occupancy == 0 {
        check_occupied(index, &placed(cells.values()));
    }
    cells
}
