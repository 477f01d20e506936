//! One moment of an index, which can be read while the index changes.

use std::collections::HashMap;

use dedupfs_store::{Fingerprint, Result};

use crate::cell::{Cell, Entry};
use crate::index::Index;
use crate::open::Patch;
use crate::prefixes::Prefixes;
use crate::sealed::SealedTanker;

/// The committed cells of an [`Index`] at one moment. While it lives, files that checkpoints replace keep their room on disk.
#[derive(Debug)]
pub struct Moment {
    /// Their cells and counts alone: filters and guides would keep their memory.
    tankers: Vec<SealedTanker>,
    patches: HashMap<Fingerprint, Patch>,
    /// The open tanker.
    open: Vec<Entry>,
    cells: u64,
}

impl Index {
    /// Copies the open cells, 56 bytes each, and the patches, 83 to 167 bytes each and 72 more for a moment. Holds up applying meanwhile.
    pub fn moment(&self) -> Moment {
        let (set, patches, open, cells) = {
            let _applier = self.applier.lock();
            (self.sealed_set(), self.open.collect_patches(), self.open.collect_cells(), self.len())
        };
        let tankers = set.tankers().iter().map(|tanker| tanker.without_filter()).collect();
        // Outside of the lock: making the table takes longer than copying.
        Moment { tankers, patches: patches.into_iter().collect(), open, cells }
    }

    /// As [`Moment::for_each`], of this moment.
    ///
    /// # Errors
    /// A tanker cannot be read; errors of `each`.
    pub fn for_each(&self, each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>) -> Result<()> {
        self.moment().for_each(each)
    }
}

impl Moment {
    /// Number of cells.
    pub fn len(&self) -> u64 {
        self.cells
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        // An eighth of a table stays free, and each place has a byte more.
        let patches = self.patches.capacity() / 7 * 8 * (size_of::<(Fingerprint, Patch)>() + 1);
        (patches + self.open.capacity() * size_of::<Entry>()) as u64
    }

    /// Calls `each` for every cell: tanker by tanker in order of fingerprint, then the open tanker.
    ///
    /// Cost: the cells file of each sealed tanker, read once, verified and past the cache.
    ///
    /// # Errors
    /// A tanker cannot be read; errors of `each`.
    pub fn for_each(&self, each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>) -> Result<()> {
        self.for_each_in(Prefixes::ALL, each)
    }

    /// Calls `each` for every cell whose fingerprint lies in a range, as [`for_each`](Self::for_each) does.
    ///
    /// Cost: the buckets of the range.
    ///
    /// # Errors
    /// A tanker cannot be read; errors of `each`.
    pub fn for_each_in(&self, prefixes: Prefixes, each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>) -> Result<()> {
        let mut each = |fingerprint: Fingerprint, cell: Cell| match prefixes.has(&fingerprint) {
            true => each(fingerprint, cell),
            false => Ok(()),
        };
        for tanker in &self.tankers {
            tanker.for_each_in(prefixes.buckets(tanker.buckets()), &mut |_, Entry { fingerprint, cell }| {
                let cell = if self.patches.is_empty() { Some(cell) } else { self.patched(&fingerprint, cell) };
                cell.map_or(Ok(()), |cell| each(fingerprint, cell))
            })?;
        }
        self.open.iter().try_for_each(|entry| each(entry.fingerprint, entry.cell))
    }

    fn patched(&self, fingerprint: &Fingerprint, cell: Cell) -> Option<Cell> {
        self.patches.get(fingerprint).map_or(Some(cell), |patch| patch.cell)
    }
}
