//! Visiting cells without references, a part of the index at a time.
//!
//! Of a sealed tanker the counts are read, 4 bytes for each cell, and only those buckets that have a cell without references. A part is
//! shown as it is when its turn comes: tankers that a checkpoint makes meanwhile belong to the next visit of all parts.

use std::sync::Arc;

use dedupfs_store::{Fingerprint, Result};

use crate::cell::Cell;
use crate::index::Index;
use crate::open::{Held, SHARDS, shard_of};

/// A part of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The cells in memory of one shard: of the open tanker, and those of sealed ones that changed since the last checkpoint.
    Memory(usize),
    /// A sealed tanker, by its id.
    Sealed(u64),
}

impl Index {
    /// Returns the parts of the index as it is now: 16 bytes for each.
    pub fn parts(&self) -> Vec<Part> {
        let set = self.sealed_set();
        let sealed = set.tankers().iter().map(|tanker| Part::Sealed(tanker.id));
        (0..SHARDS).map(Part::Memory).chain(sealed).collect()
    }

    /// Calls `each` for every committed cell of a part that has no references. No lock is held meanwhile. A cell that changes during the
    /// call may be shown as before, and one in memory again with its tanker. A tanker that is gone is empty.
    ///
    /// Cost: the counts of a tanker, and buckets of its cells, read and verified past the cache.
    ///
    /// # Errors
    /// A tanker cannot be read; errors of `each`.
    pub fn for_each_unreferenced(
        &self,
        part: Part,
        each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>,
    ) -> Result<()> {
        match part {
            Part::Memory(number) if number < SHARDS => {
                let is_unreferenced = |(_, cell): &(Fingerprint, Cell)| cell.references == 0;
                let found: Vec<_> = self.open.read(number).committed().filter(is_unreferenced).collect();
                found.into_iter().try_for_each(|(fingerprint, cell)| each(fingerprint, cell))
            }
            Part::Memory(_) => Ok(()),
            Part::Sealed(id) => {
                let tanker = self.sealed_set().tankers().iter().find(|tanker| tanker.id == id).map(Arc::clone);
                let Some(tanker) = tanker else { return Ok(()) };
                tanker.for_each_unreferenced(&mut |entry| {
                    let held = self.open.read(shard_of(&entry.fingerprint)).held(&entry.fingerprint);
                    match held {
                        Held::Cell(cell) if cell.references == 0 => each(entry.fingerprint, cell),
                        Held::Cell(_) | Held::Removed => Ok(()),
                        Held::Unknown => each(entry.fingerprint, entry.cell),
                    }
                })
            }
        }
    }
}
