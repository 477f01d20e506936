//! Running filters in order, with statistics for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::{Fingerprint, Result, StoreError, profile};
use dedupfs_sync::Mutex;

use super::{CompareFilter, Filter, Query, Verdict};

/// The statistics of one filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterStats {
    /// The filter's name.
    pub name: &'static str,
    /// Entries that were open when the filter was asked.
    pub asked: u64,
    /// The part of them that it decided as `Existing`, or as `StrongMaybe` in a chain that compares.
    pub existing: u64,
    /// The part of them that it decided as `NonExisting`.
    pub non_existing: u64,
    /// Time spent in it, in nanoseconds.
    pub time_ns: u64,
    /// Buckets of the index and regions of containers that it read from disk.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
}

#[derive(Default, Debug)]
struct Counters {
    asked: AtomicU64,
    existing: AtomicU64,
    non_existing: AtomicU64,
    time_ns: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Counters {
    fn stats(&self, name: &'static str) -> FilterStats {
        FilterStats {
            name,
            asked: self.asked.load(Ordering::Relaxed),
            existing: self.existing.load(Ordering::Relaxed),
            non_existing: self.non_existing.load(Ordering::Relaxed),
            time_ns: self.time_ns.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Filters in the order in which they are asked.
pub struct FilterChain {
    filters: Vec<(Arc<dyn Filter>, Arc<Counters>)>,
    /// The query's own filters are asked before the filter with this number; `None`: never.
    own_at: Option<usize>,
    /// The last filter, if the chain compares stored bytes.
    compare: Option<(Arc<CompareFilter>, Arc<Counters>)>,
    /// Counters of filters that came with a query, by name, in order of first use.
    extras: Mutex<Vec<(&'static str, Arc<Counters>)>>,
}

impl FilterChain {
    /// Makes a chain of `filters`, cheapest first. A query's own filters are asked before filter number `own_at`, or
    /// never.
    pub(crate) fn new(filters: Vec<Arc<dyn Filter>>, own_at: Option<usize>) -> Self {
        let filters = filters.into_iter().map(|filter| (filter, Arc::default())).collect();
        Self { filters, own_at, compare: None, extras: Mutex::default() }
    }

    /// Returns the chain with a last filter that compares the finds of the others with the data. It asks no filter of a
    /// query, because it must compare the copy that the index names: reclaiming keeps only that one, and the file's old
    /// chunks may lie elsewhere.
    pub(super) fn comparing(self, compare: CompareFilter) -> Self {
        Self { compare: Some((Arc::new(compare), Arc::default())), own_at: None, ..self }
    }

    /// Makes a query for this chain, which uses the `data` only if it compares.
    /// Panics if the slices differ in length.
    pub fn query<'a>(&self, prints: &'a [Fingerprint], lengths: &'a [u32], data: &'a [&'a [u8]]) -> Query<'a> {
        match self.compare {
            Some(_) => Query::with_data(prints, lengths, data),
            None => Query::new(prints, lengths),
        }
    }

    /// The comparing filter, if there is one: then queries need [data](Query::with_data).
    pub fn compare(&self) -> Option<&CompareFilter> {
        self.compare.as_ref().map(|(compare, _)| &**compare)
    }

    /// Asks the filters, including this query's `own` at their place, until every entry is decided.
    pub fn run(&self, query: &mut Query<'_>, own: &[&dyn Filter]) -> Result<()> {
        if self.compare.is_some() && query.data.is_none() {
            return Err(StoreError::Usage("this chain compares, and the query has no data".to_owned()));
        }
        // A filter without access to bytes can still decide these.
        let unanswered = |query: &Query<'_>| query.unanswered().count();
        let mut open = unanswered(query);
        for (number, (filter, counters)) in self.filters.iter().enumerate() {
            let own = if self.own_at == Some(number) { own } else { &[] };
            for &filter in own {
                if open > 0 {
                    open = ask(filter, &self.extra_counters(filter.name()), query, open, unanswered)?;
                }
            }
            if open == 0 {
                break;
            }
            open = ask(&**filter, counters, query, open, unanswered)?;
        }
        if let Some((compare, counters)) = &self.compare {
            let left = |query: &Query<'_>| query.open_entries().count();
            let found = left(query);
            if found > 0 {
                ask(&**compare, counters, query, found, left)?;
            }
        }
        Ok(())
    }

    fn extra_counters(&self, name: &'static str) -> Arc<Counters> {
        let mut extras = self.extras.lock();
        if let Some((_, counters)) = extras.iter().find(|(known, _)| *known == name) {
            return counters.clone();
        }
        let counters = Arc::<Counters>::default();
        extras.push((name, counters.clone()));
        counters
    }

    /// The statistics of each filter: first those that came with queries, then the chain's.
    pub fn stats(&self) -> Vec<FilterStats> {
        let extras = self.extras.lock();
        let extras = extras.iter().map(|(name, counters)| counters.stats(name));
        let compare = self.compare.iter().map(|(compare, counters)| counters.stats(compare.name()));
        extras
            .chain(self.filters.iter().map(|(filter, counters)| counters.stats(filter.name())))
            .chain(compare)
            .collect()
    }
}

/// Asks one filter about `asked` entries; returns how many are `left` afterwards.
fn ask(
    filter: &dyn Filter,
    counters: &Counters,
    query: &mut Query<'_>,
    asked: usize,
    left: fn(&Query<'_>) -> usize,
) -> Result<usize> {
    let absent_before = absent(query);
    let reads_before = filter.reads_of_this_thread();
    let timed = profile::of(filter.component());
    let outcome = filter.check(query);
    let time_ns = timed.elapsed_ns();
    drop(timed);
    let reads = filter.reads_of_this_thread().since(reads_before);
    let non_existing = absent(query).saturating_sub(absent_before);
    let left_open = left(query);
    let existing = asked.saturating_sub(left_open + non_existing);
    counters.asked.fetch_add(asked as u64, Ordering::Relaxed);
    counters.existing.fetch_add(existing as u64, Ordering::Relaxed);
    counters.non_existing.fetch_add(non_existing as u64, Ordering::Relaxed);
    counters.time_ns.fetch_add(time_ns, Ordering::Relaxed);
    counters.reads.fetch_add(reads.reads, Ordering::Relaxed);
    counters.read_bytes.fetch_add(reads.bytes, Ordering::Relaxed);
    outcome.map(|()| left_open)
}

fn absent(query: &Query<'_>) -> usize {
    query.verdicts.iter().filter(|verdict| matches!(verdict, Verdict::NonExisting)).count()
}

impl std::fmt::Debug for FilterChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.filters.iter().map(|(filter, _)| filter.name())).finish()
    }
}
