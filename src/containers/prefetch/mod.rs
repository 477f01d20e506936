//! Loading regions ahead of readers.
//!
//! 1. A reader that knows what comes next asks for it ([`asking`]), one at the end of a file for what lies behind it ([`along`]).
//!    What is in memory or on its way is left out.
//! 2. With the container's table at hand, the regions are planned into [`reads`]: neighbours, and regions with a small gap
//!    between them, in one. Each read is one job: read, decompress, cache. So several reads are decoded in parallel.
//! 3. Without the table, a first job loads that and goes on with step 2, for whoever has asked until then.
//!
//! A job holds the cache's placeholder of each region it loads: a reader that comes meanwhile waits for it instead of reading
//! the region a second time. A reader is told when too much is on its way, and asks again when it has come nearer. Beyond that nothing is
//! promised: what is found behind a table may be too much then, a region may be damaged; the reader reads (and reports) by itself.

mod along;
mod asking;
mod reads;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use dedupfs_store::container::{SlotAddress, Table};
use dedupfs_store::{ContainerId, Fingerprint};
use parking_lot::Mutex;

use self::along::Along;
pub use self::asking::Asking;
use super::read::RegionKey;
use super::shared::Shared;
use super::{ContainerOptions, ContainerStore};
use crate::namespace::ContainerRecord;

/// Regions on their way at most, whatever the cache's size.
const REGIONS_MAX: u64 = 256;
/// Chunks of a container that are remembered, about, while its table is on its way.
const WANTED_BEHIND_TABLE_MAX: usize = 16 * 1024;

/// What is on its way.
pub(super) struct Prefetching {
    /// Under one short lock that is taken alone.
    on_the_way: Mutex<OnTheWay>,
    along: Along,
    regions_max: usize,
}

#[derive(Default)]
struct OnTheWay {
    regions: HashSet<RegionKey>,
    /// With what is wanted of them once they are there.
    tables: HashMap<ContainerId, Vec<Fingerprint>>,
}

/// What came of asking for a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    /// It is on its way by this.
    Claimed,
    /// It is there, or on its way, or not on the disk.
    NotNeeded,
    /// Too much is on its way.
    NoRoom,
}

impl Prefetching {
    pub(super) fn new(options: &ContainerOptions) -> Self {
        // Half of the cache: more would push itself out before it is read.
        let regions = options.region_cache_bytes / 2 / u64::from(options.region_raw_bytes.max(1));
        let regions_max = usize::try_from(regions.min(REGIONS_MAX)).unwrap_or(0);
        Self { on_the_way: Mutex::default(), along: Along::new(regions_max), regions_max }
    }

    /// Notes a region that is not there as on its way.
    fn claim(&self, key: RegionKey) -> Claim {
        let mut on_the_way = self.on_the_way.lock();
        if on_the_way.regions.contains(&key) {
            return Claim::NotNeeded;
        }
        if on_the_way.regions.len() >= self.regions_max {
            return Claim::NoRoom;
        }
        on_the_way.regions.insert(key);
        Claim::Claimed
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
    fn is_idle(&self) -> bool {
        let on_the_way = self.on_the_way.lock();
        on_the_way.regions.is_empty() && on_the_way.tables.is_empty()
    }
}

/// Gives what a job or an [`Asking`] claimed back, however that ends, also when it is dropped unstarted. Jobs do not keep the
/// store: what still waits when nobody has it any more is for nobody.
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

/// A container whose table is at hand, and how much of it is written.
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

    /// The region, if all of it is written.
    fn key(&self, number: usize) -> Option<RegionKey> {
        let region = self.table.regions.get(number)?;
        let left = self.used_bytes.checked_sub(region.offset_bytes)?;
        let key = RegionKey { container: self.container, offset_bytes: region.offset_bytes };
        (region.frame_bytes <= left).then_some(key)
    }
}

impl ContainerStore {
    /// Whether no prefetch is on its way; for tests and statistics.
    #[must_use]
    pub fn prefetch_is_idle(&self) -> bool {
        self.shared.prefetching.is_idle()
    }
}
