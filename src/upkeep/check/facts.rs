//! Facts about chunks and recipe nodes that lie outside of the indexes.

use dedupfs_base::Result;
use dedupfs_index::Prefixes;
use dedupfs_store::container::TableEntry;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::marked::Marked;
use crate::durability::commit::CellsView;

/// A root or a node needs this chunk or node.
pub(super) struct Need {
    pub(super) kind: ContainerKind,
    pub(super) fingerprint: Fingerprint,
}

impl From<&Reference> for Need {
    fn from(reference: &Reference) -> Self {
        Self { kind: reference.kind(), fingerprint: reference.fingerprint() }
    }
}

/// The table of a container has this chunk or node.
pub(super) struct Place {
    pub(super) kind: ContainerKind,
    pub(super) container: ContainerId,
    pub(super) entry: TableEntry,
}

/// A receiver of facts.
pub(super) trait Facts {
    /// # Errors
    /// It cannot keep them.
    fn need(&mut self, need: Need) -> Result<()>;
    /// # Errors
    /// It cannot keep them.
    fn place(&mut self, place: Place) -> Result<()>;
}

/// The cells of both indexes in a range of fingerprints, on which facts leave marks.
pub(super) struct Marks {
    pub(super) chunks: Marked,
    pub(super) nodes: Marked,
}

impl Marks {
    /// Reads the cells of a range, which is one of `ranges` of the same width.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(super) fn load(cells: &CellsView, range: Prefixes, ranges: u32) -> Result<Self> {
        let load = |of| Marked::load(of, range, ranges);
        Ok(Self { chunks: load(&cells.chunks)?, nodes: load(&cells.nodes)? })
    }

    pub(super) fn of(&mut self, kind: ContainerKind) -> &mut Marked {
        match kind {
            ContainerKind::Data => &mut self.chunks,
            ContainerKind::Recipe => &mut self.nodes,
        }
    }
}

/// Facts of other ranges leave no mark.
impl Facts for Marks {
    fn need(&mut self, need: Need) -> Result<()> {
        self.of(need.kind).need(need.fingerprint);
        Ok(())
    }

    fn place(&mut self, place: Place) -> Result<()> {
        self.of(place.kind).place(place.container, &place.entry);
        Ok(())
    }
}
