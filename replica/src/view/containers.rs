//! Reads the containers of a state: from the cache, else from the store.
//!
//! A reader that goes from container to container, in the order of the disk, gets whole ones, and the next ones are fetched meanwhile. The
//! first small read of another container fetches only its range; the second one fetches all of it. Readers of one container wait for
//! one fetch.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_store::objects::ObjectError;
use dedupfs_sync::{Condvar, Mutex, thread};

use super::cache::Cache;
use super::tables::Tables;
use crate::error::{ReplicaError, Result};
use crate::place::Replica;
use crate::stored::Stored;

/// Share of a container, as a divisor, from which on all of it is fetched.
const WHOLE_FROM: u32 = 4;

/// Requests and bytes that readers caused.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    pub(crate) whole: AtomicU64,
    pub(crate) ranges: AtomicU64,
}

#[derive(Debug, Default)]
struct Ways {
    /// Containers that are being fetched.
    on_the_way: HashSet<u32>,
    /// Containers to be fetched ahead of readers.
    ahead: VecDeque<u32>,
    /// Containers that came last.
    recent: VecDeque<(u32, Arc<Vec<u8>>)>,
    is_over: bool,
}

/// The containers of a state, by their place in the order of the disk.
#[derive(Debug)]
pub(crate) struct Containers {
    replica: Arc<Replica>,
    cache: Cache,
    tables: Tables,
    rows: Vec<Stored>,
    /// Whether each was read before.
    seen: Vec<AtomicBool>,
    connections: usize,
    ways: Mutex<Ways>,
    changed: Condvar,
    pub(crate) fetched: Fetched,
    last_error: Mutex<Option<ReplicaError>>,
}

impl Containers {
    /// `rows` are in the order of the disk. `connections` bounds the requests ahead of readers, and the containers in memory to twice as many.
    pub(crate) fn new(
        replica: Arc<Replica>,
        cache: Cache,
        tables: Tables,
        rows: Vec<Stored>,
        connections: usize,
    ) -> Self {
        let seen = rows.iter().map(|_| AtomicBool::new(false)).collect();
        Self {
            replica,
            cache,
            tables,
            rows,
            seen,
            connections,
            ways: Mutex::default(),
            changed: Condvar::default(),
            fetched: Fetched::default(),
            last_error: Mutex::default(),
        }
    }

    /// Reads a part of a container.
    ///
    /// # Errors
    /// The object is gone or damaged; those of the store.
    pub(crate) fn read(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.try_read(number, offset, buffer).inspect_err(|error| {
            let mut last = self.last_error.lock();
            // One that may pass counts: trying again helps.
            if !matches!(*last, Some(ReplicaError::Object(_))) {
                *last = Some(error.clone());
            }
        })
    }

    /// Takes the error of an earlier read.
    pub(crate) fn take_error(&self) -> Option<ReplicaError> {
        self.last_error.lock().take()
    }

    fn try_read(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(stored) = self.rows.get(number as usize) else { return Ok(()) };
        if self.tables.read(stored, offset, buffer) {
            return Ok(());
        }
        let is_seen = self.see(number);
        if let Some(bytes) = self.recent(number) {
            copy(&bytes, offset, buffer);
            return Ok(());
        }
        let name = name_of(stored)?;
        if self.cache.read_checked(&name, offset, buffer) {
            return Ok(());
        }
        let is_small = (buffer.len() as u64) < u64::from(stored.used_bytes / WHOLE_FROM);
        if !is_seen && is_small && !self.is_continued(number) && !self.cache.has(&name) && !self.is_expected(number) {
            return self.read_range(stored, offset, buffer);
        }
        copy(&*self.whole(number)?, offset, buffer);
        Ok(())
    }

    /// Notes a read. The first one of a container behind one that was read has the next ones fetched.
    fn see(&self, number: u32) -> bool {
        let is_seen = self.seen.get(number as usize).is_none_or(|seen| seen.swap(true, Ordering::Relaxed));
        if !is_seen && self.is_continued(number) {
            let mut ways = self.ways.lock();
            let last = (self.rows.len() as u32).min(number.saturating_add(1 + self.connections as u32));
            for next in number + 1..last {
                if !ways.ahead.contains(&next) && !ways.on_the_way.contains(&next) {
                    ways.ahead.push_back(next);
                }
            }
            // Readers have moved on from the oldest ones.
            while ways.ahead.len() > 2 * self.connections {
                ways.ahead.pop_front();
            }
            self.changed.notify_all();
        }
        is_seen
    }

    /// Whether the container before it was read.
    fn is_continued(&self, number: u32) -> bool {
        number
            .checked_sub(1)
            .and_then(|before| self.seen.get(before as usize))
            .is_some_and(|seen| seen.load(Ordering::Relaxed))
    }

    /// Whether it is being fetched.
    fn is_expected(&self, number: u32) -> bool {
        self.ways.lock().on_the_way.contains(&number)
    }

    fn recent(&self, number: u32) -> Option<Arc<Vec<u8>>> {
        self.ways.lock().recent.iter().find(|(recent, _)| *recent == number).map(|(_, bytes)| Arc::clone(bytes))
    }

    fn read_range(&self, stored: &Stored, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.fetched.ranges.fetch_add(1, Ordering::Relaxed);
        let (key, mut bytes) = (stored.key()?, Vec::new());
        self.replica.objects.read(&key, Some(offset..offset + buffer.len() as u64), &mut bytes).map_err(gone)?;
        // Without encryption, the checksums of the container tell more.
        if bytes.len() != buffer.len() {
            return Err(ReplicaError::damaged(format!("object {key}"), "a whole container", "a part of it"));
        }
        buffer.copy_from_slice(&bytes);
        Ok(())
    }

    /// Returns all bytes of a container. Waits if another thread fetches it.
    fn whole(&self, number: u32) -> Result<Arc<Vec<u8>>> {
        loop {
            let mut ways = self.ways.lock();
            if let Some((_, bytes)) = ways.recent.iter().find(|(recent, _)| *recent == number) {
                return Ok(Arc::clone(bytes));
            }
            if ways.on_the_way.insert(number) {
                break;
            }
            self.changed.wait(&mut ways);
        }
        let fetched = self.fetch(number).map(Arc::new);
        let mut ways = self.ways.lock();
        ways.on_the_way.remove(&number);
        if let Ok(bytes) = &fetched {
            ways.recent.push_back((number, Arc::clone(bytes)));
            if ways.recent.len() > self.connections {
                ways.recent.pop_front();
            }
        }
        self.changed.notify_all();
        fetched
    }

    /// Takes a whole container from the cache or the store.
    fn fetch(&self, number: u32) -> Result<Vec<u8>> {
        let Some(stored) = self.rows.get(number as usize) else { return Ok(Vec::new()) };
        let (name, is_sound) = (name_of(stored)?, |bytes: &[u8]| stored.has_content(&self.replica.name_key, bytes));
        if let Some(bytes) = self.cache.load(&name, &is_sound) {
            return Ok(bytes);
        }
        self.fetched.whole.fetch_add(1, Ordering::Relaxed);
        let (key, mut bytes) = (stored.key()?, Vec::new());
        self.replica.objects.read(&key, None, &mut bytes).map_err(gone)?;
        if !is_sound(&bytes) {
            return Err(ReplicaError::damaged(
                format!("object {key}"),
                "the content that it is named after",
                "something else",
            ));
        }
        self.cache.keep(&name, &bytes);
        Ok(bytes)
    }

    /// Fetches ahead of readers until [`end`](Self::end).
    fn fetch_ahead(&self) {
        let mut ways = self.ways.lock();
        while !ways.is_over {
            let Some(number) = ways.ahead.pop_front() else {
                self.changed.wait(&mut ways);
                continue;
            };
            drop(ways);
            let is_there = self
                .rows
                .get(number as usize)
                .and_then(|stored| name_of(stored).ok())
                .is_some_and(|name| self.cache.has(&name));
            if !is_there {
                // The reader meets the error itself.
                let _fetched = self.whole(number);
            }
            ways = self.ways.lock();
        }
    }

    fn end(&self) {
        self.ways.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// Threads that fetch ahead of readers. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Ahead {
    containers: Arc<Containers>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Ahead {
    pub(crate) fn start(containers: &Arc<Containers>) -> Self {
        let start = |number| {
            let containers = Arc::clone(containers);
            thread::Builder::new().name(format!("ahead-{number}")).spawn(move || containers.fetch_ahead())
        };
        let threads = (0..containers.connections).map_while(|number| {
            start(number)
                .inspect_err(|error| tracing::warn!(%error, "less is fetched ahead: no thread could be started"))
                .ok()
        });
        Self { threads: threads.collect(), containers: Arc::clone(containers) }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.containers.end();
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// The name of a container's file in the cache: that of the object without the kind, which its number tells.
fn name_of(stored: &Stored) -> Result<String> {
    let key = stored.key()?;
    Ok(key.as_str().split_once('/').map_or("", |(_, name)| name).to_owned())
}

fn copy(bytes: &[u8], offset: u64, buffer: &mut [u8]) {
    let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
    let len = rest.len().min(buffer.len());
    let (there, behind) = buffer.split_at_mut(len);
    there.copy_from_slice(rest.get(..len).unwrap_or_default());
    behind.fill(0);
}

/// An object that a state names is gone: the replica went on.
fn gone(error: ObjectError) -> ReplicaError {
    match error {
        ObjectError::Absent { key } => ReplicaError::damaged(
            format!("object {key}"),
            "the content of a container",
            "nothing: the replica went on and no longer needs it, or lost it. Unmount and mount again to read the newest state",
        ),
        error => error.into(),
    }
}
