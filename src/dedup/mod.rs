//! Storing chunks and recipe nodes once.
//!
//! A segment goes through in these steps (DESIGN section 4):
//! 1. its own fingerprint is looked up: a known segment costs one lookup and one pin, whatever it holds;
//! 2. else its chunks go through the filter chain as one batch;
//! 3. those that are new are looked up once more under the store lock (another writer may have stored them since)
//!    and appended to the stream's open container;
//! 4. the segment is encoded, appended to the recipe containers, and its storing is logged, which counts its chunks.
//!
//! With the byte compare filter, what is found in steps 1 to 3 is read and compared ([`compare`], [`place`]).
//!
//! Invariants:
//! - Everything between a lookup and the log entry that rests on it happens inside one [`Section`]; reclaiming
//!   claims first, then waits for all sections to end ([`Deduplicator::barrier`]), then rechecks (I-4).
//! - Under the store lock, a fingerprint that neither index has is stored exactly once.
//!
//! Cost per duplicate segment: one hash of its identity (about 20 KiB), one index lookup. Per new chunk: one copy.
//!
//! Lock order: section -> store lock -> container store, index, namespace.

mod block_index;
mod compare;
mod fetch;
mod forward;
mod pins;
#[cfg(test)]
mod pins_tests;
mod place;
mod sections;
#[cfg(test)]
mod sections_tests;
mod stored;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_index::filter::FilterChain;
use dedupfs_index::{Index, Location};
use dedupfs_store::recipe::{Child, Node};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, waiting};
use parking_lot::{Mutex, RwLock};

pub use block_index::BlockIndex;
pub use fetch::Fetcher;
pub use forward::Forwarded;
pub use pins::{Pin, Pins};
pub use sections::Section;
pub use stored::ContainerChunks;

use place::Known;
use sections::Sections;

use crate::containers::{ContainerStore, StreamId};
use crate::error::Result;
use crate::fingerprint::Fingerprinter;
use crate::namespace::{LogOp, Namespace};
use crate::recipe::{NodeReader, NodeView};

/// One entry of a segment that is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct SegmentEntry<'a> {
    /// Identity, length, and the hint if it is known already.
    pub child: Child,
    /// The bytes; `None` for a chunk that a live recipe names already, and for zeros.
    pub data: Option<&'a [u8]>,
}

/// A node that is stored now.
enum Stored {
    /// By this call.
    New((Child, Pin)),
    /// By another writer, since it was looked up.
    Meanwhile((Child, Pin), Node),
}

/// What passed through since the pool was opened.
#[derive(Debug, Default)]
pub struct DedupCounters {
    /// Bytes of chunks and segments that came in.
    pub bytes_in: AtomicU64,
    /// Bytes of chunks that were stored.
    pub bytes_stored: AtomicU64,
    /// Chunks that were stored.
    pub chunks_stored: AtomicU64,
    /// Segments found whole.
    pub segments_known: AtomicU64,
    /// Recipe nodes that were stored, of all levels.
    pub nodes_stored: AtomicU64,
}

/// The write path's heart: exact deduplication of chunks and nodes.
pub struct Deduplicator {
    data: Arc<ContainerStore>,
    recipes: Arc<ContainerStore>,
    chunk_index: Arc<Index>,
    recipe_index: Arc<Index>,
    chain: FilterChain,
    fingerprinter: Fingerprinter,
    namespace: Arc<Namespace>,
    nodes: NodeReader,
    pins: Arc<Pins>,
    claimed_containers: RwLock<HashSet<ContainerId>>,
    any_claimed: AtomicBool,
    sections: Sections,
    store_lock: Mutex<()>,
    counters: DedupCounters,
}

/// What a [`Deduplicator`] is made of.
pub struct DedupParts {
    /// Containers of chunks.
    pub data: Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: Arc<ContainerStore>,
    /// Index of chunks.
    pub chunk_index: Arc<Index>,
    /// Index of nodes.
    pub recipe_index: Arc<Index>,
    /// Filters over the chunk index, in order.
    pub chain: FilterChain,
    /// The pool's hash function.
    pub fingerprinter: Fingerprinter,
    /// Where storing is logged.
    pub namespace: Arc<Namespace>,
    /// Bytes of decoded nodes kept.
    pub node_cache_bytes: u64,
}

impl Deduplicator {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: DedupParts) -> Self {
        let fetcher = Fetcher::new(parts.recipes.clone(), parts.recipe_index.clone());
        let nodes = NodeReader::new(fetcher, parts.fingerprinter, parts.node_cache_bytes);
        Self {
            data: parts.data,
            recipes: parts.recipes,
            chunk_index: parts.chunk_index,
            recipe_index: parts.recipe_index,
            chain: parts.chain,
            fingerprinter: parts.fingerprinter,
            namespace: parts.namespace,
            nodes,
            pins: Arc::new(Pins::default()),
            claimed_containers: RwLock::default(),
            any_claimed: AtomicBool::new(false),
            sections: Sections::default(),
            store_lock: Mutex::new(()),
            counters: DedupCounters::default(),
        }
    }

    /// Enters a section. Not reentrant: a thread in a section must not enter another.
    pub fn enter(&self) -> Section<'_> {
        self.sections.enter(waiting::announce)
    }

    /// Waits until the memory between writers and the disk has room; for writers' threads, not for workers.
    ///
    /// # Errors
    /// The remembered error of a failed store (I-7).
    pub fn wait_for_room(&self) -> Result<()> {
        self.data.wait_for_room()?;
        self.recipes.wait_for_room()
    }

    /// Waits until every section that was entered before has ended. New ones are entered meanwhile.
    pub fn barrier(&self) {
        self.sections.barrier();
    }

    /// Calls `action` while nobody is in a section: what a section does is then before it or behind it as a whole.
    pub fn between_sections<T>(&self, action: impl FnOnce() -> T) -> T {
        self.sections.between(action)
    }

    /// Stores a segment: see the module's head.
    ///
    /// # Errors
    /// Lookup and container errors; then nothing refers to what was stored, and reclaiming will find it.
    pub fn store_segment(
        &self,
        section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        known: Option<&BlockIndex>,
    ) -> Result<(Child, Pin)> {
        let node = Node { level: 0, children: entries.iter().map(|entry| entry.child).collect() };
        let fingerprint = self.fingerprinter.of(&node.identity_bytes());
        let len_bytes = node.len_bytes()?;
        self.counters.bytes_in.fetch_add(len_bytes, Ordering::Relaxed);
        if let Some(found) = self.known_node(fingerprint, len_bytes)? {
            self.counters.segments_known.fetch_add(1, Ordering::Relaxed);
            if self.chain.compare().is_some() {
                return self.compare_segment(section, stream, entries, node, found);
            }
            // A known segment may name chunks that are lost; storing them makes whole all files that share it.
            if self.namespace.has_losses() {
                self.place_chunks(stream, entries, &mut { node.children }, Known::Nothing)?;
            }
            return Ok(found);
        }
        let mut node = node;
        // The old recipe may name places that are lost.
        let known = known.filter(|_| !self.namespace.has_losses()).map_or(Known::Nothing, Known::Block);
        self.place_chunks(stream, entries, &mut node.children, known)?;
        match self.store_new_node(section, stream, fingerprint, len_bytes, node)? {
            Stored::New(stored) => Ok(stored),
            Stored::Meanwhile(found, node) if self.chain.compare().is_some() => {
                self.compare_segment(section, stream, entries, node, found)
            }
            Stored::Meanwhile(found, _) => Ok(found),
        }
    }

    /// Stores one chunk that a root will name directly; the caller logs the root within the same section.
    ///
    /// # Errors
    /// As [`store_segment`](Self::store_segment).
    pub fn store_chunk(&self, _section: &Section<'_>, stream: StreamId, entry: SegmentEntry<'_>) -> Result<Child> {
        self.counters.bytes_in.fetch_add(entry.child.len_bytes, Ordering::Relaxed);
        let mut child = [entry.child];
        self.place_chunks(stream, &[entry], &mut child, Known::Nothing)?;
        let [child] = child;
        Ok(child)
    }

    /// Stores a list node.
    ///
    /// # Errors
    /// As [`store_segment`](Self::store_segment).
    pub fn store_node(&self, section: &Section<'_>, stream: StreamId, node: Node) -> Result<(Child, Pin)> {
        let fingerprint = self.fingerprinter.of(&node.identity_bytes());
        let len_bytes = node.len_bytes()?;
        let (found, node) = match self.known_node(fingerprint, len_bytes)? {
            Some(found) => (found, node),
            None => match self.store_new_node(section, stream, fingerprint, len_bytes, node)? {
                Stored::New(stored) => return Ok(stored),
                Stored::Meanwhile(found, node) => (found, node),
            },
        };
        if self.chain.compare().is_some() { self.compare_list(section, stream, node, found) } else { Ok(found) }
    }

    fn known_node(&self, fingerprint: Fingerprint, len_bytes: u64) -> Result<Option<(Child, Pin)>> {
        // Also in a claimed container: emptying one moves every node that the index places there, referred to or not.
        let Some(cell) = self.recipe_index.get(&fingerprint)? else { return Ok(None) };
        // Nowhere: storing it again makes whole what refers to it.
        if cell.location.is_lost() {
            return Ok(None);
        }
        let Some(pin) = self.pins.pin_existing(fingerprint) else { return Ok(None) };
        Ok(Some((Child { fingerprint, len_bytes, hint: cell.location.container }, pin)))
    }

    fn store_new_node(
        &self,
        _section: &Section<'_>,
        stream: StreamId,
        fingerprint: Fingerprint,
        len_bytes: u64,
        node: Node,
    ) -> Result<Stored> {
        let (level, children) = (node.level, node.children.len());
        let bytes = node.encode();
        let _exclusive = waiting::lock(&self.store_lock);
        if let Some(found) = self.known_node(fingerprint, len_bytes)? {
            return Ok(Stored::Meanwhile(found, node));
        }
        // What it names was counted when the copy was stored that went bad, or that is claimed: this one takes its place. Were it
        // counted again, and the claimed copy's counts taken away when that is freed, a crash in between would leave both.
        let is_counted = self.recipe_index.get(&fingerprint)?.is_some_and(|cell| {
            cell.location.is_bad() || !cell.location.is_lost() && !self.pins.is_freed(&fingerprint)
        });
        let containers = self.recipes.append(stream, &[(fingerprint, &bytes)])?;
        let hint = containers.first().copied().unwrap_or(ContainerId::NONE);
        let pin = self.pins.pin_new(fingerprint);
        self.nodes.remember(fingerprint, Arc::new(NodeView::new(node)));
        // Logged before it can be found: whoever refers to it logs that later.
        let location = Location { container: hint, len_bytes: bytes.len() as u32 };
        if is_counted {
            self.namespace.log(LogOp::NodeMoved { fingerprint, container: hint, len_bytes: location.len_bytes });
        } else {
            let op = LogOp::NodeStored { level, fingerprint, container: hint, len_bytes: location.len_bytes };
            self.namespace.log_counting(op, children + 1);
        }
        self.recipe_index.stage(&fingerprint, location);
        // A claim was for the copy that reclaiming found; this one may be found, or it would be stored again.
        self.pins.end_claim(&fingerprint);
        self.counters.nodes_stored.fetch_add(1, Ordering::Relaxed);
        Ok(Stored::New((Child { fingerprint, len_bytes, hint }, pin)))
    }

    /// Whether a chunk in this container may be referred to: not while reclaiming has claimed it (I-4), and not if it
    /// is lost.
    fn usable(&self, container: ContainerId) -> bool {
        container != ContainerId::NONE && self.no_claim_on(container)
    }

    fn no_claim_on(&self, container: ContainerId) -> bool {
        !self.any_claimed.load(Ordering::Acquire) || !self.claimed_containers.read().contains(&container)
    }

    /// Ends the claims on nodes, once what was freed is counted. A writer may have found it in the index before, and not have
    /// come to look for the claim yet: that writer's section ends first.
    pub fn release_nodes(&self) {
        self.barrier();
        self.pins.release_claims();
    }

    /// Quarantines what is bad in `container`: from here on nothing is deduplicated against it, and storing it again heals.
    /// False if the index places it elsewhere: then nothing is lost.
    ///
    /// Of recipe nodes only while nobody reclaims (see [`Committer::hold_losses`](crate::commit::Committer::hold_losses)).
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn lose(&self, kind: ContainerKind, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let (index, op) = match kind {
            ContainerKind::Data => (&self.chunk_index, LogOp::ChunkLost { fingerprint, container }),
            ContainerKind::Recipe => (&self.recipe_index, LogOp::NodeLost { fingerprint, container }),
        };
        let _section = self.enter();
        let _exclusive = waiting::lock(&self.store_lock);
        let Some(cell) = index.get(&fingerprint)?.filter(|cell| cell.location.container == container) else {
            return Ok(false);
        };
        if kind == ContainerKind::Recipe {
            self.nodes.forget(&fingerprint);
        }
        index.stage(&fingerprint, Location::bad(cell.location.len_bytes));
        self.namespace.log(op);
        Ok(true)
    }

    /// Claims a node of which the index says that it lies in `container`; false if a writer holds it, or has written it again.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn claim_node(&self, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let _exclusive = waiting::lock(&self.store_lock);
        let cell = self.recipe_index.get(&fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.container == container) && self.pins.claim(fingerprint))
    }

    /// Frees a claimed node in `container`, if it is garbage; else ends the claim. Returns whether it was.
    ///
    /// It is garbage if nothing refers to it still. A writer that has stored the node again since the claim has moved it, with
    /// what its children count. Writers store nodes under the store lock, so the decision and its consequence are one.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn free_node(
        &self,
        level: u8,
        fingerprint: Fingerprint,
        container: ContainerId,
        children: usize,
    ) -> Result<bool> {
        let _exclusive = waiting::lock(&self.store_lock);
        let garbage = self
            .recipe_index
            .get(&fingerprint)?
            .is_some_and(|cell| cell.references == 0 && cell.location.container == container);
        if garbage {
            self.namespace.log_counting(LogOp::NodeFreed { level, fingerprint, container }, children + 1);
            self.pins.note_freed(fingerprint);
        } else {
            self.pins.end_claim(&fingerprint);
        }
        Ok(garbage)
    }

    /// Ends the claim on a node whose copy in `container` cannot be read, so that what its children count is not known. Returns
    /// whether it was stored again meanwhile: then it is whole.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn keep_unreadable_node(&self, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let _exclusive = waiting::lock(&self.store_lock);
        let cell = self.recipe_index.get(&fingerprint)?;
        self.pins.end_claim(&fingerprint);
        Ok(cell.is_some_and(|cell| cell.location.container != container && !cell.location.is_lost()))
    }

    /// The pins of nodes.
    #[must_use]
    pub fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    /// Reader of nodes.
    #[must_use]
    pub fn nodes(&self) -> &NodeReader {
        &self.nodes
    }

    /// The pool's hash function.
    #[must_use]
    pub fn fingerprinter(&self) -> &Fingerprinter {
        &self.fingerprinter
    }

    /// The filter chain, for its counters.
    #[must_use]
    pub fn chain(&self) -> &FilterChain {
        &self.chain
    }

    /// What passed through.
    #[must_use]
    pub fn counters(&self) -> &DedupCounters {
        &self.counters
    }
}
