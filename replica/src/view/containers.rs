//! Reads the containers of a state: from the cache, else from the store. A container's *position* is its place in the order of the pool's disk.
//!
//! The first read of a container whose neighbour before it was read lately, by any reader, fetches all of it, and the next ones meanwhile. The
//! first small read of another container fetches only its range; a second one soon behind it fetches all of it, if it goes on there, or the cache keeps it. Readers of one
//! container wait for one fetch, and share its error.
//!
//! Memory: the containers that came last, and one for each fetch under way, three times while it is decrypted. Each reader's thread fetches for
//! itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupfs_store::objects::ObjectError;
use dedupfs_sync::{Condvar, Mutex, thread};

use super::cache::Cache;
use super::tables::Tables;
use crate::error::{ReplicaError, Result};
use crate::place::Replica;
use crate::stored::Stored;

/// Containers of which is known that they were read. Readers of several files go on in as many.
const READS_REMEMBERED: usize = 64;
/// A read that begins so near behind the last one of its container goes on there.
const NEAR_BYTES: u64 = 256 << 10;
/// Time that the end waits for fetches under way.
const END_PATIENCE: Duration = Duration::from_secs(5);
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
    on_the_way: HashMap<u32, Arc<Fetch>>,
    /// Containers to be fetched ahead of readers.
    ahead: VecDeque<u32>,
    /// Containers that came last.
    recent: VecDeque<(u32, Arc<Vec<u8>>)>,
    /// Positions that were read last, the latest at the end, and where each read ended.
    read: VecDeque<(u32, u64)>,
    /// Threads that fetch ahead.
    running: usize,
    is_over: bool,
}

/// How a read follows the last ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Follows {
    /// Another one of the same container.
    Again,
    /// One that goes on in the same container.
    GoesOn,
    /// One of the container before it.
    Next,
    Nothing,
}

/// One fetch, whose outcome all that wait for it get.
#[derive(Debug, Default)]
struct Fetch(Mutex<Option<Result<Arc<Vec<u8>>>>>);

/// The containers of a state, by their place in the order of the disk.
#[derive(Debug)]
pub(crate) struct Containers {
    replica: Arc<Replica>,
    cache: Cache,
    tables: Tables,
    objects: Vec<Stored>,
    connections: usize,
    ways: Mutex<Ways>,
    changed: Condvar,
    pub(crate) fetched: Fetched,
    passing_error: Mutex<Option<ReplicaError>>,
}

impl Containers {
    /// `objects` are in the order of the disk. `connections` bounds the requests ahead of readers, and the containers that stay in memory: so many
    /// that came last.
    pub(crate) fn new(
        replica: Arc<Replica>,
        cache: Cache,
        tables: Tables,
        objects: Vec<Stored>,
        connections: usize,
    ) -> Self {
        Self {
            replica,
            cache,
            tables,
            objects,
            connections,
            ways: Mutex::default(),
            changed: Condvar::default(),
            fetched: Fetched::default(),
            passing_error: Mutex::default(),
        }
    }

    /// Reads a part of a container.
    ///
    /// # Errors
    /// The object is gone or damaged; those of the store.
    pub(crate) fn read(&self, position: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.try_read(position, offset, buffer).inspect_err(|error| {
            if !error.is_damage() {
                self.passing_error.lock().get_or_insert_with(|| error.clone());
            }
        })
    }

    /// Takes the first error of a read that was no damage: trying again may help.
    pub(crate) fn take_passing_error(&self) -> Option<ReplicaError> {
        self.passing_error.lock().take()
    }

    fn try_read(&self, position: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let stored = self.object(position)?;
        if self.tables.read(stored, offset, buffer) {
            return Ok(());
        }
        let follows = self.note_read(position, offset, offset + buffer.len() as u64);
        if follows == Follows::Next {
            self.fetch_next(position);
        }
        if let Some(bytes) = self.recent(position) {
            copy(&bytes, offset, buffer);
            return Ok(());
        }
        let name = cache_name(stored)?;
        if self.cache.read_checked(&name, offset, buffer) {
            return Ok(());
        }
        let is_small = (buffer.len() as u64) < u64::from(stored.used_bytes / WHOLE_FROM);
        let suffices = match follows {
            Follows::Nothing => true,
            // All of it would be fetched for each read.
            Follows::Again => !self.cache.keeps(),
            Follows::Next | Follows::GoesOn => false,
        };
        if is_small && suffices && !self.cache.has(&name) && !self.is_expected(position) {
            return self.read_range(stored, offset, buffer);
        }
        copy(&self.whole(position)?, offset, buffer);
        Ok(())
    }

    fn object(&self, position: u32) -> Result<&Stored> {
        let missing = || ReplicaError::damaged("a position of a container", self.objects.len(), position);
        self.objects.get(position as usize).ok_or_else(missing)
    }

    /// Notes a read up to `end`; returns how it follows the last ones.
    fn note_read(&self, position: u32, offset: u64, end: u64) -> Follows {
        let mut ways = self.ways.lock();
        let same = ways.read.iter().position(|(read, _)| *read == position);
        let is_next = position.checked_sub(1).is_some_and(|before| ways.read.iter().any(|(read, _)| *read == before));
        let last_end = same.and_then(|at| ways.read.remove(at)).map(|(_, end)| end);
        ways.read.push_back((position, end));
        if ways.read.len() > READS_REMEMBERED {
            ways.read.pop_front();
        }
        match last_end {
            Some(last_end) if offset.checked_sub(last_end).is_some_and(|gap| gap < NEAR_BYTES) => Follows::GoesOn,
            Some(_) => Follows::Again,
            None if is_next => Follows::Next,
            None => Follows::Nothing,
        }
    }

    /// Has the containers behind this one fetched.
    fn fetch_next(&self, position: u32) {
        let mut ways = self.ways.lock();
        let last = (self.objects.len() as u32).min(position.saturating_add(1 + self.connections as u32));
        for next in position + 1..last {
            if !ways.ahead.contains(&next) && !ways.on_the_way.contains_key(&next) {
                ways.ahead.push_back(next);
            }
        }
        // Readers have moved on from the oldest ones.
        while ways.ahead.len() > 2 * self.connections {
            ways.ahead.pop_front();
        }
        self.changed.notify_all();
    }

    /// Whether it is being fetched.
    fn is_expected(&self, position: u32) -> bool {
        self.ways.lock().on_the_way.contains_key(&position)
    }

    fn recent(&self, position: u32) -> Option<Arc<Vec<u8>>> {
        self.ways.lock().recent.iter().find(|(recent, _)| *recent == position).map(|(_, bytes)| Arc::clone(bytes))
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
    fn whole(&self, position: u32) -> Result<Arc<Vec<u8>>> {
        let mut ways = self.ways.lock();
        if let Some((_, bytes)) = ways.recent.iter().find(|(recent, _)| *recent == position) {
            return Ok(Arc::clone(bytes));
        }
        if let Some(fetch) = ways.on_the_way.get(&position).map(Arc::clone) {
            loop {
                if let Some(outcome) = &*fetch.0.lock() {
                    return outcome.clone();
                }
                self.changed.wait(&mut ways);
            }
        }
        let fetch = Arc::<Fetch>::default();
        ways.on_the_way.insert(position, Arc::clone(&fetch));
        drop(ways);
        let flight = Flight { containers: self, position, fetch };
        let outcome = self.fetch(position).map(Arc::new);
        *flight.fetch.0.lock() = Some(outcome.clone());
        drop(flight);
        outcome
    }

    /// Takes a whole container from the cache or the store.
    fn fetch(&self, position: u32) -> Result<Vec<u8>> {
        let stored = self.object(position)?;
        let (name, is_sound) = (cache_name(stored)?, |bytes: &[u8]| stored.has_content(&self.replica.name_key, bytes));
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
            let Some(position) = ways.ahead.pop_front() else {
                self.changed.wait(&mut ways);
                continue;
            };
            drop(ways);
            let is_there = self.object(position).and_then(cache_name).is_ok_and(|name: String| self.cache.has(&name));
            if !is_there {
                // The reader meets the error itself.
                let _fetched = self.whole(position);
            }
            ways = self.ways.lock();
        }
        ways.running -= 1;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.ways.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// A fetch under way. Its end is told to those that wait, also if it panicked.
struct Flight<'a> {
    containers: &'a Containers,
    position: u32,
    fetch: Arc<Fetch>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let outcome = self
            .fetch
            .0
            .lock()
            .get_or_insert_with(|| Err(ReplicaError::Usage("a container could not be fetched".to_owned())))
            .clone();
        let mut ways = self.containers.ways.lock();
        ways.on_the_way.remove(&self.position);
        if let Ok(bytes) = outcome {
            ways.recent.push_back((self.position, bytes));
            if ways.recent.len() > self.containers.connections {
                ways.recent.pop_front();
            }
        }
        self.containers.changed.notify_all();
    }
}

/// Threads that fetch ahead of readers. They end when this is dropped, or when their last fetch does.
#[derive(Debug)]
pub(crate) struct Ahead(Arc<Containers>);

impl Ahead {
    pub(crate) fn start(containers: &Arc<Containers>) -> Self {
        for number in 0..containers.connections {
            let own = Arc::clone(containers);
            containers.ways.lock().running += 1;
            let started = thread::Builder::new().name(format!("ahead-{number}")).spawn(move || own.fetch_ahead());
            if let Err(error) = started {
                tracing::warn!(%error, "less is fetched ahead: no thread could be started");
                containers.ways.lock().running -= 1;
                break;
            }
        }
        Self(Arc::clone(containers))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.end();
        let mut ways = self.0.ways.lock();
        // A store that does not answer must not keep a mount from ending.
        while ways.running > 0 && !self.0.changed.wait_for(&mut ways, END_PATIENCE).timed_out() {}
    }
}

/// The name of a container's file in the cache: that of the object without the kind, because a container's number is used once.
fn cache_name(stored: &Stored) -> Result<String> {
    let key = stored.key()?;
    Ok(key.as_str().split_once('/').map_or("", |(_, name)| name).to_owned())
}

/// Copies a part of a container. Behind its end are zeros, as in a slot.
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
            "nothing: is the store's disk there? Else the replica lost it, or went on and no longer needs it: a new mount reads the newest state",
        ),
        error => error.into(),
    }
}
