//! The loads: tables, and reads of neighbouring regions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::container::Table;
use dedupfs_store::{ContainerRecord, Fingerprint};
use quick_cache::sync::GuardResult;

use super::super::read::{RegionKey, region_entries};
use super::super::shared::Shared;
use super::{Claim, Claims, Place};

/// A read of neighbouring regions of one container: their numbers in its table, ascending by offset.
struct Read {
    place: Arc<Place>,
    regions: Vec<usize>,
}

impl Shared {
    /// Claims the region for loading unless it is cached.
    pub(super) fn claim(&self, place: &Place, number: usize) -> Claim {
        match place.key(number) {
            // `get` marks a cached region as used, so that it stays until the reader comes.
            Some(key) if self.caches.regions.get(&key).is_none() => self.prefetching.claim(key),
            _ => Claim::NotNeeded,
        }
    }

    /// Loads the container's table, then the chunks requested behind it.
    pub(super) fn load_behind_table(self: &Arc<Self>, record: ContainerRecord, fingerprints: Vec<Fingerprint>) {
        let container = record.id;
        let mean_bytes = record.chunk_bytes / u64::from(record.chunks.max(1));
        let wanted_bytes = mean_bytes.saturating_mul(fingerprints.len() as u64);
        if !self.prefetching.claim_table(container, fingerprints) {
            return;
        }
        let mut claims = Claims::none(self);
        claims.table = Some(container);
        // Ahead of the queued reads: the reads of this container wait for its table.
        self.workers.try_submit_before(Box::new(move || {
            let Some(shared) = claims.shared.upgrade().filter(|shared| shared.is_known(container)) else { return };
            let Ok(cached) = shared.table_to_read(&record, wanted_bytes) else { return };
            let place = Place::of(&record, &cached.table);
            // More chunks may have been requested while the table loaded.
            while let Some(fingerprints) = shared.prefetching.take_wanted(container) {
                let found = fingerprints.iter().filter_map(|fingerprint| place.table.find(fingerprint));
                shared.start_reads(&place, found.map(|found| found.region as usize).collect());
            }
            let _no_longer_on_its_way = claims.table.take();
        }));
    }

    /// Starts reading those of these regions that are not cached and for which there is room.
    pub(super) fn start_reads(self: &Arc<Self>, place: &Place, mut regions: Vec<usize>) {
        regions.sort_unstable();
        regions.dedup();
        let mut claims = Claims::none(self);
        regions.retain(|number| {
            let is_claimed = self.claim(place, *number) == Claim::Claimed;
            claims.regions.extend(place.key(*number).filter(|_| is_claimed));
            is_claimed
        });
        self.start_claimed(place, regions, claims);
    }

    /// Starts reading these regions, which are claimed.
    pub(super) fn start_claimed(self: &Arc<Self>, place: &Place, regions: Vec<usize>, mut claims: Claims) {
        let place = Arc::new(Place { table: Arc::clone(&place.table), ..*place });
        for regions in plan(&place.table, regions, self.seeks.gap_bytes(), self.seeks.read_bytes_max()) {
            // From here on each read has its own claims.
            let keys: Vec<_> = regions.iter().filter_map(|number| place.key(*number)).collect();
            claims.regions.retain(|key| !keys.contains(key));
            let mut own = Claims::none(self);
            own.regions = keys;
            let read = Read { place: Arc::clone(&place), regions };
            self.workers.try_submit_ahead(Box::new(move || {
                let container = read.place.container;
                // The container may be gone: the job may have waited for long.
                let Some(shared) = own.shared.upgrade().filter(|shared| shared.is_known(container)) else { return };
                if let Err(error) = shared.load_ahead(&read) {
                    tracing::debug!(%container, %error, "prefetch failed");
                }
            }));
        }
    }

    /// Reads the span of the regions at once and caches each. Leaves out regions that another thread loads or has
    /// loaded.
    fn load_ahead(&self, read: &Read) -> Result<()> {
        let Place { container, address, used_bytes, ref table } = *read.place;
        let mut loading = Vec::with_capacity(read.regions.len());
        for number in &read.regions {
            let Some(region) = table.regions.get(*number) else { continue };
            let key = RegionKey { container, offset_bytes: region.offset_bytes };
            if let GuardResult::Guard(guard) = self.caches.regions.get_value_or_guard(&key, Some(Duration::ZERO)) {
                loading.push((key, region, region_entries(table, *number), guard));
            }
        }
        let Some((first, _, _, _)) = loading.first() else { return Ok(()) };
        let Some((last, last_region, _, _)) = loading.last() else { return Ok(()) };
        let start = first.offset_bytes;
        let len_bytes = (last.offset_bytes - start).saturating_add(last_region.frame_bytes);
        let behind_bytes = used_bytes.saturating_sub(start.saturating_add(len_bytes));
        let along_bytes = self.seeks.along_bytes().map(|most| most.min(behind_bytes));
        self.with_blocks(address, start, len_bytes, along_bytes, |bytes| {
            for (key, region, entries, guard) in loading {
                let from = (key.offset_bytes - start) as usize;
                let frame = bytes.get(from..from + region.frame_bytes as usize).unwrap_or_default();
                // A damaged region drops only its own placeholder.
                if let Ok(raw) = self.decode_checked(key, frame, entries) {
                    // If the container was removed, its region is pushed out in time: ids are never used again.
                    let _ = guard.insert(raw);
                    self.counters.prefetched_regions.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }
}

/// Groups regions, given by their numbers in the table, into reads of at most so many bytes, in order of offset. Gaps of at most so many
/// bytes are read along.
pub(in super::super) fn plan(
    table: &Table,
    mut regions: Vec<usize>,
    gap_bytes_max: u32,
    read_bytes_max: u32,
) -> Vec<Vec<usize>> {
    // A table has its regions in order of offset.
    regions.sort_unstable();
    regions.dedup();
    let spans = regions.into_iter().filter_map(|number| table.regions.get(number).map(|region| (number, region)));
    let mut reads: Vec<Vec<usize>> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (number, region) in spans {
        let region_end = region.offset_bytes.saturating_add(region.frame_bytes);
        match reads.last_mut() {
            Some(read)
                if region.offset_bytes.saturating_sub(end) <= gap_bytes_max
                    && region_end.saturating_sub(start) <= read_bytes_max =>
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
