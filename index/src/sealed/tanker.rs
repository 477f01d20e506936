//! One sealed tanker: a file of cells, sorted within buckets by fingerprint prefix, and a file of their counts.
//!
//! The counts have their own file so that counting, by far the most frequent change, rewrites 4 bytes a cell and not
//! 48. A lookup takes the bucket from the prefix. Within the bucket fingerprints are uniformly distributed, so
//! interpolation finds the place to within a few dozen cells, and a binary search does the rest. It reads one page for
//! the location and one for the count.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::device::Device;
use dedupfs_store::frame::FrameKind;
use dedupfs_store::{ContainerId, Fingerprint, PoolId, Result, StoreError};

use super::cache::PageCache;
use super::containers::ContainerShares;
use super::occupancy::{ENTRY_BYTES, ListOf, OccupancyList};
use super::pages::{PagedFile, PagedFileKind};
use super::set::Found;
use super::summary::{Summary, SummaryNames};
use crate::bloom::{FilterArray, FilterColumn};
use crate::cell::{
    CELL_BYTES, COUNT_BYTES, Cell, Entry, cell_at, cell_fingerprint, cell_location, count_at, encode_cell,
};
use crate::names::{FileWriter, counts_name, join, occupancy_name, tanker_name};
use crate::occupancy::Tally;
use crate::prefixes::Prefixes;

const CELLS_FILE: PagedFileKind = PagedFileKind { frame: FrameKind::TankerDirectory, cell_bytes: CELL_BYTES as u32 };
const COUNTS_FILE: PagedFileKind = PagedFileKind { frame: FrameKind::Counts, cell_bytes: COUNT_BYTES as u32 };

/// Cells around the interpolated place that are tried first: three standard deviations in a bucket of 1024.
const INTERPOLATION_WINDOW: usize = 48;

/// The manifest's entry for a tanker: its files, and the seals of their content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TankerNames {
    pub(crate) id: u64,
    pub(crate) generation: u64,
    pub(crate) seal: u64,
    pub(crate) counts_generation: u64,
    pub(crate) counts_seal: u64,
    pub(crate) summary: SummaryNames,
}

/// The context in which tanker files are written and opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) directory: &'a str,
    pub(crate) pool: &'a PoolId,
    pub(crate) cache: &'a PageCache,
    pub(crate) filters: &'a Arc<FilterArray>,
    /// Number of cells that filters are made for.
    pub(crate) cells_per_tanker: u32,
}

/// The filter that names the cells of a tanker.
pub(crate) enum FilterOf {
    /// Its own, made from its cells.
    Itself,
    /// The one that it had before it was rewritten.
    Before(Arc<FilterColumn>),
    /// That of a guide.
    Guide,
}

#[derive(Clone, Debug)]
pub(crate) struct SealedTanker {
    pub(crate) id: u64,
    cells: Arc<PagedFile>,
    counts: Arc<PagedFile>,
    /// The tanker's column in the filter array. `None` if there is no memory for one: then every lookup asks the
    /// tanker.
    pub(crate) filter: Option<Arc<FilterColumn>>,
    pub(crate) containers: Arc<ContainerShares>,
    pub(super) summary: SummaryNames,
    pub(super) summary_bytes: u64,
    /// Bytes of the occupancy list's file, 0 without one. It may be written later than the other files.
    occupancy_bytes: Arc<AtomicU64>,
}

/// The bucket of a fingerprint among `buckets` (a power of two).
pub(crate) fn bucket_of(fingerprint: &Fingerprint, buckets: u32) -> u32 {
    bucket_of_prefix(fingerprint.prefix(), buckets)
}

pub(crate) fn bucket_of_prefix(prefix: u64, buckets: u32) -> u32 {
    ((u128::from(prefix) * u128::from(buckets)) >> u64::BITS) as u32
}

/// Position of a fingerprint in a bucket's bytes.
fn position_in(page: &[u8], fingerprint: &Fingerprint, buckets: u32) -> Option<usize> {
    let cells = page.as_chunks::<CELL_BYTES>().0;
    // The prefix's place within its bucket's range, scaled to the bucket's cells.
    let within = fingerprint.prefix().wrapping_mul(u64::from(buckets));
    let guess = ((u128::from(within) * cells.len() as u128) >> u64::BITS) as usize;
    let mut low = guess.saturating_sub(INTERPOLATION_WINDOW);
    let mut high = guess.saturating_add(INTERPOLATION_WINDOW).min(cells.len());
    if cells.get(low).is_none_or(|cell| *cell_fingerprint(cell) > fingerprint.0) {
        low = 0;
    }
    if high.checked_sub(1).and_then(|last| cells.get(last)).is_none_or(|cell| *cell_fingerprint(cell) < fingerprint.0) {
        high = cells.len();
    }
    let window = cells.get(low..high)?;
    window.binary_search_by(|cell| cell_fingerprint(cell).cmp(&fingerprint.0)).ok().map(|position| low + position)
}

impl SealedTanker {
    /// Writes a tanker of `entries`, sorted by fingerprint. A rewritten tanker keeps its `filter`, which names all
    /// fingerprints that it may still hold; one that a guide leads to has none.
    pub(crate) fn write(
        writer: Writer<'_>,
        (id, generation): (u64, u64),
        buckets: u32,
        entries: &[Entry],
        filter: FilterOf,
    ) -> Result<Self> {
        debug_assert!(entries.is_sorted_by(|a, b| a.fingerprint < b.fingerprint), "sorted, each once");
        let mut page_cells = vec![0; buckets as usize];
        for Entry { fingerprint, .. } in entries {
            if let Some(count) = page_cells.get_mut(bucket_of(fingerprint, buckets) as usize) {
                *count += 1;
            }
        }
        let cells_of = |_, range: std::ops::Range<usize>, out: &mut Vec<u8>| {
            let cells = entries.get(range).unwrap_or_default();
            cells.iter().for_each(|entry| encode_cell(&entry.fingerprint, entry.cell.location, out));
        };
        let counts_of = |_, range: std::ops::Range<usize>, out: &mut Vec<u8>| {
            let cells = entries.get(range).unwrap_or_default();
            cells.iter().for_each(|entry| out.extend_from_slice(&entry.cell.references.to_le_bytes()));
        };
        let (name, ids) = (tanker_name(id, generation), (id, generation));
        let cells = PagedFile::write(writer, &name, CELLS_FILE, ids, &page_cells, &cells_of)?;
        let name = counts_name(id, generation);
        let counts = PagedFile::write(writer, &name, COUNTS_FILE, ids, &page_cells, &counts_of)?;
        let summary = Summary::of(writer.cells_per_tanker, entries);
        let (names, summary_bytes) = summary.write(writer, id, generation)?;
        let filter = match filter {
            FilterOf::Before(column) => Some(column),
            FilterOf::Guide => None,
            FilterOf::Itself => writer.filters.reserve().inspect(|column| column.merge(0, summary.filter.words())),
        };
        let tanker = Self {
            id,
            cells: Arc::new(cells),
            counts: Arc::new(counts),
            filter,
            containers: Arc::new(summary.containers),
            summary: names,
            summary_bytes,
            occupancy_bytes: Arc::default(),
        };
        let tally = Tally::of(entries.iter().map(|entry| entry.cell));
        tanker.write_occupancy(writer, &OccupancyList::from(&tally))?;
        Ok(tanker)
    }

    /// The files that an occupancy list of this tanker must have been made from.
    fn list_of(&self) -> ListOf {
        ListOf {
            tanker: self.id,
            generation: self.counts.generation,
            cells_seal: self.cells.seal,
            counts_seal: self.counts.seal,
            cells: self.cells(),
        }
    }

    fn write_occupancy(&self, writer: Writer<'_>, list: &OccupancyList) -> Result<()> {
        let Some(bytes) = list.encode(writer.pool, &self.list_of()) else { return Ok(()) };
        let path = join(writer.directory, &occupancy_name(self.id, self.counts.generation));
        let mut file = FileWriter::new(writer.device, &path)?;
        file.append(&bytes)?;
        file.finish()?;
        self.occupancy_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Replaces the occupancy list of files that are in use, whether one exists or not.
    pub(crate) fn replace_occupancy(&self, writer: Writer<'_>, list: &OccupancyList) -> Result<()> {
        let Some(bytes) = list.encode(writer.pool, &self.list_of()) else { return Ok(()) };
        let name = occupancy_name(self.id, self.counts.generation);
        writer.device.replace_file(writer.directory, &name, &bytes)?;
        self.occupancy_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn read_occupancy(&self, writer: Writer<'_>) -> Result<OccupancyList> {
        let path = join(writer.directory, &occupancy_name(self.id, self.counts.generation));
        let bytes = writer.device.read_file(&path, OccupancyList::bytes_max(self.cells()))?;
        let list = OccupancyList::decode(&path, &bytes, writer.pool, &self.list_of())?;
        // The other list of containers was made from the same cells, if they could be read.
        if self.containers.cells() == u64::from(self.cells()) && !list.agrees_with(&self.containers) {
            return Err(StoreError::corrupt(path, "the containers that the tanker's cells lie in", "others"));
        }
        self.occupancy_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        Ok(list)
    }

    pub(crate) fn scan_occupancy(&self) -> Result<OccupancyList> {
        let mut tally = Tally::default();
        self.for_each(&mut |_, entry| {
            tally.change(None, Some(entry.cell));
            Ok(())
        })?;
        Ok(OccupancyList::from(&tally))
    }

    pub(crate) fn occupancy_list_bytes(&self) -> u64 {
        (self.containers.len() * ENTRY_BYTES) as u64
    }

    /// Writes the files of the summary if there are none.
    pub(crate) fn complete(self, writer: Writer<'_>, generation: u64) -> Result<Self> {
        if self.has_summary() {
            return Ok(self);
        }
        let summary = self.summarise(writer.cells_per_tanker)?;
        let (names, summary_bytes) = summary.write(writer, self.id, generation)?;
        Ok(Self { summary: names, summary_bytes, ..self })
    }

    /// Whether the files of the summary are sound.
    pub(crate) fn has_summary(&self) -> bool {
        self.summary.generation != 0
    }

    pub(super) fn summarise(&self, cells_per_tanker: u32) -> Result<Summary> {
        let mut entries = Vec::with_capacity(self.cells() as usize);
        self.for_each(&mut |_, entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(Summary::of(cells_per_tanker, &entries))
    }

    /// Writes new counts for the same cells: `changes` are (position of the cell, the cell with its new count). `list`
    /// is the occupancy by the cells with their old counts.
    pub(crate) fn write_counts(
        &self,
        writer: Writer<'_>,
        generation: u64,
        changes: impl Iterator<Item = (u32, Cell)>,
        list: &OccupancyList,
    ) -> Result<Self> {
        let mut counts = Vec::with_capacity(self.counts.cells() as usize * COUNT_BYTES);
        self.counts.read_through(&mut |_, page| {
            counts.extend_from_slice(page);
            Ok(())
        })?;
        let places = counts.as_chunks_mut::<COUNT_BYTES>().0;
        let mut tally = Tally::default();
        for (index, cell) in changes {
            let place = places.get_mut(index as usize).ok_or_else(|| {
                StoreError::corrupt(self.counts.path.as_str(), format!("a cell {index}"), self.counts.cells())
            })?;
            let before = Cell { references: u32::from_le_bytes(*place), ..cell };
            tally.change(Some(before), Some(cell));
            *place = cell.references.to_le_bytes();
        }
        let (name, ids) = (counts_name(self.id, generation), (self.id, generation));
        let page_cells = self.counts.page_cells();
        let counts_of = |_, range: std::ops::Range<usize>, out: &mut Vec<u8>| {
            let bytes = range.start * COUNT_BYTES..range.end * COUNT_BYTES;
            out.extend_from_slice(counts.get(bytes).unwrap_or_default());
        };
        let counts = PagedFile::write(writer, &name, COUNTS_FILE, ids, &page_cells, &counts_of)?;
        let counted = Self { counts: Arc::new(counts), occupancy_bytes: Arc::default(), ..self.clone() };
        counted.write_occupancy(writer, &list.changed(&tally))?;
        Ok(counted)
    }

    /// Opens the tanker that a manifest names, without its summary (see [`load_summaries`](super::load_summaries)).
    pub(crate) fn open(writer: Writer<'_>, names: &TankerNames) -> Result<Self> {
        let ids = (names.id, names.generation);
        let cells = PagedFile::open(writer, &tanker_name(ids.0, ids.1), CELLS_FILE, ids, names.seal)?;
        let ids = (names.id, names.counts_generation);
        let counts = PagedFile::open(writer, &counts_name(ids.0, ids.1), COUNTS_FILE, ids, names.counts_seal)?;
        if cells.page_cells() != counts.page_cells() {
            let expected = format!("as many counts in each bucket as there are cells in {}", cells.path);
            return Err(StoreError::corrupt(counts.path.as_str(), expected, "others"));
        }
        Ok(Self {
            id: names.id,
            cells: Arc::new(cells),
            counts: Arc::new(counts),
            filter: None,
            containers: Arc::default(),
            summary: names.summary,
            summary_bytes: 0,
            occupancy_bytes: Arc::default(),
        })
    }

    pub(crate) fn names(&self) -> TankerNames {
        TankerNames {
            id: self.id,
            generation: self.cells.generation,
            seal: self.cells.seal,
            counts_generation: self.counts.generation,
            counts_seal: self.counts.seal,
            summary: self.summary,
        }
    }

    pub(crate) fn buckets(&self) -> u32 {
        self.cells.pages()
    }

    /// Number of cells of the fullest bucket, and of the emptiest: their difference is MAD2's imbalance (section IV.A).
    pub(crate) fn bucket_extremes(&self) -> (u32, u32) {
        self.cells.page_extremes()
    }

    pub(crate) fn cells(&self) -> u32 {
        self.cells.cells()
    }

    /// Whether it may have lost cells: they name no container, and the list counts them under `NONE`. A list that could not be read may lack
    /// them.
    pub(crate) fn may_have_lost(&self) -> bool {
        let is_listed = self.containers.cells() == u64::from(self.cells());
        !is_listed || self.containers.of(ContainerId::NONE).is_some()
    }

    /// The same tanker, to which a guide leads.
    pub(crate) fn without_filter(&self) -> Self {
        Self { filter: None, ..self.clone() }
    }

    /// Whether both hold the same cells, from the same file.
    pub(crate) fn same_cells(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cells, &other.cells)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        let occupancy_bytes = self.occupancy_bytes.load(Ordering::Relaxed);
        self.cells.len_bytes() + self.counts.len_bytes() + self.summary_bytes + occupancy_bytes
    }

    /// Bytes of memory of the tanker, apart from the cache.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.cells.memory_bytes() + self.counts.memory_bytes() + self.containers.memory_bytes()
    }

    pub(crate) fn bucket(&self, cache: &PageCache, bucket: u32) -> Result<Arc<[u8]>> {
        self.cells.page(cache, bucket)
    }

    /// Looks a fingerprint up in its bucket, which [`bucket`](Self::bucket) has read.
    pub(crate) fn find_in(&self, bucket: u32, page: &[u8], fingerprint: &Fingerprint) -> Option<Found> {
        let position = position_in(page, fingerprint, self.buckets())?;
        let location = cell_location(cell_at(page, position)?);
        let index = self.cells.page_range(bucket).0 + position as u32;
        Some(Found { tanker: self.id, index, bucket, location })
    }

    pub(crate) fn references(&self, cache: &PageCache, found: &Found) -> Result<u32> {
        let page = self.counts.page(cache, found.bucket)?;
        let position = found.index - self.counts.page_range(found.bucket).0;
        count_at(&page, position as usize).ok_or_else(|| {
            StoreError::corrupt(self.counts.path.as_str(), format!("a count for cell {}", found.index), "none")
        })
    }

    /// Visits the cells without references. Reads the counts, and those buckets that have such cells, verified and past the cache.
    pub(crate) fn for_each_unreferenced(&self, each: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut page = Vec::new();
        self.counts.read_through(&mut |bucket, counts| {
            let counts = counts.as_chunks::<COUNT_BYTES>().0;
            if counts.iter().all(|count| *count != [0; COUNT_BYTES]) {
                return Ok(());
            }
            self.cells.read_page_into(bucket, &mut page)?;
            let cells = page.as_chunks::<CELL_BYTES>().0;
            cells.iter().zip(counts).filter(|(_, count)| **count == [0; COUNT_BYTES]).try_for_each(|(cell, _)| {
                let fingerprint = Fingerprint(*cell_fingerprint(cell));
                each(Entry { fingerprint, cell: Cell { location: cell_location(cell), references: 0 } })
            })
        })
    }

    /// Visits the first eight bytes, as a number, of the fingerprints of a range, in order. Reads its buckets, and no counts.
    pub(crate) fn for_each_prefix(&self, prefixes: Prefixes, each: &mut dyn FnMut(u64)) -> Result<()> {
        self.cells.read_pages(prefixes.buckets(self.buckets()), &mut |_, page| {
            let cells = page.as_chunks::<CELL_BYTES>().0.iter();
            let all = cells.map(|cell| Fingerprint(*cell_fingerprint(cell)).prefix());
            all.filter(|prefix| prefixes.has_prefix(*prefix)).for_each(&mut *each);
            Ok(())
        })
    }

    /// Visits all cells in order of fingerprint with their positions, read and verified past the cache. The order is
    /// checked.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(u32, Entry) -> Result<()>) -> Result<()> {
        self.for_each_in(0..self.buckets(), each)
    }

    /// Visits the cells of some buckets as [`for_each`](Self::for_each) does.
    pub(crate) fn for_each_in(
        &self,
        buckets: Range<u32>,
        each: &mut dyn FnMut(u32, Entry) -> Result<()>,
    ) -> Result<()> {
        // 4 bytes a cell. Reading two files in step would need two buffers and more code.
        let first = self.cells.page_range(buckets.start).0;
        let cells = self.cells.page_range(buckets.end).0.max(first) - first;
        let (mut counts, mut at) = (Vec::with_capacity(cells as usize * COUNT_BYTES), 0);
        self.counts.read_pages(buckets.clone(), &mut |_, page| {
            counts.extend_from_slice(page);
            Ok(())
        })?;
        let mut previous = None;
        self.cells.read_pages(buckets, &mut |bucket, page| {
            for cell in page.as_chunks::<CELL_BYTES>().0 {
                let fingerprint = Fingerprint(*cell_fingerprint(cell));
                if previous >= Some(fingerprint) || bucket_of(&fingerprint, self.buckets()) != bucket {
                    let what = format!("bucket {bucket} of {}", self.cells.path);
                    return Err(StoreError::corrupt(what, "sorted fingerprints of its range", fingerprint));
                }
                previous = Some(fingerprint);
                let references = count_at(&counts, at as usize).unwrap_or(0);
                each(first + at, Entry { fingerprint, cell: Cell { location: cell_location(cell), references } })?;
                at += 1;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::Location;
    use crate::tests::fingerprint;
    use dedupfs_store::ContainerId;

    #[test]
    fn buckets_are_ranges_of_prefixes() {
        for buckets in [1, 4, 1024] {
            assert_eq!(bucket_of(&Fingerprint::ZERO, buckets), 0);
            assert_eq!(bucket_of(&Fingerprint([0xff; 32]), buckets), buckets - 1);
        }
        assert_eq!(bucket_of(&Fingerprint([0x80; 32]), 2), 1);
        assert_eq!(bucket_of(&Fingerprint([0x7f; 32]), 2), 0);
    }

    #[test]
    fn interpolation_finds_all_even_in_skewed_buckets() {
        let uniform = (0..3000).map(fingerprint).collect::<Vec<_>>();
        let skewed = (0..300)
            .map(|number| {
                let mut fingerprint = fingerprint(number);
                fingerprint.0[..2].fill(if number % 50 == 0 { 0xff } else { 0x01 });
                fingerprint
            })
            .collect::<Vec<_>>();
        for mut fingerprints in [uniform, skewed, Vec::new()] {
            fingerprints.sort_unstable();
            let mut page = Vec::new();
            for fingerprint in &fingerprints {
                encode_cell(fingerprint, Location::new(ContainerId(1), 1), &mut page);
            }
            for (position, fingerprint) in fingerprints.iter().enumerate() {
                assert_eq!(position_in(&page, fingerprint, 1), Some(position));
            }
            for absent in (10_000..11_000).map(fingerprint).chain([Fingerprint([0xff; 32]), Fingerprint::ZERO]) {
                assert_eq!(position_in(&page, &absent, 1), None);
            }
        }
    }
}
