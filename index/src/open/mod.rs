//! The open tanker and everything else in memory: recent fingerprints, and patches to sealed tankers.
//!
//! It is split into 64 shards by the first six bits of the fingerprint, each with its own lock. A batch of lookups or
//! changes is grouped by shard and takes each lock once. A growing table stops lookups of one shard only. The shards'
//! order is the fingerprints' order, which sealing uses.
//!
//! A shard holds three maps, consulted in this order:
//! 1. `recent`: staged, not committed;
//! 2. `cells`: the open tanker proper;
//! 3. `patches`: changes in sealed tankers since the last checkpoint. A patch holds the whole new cell, so it answers a
//!    lookup alone; a removed cell leaves a tombstone.
//!
//! Invariant: no fingerprint is in both `cells` and `patches`. The only exception is the publishing of a dissolved
//! tanker, when both say the same.

pub(crate) mod file;

use std::collections::HashMap;
use std::mem;

use dedupfs_store::Fingerprint;
use dedupfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cell::{Cell, Entry, Location};
use crate::map::FingerprintMap;

pub(crate) const SHARDS: usize = 64;

const SHARD_SHIFT: u32 = u64::BITS - SHARDS.trailing_zeros();

const _: () = assert!(SHARDS.is_power_of_two());

pub(crate) const fn shard_of(fingerprint: &Fingerprint) -> usize {
    (fingerprint.prefix() >> SHARD_SHIFT) as usize
}

/// A change to a cell of a sealed tanker that no file holds yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patch {
    pub(crate) tanker: u64,
    pub(crate) index: u32,
    /// The cell's current value; `None` if it was removed.
    pub(crate) cell: Option<Cell>,
    /// Whether more than the count differs from the file.
    pub(crate) relocated: bool,
}

/// Memory's answer about a fingerprint's committed cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// The cell has this value.
    Cell(Cell),
    /// The cell was in a sealed tanker and was removed.
    Removed,
    /// Only the sealed tankers can tell.
    Unknown,
}

#[derive(Default, Debug)]
pub(crate) struct Shard {
    pub(crate) recent: FingerprintMap<Location>,
    pub(crate) cells: FingerprintMap<Cell>,
    pub(crate) patches: FingerprintMap<Patch>,
}

impl Shard {
    /// The committed cell, if memory knows it.
    pub(crate) fn held(&self, fingerprint: &Fingerprint) -> Held {
        if let Some(cell) = self.cells.get(fingerprint) {
            return Held::Cell(*cell);
        }
        match self.patches.get(fingerprint) {
            Some(Patch { cell: Some(cell), .. }) => Held::Cell(*cell),
            Some(_) => Held::Removed,
            None => Held::Unknown,
        }
    }

    /// The committed cells that memory knows.
    pub(crate) fn committed(&self) -> impl Iterator<Item = (Fingerprint, Cell)> {
        let open = self.cells.iter().map(|&(fingerprint, cell)| (fingerprint, Some(cell)));
        let changed = self.patches.iter().map(|&(fingerprint, patch)| (fingerprint, patch.cell));
        open.chain(changed).filter_map(|(fingerprint, cell)| Some((fingerprint, cell?)))
    }

    pub(crate) fn staged(&self, fingerprint: &Fingerprint) -> Option<Location> {
        self.recent.get(fingerprint).copied()
    }

    fn memory_bytes(&self) -> u64 {
        self.recent.memory_bytes() + self.cells.memory_bytes() + self.patches.memory_bytes()
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct OpenSizes {
    pub(crate) recent: u64,
    pub(crate) cells: u64,
    pub(crate) patches: u64,
    pub(crate) memory_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct OpenTanker {
    shards: [RwLock<Shard>; SHARDS],
}

impl OpenTanker {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }

    pub(crate) fn read(&self, shard: usize) -> RwLockReadGuard<'_, Shard> {
        self.shards[shard].read()
    }

    pub(crate) fn write(&self, shard: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[shard].write()
    }

    pub(crate) fn sizes(&self) -> OpenSizes {
        let mut sizes = OpenSizes::default();
        for shard in &self.shards {
            let shard = shard.read();
            sizes.recent += shard.recent.len() as u64;
            sizes.cells += shard.cells.len() as u64;
            sizes.patches += shard.patches.len() as u64;
            sizes.memory_bytes += shard.memory_bytes();
        }
        sizes
    }

    pub(crate) fn cell_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().cells.len()).sum()
    }

    pub(crate) fn collect_cells(&self) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.cell_count());
        for shard in &self.shards {
            entries.extend(shard.read().cells.iter().map(|&(fingerprint, cell)| Entry { fingerprint, cell }));
        }
        entries
    }

    /// Copies all patches.
    pub(crate) fn collect_patches(&self) -> Vec<(Fingerprint, Patch)> {
        let mut patches = Vec::with_capacity(self.shards.iter().map(|shard| shard.read().patches.len()).sum());
        for shard in &self.shards {
            patches.extend(shard.read().patches.iter().copied());
        }
        patches
    }

    /// Copies the patches of each tanker, in the order of its cells. Nobody may change patches meanwhile.
    pub(crate) fn patches_by_tanker(&self) -> HashMap<u64, Vec<(Fingerprint, Patch)>> {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for shard in &self.shards {
            shard.read().patches.iter().for_each(|(_, patch)| *counts.entry(patch.tanker).or_default() += 1);
        }
        // As long as they become: the copies stay until the checkpoint is published.
        let mut patches: HashMap<u64, Vec<_>> =
            counts.into_iter().map(|(tanker, count)| (tanker, Vec::with_capacity(count))).collect();
        for shard in &self.shards {
            shard.read().patches.iter().for_each(|patch| patches.entry(patch.1.tanker).or_default().push(*patch));
        }
        patches.values_mut().for_each(|patches| patches.sort_unstable_by_key(|(_, patch)| patch.index));
        patches
    }

    /// Replaces all cells by `entries`. The new tables are built, and the old ones freed, outside of the locks.
    pub(crate) fn replace_cells(&self, entries: &[Entry]) {
        let mut tables: Vec<FingerprintMap<Cell>> = (0..SHARDS).map(|_| FingerprintMap::default()).collect();
        for entry in entries {
            tables[shard_of(&entry.fingerprint)].insert(entry.fingerprint, entry.cell);
        }
        for (shard, table) in self.shards.iter().zip(tables) {
            let old = mem::replace(&mut shard.write().cells, table);
            drop(old);
        }
    }
}

/// Numbers 0..count, grouped by the shard of their fingerprints and otherwise in order.
#[derive(Debug)]
pub(crate) struct Grouped {
    order: Vec<u32>,
    starts: [u32; SHARDS + 1],
}

impl Grouped {
    /// Groups `count` items (fewer than 2^32) by counting.
    pub(crate) fn new(count: usize, shard: impl Fn(usize) -> usize) -> Self {
        let mut starts = [0_u32; SHARDS + 1];
        for item in 0..count {
            starts[shard(item) + 1] += 1;
        }
        for position in 1..=SHARDS {
            starts[position] += starts[position - 1];
        }
        let mut next = starts;
        let mut order = vec![0; count];
        for item in 0..count {
            let place = &mut next[shard(item)];
            order[*place as usize] = item as u32;
            *place += 1;
        }
        Self { order, starts }
    }

    /// The shards that have items, with their items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.starts
            .array_windows::<2>()
            .enumerate()
            .map(|(shard, &[start, end])| (shard, &self.order[start as usize..end as usize]))
            .filter(|(_, items)| !items.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_keep_order() {
        let shards = [5, 0, 63, 5, 5, 0];
        let grouped = Grouped::new(shards.len(), |item| shards[item]);
        let groups: Vec<(usize, Vec<u32>)> = grouped.iter().map(|(shard, items)| (shard, items.to_vec())).collect();
        assert_eq!(groups, [(0, vec![1, 5]), (5, vec![0, 3, 4]), (63, vec![2])]);
        assert_eq!(Grouped::new(0, |_| 0).iter().count(), 0);
    }

    #[test]
    fn shards_follow_the_order_of_fingerprints() {
        let mut high = Fingerprint::ZERO;
        high.0[0] = 0xff;
        assert_eq!((shard_of(&Fingerprint::ZERO), shard_of(&high)), (0, SHARDS - 1));
    }
}
