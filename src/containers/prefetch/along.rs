//! Reading on along a container: for readers that do not know what comes next, at the end of a file.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use dedupfs_store::{ContainerId, Fingerprint};
use parking_lot::Mutex;

use super::super::shared::{Known, Shared};
use super::{ContainerStore, Place};

/// Regions that a reader along a container is kept ahead; more are asked for when half of them are left.
const REGIONS: usize = 8;
/// Containers along which somebody reads that are remembered.
pub(super) const CONTAINERS: usize = 16;

/// Who reads along a container.
pub(super) struct Along {
    /// Of each, the first region that was not asked for; the latest last. Under one short lock that is taken alone.
    asked: Mutex<VecDeque<(ContainerId, usize)>>,
    window: usize,
}

impl Along {
    pub(super) fn new(regions_max: usize) -> Self {
        Self { asked: Mutex::default(), window: REGIONS.min(regions_max / 4) }
    }

    /// The regions to ask for when a reader along the container has come to this one: none while half of what was asked for is left. Each
    /// is asked for once by each reader as long as that is remembered, whatever came of it.
    pub(super) fn read_on(&self, container: ContainerId, number: usize) -> Range<usize> {
        let window = self.window;
        let mut asked = self.asked.lock();
        // A reader is known by where it may have come to: there can be others.
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
    /// A reader has come to its end with this chunk. If it came along the container (the regions before, two if there are so many,
    /// are in the cache), the next ones are loaded: files lie in containers in the order in which they were written, and are restored in that order
    /// (the locality that the dual cache relies on when it loads a container's whole table).
    pub fn read_on(&self, container: ContainerId, fingerprint: &Fingerprint) {
        self.shared.read_on(container, fingerprint);
    }
}

impl Shared {
    fn read_on(self: &Arc<Self>, container: ContainerId, fingerprint: &Fingerprint) {
        // Of an open container the last regions are in memory, and the first ones were read as those of a closed one would be.
        let Some(Known::Closed(record)) = self.known(container) else { return };
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
