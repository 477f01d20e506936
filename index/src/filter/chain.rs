//! Running filters in order, and what each of them achieved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dedupfs_store::Result;
use parking_lot::Mutex;

use super::{Filter, Query, Verdict};
use crate::sealed::reads_of_this_thread;

/// What one filter did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterStats {
    /// The filter's name.
    pub name: &'static str,
    /// Entries that were open when it was asked.
    pub asked: u64,
    /// Of these, entries to which it said `Existing`.
    pub existing: u64,
    /// Of these, entries to which it said `NonExisting`.
    pub non_existing: u64,
    /// Time spent in it, in nanoseconds.
    pub time_ns: u64,
    /// Buckets that it read from disk.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
}

impl FilterStats {
    /// Entries that it decided.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.existing + self.non_existing
    }
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
    /// Before which of them the query's own filters are asked; `None`: never.
    own_at: Option<usize>,
    /// Counters of filters that came with a query, by name, in order of first use.
    extras: Mutex<Vec<(&'static str, Arc<Counters>)>>,
}

impl FilterChain {
    /// A chain of `filters`, cheapest first, behind those of each query's own.
    #[must_use]
    pub fn new(filters: Vec<Arc<dyn Filter>>) -> Self {
        Self::with_own_at(filters, Some(0))
    }

    /// As [`new`](Self::new), but a query's own filters are asked before filter number `own_at`, or never.
    #[must_use]
    pub fn with_own_at(filters: Vec<Arc<dyn Filter>>, own_at: Option<usize>) -> Self {
        let filters = filters.into_iter().map(|filter| (filter, Arc::default())).collect();
        Self { filters, own_at, extras: Mutex::default() }
    }

    /// Asks the filters, among them at their place those of this query's `own`, until every entry is decided.
    pub fn run(&self, query: &mut Query<'_>, own: &[&dyn Filter]) -> Result<()> {
        let mut open = query.open_entries().count();
        for (number, (filter, counters)) in self.filters.iter().enumerate() {
            let own = if self.own_at == Some(number) { own } else { &[] };
            for &filter in own {
                if open > 0 {
                    open = ask(filter, &self.extra_counters(filter.name()), query, open)?;
                }
            }
            if open == 0 {
                break;
            }
            open = ask(&**filter, counters, query, open)?;
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

    /// What each filter did so far: those that came with queries, then the chain's.
    #[must_use]
    pub fn stats(&self) -> Vec<FilterStats> {
        let extras = self.extras.lock();
        let extras = extras.iter().map(|(name, counters)| counters.stats(name));
        extras.chain(self.filters.iter().map(|(filter, counters)| counters.stats(filter.name()))).collect()
    }
}

/// Asks one filter; the answer is how many entries are open afterwards.
fn ask(filter: &dyn Filter, counters: &Counters, query: &mut Query<'_>, open: usize) -> Result<usize> {
    let existing_before = existing(query);
    let reads_before = reads_of_this_thread();
    let started = Instant::now();
    let outcome = filter.check(query);
    let elapsed = started.elapsed();
    let reads = reads_of_this_thread().since(reads_before);
    let still_open = query.open_entries().count();
    let found = existing(query).saturating_sub(existing_before);
    counters.asked.fetch_add(open as u64, Ordering::Relaxed);
    counters.existing.fetch_add(found as u64, Ordering::Relaxed);
    counters.non_existing.fetch_add(open.saturating_sub(still_open + found) as u64, Ordering::Relaxed);
    counters.time_ns.fetch_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    counters.reads.fetch_add(reads.reads, Ordering::Relaxed);
    counters.read_bytes.fetch_add(reads.bytes, Ordering::Relaxed);
    outcome.map(|()| still_open)
}

fn existing(query: &Query<'_>) -> usize {
    query.verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Existing(_))).count()
}

impl std::fmt::Debug for FilterChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.filters.iter().map(|(filter, _)| filter.name())).finish()
    }
}
