//! The two kinds of stored content, chunks and recipe nodes: the containers of each, and the index of each.

use std::sync::Arc;

use dedupfs_index::Index;
use dedupfs_store::ContainerKind;

use crate::containers::ContainerStore;

/// The containers of both kinds. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    /// Containers of chunks.
    pub data: Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: Arc<ContainerStore>,
}

impl Stores {
    /// Returns the containers of a kind.
    #[must_use]
    pub fn of(&self, kind: ContainerKind) -> &Arc<ContainerStore> {
        match kind {
            ContainerKind::Data => &self.data,
            ContainerKind::Recipe => &self.recipes,
        }
    }

    /// Changes the limit of the cache of regions that both kinds share: the sum of these bytes for data and for recipes.
    pub fn set_region_bytes(&self, data_bytes: u64, recipe_bytes: u64) {
        self.data.read_ahead_within(data_bytes);
        self.recipes.read_ahead_within(recipe_bytes);
        self.data.caches().set_region_bytes(data_bytes + recipe_bytes);
    }
}

/// The indexes of both kinds. Cheap to clone.
#[derive(Clone)]
pub struct Indexes {
    /// Index of chunks.
    pub chunks: Arc<Index>,
    /// Index of recipe nodes.
    pub nodes: Arc<Index>,
}

impl Indexes {
    /// Returns the index of a kind.
    #[must_use]
    pub fn of(&self, kind: ContainerKind) -> &Arc<Index> {
        match kind {
            ContainerKind::Data => &self.chunks,
            ContainerKind::Recipe => &self.nodes,
        }
    }

    /// Whether a chunk or a node may be lost.
    #[must_use]
    pub fn have_losses(&self) -> bool {
        self.chunks.has_lost() || self.nodes.has_lost()
    }

    /// A number that grows with each chunk or node that is found lost.
    #[must_use]
    pub fn times_lost(&self) -> u64 {
        self.chunks.times_lost() + self.nodes.times_lost()
    }

    /// Finds the lost cells of sealed tankers, so that all others are known not to be lost. If it cannot, everything may be lost.
    pub fn gather_lost(&self, go_on: &mut dyn FnMut() -> bool) {
        for index in [&self.chunks, &self.nodes] {
            if let Err(error) = index.gather_lost(go_on) {
                tracing::warn!(%error, "the lost chunks cannot be listed: all chunks are looked up as if they were lost");
            }
        }
    }
}
