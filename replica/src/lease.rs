//! Leases: a reader of a state says which commit it reads, and until when. Reclaiming keeps the content of that commit so long.
//!
//! A lease is an object whose name tells everything. It is made for a day, and again each hour. A reader whose credentials may not create
//! objects reads without one, and says so: then content that the replica gives up behind its grace period gives errors. If the store fails, the
//! lease is tried again.

use std::sync::Arc;
use std::time::Duration;

use dedupfs_store::objects::{Class, Head, Key, ObjectError};
use dedupfs_sync::{Condvar, Mutex, clock, thread};

use crate::commit::NUMBER_MAX;
use crate::error::{ReplicaError, Result};
use crate::place::{Replica, random};

/// The beginning of the names of leases.
const LEASES: &str = "reader/";
const LASTS: Duration = Duration::from_secs(24 * 3600);
const MADE_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// How often that is looked at.
const LOOKED_AFTER: Duration = Duration::from_secs(60);
/// Time that the end waits for a lease to be given back. It expires anyway.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Expired leases are removed so long after.
const REMOVED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A lease as its name tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    key: Key,
    commit: u64,
    /// In seconds since 1970: by the store's clock, else by the reader's.
    until_secs: u64,
}

impl Named {
    /// A reader's clock may be wrong, and its word is not needed if the store tells when it wrote the lease.
    fn parse(key: Key, head: Head) -> Option<Self> {
        let mut parts = key.as_str().strip_prefix(LEASES)?.splitn(3, '-');
        let (_reader, commit, until) = (parts.next()?, parts.next()?, parts.next()?);
        let number = |hex: &str| (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten();
        let (commit, until_secs) = (number(commit).filter(|commit| *commit < NUMBER_MAX)?, number(until)?);
        let until_secs = head.written_secs.map_or(until_secs, |secs| secs.saturating_add(LASTS.as_secs()));
        Some(Self { key, commit, until_secs })
    }
}

/// The leases of a replica that have not expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Leases {
    pub(crate) count: u64,
    /// The oldest commit that a reader reads.
    pub(crate) oldest: Option<u64>,
}

/// Returns the leases of commits up to `newest`. Removes those that expired long ago, unless it is a `dry_run`.
///
/// # Errors
/// Those of the store.
pub(crate) fn leases(replica: &Replica, newest: u64, dry_run: bool) -> Result<Leases> {
    let mut all = Vec::new();
    replica.objects.list(LEASES, None, &mut |key, head| {
        all.extend(Named::parse(key, head));
        Ok(())
    })?;
    let now_secs = clock::since_epoch().as_secs();
    let mut leases = Leases::default();
    for lease in all {
        if lease.until_secs >= now_secs {
            if (1..=newest).contains(&lease.commit) {
                leases.count += 1;
                leases.oldest = Some(leases.oldest.map_or(lease.commit, |oldest| oldest.min(lease.commit)));
            }
        } else if lease.until_secs.saturating_add(REMOVED_AFTER.as_secs()) < now_secs && !dry_run {
            replica.objects.remove(&lease.key)?;
        }
    }
    Ok(leases)
}

#[derive(Debug)]
struct Holding {
    replica: Replica,
    reader: String,
    commit: u64,
    ending: Mutex<Ending>,
    ended: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    No,
    Asked,
    Done,
}

/// A lease that is made again until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Holding>);

impl Lease {
    /// Takes a lease of a commit, if the store lets this reader.
    ///
    /// # Errors
    /// The system gives no random bytes, or no thread.
    pub(crate) fn take(replica: &Replica, commit: u64) -> Result<Self> {
        let reader = format!("{:032x}", u128::from_be_bytes(random()?));
        let holding = Holding {
            replica: replica.clone(),
            reader,
            commit,
            ending: Mutex::new(Ending::No),
            ended: Condvar::default(),
        };
        let holding = Arc::new(holding);
        let first = holding.make().inspect_err(|error| {
            tracing::warn!(%error, "the replica is read without a lease: content that it removes meanwhile gives errors");
        });
        if matches!(first, Err(ReplicaError::Object(ObjectError::Refused { .. }))) {
            *holding.ending.lock() = Ending::Done;
            return Ok(Self(holding));
        }
        let held = Arc::clone(&holding);
        let started = thread::Builder::new().name("lease".to_owned()).spawn(move || held.keep(first.ok()));
        started.map_err(|error| ReplicaError::Usage(format!("cannot start a thread: {error}")))?;
        Ok(Self(holding))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.0.ending.lock();
        if *state == Ending::No {
            *state = Ending::Asked;
            self.0.ended.notify_all();
        }
        while *state != Ending::Done && !self.0.ended.wait_for(&mut state, END_PATIENCE).timed_out() {}
    }
}

impl Holding {
    fn make(&self) -> Result<Key> {
        let until_secs = (clock::since_epoch() + LASTS).as_secs();
        let key = Key::new(format!("{LEASES}{}-{:016x}-{until_secs:016x}", self.reader, self.commit))?;
        self.replica.objects.create(&key, &[b"lease"], Class::Metadata)?;
        Ok(key)
    }

    /// Makes the lease again until it is given back. A machine may sleep meanwhile, so the time of day counts.
    fn keep(&self, mut key: Option<Key>) {
        let mut made = clock::since_epoch();
        loop {
            let mut state = self.ending.lock();
            if *state == Ending::No {
                self.ended.wait_for(&mut state, LOOKED_AFTER);
            }
            if *state != Ending::No {
                break;
            }
            drop(state);
            let now = clock::since_epoch();
            if key.is_some() && now >= made && now - made < MADE_AGAIN_AFTER {
                continue;
            }
            if key.is_some() && now >= made + LASTS {
                tracing::warn!(
                    "the lease of the replica had expired: if content gives errors from now on, unmount and mount again"
                );
            }
            match self.make() {
                Ok(next) => {
                    made = now;
                    if let Some(former) = key.replace(next).filter(|former| Some(former) != key.as_ref()) {
                        self.remove(&former);
                    }
                }
                // Many are tried before it expires.
                Err(error) => tracing::warn!(%error, "the lease of the replica was not made again"),
            }
        }
        if let Some(key) = &key {
            self.remove(key);
        }
        *self.ending.lock() = Ending::Done;
        self.ended.notify_all();
    }

    fn remove(&self, key: &Key) {
        if let Err(error) = self.replica.objects.remove(key) {
            tracing::debug!(%error, "a lease stays until it expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::PoolId;
    use dedupfs_store::objects::{MemoryObjects, Objects};

    use super::*;

    fn replica() -> (MemoryObjects, Replica) {
        let store = MemoryObjects::new();
        let objects: Arc<dyn Objects> = Arc::new(store.clone());
        (store, Replica::init(&objects, &PoolId([1; 16]), None).expect("makes"))
    }

    fn put(replica: &Replica, name: &str) {
        let key = Key::new(format!("{LEASES}{name}")).expect("is a key");
        replica.objects.create(&key, &[b"lease"], Class::Metadata).expect("creates");
    }

    /// The reader's word does not count, nor commits that are none: one object held reclaiming up for ever.
    #[test]
    fn the_oldest_live_lease_counts_and_long_expired_ones_go() {
        let (store, replica) = replica();
        let now_secs = clock::since_epoch().as_secs();
        let of = |commit: u64, until: u64| format!("{commit:032x}-{commit:016x}-{until:016x}");
        store.set_now(now_secs - 3 * LASTS.as_secs());
        put(&replica, &of(3, u64::MAX));
        store.set_now(now_secs - LASTS.as_secs() - 10);
        put(&replica, &of(5, now_secs + 1000));
        store.set_now(now_secs);
        assert_eq!(leases(&replica, 10, false).expect("lists"), Leases::default());
        for (commit, until) in [(9, now_secs + 1000), (7, 0), (0, 5), (11, u64::MAX)] {
            put(&replica, &of(commit, until));
        }
        // A time of the store that cannot be is as good as none.
        store.set_now(u64::MAX);
        put(&replica, &of(8, 0));
        assert_eq!(leases(&replica, 7, false).expect("lists").oldest, Some(7));
        store.remove_by_hand(&Key::new(format!("{LEASES}{}", of(8, 0))).expect("is a key"));
        store.set_now(now_secs);
        for odd in ["1-2", "1-x-y", "1-0000000000000001", "1-ffffffffffffffff-ffffffffffffffff"] {
            put(&replica, odd);
        }
        assert_eq!(leases(&replica, 10, false).expect("lists"), Leases { count: 2, oldest: Some(7) });
        let left = store.keys().iter().filter(|key| key.as_str().starts_with(LEASES)).count();
        assert_eq!(left, 9, "the first one is gone");
    }

    #[test]
    fn a_lease_is_given_back() {
        let (store, replica) = replica();
        store.set_now(clock::since_epoch().as_secs());
        let lease = Lease::take(&replica, 4).expect("takes");
        assert_eq!(leases(&replica, 4, false).expect("lists").oldest, Some(4));
        drop(lease);
        assert!(!store.keys().iter().any(|key| key.as_str().starts_with(LEASES)));
    }
}
