//! The cache of verified pages: buckets and pages of counts, bounded by bytes.
//!
//! Keys carry a number that is unique to each opened file within this process, so that pages of replaced files are
//! never found again and age out. The replacement policy resists scans: a sweep by the applier does not evict what
//! backups use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dedupfs_store::Result;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Room for a page's key and place in the cache's tables.
const PAGE_OVERHEAD_BYTES: u64 = 96;

/// What a page usually weighs, to size the cache's tables: between a bucket and a page of counts.
const PAGE_BYTES_TYPICAL: u64 = 16 << 10;

/// A page's name within this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PageKey {
    pub(crate) file: u32,
    pub(crate) page: u32,
}

#[derive(Clone, Debug)]
struct PageWeighter;

impl Weighter<PageKey, Arc<[u8]>> for PageWeighter {
    fn weight(&self, _: &PageKey, page: &Arc<[u8]>) -> u64 {
        page.len() as u64 + PAGE_OVERHEAD_BYTES
    }
}

/// Cache of pages.
#[derive(Debug)]
pub(crate) struct PageCache {
    pages: Cache<PageKey, Arc<[u8]>, PageWeighter>,
    next_file: AtomicU32,
    reads: AtomicU64,
    hits: AtomicU64,
}

impl PageCache {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let estimated = usize::try_from(limit_bytes / PAGE_BYTES_TYPICAL).unwrap_or(usize::MAX).max(16);
        Self {
            pages: Cache::with_weighter(estimated, limit_bytes, PageWeighter),
            next_file: AtomicU32::new(0),
            reads: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// A number for a newly opened file.
    pub(crate) fn file_number(&self) -> u32 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// The page, from the cache or through `load`.
    pub(crate) fn page(&self, key: PageKey, load: impl FnOnce() -> Result<Arc<[u8]>>) -> Result<Arc<[u8]>> {
        if let Some(page) = self.pages.get(&key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(page);
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let page = load()?;
        self.pages.insert(key, page.clone());
        Ok(page)
    }

    /// Pages read from disk so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Pages found in the cache so far.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.weight()
    }
}
