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
}
