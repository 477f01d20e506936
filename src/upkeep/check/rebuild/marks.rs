//! Marking: counts the references to recipe nodes, from the inodes' roots down through the nodes that name nodes.
//!
//! The nodes of all recipe containers are set first, without references. Then each reference is counted. Only nodes that name nodes are read
//! here, lists and frozen trees, each when the first reference to it comes: of recipes one node in some hundred. References to them gather
//! level by level, so that the index is asked for many at a time.
//!
//! Memory: some 60 MiB. At most [`REFERENCES_AT_ONCE`] references wait at each of 24 levels (8 of recipes, 16 of trees), 48 bytes each. The
//! nodes to be read take about as much as 16 such batches, because batches shrink with the depth of the trees.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_store::recipe::{Child, Reference, Root};
use dedupfs_store::{ContainerId, Fingerprint};

use super::{Build, Rebuilder};

/// Number of references to nodes of one level that are looked up together.
const REFERENCES_AT_ONCE: usize = if cfg!(test) { 8 } else { 1 << 14 };
/// Number of batches of nodes, one below the other, behind which batches are half as large.
const BATCHES_OF_A_SIZE: usize = 8;

/// Nodes that are still to be counted or read.
#[derive(Default, Debug)]
struct Marking {
    /// References to nodes that name nodes, by level. They are not counted yet.
    waiting: BTreeMap<u8, Vec<Child>>,
    /// Nodes that got their first reference, by batches, with their levels. The last batch lies lowest in the trees.
    unread: Vec<(u8, Vec<(Fingerprint, Location)>)>,
    /// Containers with bad copies of nodes.
    bad: BTreeSet<ContainerId>,
}

impl Marking {
    /// Takes the references that wait at a level, if there are enough of them, or some at all if there will be no more.
    fn take_batch(&mut self, is_end: bool) -> Option<(u8, Vec<Child>)> {
        let depth = (self.unread.len() / BATCHES_OF_A_SIZE).min(usize::BITS as usize - 1);
        let enough = if is_end { 1 } else { (REFERENCES_AT_ONCE >> depth).max(1) };
        let level = self.waiting.iter().rev().find(|(_, waiting)| waiting.len() >= enough).map(|(level, _)| *level)?;
        self.waiting.remove_entry(&level)
    }

    fn take_unread(&mut self) -> Option<(u8, Fingerprint, Location)> {
        while let Some((level, batch)) = self.unread.last_mut() {
            if let Some((fingerprint, location)) = batch.pop() {
                return Some((*level, fingerprint, location));
            }
            self.unread.pop();
        }
        None
    }
}

impl Rebuilder<'_> {
    /// Sets all nodes and counts their references. On the way it counts chunks that are roots of inodes, unless they were counted before.
    pub(super) fn mark(&self, build: &mut Build) -> Result<()> {
        self.set_nodes(build)?;
        self.progress.start("marking from the files", 0);
        (build.state.lists_left, build.state.misnamed) = (0, 0);
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
                    refer(*level, *child, build, &mut marking)?;
                    self.descend(false, build, &mut marking)?;
                }
            }
            Ok(())
        });
        let outcome = outcome.and_then(|()| self.descend(true, build, &mut marking));
        self.progress.finish();
        outcome?;
        // The namespace was being read until now.
        self.distrust(&self.stores.recipes, marking.bad)
    }

    /// Sets the nodes of all recipe containers. A later container wins.
    fn set_nodes(&self, build: &mut Build) -> Result<()> {
        let records = self.stores.recipes.containers();
        self.progress.start("reading tables of recipe containers", records.len() as u64);
        build.state.unread_recipes.clear();
        for record in &records {
            self.progress.advance(1);
            match self.table(&self.stores.recipes, record.id)? {
                Some(table) => table.entries.iter().try_for_each(|entry| {
                    build.nodes.set(entry.fingerprint, Location::new(record.id, entry.len_bytes), 0)
                })?,
                None => build.state.unread_recipes.add(record.id),
            }
            build.save_nodes_if_due()?;
        }
        self.progress.finish();
        Ok(())
    }

    /// Counts batches of references, and reads the nodes that got their first one, down to those that name no nodes. References that are too
    /// few for a batch wait, unless it is the end.
    fn descend(&self, is_end: bool, build: &mut Build, marking: &mut Marking) -> Result<()> {
        loop {
            if let Some((level, batch)) = marking.take_batch(false) {
                marking.unread.push((level, count_and_return_first(&batch, build)?));
            } else if let Some((level, fingerprint, location)) = marking.take_unread() {
                let found = self.sound_node(&fingerprint, location)?;
                if found.location != location {
                    build.nodes.relocate(fingerprint, found.location)?;
                }
                marking.bad.extend(found.bad);
                let Some(node) = found.node else { continue };
                build.state.lists_left += u64::from(node.level() > 0);
                // Something names it by a wrong level. Others may be right, so it is followed as what it is.
                build.state.misnamed += u64::from(node.level() != level);
                for reference in node.references() {
                    if let Reference::Node { level, child } = reference {
                        refer(level, child, build, marking)?;
                    }
                }
            } else if is_end && let Some((level, batch)) = marking.take_batch(true) {
                marking.unread.push((level, count_and_return_first(&batch, build)?));
            } else {
                return Ok(());
            }
        }
    }
}

/// Counts a reference to a node, now or with others of its level.
fn refer(level: u8, child: Child, build: &mut Build, marking: &mut Marking) -> Result<()> {
    if level > 0 {
        marking.waiting.entry(level).or_default().push(child);
        return Ok(());
    }
    build.nodes.count(child.fingerprint, 1, child.hint)?;
    build.save_nodes_if_due()
}

/// Counts references. Returns the nodes that had none before, the last container first. Nodes that no container has are left out.
fn count_and_return_first(references: &[Child], build: &mut Build) -> Result<Vec<(Fingerprint, Location)>> {
    let (fingerprints, hints): (Vec<Fingerprint>, Vec<ContainerId>) =
        references.iter().map(|child| (child.fingerprint, child.hint)).unzip();
    let cells = build.nodes.cells_near(&fingerprints, &hints)?;
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
    // They are taken from the end.
    first.sort_unstable_by_key(|(_, location)| std::cmp::Reverse(location.container()));
    Ok(first)
}
