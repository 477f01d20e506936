//! The set-associative cache of verified pages (MAD2 section III.C): buckets and pages of counts.
//!
//! File and page number select a *set*; within it the least recently used page is evicted first. A backup uses the
//! buckets of a tanker together, and they fall into neighbouring sets, so no stream can evict everything. Each set has
//! an equal share of the bytes. So the total is bounded by construction, and no set waits for another.
//!
//! Pages are immutable: counts change in patches, and a checkpoint writes all patches of a tanker back together, as
//! MAD2's batch write-back does. Keys carry a number that is unique to each opened file within this process, so pages
//! of replaced files are never found again and age out.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dedupfs_store::Result;
use dedupfs_sync::Mutex;

/// Bytes of a page's key and of its place in its set.
const PAGE_OVERHEAD_BYTES: u64 = 96;

/// Smallest set in bytes: sixteen buckets of the default shape. With fewer ways, buckets would evict each other.
const SET_BYTES: u64 = 16 * (48 << 10);

/// Most sets: more would not spread pages better.
const SETS_MAX: u64 = 1 << 16;

/// Numbers of disk reads.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reads {
    /// Number of reads.
    pub reads: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Reads {
    /// The reads after `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self { reads: self.reads - before.reads, bytes: self.bytes - before.bytes }
    }
}

dedupfs_sync::thread_local! {
    static READS: Cell<Reads> = const { Cell::new(Reads { reads: 0, bytes: 0 }) };
}

/// The reads of this thread so far, through any cache. Lookups run on the calling thread, so a filter's share is the
/// difference before and after.
pub(crate) fn reads_of_this_thread() -> Reads {
    READS.get()
}

/// A page's name within this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PageKey {
    pub(crate) file: u32,
    pub(crate) page: u32,
}

/// Pages of one set, most recently used last. A set has a dozen to some hundred pages: a scan is as fast as a table.
#[derive(Default, Debug)]
struct Set {
    pages: Vec<(PageKey, Arc<[u8]>)>,
    bytes: u64,
}

fn weight(page: &[u8]) -> u64 {
    page.len() as u64 + PAGE_OVERHEAD_BYTES
}

impl Set {
    fn get(&mut self, key: PageKey) -> Option<Arc<[u8]>> {
        let place = self.pages.iter().rposition(|(held, _)| *held == key)?;
        self.pages[place..].rotate_left(1);
        self.pages.last().map(|(_, page)| page.clone())
    }

    fn insert(&mut self, key: PageKey, page: Arc<[u8]>, limit_bytes: u64) {
        // Another thread may have read it, too.
        if weight(&page) > limit_bytes || self.get(key).is_some() {
            return;
        }
        self.bytes += weight(&page);
        self.pages.push((key, page));
        let mut excess = 0;
        while self.bytes > limit_bytes {
            self.bytes -= weight(&self.pages[excess].1);
            excess += 1;
        }
        self.pages.drain(..excess);
    }
}

#[derive(Debug)]
pub(crate) struct PageCache {
    sets: Vec<Mutex<Set>>,
    set_limit_bytes: u64,
    next_file: AtomicU32,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl PageCache {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let sets = (limit_bytes / SET_BYTES).clamp(1, SETS_MAX);
        Self {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            set_limit_bytes: limit_bytes / sets,
            next_file: AtomicU32::new(0),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Returns a number for a newly opened file.
    pub(crate) fn file_number(&self) -> u32 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// The set of a page: neighbours of a file in neighbouring sets, files apart from each other.
    fn set(&self, key: PageKey) -> &Mutex<Set> {
        /// The golden ratio's fraction of 2^32.
        const APART: u32 = 0x9e37_79b9;
        let place = u64::from(key.page) + u64::from(key.file.wrapping_mul(APART));
        &self.sets[(place % self.sets.len() as u64) as usize]
    }

    /// Returns the page, from the cache or through `load`. No lock is held during `load`.
    pub(crate) fn page(&self, key: PageKey, load: impl FnOnce() -> Result<Arc<[u8]>>) -> Result<Arc<[u8]>> {
        let set = self.set(key);
        if let Some(page) = set.lock().get(key) {
            return Ok(page);
        }
        let page = load()?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(page.len() as u64, Ordering::Relaxed);
        let Reads { reads, bytes } = READS.get();
        READS.set(Reads { reads: reads + 1, bytes: bytes + page.len() as u64 });
        set.lock().insert(key, page.clone(), self.set_limit_bytes);
        Ok(page)
    }

    /// Pages read from disk so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sets.iter().map(|set| set.lock().bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(cache: &PageCache, file: u32, page: u32, len_bytes: usize) -> bool {
        let mut loaded = false;
        let bytes = cache
            .page(PageKey { file, page }, || {
                loaded = true;
                Ok(vec![page as u8; len_bytes].into())
            })
            .unwrap();
        assert_eq!(*bytes, *vec![page as u8; len_bytes]);
        !loaded
    }

    #[test]
    fn the_page_used_longest_ago_goes_first() {
        // One set of three pages.
        let cache = PageCache::new(3 * (1000 + PAGE_OVERHEAD_BYTES));
        assert!((0..3).all(|page| !ask(&cache, 0, page, 1000)));
        assert!(ask(&cache, 0, 0, 1000), "all three are there, and 0 is the newest now");
        assert!(!ask(&cache, 0, 3, 1000));
        assert!(ask(&cache, 0, 0, 1000) && ask(&cache, 0, 2, 1000) && ask(&cache, 0, 3, 1000));
        assert!(!ask(&cache, 0, 1, 1000));
        assert!(!ask(&cache, 1, 0, 1000), "another file's page of that number");
        assert_eq!((cache.reads(), cache.read_bytes()), (6, 6000));
    }

    #[test]
    fn every_limit_holds_whatever_comes() {
        for limit_bytes in [0, 50, 5_000, 100_000, 3_000_000] {
            let cache = PageCache::new(limit_bytes);
            for round in 0..3000_u32 {
                let page = round.wrapping_mul(2_654_435_761) % 500;
                ask(&cache, round % 7, page, page as usize * 97);
                assert!(cache.bytes() <= limit_bytes);
            }
            assert!(limit_bytes < 100_000 || cache.bytes() > limit_bytes / 2);
        }
    }

    #[test]
    fn a_tanker_that_fits_is_kept_whole() {
        let cache = PageCache::new(64 << 20);
        for round in 0..3 {
            let hits = (0..1024).filter(|page| ask(&cache, 5, *page, 45 << 10)).count();
            assert_eq!(hits, if round == 0 { 0 } else { 1024 });
        }
    }
}
