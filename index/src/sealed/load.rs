//! Loading the summaries of all sealed tankers: most of the work of mounting an index.
//!
//! 0. A tanker to which a guide leads needs no filter: only its list of containers is read.
//! 1. Take the tankers by 64, the number of columns in a word of the filter array, and reserve a column for each.
//! 2. Read their filters page by page: the same page of all of them, each page checked before use, and merge them into
//!    the array as one. As many threads as there are cores, but at most four, share the pages. So several reads are
//!    under way at once, and checksums and merging use more than one core.
//! 3. A missing or damaged summary, or one of another shape, is made anew from the tanker's cells (one sequential read,
//!    with a log line) and written by the next checkpoint. This does not affect the other tankers. A tanker whose cells
//!    cannot be read either gets no filter: every lookup asks it and reports its damage.
//!
//! Cost: 6 MiB read for each tanker of 2^20 cells, and 6 MiB of memory for each thread meanwhile.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dedupfs_store::{Result, StoreError};
use dedupfs_sync::{Mutex, thread};

use super::containers::ContainerShares;
use super::pages::PagedFile;
use super::summary::{FILTER_PAGES, SummaryNames, open_filter, read_containers, words_of};
use super::tanker::{SealedTanker, Writer};
use crate::bloom::{FilterArray, FilterColumn};

/// Tankers that are loaded together: the number of columns in a word of the filter array.
const LOADED_TOGETHER: usize = 64;

const LOADERS_MAX: usize = 4;

/// Loads the filters and containers of newly opened tankers; makes unreadable ones anew.
pub(crate) fn load_summaries(
    writer: Writer<'_>,
    mut tankers: Vec<SealedTanker>,
    guided: &HashSet<u64>,
) -> Vec<Arc<SealedTanker>> {
    for together in tankers.chunks_mut(LOADED_TOGETHER) {
        load_together(writer, together, guided);
    }
    tankers.into_iter().map(Arc::new).collect()
}

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

/// A filter on its way into its column.
struct Source<'a> {
    /// Number of the tanker among those that are loaded together.
    tanker: usize,
    filter: &'a PagedFile,
    column: &'a FilterColumn,
    /// The error that stopped loading it.
    damage: Mutex<Option<StoreError>>,
}

fn load_together(writer: Writer<'_>, tankers: &mut [SealedTanker], guided: &HashSet<u64>) {
    let mut loading: Vec<Result<Loading>> = tankers.iter().map(|tanker| open_files(writer, tanker)).collect();
    for tanker in tankers.iter_mut().filter(|tanker| !guided.contains(&tanker.id)) {
        tanker.filter = writer.filters.reserve();
    }
    // By words of the array. Nearly always there is only one, unless memory ran out in between.
    let mut words = BTreeMap::<(u32, u32), Vec<Source<'_>>>::new();
    for (number, (tanker, loading)) in tankers.iter().zip(&loading).enumerate() {
        if let (Some(column), Ok(Loading { filter, .. })) = (tanker.filter.as_deref(), loading) {
            let source = Source { tanker: number, filter, column, damage: Mutex::new(None) };
            words.entry(column.word()).or_default().push(source);
        }
    }
    let next_page = AtomicU32::new(0);
    let load = || load_pages(writer.filters, &words, &next_page);
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(LOADERS_MAX));
    thread::scope(|scope| {
        for _ in 1..threads {
            // The work also gets done without a thread that cannot be started.
            let _ = thread::Builder::new().name("index-load".to_owned()).spawn_scoped(scope, load);
        }
        load();
    });
    let damaged: Vec<(usize, StoreError)> = words
        .into_values()
        .flatten()
        .filter_map(|source| source.damage.into_inner().map(|damage| (source.tanker, damage)))
        .collect();
    for (number, damage) in damaged {
        if let Some(loading) = loading.get_mut(number) {
            *loading = Err(damage);
        }
    }
    for (tanker, loading) in tankers.iter_mut().zip(loading) {
        match loading {
            Ok(files) => {
                tanker.containers = Arc::new(files.containers);
                tanker.summary_bytes = files.bytes;
            }
            Err(error) => mend(writer, tanker, &error),
        }
    }
}

/// Reads, checks and merges pages until all are taken.
fn load_pages(array: &FilterArray, words: &BTreeMap<(u32, u32), Vec<Source<'_>>>, next_page: &AtomicU32) {
    let mut bytes = Vec::new();
    let mut pages: Vec<Vec<u64>> = Vec::new();
    loop {
        let page = next_page.fetch_add(1, Ordering::Relaxed);
        if page >= FILTER_PAGES {
            return;
        }
        for sources in words.values() {
            pages.resize_with(pages.len().max(sources.len()), Vec::new);
            let mut sound = Vec::with_capacity(sources.len());
            let mut first_word = 0;
            for (source, words) in sources.iter().zip(&mut pages) {
                // A damaged filter is later made anew as a whole, regardless of the pages merged so far.
                if source.damage.lock().is_some() {
                    continue;
                }
                match source.filter.read_page_into(page, &mut bytes) {
                    Ok(()) => {
                        words.clear();
                        words.extend(words_of(&bytes));
                        first_word = u64::from(source.filter.page_range(page).0);
                        sound.push((source.column, words.as_slice()));
                    }
                    Err(error) => *source.damage.lock() = Some(error),
                }
            }
            array.merge_many(&sound, first_word);
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
            tracing::error!("tanker {} has no filter, and every lookup reads it: {error}", tanker.id);
            tanker.filter = None;
        }
    }
}
