//! Counting the chunks that nodes with references name.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_index::{Index, Location};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::ahead::for_each_container;
use super::{Build, Rebuilder};

/// A node with references in the container being read.
struct Live {
    fingerprint: Fingerprint,
    /// Its new place, if the copy in this container is bad.
    moved_to: Option<Location>,
    /// Whether it is sound and names nodes, so that marking should have read it.
    is_list: bool,
    /// The chunks that it names, with their hints; marking has followed nodes.
    chunks: Vec<(Fingerprint, ContainerId)>,
}

impl Rebuilder<'_> {
    /// Takes the nodes with references of all recipe containers after the last one taken. A chunk is counted once for each time such a node
    /// names it.
    pub(super) fn count_chunks(&self, build: &mut Build) -> Result<()> {
        let records = self.stores.recipes.containers();
        let ids: Vec<ContainerId> =
            records.iter().map(|record| record.id).filter(|id| id.0 > build.state.through).collect();
        self.progress.start("counting references of recipe containers", ids.len() as u64);
        // It may lack the builder's last changes: moves of nodes that were passed, which are not looked up again.
        let marked = build.nodes.so_far();
        let read = |id| self.live_nodes(id, &marked);
        let outcome = for_each_container(&ids, build, read, |build, _, nodes| {
            for node in nodes {
                build.state.nodes_passed += 1;
                build.state.lists_left = build.state.lists_left.wrapping_sub(u64::from(node.is_list));
                node.chunks.iter().try_for_each(|(chunk, hint)| build.chunks.count(*chunk, 1, *hint))?;
                if let Some(location) = node.moved_to {
                    build.nodes.relocate(node.fingerprint, location)?;
                }
            }
            self.progress.advance(1);
            Ok(())
        });
        self.progress.finish();
        outcome
    }

    /// Returns the nodes with references in a container, in the order of their places.
    fn live_nodes(&self, container: ContainerId, marked: &Index) -> Result<Vec<Live>> {
        // Marking gave this container up, too. If not, the numbers of nodes differ in the end, which fails the rebuild.
        let Some(table) = self.table(&self.stores.recipes, container)? else { return Ok(Vec::new()) };
        let fingerprints: Vec<Fingerprint> = table.entries.iter().map(|entry| entry.fingerprint).collect();
        let cells = marked.cells_near(&fingerprints, &|_| container)?;
        let mut seen = HashSet::with_capacity(fingerprints.len());
        let mut nodes = Vec::new();
        for (fingerprint, cell) in fingerprints.into_iter().zip(cells) {
            let Some(cell) = cell.filter(|cell| cell.references > 0) else { continue };
            if cell.location.container() != container || !seen.insert(fingerprint) {
                continue;
            }
            let found = self.sound_node(&fingerprint, cell.location)?;
            let chunks = found.node.iter().flat_map(|node| node.references());
            let chunks = chunks.filter(|named| named.kind() == ContainerKind::Data);
            nodes.push(Live {
                fingerprint,
                moved_to: (found.location != cell.location).then_some(found.location),
                is_list: found.node.as_ref().is_some_and(|node| node.level() > 0),
                chunks: chunks.map(|chunk| (chunk.fingerprint(), chunk.child().hint)).collect(),
            });
            self.distrust(&self.stores.recipes, found.bad)?;
        }
        Ok(nodes)
    }
}
