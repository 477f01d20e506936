//! The cells of an index in a range of fingerprints, with marks.

use std::collections::BTreeMap;

use dedupfs_base::Result;
use dedupfs_index::{Moment, Prefixes};
use dedupfs_store::container::TableEntry;
use dedupfs_store::{ContainerId, Fingerprint};

/// Bytes of a cell with its share of the places, with room for ranges that are fuller than the mean.
pub(super) const MARK_BYTES: u64 = 64;
/// Cells of a place in the mean.
const CELLS_OF_A_PLACE: usize = 8;
/// Fingerprints without cells that are told apart: a garbled pool may name any number.
const UNKNOWN_MAX: usize = 100_000;

/// A cell.
#[derive(Clone, Copy)]
pub(super) struct MarkedCell {
    pub(super) fingerprint: Fingerprint,
    /// Its container in the index.
    container: ContainerId,
    len_bytes: u32,
    /// The index's count.
    pub(super) references: u32,
    /// The number of needs.
    pub(super) needs: u32,
    /// Its container has it.
    pub(super) is_placed: bool,
}

impl MarkedCell {
    pub(super) fn is_lost(&self) -> bool {
        self.container == ContainerId::NONE
    }
}

const _: () = assert!(size_of::<MarkedCell>() as u64 + 2 <= MARK_BYTES);

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
    pub(super) fn load(moment: &Moment, range: Prefixes, ranges: u32) -> Result<Self> {
        let mean = usize::try_from(moment.len() / u64::from(ranges.max(1))).unwrap_or(0);
        let mut cells = Vec::with_capacity(mean + mean / 64 + 1000);
        moment.for_each_in(range, &mut |fingerprint, cell| {
            let (container, len_bytes) = (cell.location.container(), cell.location.len_bytes());
            let references = cell.references;
            cells.push(MarkedCell { fingerprint, container, len_bytes, references, needs: 0, is_placed: false });
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

    fn find(&mut self, fingerprint: &Fingerprint) -> Option<&mut MarkedCell> {
        let place = self.range.place_of(fingerprint, (self.starts.len() - 1) as u32) as usize;
        let start = self.starts.get(place).copied().unwrap_or(0);
        let end = self.starts.get(place + 1).copied().unwrap_or(start);
        let cells = self.cells.get_mut(start..end).unwrap_or_default();
        let at = cells.binary_search_by_key(fingerprint, |cell| cell.fingerprint).ok()?;
        cells.get_mut(at)
    }

    /// Counts a need, if the fingerprint lies in the range.
    pub(super) fn need(&mut self, fingerprint: Fingerprint) {
        if !self.range.has(&fingerprint) {
            return;
        }
        if let Some(cell) = self.find(&fingerprint) {
            cell.needs = cell.needs.saturating_add(1);
        } else if self.unknown.len() < UNKNOWN_MAX || self.unknown.contains_key(&fingerprint) {
            let needs = self.unknown.entry(fingerprint).or_default();
            *needs = needs.saturating_add(1);
        }
    }

    /// Notes that a container has a chunk or node. Others may have it as well.
    pub(super) fn place(&mut self, container: ContainerId, entry: &TableEntry) {
        if self.range.has(&entry.fingerprint)
            && let Some(cell) = self.find(&entry.fingerprint)
        {
            cell.is_placed |= (cell.container, cell.len_bytes) == (container, entry.len_bytes);
        }
    }

    pub(super) fn cells(&self) -> &[MarkedCell] {
        &self.cells
    }

    /// Fingerprints with several cells.
    pub(super) fn doubled(&self) -> impl Iterator<Item = Fingerprint> {
        let pairs = self.cells.array_windows::<2>();
        pairs.filter(|[one, next]| one.fingerprint == next.fingerprint).map(|[one, _]| one.fingerprint)
    }

    /// Fingerprints that are needed and have no cell; of very many, some.
    pub(super) fn unknown(&self) -> &BTreeMap<Fingerprint, u32> {
        &self.unknown
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use dedupfs_index::{Change, Index, IndexOptions, Location};
    use dedupfs_store::PoolId;
    use dedupfs_store::device::{Device, MemoryDevice};

    use super::*;

    fn fingerprint(number: u32) -> Fingerprint {
        Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    #[test]
    fn ranges_together_find_what_one_finds() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        let (pool, options) = (PoolId([1; 16]), IndexOptions { cells_per_tanker: 256, ..IndexOptions::default() });
        Index::create(&device, "index", &pool, options).unwrap();
        let index = Index::open(&device, "index", &pool, options).unwrap();
        let location = Location::new(ContainerId(1), 100);
        let insert = |number| Change::Insert { fingerprint: fingerprint(number), location };
        let lost = (0..1000)
            .step_by(50)
            .map(|number| Change::Lose { fingerprint: fingerprint(number), container: ContainerId(1) });
        let count = |number| Change::Count {
            fingerprint: fingerprint(number),
            delta: i64::from(number % 3),
            hint: ContainerId::NONE,
        };
        index.apply(1, &(0..1000).map(insert).chain((0..1000).map(count)).chain(lost).collect::<Vec<_>>()).unwrap();
        index.checkpoint(1).unwrap();
        // Each number is marked as often as it is counted, but for 7, and some that no cell has.
        let marks: Vec<u32> = (0..1010).flat_map(|number| vec![number; (number % 3) as usize]).chain([7]).collect();
        for ranges in [1, 2, 3, 50] {
            let (mut cells, mut wrong, mut unknown, mut lost) = (0, Vec::new(), BTreeMap::new(), 0);
            for range in Prefixes::split(ranges) {
                let mut marked = Marked::load(&index.moment(), range, ranges).unwrap();
                marks.iter().for_each(|number| marked.need(fingerprint(*number)));
                cells += marked.cells().len();
                lost += marked.cells().iter().filter(|cell| cell.is_lost()).count();
                let differ = marked.cells().iter().filter(|cell| cell.references != cell.needs);
                wrong.extend(differ.map(|cell| (cell.fingerprint, cell.references, cell.needs)));
                unknown.extend(marked.unknown().clone());
            }
            assert_eq!((cells, lost, wrong), (1000, 20, vec![(fingerprint(7), 1, 2)]));
            let expected = (1000..1010).filter(|number| number % 3 > 0).map(|number| (fingerprint(number), number % 3));
            assert_eq!(unknown, expected.collect());
        }
    }
}
