//! The garbage map: for each container, the number of committed cells in it and their bytes, and the part of them with
//! references. It lets reclaiming choose containers to empty without reading containers or the index.
//!
//! # Its parts
//! The map is the sum of the occupancy lists of the sealed tankers ([`OccupancyList`], a
//! file beside each tanker's counts), of the open tanker's cells when the index was opened, and of every change applied
//! since. A checkpoint changes no committed cell, so it does not change the map; it writes the lists of the tankers
//! that it writes.
//!
//! # Missing lists
//! Lists are derived. A tanker without one (a pool of an older version, damage) is *missing*, and opening does not wait
//! for it. Invariant: the map plus the content of the missing tankers' files equals the committed cells. Changes keep
//! the invariant for all tankers: entries are differences, and may be below zero until the rest is added. The reader of
//! a missing tanker's cells adds the content of its files ([`Occupancy::fill`]): a checkpoint that is about to replace
//! them, or [`Index::complete_occupancy`]. Both hold the checkpointer's lock, so no tanker is replaced meanwhile.
//!
//! # Cost
//! Applying: one access to a small table of the row for each change that moves, makes or removes a cell, or makes it
//! live or dead; one access to the map for each container and row. 32 bytes for each container plus its place in a
//! table: some 12 MB for a terabyte.

mod tally;

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_store::{ContainerId, Result, StoreError};
use dedupfs_sync::Mutex;

use crate::index::Index;
use crate::map::{ContainerMap, Key};
use crate::sealed::{OccupancyList, SealedTanker, Writer};
pub use tally::Occupied;
pub(crate) use tally::Tally;

/// Parts of the map, each with its own lock. A walk copies one part at a time.
const PARTS: usize = 64;

/// The compact form of an [`Occupied`]: no container has 2^31 cells.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Packed {
    cells: u32,
    live_cells: u32,
    bytes: u64,
    live_bytes: u64,
}

const _: () = assert!(size_of::<(ContainerId, Packed)>() == 32);

impl Packed {
    fn add(&mut self, other: Occupied) {
        // Wrapping differences stay right in fewer bits.
        self.cells = self.cells.wrapping_add(other.cells as u32);
        self.live_cells = self.live_cells.wrapping_add(other.live_cells as u32);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
    }

    /// Restores the sign of each number.
    fn unpack(self) -> Occupied {
        let widen = |number: u32| i64::from(number.cast_signed()).cast_unsigned();
        Occupied {
            cells: widen(self.cells),
            live_cells: widen(self.live_cells),
            bytes: self.bytes,
            live_bytes: self.live_bytes,
        }
    }
}

/// The fate of occupancy lists that [`Index::complete_occupancy`] makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewLists {
    /// They become files.
    Written,
    /// They serve this process only: the pool is not to be changed.
    InMemory,
}

#[derive(Default, Debug)]
struct Whole {
    total: Occupied,
    /// Sealed tankers whose files are not in the map.
    missing: HashSet<u64>,
}

#[derive(Debug)]
pub(crate) struct Occupancy {
    parts: [Mutex<ContainerMap<Packed>>; PARTS],
    whole: Mutex<Whole>,
}

fn part_of(container: ContainerId) -> usize {
    // Bits that the parts' tables do not use first.
    (container.hash() >> 32) as usize % PARTS
}

impl Occupancy {
    fn new() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::default()), whole: Mutex::default() }
    }

    /// Adds changes or content; ignores lost cells, which are in no container.
    pub(crate) fn add(&self, changes: impl Iterator<Item = (ContainerId, Occupied)>) {
        let mut total = Occupied::default();
        for (container, difference) in changes.filter(|(container, _)| *container != ContainerId::NONE) {
            let mut part = self.parts[part_of(container)].lock();
            let packed = part.entry(container);
            packed.add(difference);
            if *packed == Packed::default() {
                part.remove(&container);
            }
            total.add(difference);
        }
        self.whole.lock().total.add(total);
    }

    /// Adds the content of a sealed tanker's files, unless the map has it already.
    pub(crate) fn fill(&self, tanker: u64, held: impl Iterator<Item = (ContainerId, Occupied)>) {
        // In this order: once nothing is missing, the map is complete. Fillers hold the checkpointer's lock, so none
        // adds it twice.
        if self.lacks(tanker) {
            self.add(held);
            self.whole.lock().missing.remove(&tanker);
        }
    }

    /// Whether a sealed tanker's files are not in the map.
    pub(crate) fn lacks(&self, tanker: u64) -> bool {
        self.whole.lock().missing.contains(&tanker)
    }

    pub(crate) fn missing(&self) -> usize {
        self.whole.lock().missing.len()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().memory_bytes()).sum()
    }

    pub(crate) fn containers(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().len() as u64).sum()
    }

    fn total(&self) -> Occupied {
        self.whole.lock().total
    }

    fn get(&self, container: ContainerId) -> Occupied {
        let packed = self.parts[part_of(container)].lock().get(&container).copied();
        packed.map_or_else(Occupied::default, Packed::unpack)
    }

    /// Copies the map. The caller prevents changes meanwhile.
    pub(crate) fn copied(&self) -> Self {
        let Whole { total, missing } = &*self.whole.lock();
        let parts = std::array::from_fn(|part| Mutex::new(self.parts[part].lock().clone()));
        Self { parts, whole: Mutex::new(Whole { total: *total, missing: missing.clone() }) }
    }

    /// Copies a part in its current state, differences included.
    fn copy(&self, part: usize) -> Vec<(ContainerId, Occupied)> {
        let part = self.parts[part].lock();
        part.iter().map(|(container, packed)| (*container, packed.unpack())).collect()
    }

    /// Compares the map, completed by the parts that it lacks, with the committed cells. Returns the first wrong
    /// container, the map's value, the right value, and the number of wrong containers. The caller prevents changes
    /// meanwhile.
    pub(crate) fn difference(
        &self,
        truth: &Tally,
        lacking: &Tally,
    ) -> Option<(ContainerId, Occupied, Occupied, usize)> {
        let mut difference = Tally::default();
        let (mut total, mut expected) = (self.total(), Occupied::default());
        for (container, occupied) in (0..PARTS).flat_map(|part| self.copy(part)).chain(lacking.iter()) {
            difference.add(container, occupied);
        }
        for (container, occupied) in truth.iter() {
            difference.add(container, occupied.negated());
            if container != ContainerId::NONE {
                expected.add(occupied);
            }
        }
        for (container, occupied) in lacking.iter() {
            if container != ContainerId::NONE {
                total.add(occupied);
            }
        }
        let wrong: Vec<_> = difference.iter().filter(|(container, _)| *container != ContainerId::NONE).collect();
        if let Some((container, off)) = wrong.iter().min_by_key(|(container, _)| *container) {
            let found = self.get(*container);
            let mut right = off.negated();
            right.add(found);
            return Some((*container, found, right, wrong.len()));
        }
        (total != expected).then_some((ContainerId::NONE, total, expected, 0))
    }
}

impl Index {
    /// The occupancy of a container by committed cells. [`ContainerId::NONE`] is always empty, because lost cells are
    /// in no container.
    ///
    /// Exact as of the last applied row, once [`complete_occupancy`](Self::complete_occupancy) has succeeded: then 0
    /// cells mean that no committed cell names the container. Staged fingerprints do not count. Cost: one lock and one
    /// access to a hash table.
    pub fn occupied(&self, container: ContainerId) -> Occupied {
        self.occupancy.get(container).clamped()
    }

    /// Calls `visit` for every container that a committed cell names, unordered. No lock is held meanwhile. Each
    /// container is shown once, in a state since the call began. Containers that appear meanwhile may be left out.
    ///
    /// Cost: a copy of a 64th of the map at a time.
    pub fn for_each_occupied(&self, visit: &mut dyn FnMut(ContainerId, Occupied)) {
        for part in 0..PARTS {
            for (container, occupied) in self.occupancy.copy(part) {
                visit(container, occupied.clamped());
            }
        }
    }

    /// The occupancy of all containers by committed cells.
    pub fn occupied_total(&self) -> Occupied {
        self.occupancy.total().clamped()
    }

    /// Completes the garbage map: reads each sealed tanker that has no sound occupancy list, and makes the list.
    /// Normally every tanker has one, and this costs nothing; in a pool of an older version only tankers written since
    /// then have lists. Applying and lookups go on meanwhile; a checkpoint waits for the tanker being read. It asks
    /// `go_on` before each tanker and stops when it says no. Returns whether the map is complete.
    ///
    /// Cost: 48 bytes read for each cell of such a tanker.
    ///
    /// # Errors
    /// A tanker cannot be read. Others may have been added; the caller can try again. A list that cannot be written is
    /// no error: the next opening makes it anew.
    pub fn complete_occupancy(&self, lists: NewLists, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        while self.occupancy.missing() > 0 {
            if !go_on() {
                return Ok(false);
            }
            let mut checkpointer = self.checkpointer.lock();
            let set = self.sealed_set();
            let Some(tanker) = set.tankers().iter().find(|tanker| self.occupancy.lacks(tanker.id)) else {
                return Ok(true);
            };
            let list = tanker.scan_occupancy()?;
            self.occupancy.fill(tanker.id, list.iter());
            tracing::info!("listed the containers of the cells of tanker {} of {}", tanker.id, self.directory);
            if lists == NewLists::Written
                && let Err(error) = tanker.replace_occupancy(self.writer(), &list)
            {
                checkpointer.has_leftovers = true;
                tracing::warn!("cannot write the occupancy list of tanker {}: {error}", tanker.id);
            }
        }
        Ok(true)
    }

    /// Returns the occupancy by a sealed tanker's files, from its list or else from its cells. The caller holds the
    /// checkpointer's lock.
    pub(crate) fn occupancy_of(&self, tanker: &SealedTanker) -> Result<OccupancyList> {
        let list = match tanker.read_occupancy(self.writer()) {
            Ok(list) => list,
            Err(error) => {
                tracing::debug!("an occupancy list is made anew from the cells: {error}");
                tanker.scan_occupancy()?
            }
        };
        self.occupancy.fill(tanker.id, list.iter());
        Ok(list)
    }
}

/// Builds the map from the lists of sealed tankers.
pub(crate) fn load_occupancy(writer: Writer<'_>, tankers: &[Arc<SealedTanker>]) -> Occupancy {
    let occupancy = Occupancy::new();
    for tanker in tankers {
        match tanker.read_occupancy(writer) {
            Ok(list) => occupancy.add(list.iter()),
            Err(error) => {
                occupancy.whole.lock().missing.insert(tanker.id);
                // An absent list is no damage.
                if !matches!(error, StoreError::NotFound { .. }) {
                    tracing::warn!(
                        "the occupancy list of tanker {} will be made anew from its cells: {error}",
                        tanker.id
                    );
                }
            }
        }
    }
    occupancy
}
