//! What an open pool consists of, shared by the service and by background work.

use std::sync::Arc;

use dedupfs_index::Index;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{PoolId, StoreError};

use super::activity::Activity;
use super::gate::{Gate, Pass};
use super::indexes;
use super::space::{ContentCost, Demand, Promise, SpaceGuard};
use crate::commit::Committer;
use crate::config::MemoryPlan;
use crate::containers::ContainerStore;
use crate::dedup::Deduplicator;
use crate::error::{EngineError, Result};
use crate::export::Exporter;
use crate::file::FileContext;
use crate::namespace::Namespace;

/// The parts of an open pool.
pub struct Core {
    /// Identity.
    pub pool: PoolId,
    /// What it was formatted with.
    pub properties: PoolProperties,
    /// How memory is divided.
    pub memory: MemoryPlan,
    /// It was opened for reading only; see [`is_read_only`](Self::is_read_only).
    pub opened_read_only: bool,
    /// Device of the meta root.
    pub meta_device: Arc<dyn Device>,
    /// Device of the data root.
    pub data_device: Arc<dyn Device>,
    /// Room on both roots.
    pub space: Arc<SpaceGuard>,
    /// What content takes of it at worst.
    pub cost: ContentCost,
    /// Inodes, names, log.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks.
    pub data: Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: Arc<ContainerStore>,
    /// Index of chunks.
    pub chunk_index: Arc<Index>,
    /// Index of recipe nodes.
    pub recipe_index: Arc<Index>,
    /// The write path.
    pub dedup: Arc<Deduplicator>,
    /// For files.
    pub files: Arc<FileContext>,
    /// Durability.
    pub committer: Arc<Committer>,
    /// Copies of the namespace on the data root.
    pub exporter: Arc<Exporter>,
    /// Who may still change something.
    pub gate: Gate,
    /// When clients asked for something last.
    pub activity: Activity,
}

impl Core {
    /// Lets a client change something: closing the pool waits until the pass is dropped. Once for each request.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub fn begin_change(&self) -> Result<Pass<'_>> {
        self.activity.note();
        let pass = self.gate.enter()?;
        if self.opened_read_only {
            return Err(EngineError::ReadOnly(String::new()));
        }
        self.check_failure()?;
        Ok(pass)
    }

    /// Nothing may be changed: it was opened so, or is so for now.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.opened_read_only || self.gate.is_paused()
    }

    /// Whether what is done now can still become durable.
    ///
    /// # Errors
    /// `ReadOnly` with the reason, once a commit has failed for good.
    pub fn check_failure(&self) -> Result<()> {
        match self.committer.failure() {
            Some(EngineError::Store(lost @ StoreError::LockLost { .. })) => Err(EngineError::ReadOnly(format!(
                ", because it is not locked any more: {lost}. What was synced before is safe; end the other process, if there is one, \
                 unmount the pool, check it with `dedupfs fsck`, and mount it again"
            ))),
            Some(failure) => Err(EngineError::ReadOnly(format!(
                ", because a failure put in doubt what is on disk: {failure}. What was synced before is safe; unmount the pool, \
                 see to the disk, and mount it again"
            ))),
            None => Ok(()),
        }
    }

    /// Takes room for something new, of which nothing can be known yet.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn admit(&self, demand: Demand) -> Result<Promise<'_>> {
        // What is counted must be written before more is: memory is bounded.
        if self.committer.is_held_up() {
            return Err(EngineError::NoSpace);
        }
        self.space.admit(demand)
    }

    /// Room for a change of the namespace that removes, or replaces in place: never refused.
    pub fn promise_change(&self) -> Promise<'_> {
        self.space.promise(Demand::change(0))
    }

    /// Bounds what waits to be committed, in memory and, when little more than the reserve is left, on the meta root.
    ///
    /// # Errors
    /// The round's error.
    pub fn relieve(&self) -> Result<()> {
        if self.space.is_tight() && self.namespace.commit_bytes() > self.space.commit_bytes() {
            return self.committer.commit();
        }
        self.committer.relieve()
    }

    /// Physical bytes of the indexes, also of those that do not count (an unfinished rebuild).
    ///
    /// # Errors
    /// The device does not tell.
    pub fn index_bytes(&self) -> Result<u64> {
        let used = self.chunk_index.stats().disk_bytes + self.recipe_index.stats().disk_bytes;
        Ok(used + indexes::unused_bytes(&*self.meta_device, self.namespace.index_side())?)
    }

    /// Physical bytes of everything the pool occupies.
    ///
    /// # Errors
    /// The devices do not tell.
    pub fn physical_bytes(&self) -> Result<u64> {
        let containers = self.data.physical_bytes()? + self.recipes.physical_bytes()?;
        let export = self.exporter.stats()?;
        let exported = export.namespace_bytes + export.recipe_bytes;
        Ok(containers + self.namespace.file_bytes()? + self.index_bytes()? + exported)
    }
}
