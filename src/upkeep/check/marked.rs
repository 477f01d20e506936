//! The cells of an index in a range of fingerprints, with marks.

use std::collections::BTreeMap;

use dedupfs_base::Result;
use dedupfs_index::{Index, Prefixes};
use dedupfs_store::Fingerprint;

/// Bytes of a cell with its share of the places, with room for ranges that are fuller than the mean.
pub(super) const MARK_BYTES: u64 = 48;
/// Cells of a place in the mean.
const CELLS_OF_A_PLACE: usize = 8;
/// Fingerprints without cells that are told apart: a garbled pool may name any number.
const UNKNOWN_MAX: usize = 100_000;

/// A cell.
#[derive(Clone, Copy)]
pub(super) struct MarkedCell {
    pub(super) fingerprint: Fingerprint,
    /// The index's count.
    pub(super) references: u32,
    pub(super) marks: u32,
    pub(super) is_lost: bool,
}

/// Cells in order of their fingerprints.
pub(super) struct Marked {
    range: Prefixes,
    cells: Vec<MarkedCell>,
    /// Where the cells of each place of the range begin, and the end of the last.
    starts: Vec<usize>,
    unknown: BTreeMap<Fingerprint, u32>,
}

impl Marked {
    /// Reads the cells of a range, which is one of `ranges` of the same width.
    pub(super) fn load(index: &Index, range: Prefixes, ranges: u32) -> Result<Self> {
        let mean = usize::try_from(index.len() / u64::from(ranges.max(1))).unwrap_or(0);
        let mut cells = Vec::with_capacity(mean + mean / 64 + 1000);
        index.for_each_in(range, &mut |fingerprint, cell| {
            let is_lost = cell.location.is_lost();
            cells.push(MarkedCell { fingerprint, references: cell.references, marks: 0, is_lost });
            Ok(())
        })?;
        cells.sort_unstable_by_key(|cell| cell.fingerprint);
        let places = u32::try_from(cells.len() / CELLS_OF_A_PLACE + 1).unwrap_or(u32::MAX);
        let mut starts = Vec::with_capacity(places as usize + 1);
        for (number, cell) in cells.iter().enumerate() {
            let place = range.place_of(&cell.fingerprint, places) as usize;
            while starts.len() <= place {
                starts.push(number);
            }
        }
        starts.resize(places as usize + 1, cells.len());
        Ok(Self { range, cells, starts, unknown: BTreeMap::new() })
    }

    /// Counts a reference, if its fingerprint lies in the range.
    pub(super) fn mark(&mut self, fingerprint: Fingerprint) {
        if !self.range.has(&fingerprint) {
            return;
        }
        let place = self.range.place_of(&fingerprint, (self.starts.len() - 1) as u32) as usize;
        let start = self.starts.get(place).copied().unwrap_or(0);
        let end = self.starts.get(place + 1).copied().unwrap_or(start);
        let cells = self.cells.get_mut(start..end).unwrap_or_default();
        if let Ok(at) = cells.binary_search_by_key(&fingerprint, |cell| cell.fingerprint) {
            cells.get_mut(at).into_iter().for_each(|cell| cell.marks = cell.marks.saturating_add(1));
        } else if self.unknown.len() < UNKNOWN_MAX || self.unknown.contains_key(&fingerprint) {
            let marks = self.unknown.entry(fingerprint).or_default();
            *marks = marks.saturating_add(1);
        }
    }

    pub(super) fn cells(&self) -> &[MarkedCell] {
        &self.cells
    }

    /// Fingerprints that are marked and have no cell; of very many, some.
    pub(super) fn unknown(&self) -> &BTreeMap<Fingerprint, u32> {
        &self.unknown
    }
}
