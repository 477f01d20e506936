//! Marking: finds the live recipe nodes and their reference counts, from the inodes' roots down through the lists.
//!
//! Of recipes only lists are read here, one node in some hundred; of frozen trees all nodes. Chunks are counted later:
//! each segment, and each tree node that names chunks, is read once more, in the order of places. Memory: 49 bytes for each node of all recipe containers, in a hash table of 8/7 to
//! 16/7 of their number, created in its final size: 56 to 112 bytes for a node of some 500 chunks, or of an image 128.

use std::collections::{HashMap, HashSet};

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_store::codec::checksum;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::{Reference, Root};
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint, StoreError};

use super::state::Phase;
use super::{Build, Rebuilder, is_loss};

/// A node that some container has, or that has references.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// [`ContainerId::NONE`] if no container has the node, or it cannot be read.
    container: ContainerId,
    len_bytes: u32,
    references: u32,
}

const _: () = assert!(size_of::<(Fingerprint, Mark)>() == 48);

/// The result of marking.
#[derive(Default, Debug)]
pub(super) struct Marks {
    nodes: HashMap<Fingerprint, Mark>,
    /// Live nodes that were read, are sound, and name no chunks.
    lists: HashSet<Fingerprint>,
    /// Number of unreadable tables and lists, and of nodes that no container has.
    pub missing: u64,
}

impl Marks {
    /// Returns the place of a node and its reference count, if it has references.
    pub(super) fn live(&self, fingerprint: &Fingerprint) -> Option<(Location, u32)> {
        let mark = self.nodes.get(fingerprint).filter(|mark| mark.references > 0)?;
        Some((Location::new(mark.container, mark.len_bytes), mark.references))
    }

    /// Whether marking has read the node, and it names no chunks.
    pub(super) fn is_list(&self, fingerprint: &Fingerprint) -> bool {
        self.lists.contains(fingerprint)
    }

    /// Returns live nodes without a container, and unreadable lists, with their reference counts.
    pub(super) fn lost(&self) -> impl Iterator<Item = (Fingerprint, u32)> {
        let lost = self.nodes.iter().filter(|(_, mark)| mark.container == ContainerId::NONE && mark.references > 0);
        lost.map(|(fingerprint, mark)| (*fingerprint, mark.references))
    }

    /// Returns the number of live nodes, lost ones included.
    pub(super) fn live_count(&self) -> u64 {
        self.nodes.values().filter(|mark| mark.references > 0).count() as u64
    }

    /// Returns a digest of these marks that does not depend on their order.
    pub(super) fn digest(&self) -> u64 {
        let mut bytes = [0; 44];
        let live = self.nodes.iter().filter(|(_, mark)| mark.references > 0);
        live.fold(0, |sum: u64, (fingerprint, mark)| {
            bytes[..32].copy_from_slice(&fingerprint.0);
            bytes[32..40].copy_from_slice(&mark.container.0.to_le_bytes());
            bytes[40..].copy_from_slice(&mark.references.to_le_bytes());
            sum.wrapping_add(checksum(&bytes))
        })
    }

    /// Counts a reference to a node. Returns whether it is the first.
    fn mark(&mut self, fingerprint: Fingerprint) -> bool {
        let nowhere = Mark { container: ContainerId::NONE, len_bytes: 0, references: 0 };
        let mark = self.nodes.entry(fingerprint).or_insert(nowhere);
        mark.references = mark.references.saturating_add(1);
        let is_first = mark.references == 1;
        self.missing += u64::from(is_first && mark.container == ContainerId::NONE);
        is_first
    }

    /// Records the container in which the node was read.
    fn relocate(&mut self, fingerprint: &Fingerprint, location: Location) {
        if let Some(mark) = self.nodes.get_mut(fingerprint) {
            (mark.container, mark.len_bytes) = (location.container(), location.len_bytes());
        }
    }

    /// Records that a live node cannot be read.
    fn give_up(&mut self, fingerprint: &Fingerprint) {
        if let Some(mark) = self.nodes.get_mut(fingerprint) {
            (mark.container, mark.len_bytes) = (ContainerId::NONE, 0);
        }
        self.missing += 1;
    }
}

impl Rebuilder<'_> {
    /// Marks all nodes. On the way it counts chunks that are roots of inodes, unless they were counted before.
    pub(super) fn mark(&self, build: &mut Build) -> Result<Marks> {
        let records = self.stores.recipes.containers();
        let nodes = records.iter().map(ContainerRecord::believable_chunks).sum();
        let mut marks = Marks { nodes: HashMap::with_capacity(nodes), ..Marks::default() };
        self.progress.start("reading tables of recipe containers", records.len() as u64);
        for record in &records {
            self.progress.advance(1);
            let Some(table) = self.table(&self.stores.recipes, record.id)? else {
                marks.missing += 1;
                continue;
            };
            for entry in &table.entries {
                // A later container wins.
                let mark = Mark { container: record.id, len_bytes: entry.len_bytes, references: 0 };
                marks.nodes.insert(entry.fingerprint, mark);
            }
        }
        self.progress.finish();
        self.progress.start("marking from the files", 0);
        let outcome = self.namespace.for_each_inode(&mut |inode| {
            self.progress.advance(1);
            match &inode.root {
                Root::Empty | Root::Zero { .. } => {}
                Root::Chunk(child) if build.state.phase == Phase::Inodes && inode.ino > build.state.through => {
                    build.chunks.count(child.fingerprint, 1, child.hint)?;
                    if build.chunks.wants_checkpoint() {
                        build.state.through = inode.ino;
                        build.save()?;
                    }
                }
                Root::Chunk(_) => {}
                Root::Node { level, child } | Root::Tree { level, child } => {
                    self.mark_below(inode.ino, *level, child.fingerprint, &mut marks)?;
                }
            }
            Ok(())
        });
        self.progress.finish();
        outcome.map(|()| marks)
    }

    /// Marks a node with all nodes below it. Segments are read later, and so are the chunks that tree nodes name.
    fn mark_below(&self, ino: u64, level: u8, root: Fingerprint, marks: &mut Marks) -> Result<()> {
        let mut unread = Vec::new();
        if marks.mark(root) && level > 0 {
            unread.push((level, root));
        }
        while let Some((level, fingerprint)) = unread.pop() {
            // Without a container: counted as missing when it was marked.
            let Some((location, _)) = marks.live(&fingerprint).filter(|(location, _)| !location.is_lost()) else {
                continue;
            };
            let references = match self.sound_node(&fingerprint, Some(level), location) {
                Ok((node, found)) => {
                    marks.relocate(&fingerprint, found);
                    node.references()
                }
                Err(error) if is_loss(&error) => {
                    tracing::error!(ino, %error, "a recipe node cannot be read");
                    marks.give_up(&fingerprint);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut names_chunks = false;
            for reference in references {
                let Reference::Node { level, child } = reference else {
                    names_chunks = true;
                    continue;
                };
                if marks.mark(child.fingerprint) && level > 0 {
                    unread.push((level, child.fingerprint));
                }
            }
            if !names_chunks {
                marks.lists.insert(fingerprint);
            }
        }
        Ok(())
    }

    /// Reads a node from its last known container. If it is bad there, tries all other recipe containers that have it.
    /// Also returns its place.
    pub(super) fn sound_node(
        &self,
        fingerprint: &Fingerprint,
        level: Option<u8>,
        location: Location,
    ) -> Result<(Node, Location)> {
        let failure = match self.node(fingerprint, level, location) {
            Ok(node) => return Ok((node, location)),
            Err(error) if is_loss(&error) => error,
            Err(error) => return Err(error),
        };
        for record in self.stores.recipes.containers().iter().rev().filter(|record| record.id != location.container()) {
            let Some(table) = self.table(&self.stores.recipes, record.id)? else { continue };
            let Some(place) = table.find(fingerprint) else { continue };
            let other = Location::new(record.id, place.len_bytes);
            match self.node(fingerprint, level, other) {
                Ok(node) => return Ok((node, other)),
                Err(error) if is_loss(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }

    /// Reads a node and checks that it matches its fingerprint. Without a `level` it must be a segment or a tree node.
    fn node(&self, fingerprint: &Fingerprint, level: Option<u8>, location: Location) -> Result<Node> {
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
        let is_segment_or_tree = || node.level() == 0 || Node::is_tree(node.level());
        if !level.map_or_else(is_segment_or_tree, |level| node.level() == level) {
            let expected = format!("{fingerprint} of level {}", level.unwrap_or(0));
            let found = format!("one of level {}", node.level());
            return Err(StoreError::corrupt("recipe node", expected, found).into());
        }
        Ok(node)
    }
}
