//! Tests of the whole store over simulated disks, and their harness.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedupfs_base::Result;
use dedupfs_store::container::{Compression, SlotFiles};
use dedupfs_store::device::Device;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint, PoolId};

use super::write_out::WrittenOut;
use super::{ContainerOptions, ContainerStore, StreamId};
use crate::workers::WorkerPool;

mod damage;
mod durable;
mod failures;
mod property;
mod races;
mod reading;
mod writing;

pub(super) const POOL: PoolId = PoolId([7; 16]);
pub(super) const DIRECTORY: &str = "containers";
pub(super) const CONTAINER_BYTES: u32 = 64 * 1024;

/// A stream that is never taken for a process.
pub(super) const fn stream(number: u64) -> StreamId {
    StreamId((1 << 40) + number)
}

pub(super) fn options() -> ContainerOptions {
    ContainerOptions {
        pool: POOL,
        kind: ContainerKind::Data,
        compression: Compression::Zstd(1),
        container_bytes: CONTAINER_BYTES,
        region_raw_bytes: 8 * 1024,
        open_limit: 4,
        in_flight_limit_bytes: 256 * 1024,
        region_cache_bytes: 1 << 20,
        table_cache_bytes: 1 << 20,
    }
}

/// Requests these chunks for a reader that has nothing ahead, until all are requested or there is no room.
/// Returns those whose container is unknown.
fn ask_for(store: &ContainerStore, mut wanted: &[(ContainerId, Fingerprint)]) -> Vec<Fingerprint> {
    let mut unplaced = Vec::new();
    while let Some(mut asking) = store.ask_ahead(0).filter(|_| !wanted.is_empty()) {
        let added = wanted.iter().take_while(|(container, print)| asking.add(*container, print, 4096)).count();
        unplaced.extend(asking.start());
        wanted = wanted.get(added..).filter(|_| added > 0).unwrap_or_default();
    }
    unplaced
}

pub(super) fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Chunk `number`: its bytes follow from the number; every third cannot be compressed.
pub(super) fn chunk(number: u64) -> (Fingerprint, Vec<u8>) {
    let mut next = numbers(number);
    let len = 1 + next() as usize % 6000;
    let mut print = [0; 32];
    print.chunks_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
    let period = if number.is_multiple_of(3) { len } else { 64 };
    let pattern: Vec<u8> = (0..period).map(|_| next() as u8).collect();
    (Fingerprint(print), pattern.iter().copied().cycle().take(len).collect())
}

/// A store, with the container of every chunk.
pub(super) struct Harness {
    pub(super) store: Arc<ContainerStore>,
    pub(super) device: Arc<dyn Device>,
    /// Container of each chunk number.
    pub(super) placed: HashMap<u64, ContainerId>,
    /// The records as the namespace would hold them.
    pub(super) records: HashMap<ContainerId, ContainerRecord>,
}

pub(super) fn open_store(
    device: &Arc<dyn Device>,
    options: ContainerOptions,
    records: &[ContainerRecord],
) -> Result<Arc<ContainerStore>> {
    let slots = SlotFiles::open(Arc::clone(device), DIRECTORY, options.container_bytes, 8)?;
    let next = AtomicU64::new(records.iter().map(|record| record.id.0).max().unwrap_or(0) + 1);
    let ids = Arc::new(move || Ok(ContainerId(next.fetch_add(1, Ordering::Relaxed))));
    ContainerStore::open(slots, options, Arc::new(WorkerPool::new(2)), records, ids)
}

impl Harness {
    pub(super) fn new(device: Arc<dyn Device>, options: ContainerOptions) -> Self {
        let store = open_store(&device, options, &[]).expect("an empty store opens");
        Self { store, device, placed: HashMap::new(), records: HashMap::new() }
    }

    pub(super) fn append(&mut self, to: StreamId, number: u64) -> Result<ContainerId> {
        let (print, data) = chunk(number);
        let container = self.store.append(to, &[(print, &data)])?[0];
        self.placed.insert(number, container);
        Ok(container)
    }

    pub(super) fn append_all(&mut self, to: StreamId, range: std::ops::Range<u64>) {
        range.for_each(|number| {
            self.append(to, number).expect("appends");
        });
    }

    pub(super) fn commit(&mut self) -> Result<WrittenOut> {
        let written = self.store.write_out()?;
        self.store.self_check();
        self.store.acknowledge(&written.records);
        self.records.extend(written.records.iter().map(|record| (record.id, *record)));
        Ok(written)
    }

    pub(super) fn records(&self) -> Vec<ContainerRecord> {
        let mut records: Vec<_> = self.records.values().cloned().collect();
        records.sort_by_key(|record| record.id);
        records
    }

    pub(super) fn check(&self, number: u64) {
        let container = self.placed[&number];
        let (print, data) = chunk(number);
        let read = self.store.read_chunk(container, &print, Some(data.len() as u32)).expect("reads");
        assert_eq!(read.as_deref(), Some(&data[..]), "chunk {number} in {container}");
    }

    pub(super) fn check_all(&self) {
        self.placed.keys().for_each(|number| self.check(*number));
    }

    /// Seals, commits and opens the store again over the same device.
    pub(super) fn reopen(&mut self, options: ContainerOptions) {
        self.store.seal_all();
        self.commit().expect("commits");
        self.open_again(options);
    }

    pub(super) fn open_again(&mut self, options: ContainerOptions) {
        self.store = open_store(&self.device, options, &self.records()).expect("opens again");
    }
}

/// Waits for other threads until `is_so`.
pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
