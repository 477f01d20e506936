//! Leases: a reader of a state says which commit it reads, and until when. Reclaiming keeps the content of that commit so long.
//!
//! A lease is an object whose name tells everything. It is made for a day, and again each hour. A reader whose credentials may not create
//! objects reads without one, and says so: then content that the replica gives up behind its grace period gives errors.

use std::sync::Arc;
use std::time::Duration;

use dedupfs_store::objects::{Class, Key};
use dedupfs_sync::{Condvar, Mutex, clock, entropy, thread};

use crate::commit::NUMBER_MAX;
use crate::error::{ReplicaError, Result};
use crate::place::Replica;

/// The beginning of the names of leases.
const LEASES: &str = "reader/";
const LASTS: Duration = Duration::from_secs(24 * 3600);
const MADE_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Expired leases are removed so long after.
const REMOVED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A lease as its name tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    key: Key,
    commit: u64,
    /// In seconds since 1970, by the reader's clock.
    until_secs: u64,
}

impl Named {
    fn parse(key: Key) -> Option<Self> {
        let (_, name) = key.as_str().strip_prefix(LEASES)?.split_once('/')?;
        let (commit, until) = name.split_once('-')?;
        let number = |hex: &str| (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten();
        let (commit, until_secs) = (number(commit).filter(|commit| *commit < NUMBER_MAX)?, number(until)?);
        Some(Self { key, commit, until_secs })
    }
}

/// Returns the oldest commit that a reader reads. Removes leases that expired long ago, unless it is a `dry_run`.
///
/// # Errors
/// Those of the store.
pub(crate) fn oldest_read(replica: &Replica, dry_run: bool) -> Result<Option<u64>> {
    let mut leases = Vec::new();
    replica.objects.list(LEASES, None, &mut |key, _| {
        leases.extend(Named::parse(key));
        Ok(())
    })?;
    let now_secs = clock::since_epoch().as_secs();
    let (live, expired): (Vec<_>, Vec<_>) = leases.into_iter().partition(|lease| lease.until_secs >= now_secs);
    for lease in
        expired.iter().filter(|lease| lease.until_secs.saturating_add(REMOVED_AFTER.as_secs()) < now_secs && !dry_run)
    {
        replica.objects.remove(&lease.key)?;
    }
    Ok(live.into_iter().map(|lease| lease.commit).min())
}

#[derive(Debug)]
struct Holding {
    replica: Arc<Replica>,
    reader: String,
    commit: u64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// A lease that is made again until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    holding: Arc<Holding>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Lease {
    /// Takes a lease of a commit, if the store lets this reader.
    ///
    /// # Errors
    /// The system gives no random bytes; the store cannot be reached.
    pub(crate) fn take(replica: &Arc<Replica>, commit: u64) -> Result<Self> {
        let mut reader = [0; 16];
        entropy::fill(&mut reader)
            .map_err(|error| ReplicaError::Usage(format!("the system gives no random bytes: {error}")))?;
        let reader = format!("{:032x}", u128::from_be_bytes(reader));
        let holding = Holding {
            replica: Arc::clone(replica),
            reader,
            commit,
            is_over: Mutex::new(false),
            ended: Condvar::default(),
        };
        let holding = Arc::new(holding);
        let first = match holding.make() {
            Ok(key) => Some(key),
            Err(error) => {
                tracing::warn!(%error, "the replica is read without a lease: content that it removes meanwhile gives errors");
                None
            }
        };
        let held = Arc::clone(&holding);
        let thread = first.map(|first| thread::Builder::new().name("lease".to_owned()).spawn(move || held.keep(first)));
        let thread =
            thread.transpose().map_err(|error| ReplicaError::Usage(format!("cannot start a thread: {error}")))?;
        Ok(Self { holding, thread })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.holding.is_over.lock() = true;
        self.holding.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Holding {
    fn make(&self) -> Result<Key> {
        let until_secs = (clock::since_epoch() + LASTS).as_secs();
        let key = Key::new(format!("{LEASES}{}/{:016x}-{until_secs:016x}", self.reader, self.commit))?;
        self.replica.objects.create(&key, &[b"lease"], Class::Metadata)?;
        Ok(key)
    }

    fn keep(&self, mut key: Key) {
        let mut is_over = self.is_over.lock();
        while !*is_over {
            if !self.ended.wait_for(&mut is_over, MADE_AGAIN_AFTER).timed_out() {
                continue;
            }
            match self.make() {
                Ok(next) => {
                    let former = std::mem::replace(&mut key, next);
                    self.remove(&former);
                }
                // Many are tried before it expires.
                Err(error) => tracing::warn!(%error, "the lease of the replica was not made again"),
            }
        }
        drop(is_over);
        self.remove(&key);
    }

    fn remove(&self, key: &Key) {
        if let Err(error) = self.replica.objects.remove(key) {
            tracing::debug!(%error, "a lease stays until it expires");
        }
    }
}
