//! Views: the newest state of a replica, read on any machine.
//!
//! A view is a pool whose data root lies in the replica. Its names, recipes and indexes are on a disk of this machine, made by a recovery. The content
//! of files is fetched when it is read.
//!
//! ```text
//! newest commit -> its export and tables of contents on the disk -> recovery -> a meta root
//! a read of the pool -> ViewDevice -> tables | cache | store
//! ```
//!
//! On the reader's disk:
//!
//! | name | content |
//! |---|---|
//! | `state` | the name of the state that is whole |
//! | `states/NAME/pool` | the meta root of its pool |
//! | `states/NAME/data` | superblock and export of its data root |
//! | `states/NAME/slots` | containers with their objects and slots |
//! | `states/NAME/findings` | content that the replica lacks, in words, if any |
//! | `tables/` | tables of contents of containers |
//! | `objects/` | containers |
//!
//! A state that was made before opens without a download. All of it can be removed while nothing is mounted.

mod cache;
mod containers;
mod device;
mod making;
mod slots;
mod tables;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs::{EngineError, OpenOptions, Pool, Progress};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, PoolLock};

use self::containers::{Ahead, Containers};
use self::making::{Found, Making, STATE, commit_of, state_name};
#[cfg(feature = "fuzzing")]
pub(crate) use self::slots::Slots;
use crate::error::{ReplicaError, Result};
use crate::lease::Lease;
use crate::place::Replica;

/// How a view is opened.
#[derive(Clone, Copy, Debug)]
pub struct ViewOptions {
    /// Bytes of containers that are kept on the disk.
    pub cache_bytes: u64,
    /// Requests ahead of readers at the same time, at most 64; 0 fetches nothing ahead. As many containers stay in memory.
    pub connections: usize,
    /// Memory of the recovery.
    pub memory_bytes: u64,
}

/// The newest state of a replica, open.
#[derive(Debug)]
pub struct View {
    /// The commit of the replica.
    pub commit: u64,
    /// When it was made, by the writer's clock, in seconds since 1970.
    pub written_secs: u64,
    /// Whether its meta root was made now, and not by an earlier call.
    pub is_new: bool,
    /// The directory of its meta root on the disk.
    pub pool_directory: String,
    /// The name of the state on the disk.
    pub state: String,
    /// Content that the replica lacks, in words. Behind ten minutes, the next call looks again.
    pub findings: Vec<String>,
    disk: Arc<dyn Device>,
    meta: Arc<dyn Device>,
    data: Arc<dyn Device>,
    containers: Arc<Containers>,
    _ahead: Ahead,
    _lease: Option<Lease>,
}

impl View {
    /// Opens the newest state of a replica. `disk` is for this replica alone, and no other process uses it. If `newest` names the newest state,
    /// as another call found out a moment ago, and that is on the disk, the store is not asked for it.
    ///
    /// # Errors
    /// No commit yet; commits that cannot be read; no room on the disk; those of the store. The next call goes on from there.
    pub fn open(
        replica: &Arc<Replica>,
        disk: &Arc<dyn Device>,
        options: ViewOptions,
        newest: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut making = Making { replica, disk, options, progress, name: newest.unwrap_or_default().to_owned() };
        let mut lease = None;
        let mut found = None;
        if let Some(commit) = newest.and_then(commit_of) {
            lease = Some(Lease::take(replica, commit)?);
            found = making.found()?;
        }
        let mut head = None;
        if found.is_none() {
            let newest = head.insert(replica.newest_there()?);
            lease = Some(Lease::take(replica, newest.commit.number)?);
            making.name = state_name(newest);
            found = making.found()?;
        }
        let is_new = found.is_none();
        let found = match (found, &head) {
            (Some(found), _) => found,
            (None, Some(head)) => making.make(head)?,
            (None, None) => return Err(ReplicaError::Ended),
        };
        let Found { parts, findings, commit, written_secs } = found;
        Ok(Self {
            commit,
            written_secs,
            is_new,
            state: making.name.clone(),
            pool_directory: making.directory("pool"),
            findings,
            disk: Arc::clone(disk),
            meta: parts.meta,
            data: parts.data,
            containers: parts.containers,
            _ahead: parts.ahead,
            _lease: lease,
        })
    }

    /// Opens its pool, read-only.
    ///
    /// # Errors
    /// Those of [`Pool::open_on`]. If its files on the disk are damaged, the next [`open`](Self::open) makes them anew.
    pub fn pool(&self, locks: Vec<PoolLock>, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Pool>> {
        let options = OpenOptions { read_only: true, ..options.clone() };
        Pool::open_on(&self.meta, &self.data, locks, &options, progress).map_err(|error| {
            if matches!(error, EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) {
                // Else each call would meet the same damage.
                let _is_there_no_more = self.disk.remove(STATE);
            }
            error.into()
        })
    }

    /// Its data root.
    #[cfg(test)]
    pub(crate) fn data_root(&self) -> Arc<dyn Device> {
        Arc::clone(&self.data)
    }

    /// Whole containers and parts of them that were fetched so far.
    #[must_use]
    pub fn fetched(&self) -> (u64, u64) {
        let fetched = &self.containers.fetched;
        (fetched.whole.load(Ordering::Relaxed), fetched.ranges.load(Ordering::Relaxed))
    }
}
