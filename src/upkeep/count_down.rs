//! Counting down without doing it: which nodes and chunks would have no references left if some references went.
//!
//! A node dies when as many of its references go as it has; then the references to its children go. Nodes are counted in
//! a table of their own; chunks afterwards, in parts by their fingerprints, which bounds memory for any deletion. The
//! nodes are walked once for each part.

use std::collections::{HashMap, HashSet};

use dedupfs_base::Result;
use dedupfs_index::Cell;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, Fingerprint};

use crate::engine::Core;

/// Different chunks summed up at a time, some 48 bytes each: bounds memory.
const CHUNKS_AT_ONCE: u64 = 1 << 20;
/// Nodes read between two looks whether the work is still wanted.
const NODES_BETWEEN_LOOKS: usize = 256;

/// A count-down under way. Memory: 40 bytes for each node that loses a reference, and 80 more for each one that dies.
pub(super) struct CountDown<'a> {
    core: &'a Core,
    is_stopped: &'a dyn Fn() -> bool,
    /// References that go, of nodes.
    dropped: HashMap<Fingerprint, u32>,
    /// Nodes that die.
    dead: HashSet<Fingerprint>,
    /// Nodes that die and were not walked yet.
    work: Vec<(Fingerprint, ContainerId)>,
    /// Dead nodes that were walked.
    walked: Vec<(Fingerprint, ContainerId)>,
    /// References to chunks that go with dead nodes.
    chunk_references: u64,
    /// References to chunks that go by themselves.
    own_chunks: Vec<Fingerprint>,
    /// Whether everything below goes, whatever else refers to it.
    takes_all: bool,
}

impl<'a> CountDown<'a> {
    pub(super) fn new(core: &'a Core, is_stopped: &'a dyn Fn() -> bool) -> Self {
        let (dropped, dead, work, walked, own_chunks) = Default::default();
        Self { core, is_stopped, dropped, dead, work, walked, chunk_references: 0, own_chunks, takes_all: false }
    }

    /// A count of everything below the references that are dropped, as if nothing else referred to it.
    pub(super) fn of_everything(core: &'a Core, is_stopped: &'a dyn Fn() -> bool) -> Self {
        Self { takes_all: true, ..Self::new(core, is_stopped) }
    }

    /// Lets a node die that has no references any more.
    pub(super) fn die(&mut self, fingerprint: Fingerprint, container: ContainerId) {
        if self.dead.insert(fingerprint) {
            self.work.push((fingerprint, container));
        }
    }

    /// Drops one reference.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn drop_reference(&mut self, reference: &Reference) -> Result<()> {
        match reference {
            Reference::Chunk(child) => {
                self.own_chunks.push(child.fingerprint);
                Ok(())
            }
            Reference::Node { child, .. } => self.drop_node(child.fingerprint),
        }
    }

    fn drop_node(&mut self, fingerprint: Fingerprint) -> Result<()> {
        if self.takes_all {
            if !self.dead.contains(&fingerprint)
                && let Some(cell) = self.core.indexes.nodes.committed(&fingerprint)?
            {
                self.die(fingerprint, cell.location.container());
            }
            return Ok(());
        }
        let dropped = self.dropped.entry(fingerprint).or_insert(0);
        *dropped += 1;
        let dropped = *dropped;
        if let Some(cell) = self.core.indexes.nodes.committed(&fingerprint)?
            && cell.references <= dropped
        {
            self.die(fingerprint, cell.location.container());
        }
        Ok(())
    }

    /// Walks all nodes that die. Unreadable ones keep their children.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn walk(&mut self) -> Result<()> {
        while let Some((fingerprint, container)) = self.work.pop() {
            if self.walked.len().is_multiple_of(NODES_BETWEEN_LOOKS) && (self.is_stopped)() {
                break;
            }
            let Ok(view) = self.core.dedup.nodes().node_of(&fingerprint, container) else { continue };
            self.walked.push((fingerprint, container));
            for reference in view.references() {
                match reference {
                    Reference::Chunk(_) => self.chunk_references += 1,
                    Reference::Node { child, .. } => self.drop_node(child.fingerprint)?,
                }
            }
        }
        self.walked.sort_unstable_by_key(|(fingerprint, container)| (*container, *fingerprint));
        Ok(())
    }

    /// The nodes that die and can be read, with their containers, in disk order.
    pub(super) fn nodes(&self) -> &[(Fingerprint, ContainerId)] {
        &self.walked
    }

    /// Visits each chunk that dies.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn for_each_dead_chunk(&self, visit: &mut dyn FnMut(&Fingerprint, &Cell)) -> Result<()> {
        let index = &self.core.indexes.chunks;
        let parts = (self.chunk_references + self.own_chunks.len() as u64).div_ceil(CHUNKS_AT_ONCE).max(1);
        for part in 0..parts {
            let is_in_part = |fingerprint: &Fingerprint| {
                let place = (u128::from(fingerprint.prefix()) * u128::from(parts)) >> u64::BITS;
                place == u128::from(part)
            };
            let mut dropped: HashMap<Fingerprint, u32> = HashMap::new();
            for chunk in self.own_chunks.iter().filter(|chunk| is_in_part(chunk)) {
                *dropped.entry(*chunk).or_insert(0) += 1;
            }
            for (number, (fingerprint, container)) in self.walked.iter().enumerate() {
                if number.is_multiple_of(NODES_BETWEEN_LOOKS) && (self.is_stopped)() {
                    return Ok(());
                }
                let Ok(view) = self.core.dedup.nodes().node_of(fingerprint, *container) else { continue };
                for reference in view.references() {
                    if let Reference::Chunk(child) = reference
                        && is_in_part(&child.fingerprint)
                    {
                        *dropped.entry(child.fingerprint).or_insert(0) += 1;
                    }
                }
            }
            let fingerprints: Vec<Fingerprint> = dropped.keys().copied().collect();
            let mut sealed = index.sealed_cells_of(&fingerprints)?;
            let cells = index.cells_of(&fingerprints, &mut sealed)?;
            for (fingerprint, cell) in fingerprints.iter().zip(cells) {
                if let Some(cell) = cell
                    && cell.references > 0
                    && (self.takes_all || dropped.get(fingerprint).is_some_and(|dropped| cell.references <= *dropped))
                {
                    visit(fingerprint, &cell);
                }
            }
        }
        Ok(())
    }
}
