//! Counts the requests to a store: requests cost money, and each takes the way to the store and back.

use std::ops::Range;
use std::sync::Arc;

use dedupfs_sync::Mutex;

use super::{Class, Created, Head, Key, Objects, Removed, Result};

/// Requests and bytes so far, those of failed operations included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "named after the operations of Objects")]
pub struct Requests {
    pub creates: u64,
    pub created_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub heads: u64,
    pub removes: u64,
    /// One for each listing, however many requests the store needs for it.
    pub lists: u64,
}

impl Requests {
    /// All requests.
    pub const fn count(&self) -> u64 {
        self.creates + self.reads + self.heads + self.removes + self.lists
    }

    /// Returns what came after an earlier count.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            creates: self.creates - earlier.creates,
            created_bytes: self.created_bytes - earlier.created_bytes,
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            heads: self.heads - earlier.heads,
            removes: self.removes - earlier.removes,
            lists: self.lists - earlier.lists,
        }
    }
}

/// A store whose requests are counted; clones share the counts.
#[derive(Clone, Debug)]
pub struct CountingObjects {
    inner: Arc<dyn Objects>,
    requests: Arc<Mutex<Requests>>,
}

impl CountingObjects {
    /// Counts the requests of a store from now on.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        Self { inner, requests: Arc::default() }
    }

    /// The counts so far.
    pub fn requests(&self) -> Requests {
        *self.requests.lock()
    }
}

impl Objects for CountingObjects {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let created_bytes: u64 = body.iter().map(|part| part.len() as u64).sum();
        {
            let mut requests = self.requests.lock();
            requests.creates += 1;
            requests.created_bytes += created_bytes;
        }
        self.inner.create(key, body, class)
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        let before = into.len();
        let outcome = self.inner.read(key, range, into);
        let mut requests = self.requests.lock();
        requests.reads += 1;
        requests.read_bytes += into.len().saturating_sub(before) as u64;
        outcome
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        self.requests.lock().heads += 1;
        self.inner.head(key)
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        self.requests.lock().removes += 1;
        self.inner.remove(key)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        self.requests.lock().lists += 1;
        self.inner.list(prefix, after, visit)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
