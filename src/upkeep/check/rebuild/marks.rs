//! Marking: counts the references to recipe nodes, from the inodes' roots down through the nodes that name nodes.
//!
//! The nodes of all recipe containers are set first, without references. Then each reference is counted. Only nodes that name nodes are read
//! here, lists and frozen trees, each when the first reference to it comes: of recipes one node in some hundred. References to them gather
//! level by level, so that the index is asked for many at a time.
//!
//! Memory: of each of 24 levels at most [`REFERENCES_AT_ONCE`] references wait, and as many nodes are read one after another, 48 bytes each;
//! some 150 bytes for each reference that is looked up.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::{Child, Reference, Root};
use dedupfs_store::{ContainerId, Fingerprint, StoreError};

use super::{Build, Rebuilder, is_loss};

/// Number of references to nodes of one level that are looked up together.
const REFERENCES_AT_ONCE: usize = if cfg!(test) { 8 } else { 1 << 14 };

/// The state of marking.
#[derive(Default, Debug)]
struct Marking {
    /// References to nodes that name nodes, by level. They are not counted yet.
    waiting: BTreeMap<u8, Vec<Child>>,
    /// Containers with bad copies of nodes.
    bad: BTreeSet<ContainerId>,
}

impl Rebuilder<'_> {
    /// Sets all nodes and counts their references. On the way it counts chunks that are roots of inodes, unless they were counted before.
    pub(super) fn mark(&self, build: &mut Build) -> Result<()> {
        self.set_nodes(build)?;
        self.progress.start("marking from the files", 0);
        let mut marking = Marking::default();
        let outcome = self.namespace.for_each_inode(&mut |inode| {
            self.progress.advance(1);
            match &inode.root {
                Root::Empty | Root::Zero { .. } => {}
                Root::Chunk(child) if inode.ino > build.state.through => {
                    build.chunks.count(child.fingerprint, 1, child.hint)?;
                    if build.chunks.wants_checkpoint() {
                        build.state.through = inode.ino;
                        build.save()?;
                    }
                }
                Root::Chunk(_) => {}
                Root::Node { level, child } | Root::Tree { level, child } => {
                    self.refer(*level, *child, build, &mut marking)?;
                }
            }
            Ok(())
        });
        let outcome = outcome.and_then(|()| self.descend_to_the_end(build, &mut marking));
        self.progress.finish();
        outcome?;
        // No commit while inodes are read.
        self.distrust(&self.stores.recipes, &Vec::from_iter(marking.bad))
    }

    /// Sets the nodes of all recipe containers. A later container wins.
    fn set_nodes(&self, build: &mut Build) -> Result<()> {
        let records = self.stores.recipes.containers();
        self.progress.start("reading tables of recipe containers", records.len() as u64);
        build.state.unread_recipes = 0;
        build.state.given_up_recipes.clear();
        for record in &records {
            self.progress.advance(1);
            match self.table(&self.stores.recipes, record.id)? {
                Some(table) => table.entries.iter().try_for_each(|entry| {
                    build.nodes.set(entry.fingerprint, Location::new(record.id, entry.len_bytes), 0)
                })?,
                None => build.state.give_up_recipe(record.id),
            }
            build.save_nodes_if_due()?;
        }
        self.progress.finish();
        Ok(())
    }

    /// Counts a reference to a node, now or with others of its level.
    fn refer(&self, level: u8, child: Child, build: &mut Build, marking: &mut Marking) -> Result<()> {
        if level == 0 {
            build.nodes.count(child.fingerprint, 1, child.hint)?;
            return build.save_nodes_if_due();
        }
        let of_level = marking.waiting.entry(level).or_default();
        of_level.push(child);
        if of_level.len() >= REFERENCES_AT_ONCE { self.descend(level, build, marking) } else { Ok(()) }
    }

    fn descend_to_the_end(&self, build: &mut Build, marking: &mut Marking) -> Result<()> {
        while let Some(level) = marking.waiting.last_key_value().map(|(level, _)| *level) {
            self.descend(level, build, marking)?;
        }
        Ok(())
    }

    /// Counts the references that wait for a level. Reads the nodes that had none before, and refers to the nodes that these name.
    fn descend(&self, level: u8, build: &mut Build, marking: &mut Marking) -> Result<()> {
        for (fingerprint, location) in count(&marking.waiting.remove(&level).unwrap_or_default(), build)? {
            let (references, found) = match self.sound_node(&fingerprint, Some(level), location) {
                Ok((node, found)) => (node.references(), found),
                Err(error) if is_loss(&error) => {
                    tracing::error!(%error, "a recipe node cannot be read");
                    (Vec::new(), Location::Lost)
                }
                Err(error) => return Err(error),
            };
            if found != location {
                marking.bad.insert(location.container());
                build.nodes.place(fingerprint, found)?;
            }
            for reference in references {
                if let Reference::Node { level, child } = reference {
                    self.refer(level, child, build, marking)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a node from the last container that has it. If it is bad there, tries all earlier recipe containers.
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
        for record in self.stores.recipes.containers().iter().rev().filter(|record| record.id < location.container()) {
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

    /// Reads a node and checks that it matches its fingerprint, and has the `level` by which it is referred to.
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
        if let Some(level) = level.filter(|level| node.level() != *level) {
            let found = format!("one of level {}", node.level());
            return Err(StoreError::corrupt("recipe node", format!("{fingerprint} of level {level}"), found).into());
        }
        Ok(node)
    }
}

/// Counts references. Returns the nodes to which none was counted before, in the order of their containers; not those that no container has.
fn count(references: &[Child], build: &mut Build) -> Result<Vec<(Fingerprint, Location)>> {
    let (fingerprints, hints): (Vec<Fingerprint>, Vec<ContainerId>) =
        references.iter().map(|child| (child.fingerprint, child.hint)).unzip();
    let cells = build.nodes.cells_of(&fingerprints, &hints)?;
    let (mut seen, mut first) = (HashSet::with_capacity(references.len()), Vec::new());
    for (child, cell) in references.iter().zip(cells) {
        if let Some(cell) = cell.filter(|cell| cell.references == 0)
            && seen.insert(child.fingerprint)
        {
            first.push((child.fingerprint, cell.location));
        }
        build.nodes.count(child.fingerprint, 1, child.hint)?;
    }
    build.save_nodes_if_due()?;
    first.sort_unstable_by_key(|(_, location)| location.container());
    Ok(first)
}
