//! The holdings of an open pool, read from its parts.

use std::sync::Arc;

use dedupfs_base::{Gauge, Result};
use dedupfs_content::{Indexes, Stores};
use dedupfs_namespace::Namespace;
use dedupfs_store::device::Device;

use super::{ContentCost, Demand, Holdings};
use crate::config::{INDEX_REWRITE_BYTES_MAX, MIB};
use crate::durability::indexes;

/// The parts of a pool that hold bytes.
pub(crate) struct PoolHoldings {
    /// The worst-case cost of content.
    pub cost: ContentCost,
    /// Content in streams.
    pub streams: Arc<Gauge>,
    /// Dirty extents.
    pub dirty: Arc<Gauge>,
    /// Device of the meta root.
    pub meta_device: Arc<dyn Device>,
    /// Inodes, names and the operations log.
    pub namespace: Arc<Namespace>,
    /// Containers of chunks and of recipe nodes.
    pub stores: Stores,
    /// Index of chunks and index of recipe nodes.
    pub indexes: Indexes,
    pub container_bytes: u32,
}

impl Holdings for PoolHoldings {
    fn owed(&self) -> Demand {
        // In the order in which bytes move on: bytes that move meanwhile count twice, never not at all.
        let dirty = self.cost.of_extents(self.dirty.bytes(), self.dirty.holders());
        let streams = self.cost.of_content(self.streams.bytes(), self.streams.holders());
        let containers =
            Demand { data_bytes: self.stores.data.owed_bytes(), meta_bytes: self.stores.recipes.owed_bytes() };
        let commit = Demand { data_bytes: 0, meta_bytes: self.namespace.commit_bytes() };
        dirty + streams + containers + commit
    }

    fn checkpoint_bytes(&self) -> u64 {
        let indexes = [&self.indexes.chunks, &self.indexes.nodes];
        indexes.iter().map(|index| index.checkpoint_bytes(INDEX_REWRITE_BYTES_MAX)).sum()
    }

    fn step(&self) -> Demand {
        // One container is copied and another begun; the rest is for commits and manifests.
        let copy = 2 * u64::from(self.container_bytes);
        Demand { data_bytes: copy + MIB, meta_bytes: copy + 4 * MIB }
    }

    fn physical(&self) -> Result<Demand> {
        let index = self.indexes.chunks.stats().disk_bytes + self.indexes.nodes.stats().disk_bytes;
        let unused = indexes::unused_bytes(&*self.meta_device, self.namespace.index_side())?;
        let meta_bytes = self.stores.recipes.physical_bytes()? + self.namespace.file_bytes()? + index + unused;
        Ok(Demand { data_bytes: self.stores.data.physical_bytes()?, meta_bytes })
    }
}
