//! Counting the chunks of live segments and tree nodes, and setting the cells of nodes.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::ahead::for_each_container;
use super::marks::Marks;
use super::{Build, Rebuilder, is_loss};

/// A live node in the container being read.
struct Live {
    fingerprint: Fingerprint,
    location: Location,
    references: u32,
    /// The chunks that it names, with their hints; marking has followed nodes.
    chunks: Vec<(Fingerprint, ContainerId)>,
    /// Whether it cannot be read.
    is_lost: bool,
}

impl Rebuilder<'_> {
    /// Takes the live nodes of all recipe containers after the last one taken. A chunk is counted once for each time a
    /// segment names it.
    pub(super) fn count_segments(&self, build: &mut Build, marks: &Marks) -> Result<()> {
        let records = self.stores.recipes.containers();
        let ids: Vec<ContainerId> =
            records.iter().map(|record| record.id).filter(|id| id.0 > build.state.through).collect();
        self.progress.start("counting references of recipe containers", ids.len() as u64);
        let read = |id| self.live_nodes(id, marks);
        let outcome = for_each_container(&ids, build, read, |build, _, nodes| {
            for node in nodes {
                build.state.missing += u64::from(node.is_lost);
                node.chunks.iter().try_for_each(|(chunk, hint)| build.chunks.count(*chunk, 1, *hint))?;
                build.nodes.set(node.fingerprint, node.location, node.references)?;
            }
            self.progress.advance(1);
            Ok(())
        });
        self.progress.finish();
        outcome
    }

    /// Returns the live nodes in a container, in the order of their places.
    fn live_nodes(&self, container: ContainerId, marks: &Marks) -> Result<Vec<Live>> {
        // Marking has counted an unreadable table as missing.
        let Some(table) = self.table(&self.stores.recipes, container)? else { return Ok(Vec::new()) };
        let mut seen = HashSet::with_capacity(table.entries.len());
        let mut nodes = Vec::new();
        for entry in &table.entries {
            let fingerprint = entry.fingerprint;
            let Some((location, references)) = marks.live(&fingerprint) else { continue };
            if location.container() != container || !seen.insert(fingerprint) {
                continue;
            }
            let mut live = Live { fingerprint, location, references, chunks: Vec::new(), is_lost: false };
            if !marks.is_list(&fingerprint) {
                match self.sound_node(&fingerprint, None, location) {
                    Ok((node, found)) => {
                        live.location = found;
                        let chunks = node.references().into_iter().filter(|named| named.kind() == ContainerKind::Data);
                        live.chunks = chunks.map(|chunk| (chunk.fingerprint(), chunk.child().hint)).collect();
                    }
                    Err(error) if is_loss(&error) => {
                        tracing::error!(%error, "a recipe node cannot be read");
                        (live.location, live.is_lost) = (Location::Lost, true);
                    }
                    Err(error) => return Err(error),
                }
            }
            nodes.push(live);
        }
        Ok(nodes)
    }
}
