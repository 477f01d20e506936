//! Reading: tables and regions of containers, through two bounded caches.
//!
//! 1. The directory says whether the container is open or closed. An open container knows where the chunk is at this
//!    moment ([`super::open_container`]).
//! 2. For a closed container, its table names the region of the chunk. The table comes from the cache, else from disk.
//!    If it is missing or damaged, the region headers are scanned.
//! 3. The region comes from the cache, else from disk: one read, checked, decompressed, compared with the table,
//!    cached. Other readers of the same region wait for the first.
//! 4. Where seeks matter ([`super::seeks`]), a container whose table is not cached is read as a whole, and all its regions are cached.
//!
//! While a reader is under way, its container can be removed and the slot used again. Frames carry the container's id
//! and checksums, so such a reader gets an error. If the container is then no longer in the directory, the answer is
//! "not there". Container ids are never used twice, so a cached entry can never belong to another container.
//!
//! Cost: a hit takes three short shared locks (directory, table, region); a miss costs one read of about 100 KiB; where seeks matter
//! it may be one of a whole container.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_index::filter::Reads;
use dedupfs_store::container::{SlotAddress, Table, TableEntry, decode_region, decode_toc, scan_table};
use dedupfs_store::device::{AlignedBuffer, DIRECT_ALIGNMENT_BYTES};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint, StoreError, waiting};
use dedupfs_sync::cache::{Cache, CacheHasher, get_or_load, weighing};
use quick_cache::sync::{DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};

use super::buffers::{ChunkData, RegionBytes};
use super::directory::KnownContainer;
use super::open_container::{Found, OpenContainer};
use super::shared::Shared;

/// Share of a cache for entries seen more than once. The rest must hold prefetched entries until they are read.
const HOT_SHARE: f64 = 0.5;
/// Least entries of a cache's shard. With fewer, the entries loaded ahead of one reader could overflow the shards they
/// fall into.
const SHARD_ENTRIES_MIN: u64 = 64;
/// Largest region, as a multiple of the usual size: one large chunk can have a region of its own.
const LARGEST_REGION: u64 = 4;
/// Largest table, as a multiple of its container's size. A container has at least 36 bytes for each chunk, its table in
/// memory 48 and spare capacity.
const LARGEST_TABLE: u64 = 2;
const SHARDS_MAX: u64 = 16;
/// Share of a container, as a divisor, from which on it is read as a whole where seeks matter.
const WHOLE_FROM: u64 = 4;
/// Assumed bytes of a table when a cache is laid out: 512 chunks.
const TABLE_BYTES_TYPICAL: u64 = 32 * 1024;

/// Names a region for ever: ids are never used twice, and a region never moves in its container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RegionKey {
    pub(super) container: ContainerId,
    pub(super) offset_bytes: u32,
}

/// A table. If a scan made it, also the damage that ended the scan.
#[derive(Clone)]
pub(super) struct CachedTable {
    pub(super) table: Arc<Table>,
    pub(super) damage: Option<Arc<StoreError>>,
}

impl CachedTable {
    pub(super) fn sound(table: Arc<Table>) -> Self {
        Self { table, damage: None }
    }
}

#[derive(Clone)]
pub(super) struct RegionWeight;

impl Weighter<RegionKey, Arc<RegionBytes>> for RegionWeight {
    fn weight(&self, _key: &RegionKey, region: &Arc<RegionBytes>) -> u64 {
        region.len() as u64 + 128
    }
}

#[derive(Clone)]
pub(super) struct TableWeight;

impl Weighter<ContainerId, CachedTable> for TableWeight {
    fn weight(&self, _key: &ContainerId, cached: &CachedTable) -> u64 {
        cached.table.memory_bytes() as u64 + 128
    }
}

/// Regions and tables of closed containers. The stores of a pool share them: container ids are never used twice.
pub struct Caches {
    pub(super) regions: Cache<RegionKey, Arc<RegionBytes>, RegionWeight>,
    pub(super) tables: Cache<ContainerId, CachedTable, TableWeight>,
}

impl Caches {
    /// Makes caches for containers of `container_bytes` with regions of at most `region_raw_bytes`, of so many bytes in all.
    #[must_use]
    pub fn new(region_cache_bytes: u64, table_cache_bytes: u64, region_raw_bytes: u32, container_bytes: u32) -> Self {
        let (region, largest_table) = (u64::from(region_raw_bytes), LARGEST_TABLE * u64::from(container_bytes));
        Self {
            regions: cache(region_cache_bytes, region, LARGEST_REGION * region, RegionWeight),
            tables: cache(table_cache_bytes, TABLE_BYTES_TYPICAL, largest_table, TableWeight),
        }
    }

    /// Changes the limit of regions. When this returns, they keep to it.
    pub(crate) fn set_region_bytes(&self, region_cache_bytes: u64) {
        // At first by as much again: only that takes regions out of the hot part, and else it would leave new ones no room.
        self.regions.set_capacity(region_cache_bytes / 2);
        self.regions.set_capacity(region_cache_bytes);
    }

    /// Returns the bytes of the regions and of the tables that are cached.
    #[must_use]
    pub fn used_bytes(&self) -> (u64, u64) {
        (self.regions.weight(), self.tables.weight())
    }

    /// Forgets all entries of containers for which `is_gone`.
    pub(super) fn forget(&self, is_gone: &dyn Fn(ContainerId) -> bool) {
        self.regions.retain(|key, _| !is_gone(key.container));
        self.tables.retain(|container, _| !is_gone(*container));
    }
}

/// Makes a cache of entries that usually have `entry_bytes` and at most `largest_bytes`. The cache refuses an entry
/// larger than the hot part of a shard, which would then be made anew for each use. So large entries mean few shards.
fn cache<K, V, W>(capacity_bytes: u64, entry_bytes: u64, largest_bytes: u64, weighter: W) -> Cache<K, V, W>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    let entries = (capacity_bytes / entry_bytes.max(1)).max(1);
    let holding_largest = (capacity_bytes as f64 * HOT_SHARE) as u64 / largest_bytes.max(1);
    let shards = (entries / SHARD_ENTRIES_MIN).min(holding_largest).clamp(1, SHARDS_MAX);
    // Rounded down: the cache would round up.
    let shards = 1_u64 << shards.ilog2();
    let as_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let options = OptionsBuilder::new()
        .weight_capacity(capacity_bytes)
        .estimated_items_capacity(as_usize(entries))
        .shards(as_usize(shards))
        .hot_allocation(HOT_SHARE)
        .build();
    match options {
        Ok(options) => Cache::with_options(options, weighter, CacheHasher::default(), DefaultLifecycle::default()),
        // `build` refuses only missing capacities.
        Err(_) => weighing(as_usize(entries), capacity_bytes, weighter),
    }
}

/// First size of a thread's block buffer: a huge page, which most reads fit into.
const BLOCKS_BYTES: usize = 2 << 20;

dedupfs_sync::thread_local! {
    /// Compressed bytes between disk and decoder.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The same, for [`Shared::with_blocks`].
    static BLOCKS: RefCell<AlignedBuffer> = const { RefCell::new(AlignedBuffer::new()) };
    static READS: Cell<Reads> = const { Cell::new(Reads { reads: 0, bytes: 0 }) };
}

/// Reads of tables and regions that this thread has done so far, from any store.
pub(crate) fn reads_of_this_thread() -> Reads {
    READS.get()
}

impl Shared {
    /// Counts a read of this thread.
    pub(super) fn count_read(&self, len_bytes: u64) {
        self.counters.read_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        let before = READS.get();
        READS.set(Reads { reads: before.reads + 1, bytes: before.bytes + len_bytes });
    }

    pub(super) fn read_chunk(
        &self,
        container: ContainerId,
        fingerprint: &Fingerprint,
        len_bytes: Option<u32>,
    ) -> Result<Option<ChunkData>> {
        let result = match self.known(container) {
            None => return Ok(None),
            Some(KnownContainer::Open(open)) => self.read_open(&open, fingerprint, len_bytes),
            Some(KnownContainer::Closed(record)) => self.read_closed(&record, fingerprint, len_bytes),
        };
        self.unless_removed(container, result)
    }

    /// Turns an error about a removed container into "not there".
    pub(super) fn unless_removed<T>(&self, container: ContainerId, result: Result<Option<T>>) -> Result<Option<T>> {
        match result {
            Err(_) if !self.is_known(container) => Ok(None),
            result => result,
        }
    }

    pub(super) fn read_open(
        &self,
        open: &OpenContainer,
        print: &Fingerprint,
        len_bytes: Option<u32>,
    ) -> Result<Option<ChunkData>> {
        let Some((found, found_bytes)) = open.find(print) else { return Ok(None) };
        let len_bytes = check_len(open.id, print, len_bytes, found_bytes)?;
        let key = |offset_bytes| RegionKey { container: open.id, offset_bytes };
        let (region, start) = match found {
            Found::Copied(bytes) => return Ok(Some(ChunkData::copied(bytes))),
            Found::Raw { raw, start } => (raw, start),
            Found::Frame { frame, offset_bytes, start } => {
                let key = key(offset_bytes);
                let cached = self.caches.regions.get(&key).map(Ok);
                let decode = || {
                    waiting::announce();
                    self.caches
                        .regions
                        .get_or_insert_with(&key, || self.decode_checked(key, frame.whole().unwrap_or_default(), None))
                };
                (cached.unwrap_or_else(decode)?, start)
            }
            Found::Disk { address, offset_bytes, frame_bytes, start } => {
                (self.cached_region(key(offset_bytes), address, frame_bytes, None)?, start)
            }
        };
        chunk_of(open.id, print, region, start, len_bytes).map(Some)
    }

    fn read_closed(
        &self,
        record: &ContainerRecord,
        print: &Fingerprint,
        len_bytes: Option<u32>,
    ) -> Result<Option<ChunkData>> {
        let cached = self.table_to_read(record, record.chunk_bytes)?;
        let Some(place) = cached.table.find(print) else {
            // It may lie in the part that could not be scanned: that is damage, not absence.
            return cached.damage.map_or(Ok(None), |damage| Err((*damage).clone().into()));
        };
        let len_bytes = check_len(record.id, print, len_bytes, place.len_bytes)?;
        let table = &cached.table;
        let Some(region) = table.regions.get(place.region as usize) else { return Ok(None) };
        let key = RegionKey { container: record.id, offset_bytes: region.offset_bytes };
        let entries = region_entries(table, place.region as usize);
        let raw = self.cached_region(key, record.address, region.frame_bytes, entries)?;
        chunk_of(record.id, print, raw, place.offset_in_region, len_bytes).map(Some)
    }

    fn cached_region(
        &self,
        key: RegionKey,
        address: SlotAddress,
        frame_bytes: u32,
        entries: Option<&[TableEntry]>,
    ) -> Result<Arc<RegionBytes>> {
        if let Some(region) = self.caches.regions.get(&key) {
            self.counters.region_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(region);
        }
        // Decoding takes long too, and another thread may be reading the region.
        waiting::announce();
        get_or_load(&self.caches.regions, &key, || {
            self.counters.region_reads.fetch_add(1, Ordering::Relaxed);
            self.load_region(key, address, frame_bytes, entries)
        })
    }

    /// Reads, checks and decompresses one region, past the cache.
    pub(super) fn load_region(
        &self,
        key: RegionKey,
        address: SlotAddress,
        frame_bytes: u32,
        entries: Option<&[TableEntry]>,
    ) -> Result<Arc<RegionBytes>> {
        self.with_bytes(address, key.offset_bytes, frame_bytes, |frame| self.decode_checked(key, frame, entries))
    }

    /// Decompresses a region and compares its entries with those known from the table.
    pub(super) fn decode_checked(
        &self,
        key: RegionKey,
        frame: &[u8],
        entries: Option<&[TableEntry]>,
    ) -> Result<Arc<RegionBytes>> {
        let _timed = profile::of(Component::Decompression);
        let region = decode_region(&self.options.pool, key.container, frame)?;
        if entries.is_some_and(|entries| entries != region.entries) {
            let what = format!("region at {} of container {}", key.offset_bytes, key.container);
            return Err(StoreError::corrupt(what, "the chunks of the container's table", "others").into());
        }
        Ok(Arc::new(RegionBytes::owned(region.raw)))
    }

    /// Reads a range of a slot into this thread's scratch buffer.
    pub(super) fn with_bytes<T>(
        &self,
        address: SlotAddress,
        offset_bytes: u32,
        len_bytes: u32,
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let len = len_bytes.min(self.options.container_bytes) as usize;
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.len() < len {
                scratch.resize(len, 0);
            }
            let bytes = scratch.get_mut(..len).unwrap_or_default();
            let timed = profile::of(Component::ContainerReads);
            self.slots.read_into(address, offset_bytes, bytes)?;
            drop(timed);
            self.count_read(len as u64);
            use_bytes(bytes)
        })
    }

    /// Like [`with_bytes`](Self::with_bytes), but reads whole blocks into aligned memory, so that the device can bypass
    /// the page cache. This is for reading ahead of a restore: large reads, seldom repeated. The decoded regions are
    /// cached, and so are the pages of the reader's file.
    pub(super) fn with_blocks<T>(
        &self,
        address: SlotAddress,
        offset_bytes: u32,
        len_bytes: u32,
        along_bytes: Option<u32>,
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let block = DIRECT_ALIGNMENT_BYTES;
        let lead = offset_bytes as usize % block;
        let len = len_bytes.min(self.options.container_bytes) as usize;
        let whole = (lead + len).next_multiple_of(block);
        BLOCKS.with_borrow_mut(|scratch| {
            if scratch.capacity() == 0 {
                *scratch = AlignedBuffer::with_capacity(BLOCKS_BYTES);
            }
            if scratch.len() < whole {
                scratch.resize_zeroed(whole);
            }
            let bytes = scratch.get_mut(..whole).unwrap_or_default();
            let timed = profile::of(Component::ContainerReads);
            self.slots.read_along(address, offset_bytes - lead as u32, bytes, along_bytes)?;
            drop(timed);
            self.count_read(whole as u64);
            use_bytes(bytes.get(lead..lead + len).unwrap_or_default())
        })
    }

    /// Whether the container, or the one to which notes lead from it, has the chunk and it can be read without the disk.
    pub(super) fn cached(&self, container: ContainerId, fingerprint: &Fingerprint) -> bool {
        let has_region = |offset_bytes| self.caches.regions.contains_key(&RegionKey { container, offset_bytes });
        match self.known(container) {
            None => self.successor(container, fingerprint).is_some_and(|container| self.cached(container, fingerprint)),
            Some(KnownContainer::Open(open)) => {
                open.disk_offset(fingerprint).is_some_and(|place| place.is_none_or(has_region))
            }
            Some(KnownContainer::Closed(record)) if record.damaged => false,
            Some(KnownContainer::Closed(_)) => self.caches.tables.get(&container).is_some_and(|cached| {
                let region = cached.table.find(fingerprint).map(|place| place.region as usize);
                let region = region.and_then(|region| cached.table.regions.get(region));
                region.is_some_and(|region| has_region(region.offset_bytes))
            }),
        }
    }

    pub(super) fn table(&self, container: ContainerId) -> Result<Option<Arc<Table>>> {
        let result = match self.known(container) {
            None => return Ok(None),
            Some(KnownContainer::Open(open)) => return Ok(Some(open.table())),
            Some(KnownContainer::Closed(record)) => self.cached_table(&record).map(|cached| Some(cached.table)),
        };
        self.unless_removed(container, result)
    }

    /// Returns the table of a closed container, through the cache.
    pub(super) fn cached_table(&self, record: &ContainerRecord) -> Result<CachedTable> {
        if let Some(cached) = self.caches.tables.get(&record.id) {
            return Ok(cached);
        }
        waiting::announce();
        get_or_load(&self.caches.tables, &record.id, || self.load_table(record))
    }

    /// Returns the table of a closed container of which so many bytes will be read. Where seeks matter and much is wanted, the whole container
    /// is read and cached: its table lies behind its regions, and the way there and back takes longer than they do.
    pub(super) fn table_to_read(&self, record: &ContainerRecord, wanted_bytes: u64) -> Result<CachedTable> {
        let is_whole = self.seeks.matter() && wanted_bytes >= record.chunk_bytes / WHOLE_FROM;
        match record.toc.filter(|_| is_whole && !record.damaged) {
            Some(toc) if !self.caches.tables.contains_key(&record.id) => {
                waiting::announce();
                get_or_load(&self.caches.tables, &record.id, || {
                    self.load_whole(record, toc).or_else(|_| self.load_table(record))
                })
            }
            _ => self.cached_table(record),
        }
    }

    fn load_whole(&self, record: &ContainerRecord, (toc, toc_bytes): (u32, u32)) -> Result<CachedTable> {
        let _timed = profile::of(Component::Tables);
        self.with_blocks(record.address, 0, record.used_bytes, None, |bytes| {
            let table = decode_toc(&self.options.pool, record.id, part(bytes, toc, toc_bytes))?;
            self.counters.table_reads.fetch_add(1, Ordering::Relaxed);
            for (number, region) in table.regions.iter().enumerate() {
                let key = RegionKey { container: record.id, offset_bytes: region.offset_bytes };
                // Others may be loading it, or have it.
                let guard = self.caches.regions.get_value_or_guard(&key, Some(Duration::ZERO));
                let GuardResult::Guard(guard) = guard else { continue };
                let frame = part(bytes, region.offset_bytes, region.frame_bytes);
                // A damaged region drops only its own placeholder.
                if let Ok(raw) = self.decode_checked(key, frame, region_entries(&table, number)) {
                    let _ = guard.insert(raw);
                    self.counters.prefetched_regions.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(CachedTable::sound(Arc::new(table)))
        })
    }

    fn load_table(&self, record: &ContainerRecord) -> Result<CachedTable> {
        self.counters.table_reads.fetch_add(1, Ordering::Relaxed);
        let _timed = profile::of(Component::Tables);
        if let Some((offset_bytes, len_bytes)) = record.toc {
            let decode = |frame: &[u8]| Ok(decode_toc(&self.options.pool, record.id, frame)?);
            match self.with_bytes(record.address, offset_bytes, len_bytes, decode) {
                Ok(table) => return Ok(CachedTable::sound(Arc::new(table))),
                Err(error) if !self.is_known(record.id) => return Err(error),
                Err(error) => tracing::warn!(container = %record.id, %error, "table unreadable; scanning the regions"),
            }
        }
        let scanned = self.scan(record)?;
        if let Some(damage) = &scanned.damage
            && self.is_known(record.id)
        {
            tracing::error!(container = %record.id, error = %damage, "a container is damaged behind its last sound region");
        }
        Ok(CachedTable { table: Arc::new(scanned.table), damage: scanned.damage.map(Arc::new) })
    }

    pub(super) fn scan(&self, record: &ContainerRecord) -> Result<dedupfs_store::container::ScannedTable> {
        let ContainerRecord { id, kind, address, used_bytes, .. } = record;
        let mut read = |offset: u64, len: usize| {
            let offset =
                u32::try_from(offset).map_err(|_| StoreError::corrupt("container", "offsets of 32 bits", offset))?;
            let bytes = self.slots.read(*address, offset, len)?;
            self.count_read(len as u64);
            Ok(bytes)
        };
        Ok(scan_table(&self.options.pool, *id, *kind, u64::from(*used_bytes), &mut read)?)
    }
}

/// Returns a part of a container's bytes; nothing if it ends behind them.
fn part(bytes: &[u8], offset_bytes: u32, len_bytes: u32) -> &[u8] {
    let start = offset_bytes as usize;
    bytes.get(start..start.saturating_add(len_bytes as usize)).unwrap_or_default()
}

pub(super) fn region_entries(table: &Table, number: usize) -> Option<&[TableEntry]> {
    table.regions.get(number).map(|region| table.region_entries(region))
}

/// Returns the found length if it is the expected one.
fn check_len(container: ContainerId, print: &Fingerprint, expected: Option<u32>, found: u32) -> Result<u32> {
    match expected {
        Some(expected) if expected != found => {
            let what = format!("chunk {print} of container {container}");
            Err(StoreError::corrupt(what, format!("{expected} bytes"), format!("{found} bytes")).into())
        }
        _ => Ok(found),
    }
}

pub(super) fn chunk_of(
    container: ContainerId,
    print: &Fingerprint,
    region: Arc<RegionBytes>,
    start: u32,
    len_bytes: u32,
) -> Result<ChunkData> {
    let region_bytes = region.len();
    ChunkData::new(region, start as usize, len_bytes as usize).ok_or_else(|| {
        let what = format!("chunk {print} of container {container}");
        StoreError::corrupt(what, format!("within a region of {region_bytes} bytes"), format!("{start} + {len_bytes}"))
            .into()
    })
}
