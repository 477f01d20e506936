//! Loading regions ahead of readers.
//!
//! 1. [`ContainerStore::prefetch`] groups what is wanted by container and drops what is in memory or on its way.
//! 2. With the container's table at hand, the regions are planned into reads: neighbours, and regions with a small gap between
//!    them, in one read of at most [`READ_BYTES_MAX`] ([`plan`], pure). Each read is one job: read, decompress, cache. So
//!    several reads are decoded in parallel.
//! 3. Without the table, a first job loads that and goes on with step 2, for whoever has asked until then.
//!
//! [`read_on`](ContainerStore::read_on) is for readers that do not know what comes next: at the end of a file.
//!
//! A job holds the cache's placeholder of each region it loads: a reader that comes meanwhile waits for it instead of reading
//! the region a second time. Nothing is promised: when the queue is full, too much is on its way, or a region is damaged,
//! the request is dropped and the reader reads (and reports) by itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_store::container::{SlotAddress, Table};
use dedupfs_store::{ContainerId, Fingerprint};
use parking_lot::Mutex;
use quick_cache::sync::GuardResult;

use super::read::{RegionKey, region_entries};
use super::shared::{Known, Shared};
use super::{ContainerOptions, ContainerStore};
use crate::error::Result;

/// Most compressed bytes of one read.
const READ_BYTES_MAX: u32 = 1 << 20;
/// Unwanted bytes read along rather than starting another read: about what a disk reads in the time of one seek, within reason.
const GAP_BYTES_MAX: u32 = 128 * 1024;
/// Regions on their way at most, whatever the cache's size.
const REGIONS_MAX: u64 = 256;

/// Regions that a reader along a container is kept ahead; more are asked for when half of them are left.
const READ_ON_REGIONS: usize = 8;
/// Chunks of a container that are remembered, about, while its table is on its way.
const WANTED_BEHIND_TABLE_MAX: usize = 16 * 1024;
/// Containers along which somebody reads that are remembered.
const READ_ON_CONTAINERS: usize = 16;

/// What is on its way.
pub(super) struct Prefetching {
    /// Under one short lock that is taken alone.
    on_the_way: Mutex<OnTheWay>,
    /// Of containers along which somebody reads, the first region that was not asked for; the latest last. Under a lock of that kind, too.
    read_on: Mutex<VecDeque<(ContainerId, usize)>>,
    regions_max: usize,
}

#[derive(Default)]
struct OnTheWay {
    regions: HashSet<RegionKey>,
    /// With what is wanted of them once they are there.
    tables: HashMap<ContainerId, Vec<Fingerprint>>,
}

/// A read of neighbouring regions of one container: numbers in its table, ascending by offset.
struct Read {
    container: ContainerId,
    address: SlotAddress,
    table: Arc<Table>,
    regions: Vec<usize>,
}

impl Prefetching {
    pub(super) fn new(options: &ContainerOptions) -> Self {
        // Half of the cache: more would push itself out before it is read.
        let regions = options.region_cache_bytes / 2 / u64::from(options.region_raw_bytes.max(1));
        let regions_max = usize::try_from(regions.min(REGIONS_MAX)).unwrap_or(0);
        Self { on_the_way: Mutex::default(), read_on: Mutex::default(), regions_max }
    }

    /// The regions to ask for when a reader along the container has come to this one: none while half of what was asked for is left. Each
    /// is asked for once by each reader as long as that is remembered, whatever came of it.
    fn read_on(&self, container: ContainerId, number: usize) -> Range<usize> {
        let window = READ_ON_REGIONS.min(self.regions_max / 4);
        let mut read_on = self.read_on.lock();
        // A reader is known by where it may have come to: there can be others.
        let own = number + 1..=number + 1 + window;
        let known = read_on.iter().position(|(known, asked)| *known == container && own.contains(asked));
        let from = known.and_then(|at| read_on.remove(at)).map_or(number + 1, |(_, asked)| asked);
        let wanted = if from > number + window.div_ceil(2) { from..from } else { from..number + 1 + window };
        if read_on.len() >= READ_ON_CONTAINERS {
            read_on.pop_front();
        }
        read_on.push_back((container, wanted.end));
        wanted
    }

    /// Notes the region; whether it was not on its way and there is room.
    fn claim(&self, key: RegionKey) -> bool {
        let mut on_the_way = self.on_the_way.lock();
        on_the_way.regions.len() < self.regions_max && on_the_way.regions.insert(key)
    }

    /// Notes what is wanted behind a container's table; whether that was not on its way and there is room.
    fn claim_table(&self, container: ContainerId, fingerprints: Vec<Fingerprint>) -> bool {
        let mut on_the_way = self.on_the_way.lock();
        if let Some(wanted) = on_the_way.tables.get_mut(&container) {
            if wanted.len() < WANTED_BEHIND_TABLE_MAX {
                wanted.extend(fingerprints);
            }
            return false;
        }
        on_the_way.tables.len() < self.regions_max && on_the_way.tables.insert(container, fingerprints).is_none()
    }

    /// What is wanted behind a table that is there now; when that is nothing more, the table is no longer on its way.
    fn take_wanted(&self, container: ContainerId) -> Option<Vec<Fingerprint>> {
        let mut on_the_way = self.on_the_way.lock();
        let wanted = std::mem::take(on_the_way.tables.get_mut(&container)?);
        if wanted.is_empty() {
            on_the_way.tables.remove(&container);
            return None;
        }
        Some(wanted)
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        let on_the_way = self.on_the_way.lock();
        on_the_way.regions.is_empty() && on_the_way.tables.is_empty()
    }
}

/// Gives the claims of a job back, however the job ends, also when it is dropped unstarted. Jobs do not keep the store: what still
/// waits when nobody has it any more is for nobody.
struct Claims {
    shared: Weak<Shared>,
    regions: Vec<RegionKey>,
    table: Option<ContainerId>,
}

impl Drop for Claims {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut on_the_way = shared.prefetching.on_the_way.lock();
        self.regions.iter().for_each(|key| {
            on_the_way.regions.remove(key);
        });
        self.table.iter().for_each(|container| {
            on_the_way.tables.remove(container);
        });
    }
}

impl ContainerStore {
    /// Starts loading the regions of these chunks into the cache, most urgent first; returns at once.
    pub fn prefetch(&self, wanted: &[(ContainerId, Fingerprint)]) {
        let mut order = Vec::new();
        let mut by_container: HashMap<ContainerId, Vec<Fingerprint>> = HashMap::new();
        for (container, fingerprint) in wanted {
            let fingerprints = by_container.entry(*container).or_insert_with(|| {
                order.push(*container);
                Vec::new()
            });
            fingerprints.push(*fingerprint);
        }
        for container in order {
            let fingerprints = by_container.remove(&container).unwrap_or_default();
            self.shared.prefetch_container(container, fingerprints);
        }
    }

    /// A reader has come to its end with this chunk. If it came along the container (the regions before, two if there are so many,
    /// are in the cache), the next ones are loaded: files lie in containers in the order in which they were written, and are restored in that order
    /// (the locality that the dual cache relies on when it loads a container's whole table).
    pub fn read_on(&self, container: ContainerId, fingerprint: &Fingerprint) {
        self.shared.read_on(container, fingerprint);
    }

    /// Whether no prefetch is on its way; for tests and statistics.
    #[must_use]
    pub fn prefetch_is_idle(&self) -> bool {
        self.shared.prefetching.is_idle()
    }
}

impl Shared {
    fn prefetch_container(self: &Arc<Self>, container: ContainerId, fingerprints: Vec<Fingerprint>) {
        match self.known(container) {
            None => {}
            Some(Known::Open(open)) => {
                let Some(address) = open.address() else { return };
                // Regions that are not written whole are in memory.
                let written_bytes = open.written_bytes();
                self.start_reads(container, address, &open.table(), written_bytes, &fingerprints);
            }
            Some(Known::Closed(record)) => {
                if let Some(cached) = self.caches.tables.get(&container) {
                    self.start_reads(container, record.address, &cached.table, record.used_bytes, &fingerprints);
                } else if self.prefetching.claim_table(container, fingerprints) {
                    let mut claims =
                        Claims { shared: Arc::downgrade(self), regions: Vec::new(), table: Some(container) };
                    // Not behind all the reads that are ahead: those of this container have to wait for it, too.
                    self.workers.try_submit_before(Box::new(move || {
                        let Some(shared) = claims.shared.upgrade().filter(|shared| shared.is_known(container)) else {
                            return;
                        };
                        let Ok(cached) = shared.cached_table(&record) else { return };
                        // Somebody may have asked for more meanwhile.
                        while let Some(fingerprints) = shared.prefetching.take_wanted(container) {
                            let table = &cached.table;
                            shared.start_reads(container, record.address, table, record.used_bytes, &fingerprints);
                        }
                        let _no_longer_on_its_way = claims.table.take();
                    }));
                }
            }
        }
    }

    fn read_on(self: &Arc<Self>, container: ContainerId, fingerprint: &Fingerprint) {
        // Of an open container the last regions are in memory, and the first ones were read as those of a closed one would be.
        let Some(Known::Closed(record)) = self.known(container) else { return };
        let Some(cached) = self.caches.tables.get(&container) else { return };
        let table = &cached.table;
        let Some(place) = table.find(fingerprint) else { return };
        let number = place.region as usize;
        let is_cached = |number: usize| {
            let region = table.regions.get(number);
            let key = region.map(|region| RegionKey { container, offset_bytes: region.offset_bytes });
            key.is_some_and(|key| self.caches.regions.contains_key(&key))
        };
        if number == 0 || number + 1 >= table.regions.len() || !(number.saturating_sub(2)..number).all(is_cached) {
            return;
        }
        let next = self.prefetching.read_on(container, number);
        if !next.is_empty() {
            let first_chunks = next.filter_map(|number| region_entries(table, number)?.first());
            let first_chunks: Vec<_> = first_chunks.map(|entry| entry.fingerprint).collect();
            self.start_reads(container, record.address, table, record.used_bytes, &first_chunks);
        }
    }

    fn start_reads(
        self: &Arc<Self>,
        container: ContainerId,
        address: SlotAddress,
        table: &Arc<Table>,
        used_bytes: u32,
        fingerprints: &[Fingerprint],
    ) {
        let mut is_wanted = |offset_bytes, frame_bytes| {
            let key = RegionKey { container, offset_bytes };
            used_bytes.checked_sub(offset_bytes).is_some_and(|left| frame_bytes <= left)
                // What is there is noted as wanted, so that it stays until it is read.
                && self.caches.regions.get(&key).is_none()
                && self.prefetching.claim(key)
        };
        for regions in plan(table, fingerprints, &mut is_wanted) {
            let keys = regions.iter().filter_map(|number| table.regions.get(*number));
            let keys = keys.map(|region| RegionKey { container, offset_bytes: region.offset_bytes }).collect();
            let claims = Claims { shared: Arc::downgrade(self), regions: keys, table: None };
            let read = Read { container, address, table: Arc::clone(table), regions };
            self.workers.try_submit_ahead(Box::new(move || {
                // It may have waited for long.
                let Some(shared) = claims.shared.upgrade().filter(|shared| shared.is_known(container)) else { return };
                if let Err(error) = shared.load_ahead(&read) {
                    tracing::debug!(container = %read.container, %error, "prefetch failed");
                }
            }));
        }
    }

    /// Reads the span of the regions at once and caches each; those that somebody else loads or has loaded are left out.
    fn load_ahead(&self, read: &Read) -> Result<()> {
        let mut loading = Vec::with_capacity(read.regions.len());
        for number in &read.regions {
            let Some(region) = read.table.regions.get(*number) else { continue };
            let key = RegionKey { container: read.container, offset_bytes: region.offset_bytes };
            if let GuardResult::Guard(guard) = self.caches.regions.get_value_or_guard(&key, Some(Duration::ZERO)) {
                loading.push((key, region, region_entries(&read.table, *number), guard));
            }
        }
        let Some((first, _, _, _)) = loading.first() else { return Ok(()) };
        let Some((last, last_region, _, _)) = loading.last() else { return Ok(()) };
        let start = first.offset_bytes;
        let len_bytes = (last.offset_bytes - start).saturating_add(last_region.frame_bytes);
        self.with_blocks(read.address, start, len_bytes, |bytes| {
            for (key, region, entries, guard) in loading {
                let from = (key.offset_bytes - start) as usize;
                let frame = bytes.get(from..from + region.frame_bytes as usize).unwrap_or_default();
                // A damaged region drops only its own placeholder.
                if let Ok(raw) = self.decode_checked(key, frame, entries) {
                    // Refused only when the container was removed meanwhile.
                    let _ = guard.insert(raw);
                    self.counters.prefetched_regions.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }
}

/// The regions that hold `fingerprints` and are wanted (asked once each: offset, frame bytes), as reads in order of offset.
fn plan(table: &Table, fingerprints: &[Fingerprint], is_wanted: &mut dyn FnMut(u32, u32) -> bool) -> Vec<Vec<usize>> {
    let found = fingerprints.iter().filter_map(|fingerprint| table.find(fingerprint));
    let mut regions: Vec<_> = found.map(|place| place.region as usize).collect();
    // Regions are in order of offset in a table.
    regions.sort_unstable();
    regions.dedup();
    let spans = regions.into_iter().filter_map(|number| table.regions.get(number).map(|region| (number, region)));
    let mut reads: Vec<Vec<usize>> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (number, region) in spans {
        let region_end = region.offset_bytes.saturating_add(region.frame_bytes);
        if !is_wanted(region.offset_bytes, region.frame_bytes) {
            continue;
        }
        match reads.last_mut() {
            Some(read)
                if region.offset_bytes.saturating_sub(end) <= GAP_BYTES_MAX
                    && region_end.saturating_sub(start) <= READ_BYTES_MAX =>
            {
                read.push(number);
            }
            _ => {
                start = region.offset_bytes;
                reads.push(vec![number]);
            }
        }
        end = region_end;
    }
    reads
}

#[cfg(test)]
#[path = "prefetch_tests.rs"]
mod tests;
