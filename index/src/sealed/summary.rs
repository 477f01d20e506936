//! What a mount reads of a sealed tanker instead of its cells: its Bloom filter and its list of containers.
//!
//! Both are derived from the cells and lie in files of their own, which the manifest names. If one is missing, damaged or of
//! another shape, both are made anew from the cells (one sequential read, with a line in the log) and written by the next
//! checkpoint. A tanker whose cells cannot be read either goes without: it is asked always, and its damage is
//! reported by who asks.
//!
//! Loading goes by groups of 64 tankers and by pieces of their filters: the rows that a piece falls into stay in the
//! processor's cache while 64 columns are merged into them. Cost: 6 MiB read for each tanker of 2^20 cells.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::sync::Arc;

use dedupfs_store::frame::FrameKind;
use dedupfs_store::{Result, StoreError};

use super::containers::{ContainerShares, SHARE_BYTES};
use super::pages::{PagedFile, PagedFileKind};
use super::tanker::{SealedTanker, Writer};
use crate::bloom::Bitmap;
use crate::cell::Entry;
use crate::names::{containers_name, filter_name, join};

const FILTER_FILE: PagedFileKind = PagedFileKind { frame: FrameKind::TankerFilter, cell_bytes: 8 };
const CONTAINERS_FILE: PagedFileKind =
    PagedFileKind { frame: FrameKind::TankerContainers, cell_bytes: SHARE_BYTES as u32 };

/// Pages of a filter's file: the unit of loading, 96 KiB for a tanker of 2^20 cells.
const FILTER_PAGES: u32 = 64;

/// Tankers that are loaded together: as many as a group of filters has columns.
const LOADED_TOGETHER: usize = 64;

/// What a manifest says of a tanker's summary. Generation 0: there is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct SummaryNames {
    pub(crate) generation: u64,
    pub(crate) filter_seal: u64,
    pub(crate) containers_seal: u64,
}

/// What is derived from a tanker's cells.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) filter: Bitmap,
    pub(crate) containers: ContainerShares,
}

/// Words of each page of a filter of `words`.
fn page_words(words: u64) -> impl Iterator<Item = u32> {
    let start = move |page: u32| words * u64::from(page) / u64::from(FILTER_PAGES);
    (0..FILTER_PAGES).map(move |page| (start(page + 1) - start(page)) as u32)
}

fn words_of(page: &[u8]) -> Vec<u64> {
    page.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

impl Summary {
    /// The summary of these cells.
    pub(crate) fn of(cells_per_tanker: u32, entries: &[Entry]) -> Self {
        let mut filter = Bitmap::new(cells_per_tanker);
        entries.iter().for_each(|entry| filter.insert(&entry.fingerprint));
        let containers =
            ContainerShares::new(entries.iter().map(|entry| (entry.cell.location.container, &entry.fingerprint)));
        Self { filter, containers }
    }

    /// Writes and syncs both files; the answers are their names and their bytes.
    pub(crate) fn write(&self, writer: Writer<'_>, id: u64, generation: u64) -> Result<(SummaryNames, u64)> {
        let Writer { device, directory, pool, cache, .. } = writer;
        let words = self.filter.words();
        let words_of = |_, range: std::ops::Range<usize>, out: &mut Vec<u8>| {
            let words: &[u64] = words.get(range).unwrap_or_default();
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        };
        let pages: Vec<u32> = page_words(words.len() as u64).collect();
        let path = join(directory, &filter_name(id, generation));
        let filter = PagedFile::write(device, pool, cache, path, FILTER_FILE, (id, generation), &pages, &words_of)?;
        let path = join(directory, &containers_name(id, generation));
        let (pages, bytes) = ([self.containers.len() as u32], self.containers.encode());
        let list_of = |_, _, out: &mut Vec<u8>| out.extend_from_slice(&bytes);
        let list = PagedFile::write(device, pool, cache, path, CONTAINERS_FILE, (id, generation), &pages, &list_of)?;
        let names = SummaryNames { generation, filter_seal: filter.seal, containers_seal: list.seal };
        Ok((names, filter.len_bytes() + list.len_bytes()))
    }
}

/// Opens the file of a tanker's filter.
fn open_filter(writer: Writer<'_>, id: u64, names: &SummaryNames) -> Result<PagedFile> {
    let Writer { device, directory, pool, cache, cells_per_tanker, .. } = writer;
    let path = join(directory, &filter_name(id, names.generation));
    let ids = (id, names.generation);
    let file = PagedFile::open(device, pool, cache, path, FILTER_FILE, ids, names.filter_seal)?;
    let words = Bitmap::stored_words(cells_per_tanker);
    if file.pages() != FILTER_PAGES || u64::from(file.cells()) != words {
        let found = format!("{} words in {} pages", file.cells(), file.pages());
        return Err(StoreError::corrupt(file.path.as_str(), format!("a filter of {words} words"), found));
    }
    Ok(file)
}

fn read_containers(writer: Writer<'_>, tanker: &SealedTanker, names: &SummaryNames) -> Result<(ContainerShares, u64)> {
    let Writer { device, directory, pool, cache, .. } = writer;
    let path = join(directory, &containers_name(tanker.id, names.generation));
    let ids = (tanker.id, names.generation);
    let file = PagedFile::open(device, pool, cache, path, CONTAINERS_FILE, ids, names.containers_seal)?;
    let list = ContainerShares::decode(&file.path, &file.read_page(0)?)?;
    if list.cells() != u64::from(tanker.cells()) {
        return Err(StoreError::corrupt(file.path, format!("containers of {} cells", tanker.cells()), list.cells()));
    }
    Ok((list, file.len_bytes()))
}

/// Loads the filters and containers of tankers that were just opened, and makes anew what cannot be read.
pub(crate) fn load_summaries(writer: Writer<'_>, mut tankers: Vec<SealedTanker>) -> Vec<Arc<SealedTanker>> {
    for group in tankers.chunks_mut(LOADED_TOGETHER) {
        load_group(writer, group);
    }
    tankers.into_iter().map(Arc::new).collect()
}

/// Files of a tanker that is being loaded.
struct Loading {
    filter: PagedFile,
    containers: ContainerShares,
    bytes: u64,
}

fn open_files(writer: Writer<'_>, tanker: &SealedTanker) -> Result<Loading> {
    if tanker.summary.generation == 0 {
        return Err(StoreError::NotFound { path: format!("filter of tanker {}", tanker.id) });
    }
    let filter = open_filter(writer, tanker.id, &tanker.summary)?;
    let (containers, list_bytes) = read_containers(writer, tanker, &tanker.summary)?;
    let bytes = filter.len_bytes() + list_bytes;
    Ok(Loading { filter, containers, bytes })
}

fn load_group(writer: Writer<'_>, group: &mut [SealedTanker]) {
    let mut loading: Vec<Result<Loading>> = group.iter().map(|tanker| open_files(writer, tanker)).collect();
    for tanker in &mut *group {
        tanker.filter = writer.filters.reserve();
    }
    for page in 0..FILTER_PAGES {
        for (tanker, loading) in group.iter().zip(&mut loading) {
            if let (Some(column), Ok(files)) = (&tanker.filter, &*loading) {
                match files.filter.read_page(page) {
                    Ok(bytes) => column.merge(u64::from(files.filter.page_range(page).0), &words_of(&bytes)),
                    Err(error) => *loading = Err(error),
                }
            }
        }
    }
    for (tanker, loading) in group.iter_mut().zip(loading) {
        match loading {
            Ok(files) => {
                tanker.containers = Arc::new(files.containers);
                tanker.summary_bytes = files.bytes;
            }
            Err(error) => mend(writer, tanker, &error),
        }
    }
}

/// Makes a summary anew from the cells.
fn mend(writer: Writer<'_>, tanker: &mut SealedTanker, damage: &StoreError) {
    tracing::warn!("the filter of tanker {} is made anew from its {} cells: {damage}", tanker.id, tanker.cells());
    tanker.summary = SummaryNames::default();
    match tanker.summarise(writer.cells_per_tanker) {
        Ok(summary) => {
            if let Some(column) = &tanker.filter {
                column.clear();
                column.merge(0, summary.filter.words());
            }
            tanker.containers = Arc::new(summary.containers);
        }
        Err(error) => {
            tracing::error!("tanker {} has no filter and is asked always: {error}", tanker.id);
            tanker.filter = None;
        }
    }
}

/// Makes the column of a tanker that lost cells that of what is left. Until then, or if its file cannot be read, the
/// column says "perhaps" to what is gone: that costs reads, and no answer is wrong.
pub(crate) fn refresh_filter(writer: Writer<'_>, tanker: &SealedTanker) {
    let Some(column) = &tanker.filter else { return };
    let refresh = || -> Result<()> {
        let file = open_filter(writer, tanker.id, &tanker.summary)?;
        for page in 0..FILTER_PAGES {
            column.replace(u64::from(file.page_range(page).0), &words_of(&file.read_page(page)?));
        }
        Ok(())
    };
    if let Err(error) = refresh() {
        tracing::warn!("the filter of tanker {} still names what was removed: {error}", tanker.id);
    }
}
