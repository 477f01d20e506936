//! Reading ahead along a container, for readers at the end of a file, whose next chunk is not known.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::Mutex;

use super::super::directory::KnownContainer;
use super::super::shared::Shared;
use super::{ContainerStore, Place};

/// Regions that a reader along a container is kept ahead; more are requested when half of them are left.
const REGIONS: usize = 8;
/// Containers remembered at most as being read along.
pub(super) const CONTAINERS: usize = 16;

/// The readers along containers.
pub(super) struct Along {
    /// For each reader, its container and the first region not requested yet; the latest reader last. A short lock,
    /// taken alone.
    asked: Mutex<VecDeque<(ContainerId, usize)>>,
    window: usize,
}

impl Along {
    pub(super) fn new(regions_max: usize) -> Self {
        Self { asked: Mutex::default(), window: REGIONS.min(regions_max / 4) }
    }

    /// Returns the regions to request when a reader along the container has reached this one: none while half of the
    /// requested regions are left. While a reader is remembered, it requests each region once, even if the load failed.
    pub(super) fn read_on(&self, container: ContainerId, number: usize) -> Range<usize> {
        let window = self.window;
        let mut asked = self.asked.lock();
        // A reader is recognized by the regions it may have reached: the container can have other readers.
        let own = number + 1..=number + 1 + window;
        let known = asked.iter().position(|(known, asked)| *known == container && own.contains(asked));
        let from = known.and_then(|at| asked.remove(at)).map_or(number + 1, |(_, asked)| asked);
        let wanted = if from > number + window.div_ceil(2) { from..from } else { from..number + 1 + window };
        if asked.len() >= CONTAINERS {
            asked.pop_front();
        }
        asked.push_back((container, wanted.end));
        wanted
    }
}

impl ContainerStore {
    /// Tells that a reader ended with this chunk. If the preceding regions (two, or all if fewer) are cached, the
    /// reader came along the container, and the next regions are loaded. Files lie in containers in the order in which
    /// they were written, and are restored in that order. (Loading a container's whole table in the dual cache relies
    /// on the same locality.)
    pub(crate) fn read_on(&self, container: ContainerId, fingerprint: &Fingerprint) {
        self.shared.read_on(container, fingerprint);
    }
}

impl Shared {
    fn read_on(self: &Arc<Self>, container: ContainerId, fingerprint: &Fingerprint) {
        let container = if self.is_known(container) { Some(container) } else { self.successor(container, fingerprint) };
        let Some(container) = container else { return };
        // An open container has its last regions in memory; its first ones were loaded like those of a closed one.
        let Some(KnownContainer::Closed(record)) = self.known(container) else { return };
        let Some(cached) = self.caches.tables.get(&container) else { return };
        let place = Place::of(&record, &cached.table);
        let Some(found) = place.table.find(fingerprint) else { return };
        let number = found.region as usize;
        let is_cached = |number| place.key(number).is_some_and(|key| self.caches.regions.contains_key(&key));
        if number == 0 || number + 1 >= place.table.regions.len() || !(number.saturating_sub(2)..number).all(is_cached)
        {
            return;
        }
        let next = self.prefetching.along.read_on(container, number);
        if !next.is_empty() {
            self.start_reads(&place, next.collect());
        }
    }
}
