//! The parts of an open pool, shared by the service and background work.

mod activity;
pub(crate) mod gate;

use std::sync::Arc;

use dedupfs_content::{Indexes, Stores};
use dedupfs_store::device::Device;
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{PoolId, StoreError, profile};
use dedupfs_sync::Mutex;

pub(crate) use self::activity::Activity;
use self::gate::{Gate, Pass};
use crate::config::MemoryPlan;
use crate::durability::commit::Committer;
use crate::durability::export::Exporter;
use crate::durability::indexes;
use crate::durability::space::{ContentCost, Demand, Promise, SpaceGuard};
use dedupfs_base::ReadOnly;
use dedupfs_base::{EngineError, Result};
use dedupfs_content::Deduplicator;
use dedupfs_content::FileContext;
use dedupfs_namespace::Namespace;

/// The parts of an open pool.
pub struct Core {
    /// Identity of the pool.
    pub pool: PoolId,
    /// The properties that `mkfs` fixed.
    pub properties: PoolProperties,
    /// How `--memory` was divided at opening.
    pub memory_at_opening: MemoryPlan,
    /// How it is divided now, behind the pool's growth. Its lock is taken alone.
    pub memory_now: Mutex<MemoryPlan>,
    /// The pool was opened read-only; see [`is_read_only`](Self::is_read_only).
    pub opened_read_only: bool,
    /// Device of the meta root.
    pub meta_device: Arc<dyn Device>,
    /// Device of the data root.
    pub data_device: Arc<dyn Device>,
    /// The guard of the room on both roots.
    pub space: Arc<SpaceGuard>,
    /// The worst-case cost of content.
    pub cost: ContentCost,
    /// Inodes, names and the operations log.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks and of recipe nodes.
    pub stores: Stores,
    /// Index of chunks and index of recipe nodes.
    pub indexes: Indexes,
    /// The write path.
    pub dedup: Arc<Deduplicator>,
    /// The shared parts of open files.
    pub files: Arc<FileContext>,
    /// The commit thread's engine: makes changes durable.
    pub committer: Arc<Committer>,
    /// Writer of the export on the data root.
    pub exporter: Arc<Exporter>,
    /// Admits or refuses changes.
    pub gate: Gate,
    /// The time of the last client request.
    pub activity: Activity,
    /// The moment of opening, from which on times by component count.
    pub opened: profile::Mark,
}

impl Core {
    /// Lets a client change something; call it once for each request. Closing the pool waits until the pass is dropped.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub(crate) fn begin_change(&self) -> Result<Pass<'_>> {
        self.activity.note();
        let pass = self.gate.enter()?;
        if self.opened_read_only {
            return Err(ReadOnly::Mounted.into());
        }
        self.check_failure()?;
        Ok(pass)
    }

    /// Whether changes are refused: the pool was opened read-only, or is read-only for now.
    pub(crate) fn is_read_only(&self) -> bool {
        self.opened_read_only || self.gate.is_paused()
    }

    /// Checks that a change made now can still become durable.
    ///
    /// # Errors
    /// `ReadOnly` with the reason, once a commit has failed for good.
    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.committer.failure() {
            Some(EngineError::Store(lost @ StoreError::LockLost { .. })) => Err(ReadOnly::LockLost(lost).into()),
            Some(failure) => Err(ReadOnly::Failed(Box::new(failure)).into()),
            None => Ok(()),
        }
    }

    /// Takes room for new content before its actual size is known.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn admit(&self, demand: Demand) -> Result<Promise<'_>> {
        // The index has no space for a checkpoint and its memory is full: nothing new may be counted.
        if self.committer.is_held_up() {
            return Err(EngineError::NoSpace);
        }
        self.space.admit(demand)
    }

    /// Takes room for a namespace change that removes or replaces in place. It is never refused.
    pub(crate) fn promise_change(&self) -> Promise<'_> {
        self.space.promise(Demand::change(0))
    }

    /// Bounds the changes that wait for a commit: in memory, and on the meta root when little more than the reserve is left.
    pub(crate) fn relieve(&self) -> Result<()> {
        if self.space.is_tight() && self.namespace.commit_bytes() > self.space.commit_bytes() {
            return self.committer.commit();
        }
        self.committer.relieve()
    }

    /// Physical bytes of the indexes, including the side that does not count (an unfinished rebuild).
    pub(crate) fn index_bytes(&self) -> Result<u64> {
        let used = self.indexes.chunks.stats().disk_bytes + self.indexes.nodes.stats().disk_bytes;
        Ok(used + indexes::unused_bytes(&*self.meta_device, self.namespace.index_side())?)
    }

    /// Physical bytes of everything the pool occupies.
    pub(crate) fn physical_bytes(&self) -> Result<u64> {
        let containers = self.stores.data.physical_bytes()? + self.stores.recipes.physical_bytes()?;
        let export = self.exporter.stats()?;
        let exported = export.namespace_bytes + export.recipe_bytes;
        Ok(containers + self.namespace.file_bytes()? + self.index_bytes()? + exported)
    }
}
