//! The garbage map: how many cells and bytes the committed cells place in each container, and how many of them something
//! refers to. Choosing containers to empty asks this, and reads neither containers nor the index.
//!
//! # What it is made of
//! The sum of what lists of the sealed tankers say ([`OccupancyList`](crate::sealed::OccupancyList), a file beside each
//! tanker's counts), of the open tanker's cells as they were when the index was opened, and of every change applied since. A
//! checkpoint changes no committed cell, so it does not change the map; it writes the lists of the tankers that it writes.
//!
//! # Missing lists
//! Lists are derived. Where there is none (a pool of before, damage) the tanker is *missing* and opening does not wait
//! for it. The invariant is: the map, and what the files of the missing tankers hold, add up to the committed cells. Changes
//! keep it, whether their tankers are missing or not: entries are differences, and may be below zero until the rest is added.
//! Whoever reads through the cells of a missing tanker adds what its files hold ([`Occupancy::fill`]): a checkpoint that is
//! about to replace them, or [`Index::complete_occupancy`]. Both hold the checkpointer's lock, so no tanker is replaced meanwhile.
//!
//! # Cost
//! Applying: one access to a small table of the row's own for each change that moves a cell, makes one, removes one, or makes it
//! live or dead; one to the map for each container and row. 32 bytes for each container and their places in a table: some 12 MB for a
//! terabyte.

mod tally;

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_store::{ContainerId, Result, StoreError};
use parking_lot::Mutex;

use crate::index::Index;
use crate::map::{ContainerMap, Key};
use crate::sealed::{OccupancyList, SealedTanker, Writer};
pub use tally::Occupied;
pub(crate) use tally::Tally;

/// Parts of the map, each with a lock of its own: who walks through it copies one of them at a time.
const PARTS: usize = 64;

/// What is kept of an [`Occupied`]: no container has 2^31 cells.
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
        // Differences wrap in fewer bits as they do in more.
        self.cells = self.cells.wrapping_add(other.cells as u32);
        self.live_cells = self.live_cells.wrapping_add(other.live_cells as u32);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
    }

    /// With the sign that each number has.
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

#[derive(Default, Debug)]
struct Whole {
    total: Occupied,
    /// Sealed tankers whose files are not in the map.
    missing: HashSet<u64>,
}

/// The map.
#[derive(Debug)]
pub(crate) struct Occupancy {
    parts: [Mutex<ContainerMap<Packed>>; PARTS],
    whole: Mutex<Whole>,
}

fn part_of(container: ContainerId) -> usize {
    // Bits that the tables of the parts do not start with.
    (container.hash() >> 32) as usize % PARTS
}

impl Occupancy {
    fn new() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::default()), whole: Mutex::default() }
    }

    /// Adds what changed, or what is there. What lies in no container is left out.
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

    /// Adds what the files of a sealed tanker hold, unless they are in the map already.
    pub(crate) fn fill(&self, tanker: u64, held: impl Iterator<Item = (ContainerId, Occupied)>) {
        // In this order: who finds that nothing is missing finds all of it. Fillers hold the checkpointer's lock, so none adds it twice.
        if self.lacks(tanker) {
            self.add(held);
            self.whole.lock().missing.remove(&tanker);
        }
    }

    /// Whether a sealed tanker's files are not in the map.
    pub(crate) fn lacks(&self, tanker: u64) -> bool {
        self.whole.lock().missing.contains(&tanker)
    }

    /// How many tankers are missing.
    pub(crate) fn missing(&self) -> usize {
        self.whole.lock().missing.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().memory_bytes()).sum()
    }

    /// Number of containers.
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

    /// A part as it is now, differences included.
    fn copy(&self, part: usize) -> Vec<(ContainerId, Occupied)> {
        let part = self.parts[part].lock();
        part.iter().map(|(container, packed)| (*container, packed.unpack())).collect()
    }

    /// How the map, with what it lacks, differs from what the committed cells place: a container, what the map says and what is
    /// right, and how many such containers there are. Nobody may change it meanwhile.
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
    /// What the committed cells place in a container; in [`ContainerId::NONE`] nothing, because what is lost lies nowhere.
    ///
    /// Exact as of the last row that was applied, once [`complete_occupancy`](Self::complete_occupancy) has succeeded: then 0
    /// cells mean that no committed cell names the container. What is staged does not count. Cost: one lock and one access
    /// to a hash table.
    pub fn occupied(&self, container: ContainerId) -> Occupied {
        self.occupancy.get(container).clamped()
    }

    /// Calls `visit` for every container that a committed cell names, in no order. No lock is held meanwhile: each container is
    /// shown once, as it was at some time since the call began. Those that are new meanwhile may be missing.
    ///
    /// Cost: a copy of a 64th of the map at a time.
    pub fn for_each_occupied(&self, visit: &mut dyn FnMut(ContainerId, Occupied)) {
        for part in 0..PARTS {
            for (container, occupied) in self.occupancy.copy(part) {
                visit(container, occupied.clamped());
            }
        }
    }

    /// What the committed cells place in all containers.
    pub fn occupied_total(&self) -> Occupied {
        self.occupancy.total().clamped()
    }

    /// Makes the garbage map whole: reads through the sealed tankers that have no sound list of what lies where, and writes it.
    /// Normally there are none, and this costs nothing; a pool of a version without such lists has none but those of the
    /// tankers that were written since. Rows are applied and looked up meanwhile, a checkpoint waits for the tanker that is
    /// being read.
    ///
    /// Cost: 48 bytes read for each cell of such a tanker.
    ///
    /// # Errors
    /// A tanker cannot be read. The others may have been added; it can be called again. A list that cannot be written is
    /// only made anew when the index is opened the next time.
    pub fn complete_occupancy(&self) -> Result<()> {
        self.complete_occupancy_while(true, &mut || true).map(|_| ())
    }

    /// The same as long as `go_on` says so, which is asked before each tanker; returns whether the map is whole. Without `writes`
    /// only memory is changed.
    ///
    /// # Errors
    /// As [`complete_occupancy`](Self::complete_occupancy).
    pub fn complete_occupancy_while(&self, writes: bool, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        while self.occupancy.missing() > 0 {
            if !go_on() {
                return Ok(false);
            }
            let _no_checkpoint = self.checkpointer.lock();
            let set = self.sealed_set();
            let Some(tanker) = set.tankers().iter().find(|tanker| self.occupancy.lacks(tanker.id)) else {
                return Ok(true);
            };
            let list = tanker.scan_occupancy()?;
            self.occupancy.fill(tanker.id, list.iter());
            tracing::info!("listed what tanker {} of {} places in containers", tanker.id, self.directory);
            if writes && let Err(error) = tanker.replace_occupancy(self.writer(), &list) {
                tracing::warn!("cannot write what tanker {} places in containers: {error}", tanker.id);
            }
        }
        Ok(true)
    }

    /// What the files of a sealed tanker place where, from its list or else from its cells. The checkpointer's lock is held.
    pub(crate) fn occupancy_of(&self, tanker: &SealedTanker) -> Result<OccupancyList> {
        let list = match tanker.read_occupancy(self.writer()) {
            Ok(list) => list,
            Err(error) => {
                tracing::debug!("made anew from its cells: {error}");
                tanker.scan_occupancy()?
            }
        };
        self.occupancy.fill(tanker.id, list.iter());
        Ok(list)
    }
}

/// The map of what the lists of sealed tankers say.
pub(crate) fn load_occupancy(writer: Writer<'_>, tankers: &[Arc<SealedTanker>]) -> Occupancy {
    let occupancy = Occupancy::new();
    for tanker in tankers {
        match tanker.read_occupancy(writer) {
            Ok(list) => occupancy.add(list.iter()),
            Err(error) => {
                occupancy.whole.lock().missing.insert(tanker.id);
                // What was never there is no damage.
                if !matches!(error, StoreError::NotFound { .. }) {
                    tracing::warn!(
                        "what tanker {} places in containers will be read from its cells: {error}",
                        tanker.id
                    );
                }
            }
        }
    }
    occupancy
}
