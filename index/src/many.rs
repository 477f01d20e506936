//! Whole cells of many fingerprints, for work that looks at the same fingerprints again later.

use dedupfs_store::{ContainerId, Fingerprint, Result};

use crate::cell::Cell;
use crate::index::Index;
use crate::open::{Grouped, Held, shard_of};

/// The sealed tankers' cells of some fingerprints, in their order; see [`Index::cells_of`].
#[derive(Clone, Default, Debug)]
pub struct SealedCells {
    cells: Vec<Asked>,
    /// The set of tankers that was asked.
    epoch: u64,
}

/// An answer of the sealed tankers.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Sealed(Option<Cell>),
    /// They were not asked, because memory held the cell.
    Held,
}

impl Index {
    /// Looks up the sealed cells of many fingerprints, for [`cells_of`](Self::cells_of).
    ///
    /// Cost: reads each bucket of a candidate tanker and its counts once, tanker by tanker in the order of the files.
    /// 24 bytes of memory for each fingerprint.
    pub fn sealed_cells_of(&self, fingerprints: &[Fingerprint]) -> Result<SealedCells> {
        self.sealed_cells_in(fingerprints, &|_| ContainerId::NONE)
    }

    /// As [`sealed_cells_of`](Self::sealed_cells_of). `hint` returns the container that may have a fingerprint, given its position: tankers with
    /// cells of that container are asked first, without filters and guides.
    pub fn sealed_cells_in(
        &self,
        fingerprints: &[Fingerprint],
        hint: &dyn Fn(usize) -> ContainerId,
    ) -> Result<SealedCells> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.consistently(|set| {
            let mut cells = vec![Asked::Sealed(None); fingerprints.len()];
            let fingerprint = |item: u32| &fingerprints[item as usize];
            self.find_cells(
                set,
                &grouped,
                fingerprint,
                |item| hint(item as usize),
                |item, cell, found| {
                    cells[item as usize] = found.map_or(Asked::Held, |_| Asked::Sealed(Some(cell)));
                },
            )?;
            Ok(SealedCells { cells, epoch: set.epoch() })
        })
    }

    /// Returns the cells of fingerprints as they are now, as [`get`](Self::get) would. `hint` is as for
    /// [`sealed_cells_in`](Self::sealed_cells_in).
    ///
    /// # Errors
    /// A file of the index cannot be read.
    pub fn cells_near(
        &self,
        fingerprints: &[Fingerprint],
        hint: &dyn Fn(usize) -> ContainerId,
    ) -> Result<Vec<Option<Cell>>> {
        let mut sealed = self.sealed_cells_in(fingerprints, hint)?;
        self.cells_of(fingerprints, &mut sealed)
    }

    /// Whether [`cells_of`](Self::cells_of) would need no I/O for fingerprints that memory does not hold.
    #[must_use]
    pub fn is_current(&self, sealed: &SealedCells) -> bool {
        self.sealed_epoch() == sealed.epoch
    }

    /// Returns the current cells of the same fingerprints, as [`get`](Self::get) would. Changes since the lookup are in
    /// memory, unless a checkpoint was published meanwhile: then the cells are looked up again. So they are if memory
    /// held a cell then and does not now: publishing takes sealed cells out of it behind the switch of tankers.
    pub fn cells_of(&self, fingerprints: &[Fingerprint], sealed: &mut SealedCells) -> Result<Vec<Option<Cell>>> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        loop {
            let mut cells = vec![None; fingerprints.len()];
            let mut is_current = sealed.cells.len() == fingerprints.len();
            for (shard, items) in grouped.iter() {
                let shard = self.open.read(shard);
                for &item in items {
                    let fingerprint = &fingerprints[item as usize];
                    let committed = match shard.held(fingerprint) {
                        Held::Cell(cell) => Some(cell),
                        Held::Removed => None,
                        Held::Unknown => match sealed.cells.get(item as usize) {
                            Some(Asked::Sealed(cell)) => *cell,
                            Some(Asked::Held) | None => {
                                is_current = false;
                                None
                            }
                        },
                    };
                    cells[item as usize] = Cell::with_staged(committed, shard.staged(fingerprint));
                }
            }
            // Memory was read first: a checkpoint that had moved a cell out of it by then would show here.
            if is_current && self.sealed_epoch() == sealed.epoch {
                return Ok(cells);
            }
            *sealed = self.sealed_cells_of(fingerprints)?;
        }
    }
}
