//! Loading regions ahead of readers.
//!
//! 1. A reader that knows its next chunks requests them ([`asking`]). At the end of a file the regions behind it are
//!    requested ([`along`]), or the next files, if a client reads those of a version one after another (`src/service/across.rs`). Regions in
//!    memory or already being loaded are left out.
//! 2. If the container's table is cached, the regions are planned into [`reads`]: neighbours, and regions with a small
//!    gap between them, share one. Each read is one job: read, decompress, cache. So several reads are decoded in
//!    parallel.
//! 3. Without the table, a first job loads it and continues with step 2 for all requests made until then.
//!
//! A job holds the cache's placeholder of each region it loads. A reader that needs the region waits for it instead of
//! reading the region a second time. `regions_max` bounds the regions being loaded; a refused reader asks again when it
//! has come nearer. Prefetching is best effort: a region behind a table may exceed the bound, or be damaged. Then the
//! reader reads it (and reports the damage) by itself.

mod along;
mod asking;
mod reads;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use dedupfs_store::container::{SlotAddress, Table};
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint};
use dedupfs_sync::Mutex;

pub(crate) use self::asking::Asking;
pub(super) use self::reads::plan;

use self::along::Along;
use super::read::RegionKey;
use super::shared::Shared;
use super::{ContainerOptions, ContainerStore};

/// Regions being loaded at most, for any size of the cache.
const REGIONS_MAX: u64 = 256;
/// Chunks of a container that are remembered while its table is being loaded; approximate.
const WANTED_BEHIND_TABLE_MAX: usize = 16 * 1024;

/// The regions and tables that are being loaded.
pub(super) struct Prefetching {
    /// A short lock, taken alone.
    on_the_way: Mutex<OnTheWay>,
    along: Along,
    regions_max: AtomicUsize,
}

#[derive(Default)]
struct OnTheWay {
    regions: HashSet<RegionKey>,
    /// With the chunks requested while the table is being loaded.
    tables: HashMap<ContainerId, Vec<Fingerprint>>,
}

/// The outcome of claiming a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    /// The caller is to load it.
    Claimed,
    /// It is in memory, is being loaded, or is not on the disk.
    NotNeeded,
    /// Too many regions are being loaded.
    NoRoom,
}

/// Half of the cache: more would be pushed out before it is read.
fn regions_within(region_cache_bytes: u64, region_raw_bytes: u32) -> usize {
    let regions = region_cache_bytes / 2 / u64::from(region_raw_bytes.max(1));
    usize::try_from(regions.min(REGIONS_MAX)).unwrap_or(0)
}

impl Prefetching {
    pub(super) fn new(options: &ContainerOptions) -> Self {
        let regions_max = regions_within(options.region_cache_bytes, options.region_raw_bytes);
        let along = Along::new(regions_max);
        Self { on_the_way: Mutex::default(), along, regions_max: AtomicUsize::new(regions_max) }
    }

    fn regions_max(&self) -> usize {
        self.regions_max.load(Ordering::Relaxed)
    }

    /// Follows a cache of another size.
    pub(super) fn set_region_cache_bytes(&self, region_cache_bytes: u64, region_raw_bytes: u32) {
        self.regions_max.store(regions_within(region_cache_bytes, region_raw_bytes), Ordering::Relaxed);
    }

    /// Claims a region that is not cached.
    fn claim(&self, key: RegionKey) -> Claim {
        let mut on_the_way = self.on_the_way.lock();
        if on_the_way.regions.contains(&key) {
            return Claim::NotNeeded;
        }
        if on_the_way.regions.len() >= self.regions_max() {
            return Claim::NoRoom;
        }
        on_the_way.regions.insert(key);
        Claim::Claimed
    }

    /// Notes chunks requested behind a container's table. Returns whether the caller is to load the table: nobody is
    /// loading it and there is room.
    fn claim_table(&self, container: ContainerId, fingerprints: Vec<Fingerprint>) -> bool {
        let mut on_the_way = self.on_the_way.lock();
        if let Some(wanted) = on_the_way.tables.get_mut(&container) {
            if wanted.len() < WANTED_BEHIND_TABLE_MAX {
                wanted.extend(fingerprints);
            }
            return false;
        }
        on_the_way.tables.len() < self.regions_max() && on_the_way.tables.insert(container, fingerprints).is_none()
    }

    /// Takes the chunks requested while the table loaded; ends the load when none are left.
    fn take_wanted(&self, container: ContainerId) -> Option<Vec<Fingerprint>> {
        let mut on_the_way = self.on_the_way.lock();
        let wanted = std::mem::take(on_the_way.tables.get_mut(&container)?);
        if wanted.is_empty() {
            on_the_way.tables.remove(&container);
            return None;
        }
        Some(wanted)
    }

    /// Whether nothing is being loaded.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let on_the_way = self.on_the_way.lock();
        on_the_way.regions.is_empty() && on_the_way.tables.is_empty()
    }
}

/// The claims of a job or of an [`Asking`]; dropping returns them, also those of a job that never started. Holds no
/// reference to the store: the jobs still waiting do not keep a closed store alive.
struct Claims {
    shared: Weak<Shared>,
    regions: Vec<RegionKey>,
    table: Option<ContainerId>,
}

impl Claims {
    fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared), regions: Vec::new(), table: None }
    }
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

/// A container with its cached table, and the length of its written part.
struct Place {
    container: ContainerId,
    address: SlotAddress,
    used_bytes: u32,
    table: Arc<Table>,
}

impl Place {
    fn of(record: &ContainerRecord, table: &Arc<Table>) -> Self {
        let ContainerRecord { id: container, address, used_bytes, .. } = *record;
        Self { container, address, used_bytes, table: Arc::clone(table) }
    }

    /// Returns the region's key if the whole region is written.
    fn key(&self, number: usize) -> Option<RegionKey> {
        let region = self.table.regions.get(number)?;
        let left = self.used_bytes.checked_sub(region.offset_bytes)?;
        let key = RegionKey { container: self.container, offset_bytes: region.offset_bytes };
        (region.frame_bytes <= left).then_some(key)
    }
}

impl ContainerStore {
    /// Whether nothing is being prefetched; for tests and statistics.
    #[cfg(test)]
    pub(crate) fn prefetch_is_idle(&self) -> bool {
        self.shared.prefetching.is_idle()
    }
}
