//! Requests for the chunks that a reader knows it will need.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint};

use super::super::shared::{KnownContainer, Shared};
use super::{Claim, Claims, ContainerStore, Place, WANTED_BEHIND_TABLE_MAX};

/// Collects the next chunks of a reader, most urgent first, until it has enough; [`start`](Asking::start) has them
/// read.
pub(crate) struct Asking<'a> {
    shared: &'a Arc<Shared>,
    /// In the order in which the containers were first requested.
    parts: Vec<Part>,
    by_container: HashMap<ContainerId, usize>,
    /// The part of the previous chunk.
    last: Option<usize>,
    regions: usize,
    regions_max: usize,
}

/// The requests to one container.
enum Part {
    /// Nothing to load: the data is in memory, or the container is unknown.
    Nothing,
    /// The regions requested so far, and those of them to be read.
    Regions { place: Place, asked: HashSet<usize>, to_read: Vec<usize>, claims: Claims },
    /// The table is not cached, so the regions are not known yet.
    BehindTable { record: ContainerRecord, fingerprints: Vec<Fingerprint>, run_bytes: u64 },
}

impl ContainerStore {
    /// Tops a sequential reader up to ¾ of `regions_max`; `None` if that adds less than a quarter of it, since a step
    /// has to be worthwhile. `regions_ahead` is the number of regions that the reader has requested and not reached.
    /// Further requests of one reader would be pushed out before they are read, or refused. With fewer, readers of
    /// scattered files reach chunks that are not loaded yet (`docs/lab.md`, *What was tried*).
    pub(crate) fn ask_ahead(&self, regions_ahead: usize) -> Option<Asking<'_>> {
        let room = self.shared.prefetching.regions_max;
        let window = room - room / 4;
        let regions_max = window.saturating_sub(regions_ahead);
        let (shared, parts, by_container) = (&self.shared, Vec::new(), HashMap::new());
        (regions_max > window / 4).then_some(Asking {
            shared,
            parts,
            by_container,
            last: None,
            regions: 0,
            regions_max,
        })
    }
}

impl Asking<'_> {
    /// Adds a chunk of `len_bytes`. Returns `false` if there is enough: the reader requests it later, when it has come
    /// nearer.
    pub(crate) fn add(&mut self, container: ContainerId, fingerprint: &Fingerprint, len_bytes: u64) -> bool {
        let Self { shared, parts, by_container, last, regions, regions_max } = self;
        let at = *by_container.entry(container).or_insert_with(|| {
            parts.push(shared.part(container));
            parts.len() - 1
        });
        let goes_on = last.replace(at) == Some(at);
        match parts.get_mut(at) {
            None | Some(Part::Nothing) => true,
            Some(Part::Regions { place, asked, to_read, claims }) => {
                let Some(number) = place.table.find(fingerprint).map(|found| found.region as usize) else {
                    return true;
                };
                if asked.contains(&number) {
                    return true;
                }
                if *regions >= *regions_max {
                    return false;
                }
                match shared.claim(place, number) {
                    Claim::NoRoom => return false,
                    Claim::NotNeeded => {}
                    Claim::Claimed => {
                        to_read.push(number);
                        claims.regions.extend(place.key(number));
                    }
                }
                asked.insert(number);
                *regions += 1;
                true
            }
            Some(Part::BehindTable { fingerprints, run_bytes, .. }) => {
                // Estimate: consecutive chunks are contiguous, starting mid-region; any other chunk costs one region.
                let of = |bytes: u64| (bytes / u64::from(shared.options.region_raw_bytes.max(1))) as usize + 1;
                let (before, before_bytes) = if goes_on { (of(*run_bytes), *run_bytes) } else { (0, 0) };
                let after_bytes = before_bytes.saturating_add(len_bytes);
                let more = of(after_bytes) - before;
                if (more > 0 && *regions >= *regions_max) || fingerprints.len() >= WANTED_BEHIND_TABLE_MAX {
                    return false;
                }
                *run_bytes = after_bytes;
                fingerprints.push(*fingerprint);
                *regions += more;
                true
            }
        }
    }

    /// Returns the number of requested regions; for containers without a cached table, an estimate.
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }

    /// Has all requested chunks read; returns at once.
    pub(crate) fn start(self) {
        for part in self.parts {
            match part {
                Part::Nothing => {}
                Part::Regions { place, to_read, claims, .. } => self.shared.start_claimed(&place, to_read, claims),
                // Empty if already its first chunk was refused.
                Part::BehindTable { fingerprints, .. } if fingerprints.is_empty() => {}
                Part::BehindTable { record, fingerprints, .. } => self.shared.load_behind_table(record, fingerprints),
            }
        }
    }
}

impl Shared {
    fn part(self: &Arc<Self>, container: ContainerId) -> Part {
        let regions = |place| {
            let (asked, to_read, claims) = (HashSet::new(), Vec::new(), Claims::none(self));
            Part::Regions { place, asked, to_read, claims }
        };
        match self.known(container) {
            None => Part::Nothing,
            Some(KnownContainer::Open(open)) => match open.address() {
                None => Part::Nothing,
                // Regions that are not fully written are in memory.
                Some(address) => {
                    let used_bytes = open.written_bytes();
                    regions(Place { container, address, used_bytes, table: open.table() })
                }
            },
            Some(KnownContainer::Closed(record)) => match self.caches.tables.get(&container) {
                None => Part::BehindTable { record, fingerprints: Vec::new(), run_bytes: 0 },
                Some(cached) => regions(Place::of(&record, &cached.table)),
            },
        }
    }
}
