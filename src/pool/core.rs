//! What an open pool consists of, shared by the service and by background work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_index::Index;
use dedupfs_store::PoolId;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::PoolProperties;

use super::gate::{Gate, Pass};
use super::indexes;
use super::space::SpaceGuard;
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
    /// Clients may not change anything.
    pub read_only: bool,
    /// Device of the meta root.
    pub meta_device: Arc<dyn Device>,
    /// Device of the data root.
    pub data_device: Arc<dyn Device>,
    /// Room on the meta root.
    pub meta_space: SpaceGuard,
    /// Room on the data root.
    pub data_space: SpaceGuard,
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
}

impl Core {
    /// Lets a client change something: closing the pool waits until the pass is dropped. Once for each request.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub fn begin_change(&self) -> Result<Pass<'_>> {
        let pass = self.gate.enter()?;
        if self.read_only {
            return Err(EngineError::ReadOnly(String::new()));
        }
        self.check_failure()?;
        Ok(pass)
    }

    /// Whether what is done now can still become durable.
    ///
    /// # Errors
    /// `ReadOnly` with the reason, once a commit has failed for good.
    pub fn check_failure(&self) -> Result<()> {
        match self.committer.failure() {
            Some(failure) => Err(EngineError::ReadOnly(format!(
                ", because a failure put in doubt what is on disk: {failure}. What was synced before is safe; unmount the pool, \
                 see to the disk, and mount it again"
            ))),
            None => Ok(()),
        }
    }

    /// Takes room for `bytes` of content, as if nothing of it were a duplicate, and for what describes it.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        self.data_space.admit(bytes, || self.data.in_flight_bytes() + self.dirty_bytes())?;
        // A chunk of 4 KiB costs less than 128 bytes of recipe and index.
        self.meta_space.admit(bytes / 32 + 1024, || {
            self.recipes.in_flight_bytes() + self.namespace.pending_operations() as u64 * 512
        })
    }

    fn dirty_bytes(&self) -> u64 {
        self.files.dirty_bytes.load(Ordering::Relaxed)
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
