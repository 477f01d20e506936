//! Counting down without doing it: which nodes and chunks would have no references left if some references went.
//!
//! A node dies when as many of its references go as it has; then the references to its children go. Nodes are counted in
//! a table of their own; chunks afterwards, in parts by their fingerprints, which bounds memory for any deletion. The
//! nodes are walked once for each part.
//!
//! Several sets of references can be counted, each as if it went alone. A node that dies with one set alone dies with no other:
//! so sets share the walks for their chunks, and together read dead nodes no more often than one set of their size.
//! Leaving nodes are read once more for each part of chunks to which something else refers as well.
//!
//! Memory: a quarter of `--memory` for the tables of nodes, and what [`CHUNKS_AT_ONCE`] takes. A count that needs more is refused.

use std::collections::HashMap;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Cell;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, Fingerprint, StoreError};

use crate::engine::Core;

/// References to chunks summed up at a time: some 80 MiB for as many different chunks.
const CHUNKS_AT_ONCE: u64 = 1 << 19;
/// Dead nodes of sets that wait, some 40 bytes each: bounds memory.
const NODES_AT_ONCE: usize = 1 << 20;
/// A count may take this part of `--memory` beside it.
const MEMORY_DIVISOR: u64 = 4;
/// Nodes read between two looks whether the work is still wanted.
const NODES_BETWEEN_LOOKS: usize = 256;

/// The state of a node.
#[derive(Clone, Copy, Default)]
struct Fall {
    /// References to it that go.
    dropped: u32,
    is_dead: bool,
}

/// A node and its container.
type Place = (Fingerprint, ContainerId);

/// References that go, and the nodes that die of it. Memory: some 60 bytes for each node that loses a reference, and 40 more for
/// each one that dies.
#[derive(Default)]
struct Falling {
    /// Nodes that lose references.
    nodes: HashMap<Fingerprint, Fall>,
    /// Nodes that die and were not walked yet.
    work: Vec<Place>,
    /// Dead nodes that were walked.
    walked: Vec<Place>,
    /// References to chunks that go with dead nodes.
    chunk_references: u64,
    /// References to chunks that go by themselves.
    own_chunks: Vec<Fingerprint>,
}

impl Falling {
    fn dropped(&self, node: &Fingerprint) -> u32 {
        self.nodes.get(node).map_or(0, |fall| fall.dropped)
    }

    fn is_dead(&self, node: &Fingerprint) -> bool {
        self.nodes.get(node).is_some_and(|fall| fall.is_dead)
    }

    /// Lets a node die that has no references any more.
    fn die(&mut self, fingerprint: Fingerprint, container: ContainerId) {
        let fall = self.nodes.entry(fingerprint).or_default();
        if !std::mem::replace(&mut fall.is_dead, true) {
            self.work.push((fingerprint, container));
        }
    }

    fn memory_bytes(&self) -> usize {
        // A table is full with seven eighths of its places, and has a byte for each.
        let nodes = self.nodes.capacity() * 8 / 7 * (size_of::<(Fingerprint, Fall)>() + 1);
        nodes + places_bytes(&self.work) + places_bytes(&self.walked) + fingerprints_bytes(&self.own_chunks)
    }
}

fn places_bytes(places: &Vec<Place>) -> usize {
    places.capacity() * size_of::<Place>()
}

fn fingerprints_bytes(fingerprints: &Vec<Fingerprint>) -> usize {
    fingerprints.capacity() * size_of::<Fingerprint>()
}

/// The nodes and chunks that die with a set of references and with nothing else, behind [`CountDown::end_set`].
struct DeadSet {
    nodes: Vec<Place>,
    chunk_references: u64,
    own_chunks: Vec<Fingerprint>,
}

/// References to a chunk that go.
#[derive(Clone, Copy)]
struct Dropped {
    /// Those of one set.
    in_set: u32,
    /// The set; none if more than one refers to the chunk, so that it dies with none of them alone.
    set: Option<u32>,
    /// Those that go anyhow.
    leaving: u32,
}

/// A count-down under way. References are dropped in sets; each set is counted as if it went alone.
pub(super) struct CountDown<'a> {
    core: &'a Core,
    is_stopped: &'a dyn Fn() -> bool,
    /// Goes anyhow, and is no part of any set.
    leaving: Falling,
    /// The set that is under way.
    set: Falling,
    sets: Vec<DeadSet>,
    /// Memory of these.
    sets_bytes: usize,
    /// Whether everything below goes, whatever else refers to it.
    takes_all: bool,
    memory_bytes_max: u64,
}

impl<'a> CountDown<'a> {
    pub(super) fn new(core: &'a Core, is_stopped: &'a dyn Fn() -> bool) -> Self {
        let (leaving, set) = Default::default();
        let memory_bytes_max = core.memory_at_opening.total_bytes / MEMORY_DIVISOR;
        Self { core, is_stopped, leaving, set, sets: Vec::new(), sets_bytes: 0, takes_all: false, memory_bytes_max }
    }

    /// A count of everything below the references that are dropped, as if nothing else referred to it.
    pub(super) fn of_everything(core: &'a Core, is_stopped: &'a dyn Fn() -> bool) -> Self {
        Self { takes_all: true, ..Self::new(core, is_stopped) }
    }

    /// Drops all nodes without references that nobody has pinned, and their children: the next run of reclaiming frees
    /// them. Visits each node of the index once.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn drop_unreferenced(&mut self) -> Result<()> {
        self.unreferenced()?.into_iter().for_each(|(node, container)| self.set.die(node, container));
        Ok(())
    }

    fn unreferenced(&self) -> Result<Vec<Place>> {
        let (mut nodes, mut memory) = (Vec::new(), Ok(()));
        let visited = self.core.indexes.nodes.for_each(&mut |node, cell| {
            if cell.references == 0 && !self.core.dedup.is_pinned(&node) {
                nodes.push((node, cell.location.container()));
                // Of each follow a place in the table and one in the work, and both may just have doubled.
                memory = self.check_memory(nodes.len() * 6 * size_of::<Place>());
            }
            match &memory {
                Ok(()) => Ok(()),
                // It only ends the walk.
                Err(error) => Err(StoreError::Usage(error.to_string())),
            }
        });
        memory?;
        visited?;
        Ok(nodes)
    }

    /// Lets the nodes leave that the next run of reclaiming frees: they belong to none of the sets. To be called first.
    ///
    /// # Errors
    /// The index cannot be read; the pool takes no more changes.
    pub(super) fn leave_unreferenced(&mut self) -> Result<()> {
        let nodes = self.unreferenced()?;
        // A pin ends when a reference is logged, and counts only show it later. As before nodes are freed.
        self.core.dedup.barrier();
        self.core.committer.settle()?;
        for (node, _) in nodes {
            if let Some(cell) = self.core.indexes.nodes.committed(&node)?
                && cell.references == 0
                && !self.core.dedup.is_pinned(&node)
            {
                self.set.die(node, cell.location.container());
            }
        }
        self.walk()?;
        self.leaving = std::mem::take(&mut self.set);
        Ok(())
    }

    /// Drops one reference.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn drop_reference(&mut self, reference: &Reference) -> Result<()> {
        match reference {
            Reference::Chunk(child) => {
                self.set.own_chunks.push(child.fingerprint);
                self.check_memory(0)
            }
            Reference::Node { child, .. } => self.drop_node(child.fingerprint),
        }
    }

    fn drop_node(&mut self, fingerprint: Fingerprint) -> Result<()> {
        if self.takes_all {
            if !self.set.is_dead(&fingerprint)
                && let Some(cell) = self.core.indexes.nodes.committed(&fingerprint)?
            {
                self.set.die(fingerprint, cell.location.container());
            }
            return Ok(());
        }
        let fall = self.set.nodes.entry(fingerprint).or_default();
        fall.dropped += 1;
        let dropped = fall.dropped + self.leaving.dropped(&fingerprint);
        if let Some(cell) = self.core.indexes.nodes.committed(&fingerprint)?
            && cell.references <= dropped
            && !self.leaving.is_dead(&fingerprint)
            && !self.core.dedup.is_pinned(&fingerprint)
        {
            self.set.die(fingerprint, cell.location.container());
        }
        Ok(())
    }

    /// Walks all nodes that die. Unreadable ones keep their children.
    fn walk(&mut self) -> Result<()> {
        while let Some((fingerprint, container)) = self.set.work.pop() {
            if self.set.walked.len().is_multiple_of(NODES_BETWEEN_LOOKS) && (self.is_stopped)() {
                break;
            }
            let Ok(view) = self.core.dedup.nodes().node_of(&fingerprint, container) else { continue };
            self.set.walked.push((fingerprint, container));
            self.check_memory(0)?;
            for reference in view.references() {
                match reference {
                    Reference::Chunk(_) => self.set.chunk_references += 1,
                    Reference::Node { child, .. } => self.drop_node(child.fingerprint)?,
                }
            }
        }
        self.set.walked.sort_unstable_by_key(|(fingerprint, container)| (*container, *fingerprint));
        Ok(())
    }

    /// Checks the memory of the count, and `beside_bytes` that the caller has for it.
    ///
    /// # Errors
    /// It is more than a count may have.
    pub(super) fn check_memory(&self, beside_bytes: usize) -> Result<()> {
        let bytes = self.leaving.memory_bytes() + self.set.memory_bytes() + self.sets_bytes + beside_bytes;
        match bytes as u64 > self.memory_bytes_max {
            true => Err(EngineError::CountTooLarge { max_mib: self.memory_bytes_max >> 20 }),
            false => Ok(()),
        }
    }

    /// Whether each of these nodes has one reference, beside those that go anyhow.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn have_one_reference(&self, nodes: &[Fingerprint]) -> Result<bool> {
        for node in nodes {
            let leaving = self.leaving.dropped(node);
            if self.core.indexes.nodes.committed(node)?.is_none_or(|cell| cell.references > leaving.saturating_add(1)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends a set.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn end_set(&mut self) -> Result<()> {
        self.walk()?;
        let Falling { walked: mut nodes, chunk_references, own_chunks, .. } = std::mem::take(&mut self.set);
        nodes.shrink_to_fit();
        self.sets_bytes += places_bytes(&nodes) + fingerprints_bytes(&own_chunks);
        self.sets.push(DeadSet { nodes, chunk_references, own_chunks });
        Ok(())
    }

    /// Whether the sets that ended should be summed up: more of them would take memory, or more walks for each.
    pub(super) fn is_full(&self) -> bool {
        let nodes: usize = self.sets.iter().map(|set| set.nodes.len()).sum();
        let has_much = self.sets_bytes as u64 > self.memory_bytes_max / 4;
        nodes >= NODES_AT_ONCE || self.chunk_references() >= CHUNKS_AT_ONCE || has_much
    }

    /// References to chunks that go with the sets.
    fn chunk_references(&self) -> u64 {
        self.sets.iter().map(|set| set.chunk_references + set.own_chunks.len() as u64).sum()
    }

    /// Returns the number of sets that ended.
    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Forgets the sets that ended.
    pub(super) fn clear_sets(&mut self) {
        self.sets.clear();
        self.sets_bytes = 0;
    }

    /// The nodes of the sets that die and can be read, with their containers: of each set in disk order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (usize, &Fingerprint, ContainerId)> {
        let numbered = self.sets.iter().enumerate();
        numbered.flat_map(|(number, set)| set.nodes.iter().map(move |(node, container)| (number, node, *container)))
    }

    /// Visits each chunk that dies with a set, with the number of the set.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn for_each_dead_chunk(&self, visit: &mut dyn FnMut(usize, &Fingerprint, &Cell)) -> Result<()> {
        let index = &self.core.indexes.chunks;
        let parts = self.chunk_references().div_ceil(CHUNKS_AT_ONCE).max(1);
        for part in 0..parts {
            let is_in_part = |fingerprint: &Fingerprint| {
                let place = (u128::from(fingerprint.prefix()) * u128::from(parts)) >> u64::BITS;
                place == u128::from(part)
            };
            let Some(mut dropped) = self.dropped_chunks(&is_in_part) else { return Ok(()) };
            let fingerprints: Vec<Fingerprint> = dropped.keys().copied().collect();
            let mut sealed = index.sealed_cells_of(&fingerprints)?;
            let cells = index.cells_of(&fingerprints, &mut sealed)?;
            let is_held = |(fingerprint, cell): (&Fingerprint, &Option<Cell>)| match (dropped.get(fingerprint), cell) {
                (Some(Dropped { in_set, set: Some(_), .. }), Some(cell)) => cell.references > *in_set,
                _ => false,
            };
            if fingerprints.iter().zip(&cells).any(is_held) && self.add_leaving(&mut dropped).is_none() {
                return Ok(());
            }
            for (fingerprint, cell) in fingerprints.iter().zip(cells) {
                if let Some(cell) = cell
                    && let Some(Dropped { in_set, set: Some(set), leaving }) = dropped.get(fingerprint).copied()
                    && cell.references > leaving
                    && (self.takes_all || cell.references <= in_set.saturating_add(leaving))
                {
                    visit(set as usize, fingerprint, &cell);
                }
            }
        }
        Ok(())
    }

    /// Counts the references of the sets to the chunks of a part; none if the work is not wanted any more.
    fn dropped_chunks(&self, is_in_part: &dyn Fn(&Fingerprint) -> bool) -> Option<HashMap<Fingerprint, Dropped>> {
        let mut dropped: HashMap<Fingerprint, Dropped> = HashMap::new();
        for (number, set) in (0..).zip(&self.sets) {
            let mut drop = |chunk: &Fingerprint| {
                if is_in_part(chunk) {
                    let new = Dropped { in_set: 0, set: Some(number), leaving: 0 };
                    let dropped = dropped.entry(*chunk).or_insert(new);
                    dropped.in_set += 1;
                    dropped.set = dropped.set.filter(|set| *set == number);
                }
            };
            set.own_chunks.iter().for_each(&mut drop);
            self.for_each_chunk(&set.nodes, &mut drop)?;
        }
        Some(dropped)
    }

    /// Counts the references to these chunks that go anyhow; none if the work is not wanted any more.
    fn add_leaving(&self, dropped: &mut HashMap<Fingerprint, Dropped>) -> Option<()> {
        self.for_each_chunk(&self.leaving.walked, &mut |chunk| {
            if let Some(dropped) = dropped.get_mut(chunk) {
                dropped.leaving += 1;
            }
        })
    }

    /// Visits each reference to a chunk in some nodes; returns none if the work is not wanted any more.
    fn for_each_chunk(&self, nodes: &[Place], visit: &mut dyn FnMut(&Fingerprint)) -> Option<()> {
        for (number, (fingerprint, container)) in nodes.iter().enumerate() {
            if number.is_multiple_of(NODES_BETWEEN_LOOKS) && (self.is_stopped)() {
                return None;
            }
            let Ok(view) = self.core.dedup.nodes().node_of(fingerprint, *container) else { continue };
            for reference in view.references() {
                if let Reference::Chunk(child) = reference {
                    visit(&child.fingerprint);
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
