//! Whole cells of many fingerprints, for work that looks at the same fingerprints again later.

use dedupfs_store::{Fingerprint, Result};

use crate::cell::Cell;
use crate::index::Index;
use crate::open::{Grouped, Held, shard_of};

/// The cells of some fingerprints, in their order, for which the sealed tankers were asked; see [`Index::cells_of`].
#[derive(Clone, Default, Debug)]
pub struct SealedCells {
    /// Also those that memory held: a checkpoint that was just published removes them there.
    cells: Vec<Option<Cell>>,
    /// The set of tankers that was asked.
    epoch: u64,
}

impl Index {
    /// Looks up the sealed cells of many fingerprints, for [`cells_of`](Self::cells_of).
    ///
    /// Cost: reads each bucket of a candidate tanker and its counts once, tanker by tanker in the order of the files.
    /// 24 bytes of memory for each fingerprint.
    pub fn sealed_cells_of(&self, fingerprints: &[Fingerprint]) -> Result<SealedCells> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.consistently(|set| {
            let mut cells = vec![None; fingerprints.len()];
            let fingerprint = |item: u32| &fingerprints[item as usize];
            self.find_cells(set, &grouped, fingerprint, |item, cell, _| cells[item as usize] = Some(cell))?;
            Ok(SealedCells { cells, epoch: set.epoch() })
        })
    }

    /// Returns the current cells of the same fingerprints, as [`get`](Self::get) would. Changes since the lookup are in
    /// memory, unless a checkpoint was published meanwhile: then the cells are looked up again.
    pub fn cells_of(&self, fingerprints: &[Fingerprint], sealed: &mut SealedCells) -> Result<Vec<Option<Cell>>> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        loop {
            let mut cells = vec![None; fingerprints.len()];
            for (shard, items) in grouped.iter() {
                let shard = self.open.read(shard);
                for &item in items {
                    let fingerprint = &fingerprints[item as usize];
                    let committed = match shard.held(fingerprint) {
                        Held::Cell(cell) => Some(cell),
                        Held::Removed => None,
                        Held::Unknown => sealed.cells.get(item as usize).copied().flatten(),
                    };
                    cells[item as usize] = Cell::with_staged(committed, shard.staged(fingerprint));
                }
            }
            // Memory was read first: a checkpoint that had moved a cell out of it by then would show here.
            if self.sealed_epoch() == sealed.epoch && sealed.cells.len() == fingerprints.len() {
                return Ok(cells);
            }
            *sealed = self.sealed_cells_of(fingerprints)?;
        }
    }
}
