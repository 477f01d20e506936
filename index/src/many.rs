//! Whole cells of many fingerprints, for work that looks at the same ones again later.

use dedupfs_store::{Fingerprint, Result};

use crate::cell::Cell;
use crate::index::Index;
use crate::open::{Grouped, Held, shard_of};

/// What the sealed tankers say of some fingerprints, in their order; see [`Index::cells_of`].
#[derive(Clone, Default, Debug)]
pub struct SealedCells {
    /// `None`: they do not have it, or memory knew better.
    cells: Vec<Option<Cell>>,
    /// The set of tankers that was asked.
    epoch: u64,
}

impl Index {
    /// The sealed cells of many fingerprints, for [`cells_of`](Self::cells_of).
    ///
    /// Cost: each bucket of a candidate tanker, and its counts, are read once, tanker by tanker in the order of the files.
    /// 24 bytes of memory for each.
    pub fn sealed_cells_of(&self, fingerprints: &[Fingerprint]) -> Result<SealedCells> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.consistently(|set| {
            let mut unknown = Vec::new();
            for (shard, items) in grouped.iter() {
                let shard = self.open.read(shard);
                unknown.extend(items.iter().filter(|&&item| {
                    let fingerprint = &fingerprints[item as usize];
                    !fingerprint.is_zero() && shard.held(fingerprint) == Held::Unknown
                }));
            }
            let mut cells = vec![None; fingerprints.len()];
            set.find_many(
                &self.cache,
                &mut unknown,
                true,
                |item| &fingerprints[item as usize],
                |item, found, tanker| {
                    let references = tanker.references(&self.cache, &found)?;
                    cells[item as usize] = Some(Cell { location: found.location, references });
                    Ok(())
                },
            )?;
            Ok(SealedCells { cells, epoch: set.epoch() })
        })
    }

    /// The cells of the same fingerprints now, as [`get`](Self::get) would tell each. What changed since they were looked up is in
    /// memory, unless a checkpoint was published meanwhile: then they are looked up again.
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
                    cells[item as usize] = match shard.staged(fingerprint) {
                        Some(location) => {
                            Some(Cell { location, references: committed.map_or(0, |cell| cell.references) })
                        }
                        None => committed,
                    };
                }
            }
            // Memory was looked at first: had a checkpoint taken anything from there by then, it would show here.
            if self.sealed_epoch() == sealed.epoch && sealed.cells.len() == fingerprints.len() {
                return Ok(cells);
            }
            *sealed = self.sealed_cells_of(fingerprints)?;
        }
    }
}
