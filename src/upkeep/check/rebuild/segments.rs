//! Counting the chunks that live nodes name.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_index::{Index, Location};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::ahead::for_each_container;
use super::{Build, Rebuilder, is_loss};

/// A live node in the container being read.
struct Live {
    fingerprint: Fingerprint,
    /// Its place, if that is not where the index has it: another container, or none.
    moved: Option<Location>,
    /// The chunks that it names, with their hints; marking has followed nodes.
    chunks: Vec<(Fingerprint, ContainerId)>,
}

impl Rebuilder<'_> {
    /// Takes the live nodes of all recipe containers after the last one taken. A chunk is counted once for each time a
    /// segment names it.
    pub(super) fn count_segments(&self, build: &mut Build) -> Result<()> {
        let records = self.stores.recipes.containers();
        let ids: Vec<ContainerId> =
            records.iter().map(|record| record.id).filter(|id| id.0 > build.state.through).collect();
        self.progress.start("counting references of recipe containers", ids.len() as u64);
        // Changes that wait in the builder concern nodes that were passed.
        let marked = build.nodes.so_far();
        let read = |id| self.live_nodes(id, &marked);
        let outcome = for_each_container(&ids, build, read, |build, _, nodes| {
            for node in nodes {
                build.state.counted += 1;
                node.chunks.iter().try_for_each(|(chunk, hint)| build.chunks.count(*chunk, 1, *hint))?;
                if let Some(location) = node.moved {
                    build.nodes.place(node.fingerprint, location)?;
                }
            }
            self.progress.advance(1);
            Ok(())
        });
        self.progress.finish();
        outcome
    }

    /// Returns the live nodes in a container, in the order of their places.
    fn live_nodes(&self, container: ContainerId, marked: &Index) -> Result<Vec<Live>> {
        // Given up by marking, too; or its nodes are missed in the end.
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
            let mut live = Live { fingerprint, moved: None, chunks: Vec::new() };
            match self.sound_node(&fingerprint, None, cell.location) {
                Ok((node, found)) => {
                    live.moved = (found != cell.location).then_some(found);
                    let chunks = node.references().into_iter().filter(|named| named.kind() == ContainerKind::Data);
                    live.chunks = chunks.map(|chunk| (chunk.fingerprint(), chunk.child().hint)).collect();
                }
                Err(error) if is_loss(&error) => {
                    tracing::error!(%error, "a recipe node cannot be read");
                    live.moved = Some(Location::Lost);
                }
                Err(error) => return Err(error),
            }
            if live.moved.is_some() {
                self.distrust(&self.stores.recipes, &[container])?;
            }
            nodes.push(live);
        }
        Ok(nodes)
    }
}
