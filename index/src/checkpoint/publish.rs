//! Publishing a checkpoint: the written files replace the state in memory, except for changes since the freeze.
//!
//! The applier's lock is held, so committed cells and patches stand still. Lookups go on (see `lookup` for their
//! rules). The steps:
//! 1. Add the cells of dissolved tankers to the open one, and patches for sealed cells that were removed since the
//!    freeze: after the switch the new tankers name them.
//! 2. Switch to the new set of sealed tankers.
//! 3. Let the locality cache forget the changed tankers.
//! 4. Shard by shard, each in one step: remove sealed cells and folded patches. A cell that differs from the written
//!    one becomes a patch of its new tanker. A patch that differs from the folded one stays, at its cell's new
//!    position.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::{Folding, Sealed, Written};
use crate::cell::{Cell, Entry};
use crate::guide::Guide;
use crate::index::Index;
use crate::map::FingerprintMap;
use crate::open::{Patch, SHARDS, Shard, shard_of};
use crate::sealed::{SealedSet, SealedTanker, refresh_filter};

impl Index {
    pub(super) fn publish(&self, written: &Written, guides: Vec<Arc<Guide>>) {
        let mut applier = self.applier.lock();
        for entry in &written.dissolved {
            let mut shard = self.open.write(shard_of(&entry.fingerprint));
            let now = shard.patches.get(&entry.fingerprint).map_or(Some(entry.cell), |patch| patch.cell);
            if let Some(cell) = now {
                shard.cells.insert(entry.fingerprint, cell);
            }
        }
        for Sealed { tanker, entries } in &written.sealed {
            self.bury(tanker.id, entries);
        }
        let old = self.switch(&written.tankers, guides);
        thread::linger(Step::Checkpoint);
        for number in 0..SHARDS {
            let (cells, patches) = after(&self.open.read(number), number, written);
            // The old tables are freed outside of the lock.
            let before = {
                let mut shard = self.open.write(number);
                (mem::replace(&mut shard.cells, cells), mem::replace(&mut shard.patches, patches))
            };
            drop(before);
        }
        // Removed cells may have come back, and dissolved ones gone: then the open tanker differs from its file.
        if written.folded.values().any(|folding| folding.dissolved || !folding.removed.is_empty()) {
            applier.open_version += 1;
        }
        drop(applier);
        // Last: nobody asks for removed cells any more, and lookups on the old set start again.
        let before: HashMap<u64, u32> = old.tankers().iter().map(|tanker| (tanker.id, tanker.cells())).collect();
        for tanker in &written.tankers {
            if before.get(&tanker.id).is_some_and(|cells| *cells > tanker.cells()) {
                refresh_filter(self.writer(), tanker);
            }
        }
    }

    fn bury(&self, tanker: u64, entries: &[Entry]) {
        let mut rest = entries;
        while let Some(number) = rest.first().map(|entry| shard_of(&entry.fingerprint)) {
            let (mine, others) = rest.split_at(rest.partition_point(|entry| shard_of(&entry.fingerprint) == number));
            let first = entries.len() - rest.len();
            let gone: Vec<_> = {
                let shard = self.open.read(number);
                let is_gone = |(_, entry): &(u32, &Entry)| !shard.cells.contains_key(&entry.fingerprint);
                (first as u32..).zip(mine).filter(is_gone).collect()
            };
            if !gone.is_empty() {
                let mut shard = self.open.write(number);
                for (index, entry) in gone {
                    if let Some(patch) = since_sealed(entry, None, tanker, index) {
                        shard.patches.insert(entry.fingerprint, patch);
                    }
                }
            }
            rest = others;
        }
    }

    /// Does steps 2 and 3; returns the old set.
    fn switch(&self, tankers: &[Arc<SealedTanker>], guides: Vec<Arc<Guide>>) -> Arc<SealedSet> {
        let new = Arc::new(self.sealed_set().followed_by(tankers.to_vec(), self.filters.clone(), guides));
        let epoch = new.epoch();
        let old = mem::replace(&mut *self.sealed.write(), new.clone());
        // Before the patches that describe changes of cells in these tankers are removed.
        let kept: HashMap<u64, &Arc<SealedTanker>> = new.tankers().iter().map(|tanker| (tanker.id, tanker)).collect();
        let unchanged: HashSet<u64> = old
            .tankers()
            .iter()
            .filter(|tanker| kept.get(&tanker.id).is_some_and(|kept| kept.same_cells(tanker)))
            .map(|tanker| tanker.id)
            .collect();
        self.locality.begin_epoch(epoch, |tanker| !unchanged.contains(&tanker));
        old
    }
}

/// Returns the cells and patches of a shard after the switch.
fn after(shard: &Shard, number: usize, written: &Written) -> (FingerprintMap<Cell>, FingerprintMap<Patch>) {
    let mut cells = shard.cells.clone();
    let mut patches = FingerprintMap::default();
    for (fingerprint, patch) in shard.patches.iter() {
        match written.folded.get(&patch.tanker) {
            None => {
                patches.insert(*fingerprint, *patch);
            }
            Some(folding) => match folding.now(patch) {
                Now::Folded => {}
                Now::Open(cell) => {
                    cells.insert(*fingerprint, cell);
                }
                Now::Patch(patch) => {
                    patches.insert(*fingerprint, patch);
                }
            },
        }
    }
    for Sealed { tanker, entries } in &written.sealed {
        let first = entries.partition_point(|entry| shard_of(&entry.fingerprint) < number);
        let mine = entries[first..].iter().take_while(|entry| shard_of(&entry.fingerprint) == number);
        for (index, entry) in (first as u32..).zip(mine) {
            let now = cells.remove(&entry.fingerprint);
            if let Some(patch) = since_sealed(entry, now, tanker.id, index) {
                patches.insert(entry.fingerprint, patch);
            }
        }
    }
    cells.shrink_to_fit();
    (cells, patches)
}

/// Returns the patch of a cell that was sealed as `entry` and is `now` different.
fn since_sealed(entry: &Entry, now: Option<Cell>, tanker: u64, index: u32) -> Option<Patch> {
    let relocated = now.map(|cell| cell.location) != Some(entry.cell.location);
    (now != Some(entry.cell)).then_some(Patch { tanker, index, cell: now, relocated })
}

/// The fate of a patch whose tanker was folded.
enum Now {
    /// The new file, or the open tanker, holds its value.
    Folded,
    /// The tanker no longer has the fingerprint.
    Open(Cell),
    Patch(Patch),
}

impl Folding {
    fn now(&self, patch: &Patch) -> Now {
        let place = self.patches.binary_search_by_key(&patch.index, |(_, frozen)| frozen.index);
        let frozen = place.ok().and_then(|place| self.patches.get(place)).map(|(_, frozen)| *frozen);
        match (frozen, patch.cell) {
            // The cell is gone from the file, and has come back since.
            (Some(Patch { cell: None, .. }), Some(cell)) => Now::Open(cell),
            (Some(frozen), now) if frozen.cell == now => Now::Folded,
            // Its current value went to the open tanker with the others, or is gone.
            _ if self.dissolved => Now::Folded,
            (frozen, now) => {
                let relocated = match frozen.and_then(|frozen| frozen.cell) {
                    Some(written) => now.map(|cell| cell.location) != Some(written.location),
                    None => patch.relocated,
                };
                let before = self.removed.partition_point(|removed| *removed < patch.index) as u32;
                Now::Patch(Patch { tanker: patch.tanker, index: patch.index - before, cell: now, relocated })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, fingerprint};

    fn patch(index: u32, cell: Option<Cell>, relocated: bool) -> Patch {
        Patch { tanker: 1, index, cell, relocated }
    }

    fn folding(dissolved: bool) -> Folding {
        let frozen = [(2, None), (5, Some(cell(1, 7))), (9, None)];
        let patches = frozen.map(|(index, cell)| (fingerprint(u64::from(index)), patch(index, cell, true)));
        Folding { patches: patches.to_vec(), removed: vec![2, 9], dissolved }
    }

    #[test]
    fn patches_that_did_not_change_since_go() {
        for dissolved in [false, true] {
            let folding = folding(dissolved);
            assert!(matches!(folding.now(&patch(2, None, true)), Now::Folded));
            assert!(matches!(folding.now(&patch(5, Some(cell(1, 7)), true)), Now::Folded));
        }
    }

    #[test]
    fn a_cell_that_came_back_opens() {
        for dissolved in [false, true] {
            let now = folding(dissolved).now(&patch(9, Some(cell(3, 0)), true));
            assert!(matches!(now, Now::Open(open) if open == cell(3, 0)));
        }
    }

    #[test]
    fn what_changed_since_stays_at_its_new_position() {
        let folding = folding(false);
        let cases = [
            // Only the count differs from the written one.
            (patch(5, Some(cell(1, 8)), true), patch(4, Some(cell(1, 8)), false)),
            (patch(5, None, true), patch(4, None, true)),
            // Untouched at the freeze.
            (patch(6, Some(cell(2, 1)), false), patch(5, Some(cell(2, 1)), false)),
            (patch(11, None, true), patch(9, None, true)),
            (patch(0, Some(cell(2, 1)), true), patch(0, Some(cell(2, 1)), true)),
        ];
        for (before, expected) in cases {
            assert!(matches!(folding.now(&before), Now::Patch(found) if found == expected), "{before:?}");
        }
    }

    #[test]
    fn sealed_cells_become_patches_if_they_changed() {
        let entry = Entry { fingerprint: fingerprint(1), cell: cell(1, 1) };
        assert_eq!(since_sealed(&entry, Some(cell(1, 1)), 4, 3), None);
        let patch = |cell, relocated| Some(Patch { tanker: 4, index: 3, cell, relocated });
        assert_eq!(since_sealed(&entry, Some(cell(1, 2)), 4, 3), patch(Some(cell(1, 2)), false));
        assert_eq!(since_sealed(&entry, Some(cell(2, 1)), 4, 3), patch(Some(cell(2, 1)), true));
        assert_eq!(since_sealed(&entry, None, 4, 3), patch(None, true));
    }
}
