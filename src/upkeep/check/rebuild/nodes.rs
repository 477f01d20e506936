//! Reading recipe nodes of which a copy may be bad.

use dedupfs_base::Result;
use dedupfs_content::ContainerStore;
use dedupfs_index::Location;
use dedupfs_store::node::Node;
use dedupfs_store::{ContainerId, Fingerprint, StoreError};

use super::{Rebuilder, is_loss};

/// A node that was looked for.
pub(super) struct Found {
    /// `None` if no copy is sound.
    pub node: Option<Node>,
    /// Its place, or [`Location::Lost`].
    pub location: Location,
    /// Containers whose copies are bad.
    pub bad: Vec<ContainerId>,
}

impl Rebuilder<'_> {
    /// Reads a node from the last container that has it. If it is bad there, tries all earlier recipe containers, whose tables are read for
    /// each such node.
    ///
    /// # Errors
    /// A disk does not answer.
    pub(super) fn sound_node(&self, fingerprint: &Fingerprint, location: Location) -> Result<Found> {
        let mut bad = Vec::new();
        let mut read = |location: Location| match self.node(fingerprint, location) {
            Ok(node) => Ok(Some(node)),
            Err(error) if is_loss(&error) => {
                tracing::error!(%error, "a copy of a recipe node is bad");
                bad.push(location.container());
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let mut found = (read(location)?, location);
        if found.0.is_none() {
            let records = self.stores.recipes.containers();
            for record in records.iter().rev().filter(|record| record.id < location.container()) {
                let Some(table) = self.table(&self.stores.recipes, record.id)? else { continue };
                let Some(place) = table.find(fingerprint) else { continue };
                let earlier = Location::new(record.id, place.len_bytes);
                found = (read(earlier)?, earlier);
                if found.0.is_some() {
                    break;
                }
            }
        }
        let (node, place) = found;
        Ok(Found { location: if node.is_some() { place } else { Location::Lost }, node, bad })
    }

    /// Reads a node and checks that it matches its fingerprint.
    fn node(&self, fingerprint: &Fingerprint, location: Location) -> Result<Node> {
        let bytes = self
            .stores
            .recipes
            .read_chunk(location.container(), fingerprint, Some(location.len_bytes()))?
            .ok_or_else(|| StoreError::corrupt("recipe node", fingerprint, "no container that has it"))?;
        let node = Node::decode(&bytes)?;
        let found = self.fingerprinter.of(&node.identity_bytes());
        if found != *fingerprint {
            return Err(StoreError::corrupt("recipe node", fingerprint, found).into());
        }
        Ok(node)
    }

    /// Records that containers have bad copies. Inodes and old recipes still name them, so readers must ask the index, even where
    /// frames are sound. Recorded only once: each record is a commit, after which an interrupted rebuild starts over.
    pub(super) fn distrust(
        &self,
        store: &ContainerStore,
        containers: impl IntoIterator<Item = ContainerId>,
    ) -> Result<()> {
        let new: Vec<ContainerId> = containers.into_iter().filter(|container| !store.is_damaged(*container)).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.namespace.note_damage(&new, false)?;
        store.set_damaged(&new);
        Ok(())
    }
}
