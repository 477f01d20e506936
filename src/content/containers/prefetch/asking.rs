//! Requests for the chunks that a reader knows it will need.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint};

use super::super::directory::KnownContainer;
use super::super::shared::Shared;
use super::{Claim, Claims, ContainerStore, Place, WANTED_BEHIND_TABLE_MAX};
use crate::workers::Job;

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
    /// Nothing to load: the data is in memory.
    Nothing,
    /// The container is unknown. Notes may lead to another one that has the chunk.
    Gone,
    /// The regions requested so far, and those of them to be read.
    Regions { place: Place, asked: HashSet<usize>, to_read: Vec<usize>, claims: Claims },
    /// The regions are not known yet: the table is not cached or, without a record, the container must be looked up.
    Later { record: Option<ContainerRecord>, fingerprints: Vec<Fingerprint>, run_bytes: u64 },
}

impl Part {
    /// File and slot.
    fn address(&self) -> Option<(u32, u32)> {
        let address = match self {
            Self::Regions { place, .. } => place.address,
            Self::Later { record: Some(record), .. } => record.address,
            Self::Nothing | Self::Gone | Self::Later { record: None, .. } => return None,
        };
        Some((address.file, address.slot))
    }

    fn names(&self, fingerprint: &Fingerprint) -> bool {
        matches!(self, Self::Regions { place, .. } if place.table.find(fingerprint).is_some())
    }
}

impl ContainerStore {
    /// Tops a sequential reader up to ¾ of `regions_max`; `None` if that adds less than a quarter of it, since a step
    /// has to be worthwhile. `regions_ahead` is the number of regions that the reader has requested and not reached.
    /// Further requests of one reader would be pushed out before they are read, or refused. With fewer, readers of
    /// scattered files reach chunks that are not loaded yet (`docs/lab.md`, *What was tried*).
    pub(crate) fn ask_ahead(&self, regions_ahead: usize) -> Option<Asking<'_>> {
        let room = self.shared.prefetching.regions_max();
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
        let mut at = self.part_of(container);
        if let Some(Part::Gone) = self.parts.get(at) {
            // Neighbours mostly moved together.
            at = match self.last.filter(|last| self.parts.get(*last).is_some_and(|part| part.names(fingerprint))) {
                Some(last) => last,
                None => {
                    let successor = self.shared.successor(container, fingerprint);
                    self.part_of(successor.unwrap_or(ContainerId::NONE))
                }
            };
        }
        let Self { shared, parts, last, regions, regions_max, .. } = self;
        let goes_on = last.replace(at) == Some(at);
        match parts.get_mut(at) {
            // A container was forgotten since the notes led to it.
            None | Some(Part::Nothing | Part::Gone) => true,
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
            Some(Part::Later { fingerprints, run_bytes, .. }) => {
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

    fn part_of(&mut self, container: ContainerId) -> usize {
        let Self { shared, parts, by_container, .. } = self;
        *by_container.entry(container).or_insert_with(|| {
            parts.push(shared.part(container));
            parts.len() - 1
        })
    }

    /// Returns the number of requested regions; for containers without a cached table, an estimate.
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }

    /// Has the requested chunks read; returns at once. Returns those whose container is gone, and to whose copy no note
    /// leads: the index knows where they lie.
    #[must_use]
    pub(crate) fn start(self) -> Vec<Fingerprint> {
        let (mut unplaced, mut parts) = (Vec::new(), self.parts);
        if self.shared.seeks.matter() {
            parts.sort_by_key(Part::address);
        }
        for part in parts {
            match part {
                Part::Nothing | Part::Gone => {}
                Part::Regions { place, to_read, claims, .. } => self.shared.start_claimed(&place, to_read, claims),
                // Empty if already its first chunk was refused.
                Part::Later { fingerprints, .. } if fingerprints.is_empty() => {}
                Part::Later { record: Some(record), fingerprints, .. } => {
                    self.shared.load_behind_table(record, fingerprints);
                }
                Part::Later { record: None, fingerprints, .. } => unplaced = fingerprints,
            }
        }
        unplaced
    }
}

impl Shared {
    fn part(self: &Arc<Self>, container: ContainerId) -> Part {
        let regions = |place| {
            let (asked, to_read, claims) = (HashSet::new(), Vec::new(), Claims::none(self));
            Part::Regions { place, asked, to_read, claims }
        };
        let later = |record| Part::Later { record, fingerprints: Vec::new(), run_bytes: 0 };
        match self.known(container) {
            None if container == ContainerId::NONE => later(None),
            None => Part::Gone,
            Some(KnownContainer::Open(open)) => match open.address() {
                None => Part::Nothing,
                // Regions that are not fully written are in memory.
                Some(address) => {
                    let used_bytes = open.written_bytes();
                    regions(Place { container, address, used_bytes, table: open.table() })
                }
            },
            Some(KnownContainer::Closed(record)) => match self.caches.tables.get(&container) {
                None => later(Some(record)),
                Some(cached) => regions(Place::of(&record, &cached.table)),
            },
        }
    }
}

impl ContainerStore {
    /// Has chunks of a container read ahead; returns at once. Those for which there is no room are left out.
    pub(crate) fn load_ahead(&self, container: ContainerId, fingerprints: Vec<Fingerprint>) {
        match self.shared.part(container) {
            Part::Regions { place, .. } => {
                let found = fingerprints.iter().filter_map(|fingerprint| place.table.find(fingerprint));
                self.shared.start_reads(&place, found.map(|found| found.region as usize).collect());
            }
            Part::Later { record: Some(record), .. } => self.shared.load_behind_table(record, fingerprints),
            Part::Nothing | Part::Gone | Part::Later { record: None, .. } => {}
        }
    }

    /// Has a worker run a job that loads ahead. Returns `false`, and drops the job, if too many wait.
    pub(crate) fn work_ahead(&self, job: Job) -> bool {
        self.shared.workers.try_submit_before(job)
    }
}
