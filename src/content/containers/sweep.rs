//! Reading chosen chunks of a container for a sweep: all reads one after another, then region by region on any thread.
//!
//! A container of which much is wanted is read as a whole, with its table: on a disk that seeks, a way to the table and back
//! costs more than the bytes between. Decoded regions are not cached: a sweep needs most of them once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_store::container::{SlotAddress, Table, decode_toc};
use dedupfs_store::device::{AlignedBuffer, DIRECT_ALIGNMENT_BYTES};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint};

use super::ContainerStore;
use super::buffers::RegionBytes;
use super::directory::KnownContainer;
use super::prefetch::plan;
use super::read::{CachedTable, RegionKey, region_entries};
use super::shared::Shared;

/// A chunk that a sweep delivers, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Fingerprint of the chunk.
    pub fingerprint: Fingerprint,
    /// Length of the chunk.
    pub len_bytes: u32,
    /// Number of the file, as the caller counts.
    pub file: u32,
    /// Offset of the chunk in the file.
    pub offset_bytes: u64,
}

/// The regions of one container that hold wanted chunks, read from the disk.
pub(crate) struct SweptContainer {
    pub(crate) container: ContainerId,
    table: Option<Arc<Table>>,
    pub(crate) regions: Vec<SweptRegion>,
    /// Chunks that were not found, or not read.
    pub(crate) left: Vec<Wanted>,
    /// The frames; the caller takes the buffer back.
    pub(crate) buffer: AlignedBuffer,
}

/// A region with wanted chunks.
pub(crate) struct SweptRegion {
    number: usize,
    bytes: Bytes,
    /// With their offsets in the region, in the order of files and of offsets in them.
    pub(crate) chunks: Vec<(u32, Wanted)>,
}

enum Bytes {
    Cached(Arc<RegionBytes>),
    /// The frame in the buffer.
    Frame(Range<usize>),
}

impl ContainerStore {
    /// Returns the place of a container that is not written any more.
    pub(crate) fn place_of(&self, container: ContainerId) -> Option<SlotAddress> {
        match self.shared.known(container)? {
            KnownContainer::Closed(record) => Some(record.address),
            KnownContainer::Open(_) => None,
        }
    }

    /// Reads the regions that hold these chunks of a container. Neither damage nor a failed read is an error here: the chunks
    /// behind it are left, for a reader that tells them one by one.
    pub(crate) fn read_for_sweep(
        &self,
        container: ContainerId,
        wanted: Vec<Wanted>,
        buffer: AlignedBuffer,
    ) -> SweptContainer {
        let mut swept = SweptContainer { container, table: None, regions: Vec::new(), left: wanted, buffer };
        if let Some(KnownContainer::Closed(record)) = self.shared.known(container)
            && !record.damaged
        {
            self.shared.read_for_sweep(&record, &mut swept);
        }
        swept
    }

    /// Decodes a region that was read. `None` if it is damaged, or its container has gone.
    pub(crate) fn decode_swept(&self, swept: &SweptContainer, region: &SweptRegion) -> Option<Arc<RegionBytes>> {
        let frame = match &region.bytes {
            Bytes::Cached(raw) => return Some(Arc::clone(raw)),
            Bytes::Frame(range) => swept.buffer.get(range.clone())?,
        };
        let table = swept.table.as_deref()?;
        let place = table.regions.get(region.number)?;
        let key = RegionKey { container: swept.container, offset_bytes: place.offset_bytes };
        let raw = self.shared.decode_checked(key, frame, region_entries(table, region.number)).ok()?;
        self.shared.counters.prefetched_regions.fetch_add(1, Ordering::Relaxed);
        Some(raw)
    }
}

impl Shared {
    fn read_for_sweep(&self, record: &ContainerRecord, swept: &mut SweptContainer) {
        let wanted_bytes: u64 = swept.left.iter().map(|wanted| u64::from(wanted.len_bytes)).sum();
        let (table, is_whole) = match self.caches.tables.get(&record.id) {
            Some(cached) => (Ok(cached), false),
            // Uncompressed, and each as often as it is used, against bytes on the disk: an estimate.
            None if wanted_bytes >= u64::from(record.used_bytes / 2) && record.toc.is_some() => {
                (self.read_whole_for_sweep(record, &mut swept.buffer), true)
            }
            None => (self.cached_table(record), false),
        };
        // With damage, absence would be doubtful.
        let Some(table) = table.ok().filter(|cached| cached.damage.is_none()).map(|cached| cached.table) else {
            return;
        };
        let mut by_region = BTreeMap::<usize, Vec<(u32, Wanted)>>::new();
        swept.left.retain(|wanted| {
            let place = table.find(&wanted.fingerprint).filter(|place| place.len_bytes == wanted.len_bytes);
            let Some(place) = place else { return true };
            by_region.entry(place.region as usize).or_default().push((place.offset_in_region, *wanted));
            false
        });
        let mut frames = BTreeMap::new();
        if !is_whole {
            let cached = |number: &usize| {
                let key = |offset_bytes| RegionKey { container: record.id, offset_bytes };
                table
                    .regions
                    .get(*number)
                    .is_some_and(|place| self.caches.regions.contains_key(&key(place.offset_bytes)))
            };
            let to_read = by_region.keys().copied().filter(|number| !cached(number)).collect();
            frames = self.read_frames(record, &table, to_read, &mut swept.buffer);
        }
        for (number, mut chunks) in by_region {
            chunks.sort_unstable_by_key(|(_, wanted)| (wanted.file, wanted.offset_bytes));
            let Some(place) = table.regions.get(number) else { continue };
            let start = place.offset_bytes as usize;
            let key = RegionKey { container: record.id, offset_bytes: place.offset_bytes };
            let frame = match is_whole {
                true => Some(start..start.saturating_add(place.frame_bytes as usize)),
                false => frames.remove(&number),
            };
            match frame.map(Bytes::Frame).or_else(|| self.caches.regions.get(&key).map(Bytes::Cached)) {
                Some(bytes) => swept.regions.push(SweptRegion { number, bytes, chunks }),
                None => swept.left.extend(chunks.into_iter().map(|(_, wanted)| wanted)),
            }
        }
        swept.table = Some(table);
    }

    fn read_whole_for_sweep(&self, record: &ContainerRecord, buffer: &mut AlignedBuffer) -> Result<CachedTable> {
        self.read_blocks(record.address, 0..record.used_bytes, buffer, 0)?;
        let (from, len) = record.toc.map_or((0, 0), |(offset, len)| (offset as usize, len as usize));
        let toc = buffer.get(from..from.saturating_add(len)).unwrap_or_default();
        let cached = CachedTable::sound(Arc::new(decode_toc(&self.options.pool, record.id, toc)?));
        self.caches.tables.insert(record.id, cached.clone());
        self.counters.table_reads.fetch_add(1, Ordering::Relaxed);
        Ok(cached)
    }

    /// Reads regions, given by number, in order of offset, and returns where their frames lie in the buffer. Those that cannot be
    /// read are left out.
    fn read_frames(
        &self,
        record: &ContainerRecord,
        table: &Table,
        regions: Vec<usize>,
        buffer: &mut AlignedBuffer,
    ) -> BTreeMap<usize, Range<usize>> {
        let (mut frames, mut at) = (BTreeMap::new(), 0);
        for read in plan(table, regions, self.seeks.gap_bytes(), u32::MAX) {
            let places: Vec<_> = read.iter().filter_map(|number| table.regions.get(*number)).collect();
            let (Some(first), Some(last)) = (places.first(), places.last()) else { continue };
            let span = first.offset_bytes..last.offset_bytes.saturating_add(last.frame_bytes).min(record.used_bytes);
            let Ok(lead) = self.read_blocks(record.address, span.clone(), buffer, at) else { continue };
            for (number, place) in read.iter().zip(&places) {
                let start = at + lead + (place.offset_bytes - span.start) as usize;
                frames.insert(*number, start..start.saturating_add(place.frame_bytes as usize));
            }
            at = (at + lead + span.len()).next_multiple_of(DIRECT_ALIGNMENT_BYTES);
        }
        frames
    }

    /// Reads the whole blocks that hold a span of a slot to the offset `at`, a multiple of a block, of the buffer. Returns the number of
    /// bytes before the span.
    fn read_blocks(
        &self,
        address: SlotAddress,
        span: Range<u32>,
        buffer: &mut AlignedBuffer,
        at: usize,
    ) -> Result<usize> {
        let lead = span.start as usize % DIRECT_ALIGNMENT_BYTES;
        let end = span.end.min(self.options.container_bytes);
        let whole = (lead + end.saturating_sub(span.start) as usize).next_multiple_of(DIRECT_ALIGNMENT_BYTES);
        if buffer.len() < at + whole {
            buffer.resize_zeroed(at + whole);
        }
        let into = buffer.get_mut(at..at + whole).unwrap_or_default();
        let timed = profile::of(Component::ContainerReads);
        self.slots.read_into(address, span.start - lead as u32, into)?;
        drop(timed);
        self.count_read(whole as u64);
        Ok(lead)
    }
}
