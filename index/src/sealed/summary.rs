//! The summary of a sealed tanker: its Bloom filter and its list of containers. A mount reads it instead of the cells.
//!
//! Both are derived from the cells and have their own files, which the manifest names. `load` handles a summary that
//! cannot be read. Cost: 6 MiB for each tanker of 2^20 cells.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::frame::FrameKind;
use dedupfs_store::{Result, StoreError};

use super::containers::{ContainerShares, SHARE_BYTES};
use super::pages::{PagedFile, PagedFileKind};
use super::tanker::{SealedTanker, Writer};
use crate::bloom::Bitmap;
use crate::cell::Entry;
use crate::names::{containers_name, filter_name};

const FILTER_FILE: PagedFileKind = PagedFileKind { frame: FrameKind::TankerFilter, cell_bytes: 8 };
const CONTAINERS_FILE: PagedFileKind =
    PagedFileKind { frame: FrameKind::TankerContainers, cell_bytes: SHARE_BYTES as u32 };

/// Pages of a filter's file: the unit of loading, 96 KiB for a tanker of 2^20 cells.
pub(super) const FILTER_PAGES: u32 = 64;

/// The manifest's entry for a tanker's summary. Generation 0: there is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct SummaryNames {
    pub(crate) generation: u64,
    pub(crate) filter_seal: u64,
    pub(crate) containers_seal: u64,
}

/// The data derived from a tanker's cells.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) filter: Bitmap,
    pub(crate) containers: ContainerShares,
}

/// Number of words in each page of a filter of `words`.
fn page_words(words: u64) -> impl Iterator<Item = u32> {
    let start = move |page: u32| words * u64::from(page) / u64::from(FILTER_PAGES);
    (0..FILTER_PAGES).map(move |page| (start(page + 1) - start(page)) as u32)
}

pub(super) fn words_of(page: &[u8]) -> impl Iterator<Item = u64> {
    page.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl Summary {
    pub(crate) fn of(cells_per_tanker: u32, entries: &[Entry]) -> Self {
        let mut filter = Bitmap::new(cells_per_tanker);
        entries.iter().for_each(|entry| filter.insert(&entry.fingerprint));
        let containers =
            ContainerShares::new(entries.iter().map(|entry| (entry.cell.location.container(), &entry.fingerprint)));
        Self { filter, containers }
    }

    /// Writes and syncs both files; returns their names and the sum of their bytes.
    pub(crate) fn write(&self, writer: Writer<'_>, id: u64, generation: u64) -> Result<(SummaryNames, u64)> {
        let words = self.filter.words();
        let words_of = |_, range: std::ops::Range<usize>, out: &mut Vec<u8>| {
            let words: &[u64] = words.get(range).unwrap_or_default();
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        };
        let pages: Vec<u32> = page_words(words.len() as u64).collect();
        let (name, ids) = (filter_name(id, generation), (id, generation));
        let filter = PagedFile::write(writer, &name, FILTER_FILE, ids, &pages, &words_of)?;
        let name = containers_name(id, generation);
        let (pages, bytes) = ([self.containers.len() as u32], self.containers.encode());
        let list_of = |_, _, out: &mut Vec<u8>| out.extend_from_slice(&bytes);
        let list = PagedFile::write(writer, &name, CONTAINERS_FILE, ids, &pages, &list_of)?;
        let names = SummaryNames { generation, filter_seal: filter.seal, containers_seal: list.seal };
        Ok((names, filter.len_bytes() + list.len_bytes()))
    }
}

pub(super) fn open_filter(writer: Writer<'_>, id: u64, names: &SummaryNames) -> Result<PagedFile> {
    let name = filter_name(id, names.generation);
    let file = PagedFile::open(writer, &name, FILTER_FILE, (id, names.generation), names.filter_seal)?;
    let words = Bitmap::stored_words(writer.cells_per_tanker);
    // The pages must match, because those of many tankers are merged together.
    if !file.page_cells().into_iter().eq(page_words(words)) {
        let found = format!("{} words in {} pages", file.cells(), file.pages());
        return Err(StoreError::corrupt(file.path.as_str(), format!("a filter of {words} words"), found));
    }
    Ok(file)
}

/// Reads the list of a tanker's containers; returns it with its bytes on disk.
pub(super) fn read_containers(
    writer: Writer<'_>,
    tanker: &SealedTanker,
    names: &SummaryNames,
) -> Result<(ContainerShares, u64)> {
    let name = containers_name(tanker.id, names.generation);
    let ids = (tanker.id, names.generation);
    let file = PagedFile::open(writer, &name, CONTAINERS_FILE, ids, names.containers_seal)?;
    let list = ContainerShares::decode(&file.path, &file.read_page(0)?)?;
    if list.cells() != u64::from(tanker.cells()) {
        return Err(StoreError::corrupt(file.path, format!("containers of {} cells", tanker.cells()), list.cells()));
    }
    Ok((list, file.len_bytes()))
}

/// Rebuilds the column of a tanker that lost cells from its new filter. Until then, or if the filter's file cannot be
/// read, the column says "perhaps" to removed fingerprints: that costs reads, and no answer is wrong.
pub(crate) fn refresh_filter(writer: Writer<'_>, tanker: &SealedTanker) {
    let Some(column) = &tanker.filter else { return };
    let refresh = || -> Result<()> {
        let file = open_filter(writer, tanker.id, &tanker.summary)?;
        for page in 0..FILTER_PAGES {
            let words: Vec<u64> = words_of(&file.read_page(page)?).collect();
            column.replace(u64::from(file.page_range(page).0), &words);
        }
        Ok(())
    };
    if let Err(error) = refresh() {
        tracing::warn!("the filter of tanker {} still names removed fingerprints: {error}", tanker.id);
    }
}
