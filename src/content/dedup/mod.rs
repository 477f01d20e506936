//! Storing chunks and recipe nodes once.
//!
//! A segment is stored in these steps (`ARCHITECTURE.md`, *The life of a write*):
//! 0. Before the section, most of steps 1 and 2 is done ([`early`]).
//! 1. Its own fingerprint is looked up. A known segment of any size costs one lookup and one pin.
//! 2. Otherwise its chunks go through the filter chain as one batch.
//! 3. The new chunks are looked up once more under the store lock, because another writer may have stored them by now.
//!    The rest are appended to the stream's open container.
//! 4. The segment is encoded and appended to the recipe containers. A log entry records it, and its chunks are counted.
//!
//! The copies found in steps 1 to 3 are trusted by their fingerprint, or read and compared ([`compare`]). The filter
//! chain decides this when the pool is opened ([`Finds`]).
//!
//! Invariants:
//! - Everything between a lookup and the log entry that rests on it happens inside one [`Section`], or the lookup is known to hold there
//!   ([`early`]). Reclaiming claims
//!   first, then waits for all sections to end ([`Deduplicator::barrier`]), then rechecks (I-4).
//! - Under the store lock, a fingerprint that neither index has is stored exactly once.
//!
//! Cost: for a duplicate segment, one hash of its identity (about 20 KiB) and one index lookup; for a new chunk, one
//! copy.
//!
//! Lock order: section -> store lock -> container store, index, operations log.

mod block_index;
mod compare;
mod early;
mod finds;
mod forward;
mod kept;
mod lacks;
mod locked;
mod neighbour;
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

use dedupfs_index::filter::{FilterChain, FilterStats};
use dedupfs_index::{Cell, Location};
use dedupfs_store::node::Node as AnyNode;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::{Child, Node, Root};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, StoreError, tree, waiting};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::{Mutex, MutexGuard, OnceLock, RwLock, thread};

pub(crate) use block_index::BlockIndex;
pub(crate) use early::Early;
pub use forward::{CopiedForward, Forwarded};
pub use kept::{ASKED_AT_ONCE, Answer, KeptAnswers, SEALED_BYTES};
pub use neighbour::Neighbour;
pub(crate) use pins::Pins;
pub use pins::{Pin, RootPin};
pub use sections::Section;
pub use stored::ContainerChunks;

use early::node_of;
use finds::Finds;
use sections::Sections;

use crate::containers::StreamId;
use crate::fetch::{AnyView, Fetcher, NodeReader};
use crate::fingerprint::Fingerprinter;
use crate::stores::{Indexes, Stores};
use dedupfs_base::Result;
use dedupfs_store::{LogOp, OperationsLog};

/// One entry of a segment to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentEntry<'a> {
    /// Fingerprint, length, and the hint if it is known already.
    pub child: Child,
    /// The bytes; `None` for a chunk that a live recipe names already, for zeros, and for a named chunk.
    pub data: Option<&'a [u8]>,
    /// The chunk is named by its fingerprint alone: the pool must have it.
    pub is_named: bool,
}

/// The filters that come with content.
#[derive(Clone, Default)]
pub(crate) struct Own {
    /// The chunks that the file held before.
    pub(crate) known: Option<Arc<BlockIndex>>,
    /// The chunks that are looked for at all, if not all of the pool's.
    pub(crate) scope: Option<Arc<Neighbour>>,
    /// Answers that were given ahead.
    pub(crate) kept: Option<Arc<KeptAnswers>>,
}

/// The outcome of storing a node.
enum Stored {
    /// This call stored it.
    New((Child, Pin)),
    /// Another writer stored it after the lookup.
    Meanwhile((Child, Pin), AnyNode),
}

/// Counters since the pool was opened.
#[derive(Debug, Default)]
struct Counters {
    bytes_in: AtomicU64,
    bytes_stored: AtomicU64,
    chunks_stored: AtomicU64,
    segments_known: AtomicU64,
    nodes_stored: AtomicU64,
}

/// Figures since the pool was opened.
#[derive(Debug)]
pub struct DedupStats {
    /// Bytes of chunks and segments offered.
    pub bytes_in: u64,
    /// Bytes of chunks stored.
    pub bytes_stored: u64,
    pub chunks_stored: u64,
    /// Segments that were known as a whole.
    pub segments_known: u64,
    /// Recipe nodes of all levels stored.
    pub nodes_stored: u64,
    /// The filters of the chain, in order.
    pub filters: Vec<FilterStats>,
}

/// The core of the write path: exact deduplication of chunks and nodes.
pub struct Deduplicator {
    stores: Stores,
    indexes: Indexes,
    chain: FilterChain,
    finds: Box<dyn Finds>,
    fingerprinter: Fingerprinter,
    log: Arc<dyn OperationsLog>,
    nodes: NodeReader,
    pins: Arc<Pins>,
    claimed_containers: RwLock<HashSet<ContainerId>>,
    any_claimed: AtomicBool,
    /// Times that claims began or ended, or a copy was lost.
    times_gone: AtomicU64,
    sections: Sections,
    store_lock: Mutex<()>,
    /// Drawn when the first answer is given ahead.
    sealer: OnceLock<Option<kept::Sealer>>,
    counters: Counters,
}

/// The parts of a [`Deduplicator`].
pub struct DedupParts {
    /// Containers of chunks and of recipe nodes.
    pub stores: Stores,
    /// Index of chunks and index of recipe nodes.
    pub indexes: Indexes,
    /// Filters over the chunk index, in order.
    pub chain: FilterChain,
    /// The pool's hash function.
    pub fingerprinter: Fingerprinter,
    /// The log of stored nodes.
    pub log: Arc<dyn OperationsLog>,
    /// Bytes of decoded nodes in the cache.
    pub node_cache_bytes: u64,
}

impl Deduplicator {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: DedupParts) -> Self {
        let fetcher = Fetcher::new(parts.stores.recipes.clone(), parts.indexes.nodes.clone(), parts.fingerprinter);
        let nodes = NodeReader::new(fetcher, parts.fingerprinter, parts.node_cache_bytes);
        Self {
            stores: parts.stores,
            indexes: parts.indexes,
            finds: finds::of(&parts.chain),
            chain: parts.chain,
            fingerprinter: parts.fingerprinter,
            log: parts.log,
            nodes,
            pins: Arc::new(Pins::default()),
            claimed_containers: RwLock::default(),
            any_claimed: AtomicBool::new(false),
            times_gone: AtomicU64::new(0),
            sections: Sections::default(),
            store_lock: Mutex::new(()),
            sealer: OnceLock::new(),
            counters: Counters::default(),
        }
    }

    /// Enters a section. Not reentrant: a thread in a section must not enter another.
    pub fn enter(&self) -> Section<'_> {
        thread::linger(Step::Section);
        let section = self.sections.enter(waiting::announce);
        thread::linger(Step::Section);
        section
    }

    /// Waits for room in the memory between writers and the disk; for the threads of writers, not for workers.
    ///
    /// # Errors
    /// The remembered error of a failed store (I-7).
    pub fn wait_for_room(&self) -> Result<()> {
        self.stores.data.wait_for_room()?;
        self.stores.recipes.wait_for_room()
    }

    fn lock_store(&self) -> MutexGuard<'_, ()> {
        waiting::lock_as(Component::StoreLock, &self.store_lock)
    }

    /// Locks the store with current answers of the index; see [`locked::lock_with`].
    fn lock_store_with<A>(
        &self,
        answers: &mut A,
        is_current: impl Fn(&A) -> bool,
        look_up: impl FnMut(&mut A) -> Result<()>,
    ) -> Result<MutexGuard<'_, ()>> {
        locked::lock_with(|| self.lock_store(), answers, is_current, look_up)
    }

    /// Waits until every section entered before this call has ended. New sections can be entered at the same time.
    pub fn barrier(&self) {
        if !is_planted(Canary::SectionsNotAwaited) {
            self.sections.barrier();
        }
    }

    /// Calls `action` while no section is open: each section lies wholly before or wholly behind it.
    pub fn between_sections<T>(&self, action: impl FnOnce() -> T) -> T {
        if is_planted(Canary::SectionsNotAwaited) {
            return action();
        }
        self.sections.between(action)
    }

    /// Stores a segment: see the module's head. `early` are the answers of [`look_up_early`](Self::look_up_early) about the same entries.
    ///
    /// # Errors
    /// Lookup and container errors. Chunks stored before the error are garbage, which reclaiming finds.
    pub(crate) fn store_segment(
        &self,
        section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        own: &Own,
        early: Option<Early>,
    ) -> Result<(Child, Pin)> {
        let _timed = profile::of(Component::Segments);
        let mut node = node_of(entries);
        let asked = early.as_ref().and_then(|early| early.node);
        let fingerprint = asked.unwrap_or_else(|| self.fingerprinter.of(&node.identity_bytes()));
        let len_bytes = node.len_bytes()?;
        self.counters.bytes_in.fetch_add(len_bytes, Ordering::Relaxed);
        if let Some(found) = self.known_node(fingerprint, len_bytes)? {
            self.counters.segments_known.fetch_add(1, Ordering::Relaxed);
            return self.finds.node(self, section, stream, entries, node, found);
        }
        self.place_chunks(stream, entries, &mut node.children, own, early)?;
        match self.store_new_node(section, stream, fingerprint, len_bytes, AnyNode::Recipe(node))? {
            Stored::New(stored) => Ok(stored),
            Stored::Meanwhile(found, node) => self.found(section, stream, entries, node, found),
        }
    }

    /// Treats a node that another writer stored meanwhile.
    fn found(
        &self,
        section: &Section<'_>,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        node: AnyNode,
        found: (Child, Pin),
    ) -> Result<(Child, Pin)> {
        match node {
            AnyNode::Recipe(node) => self.finds.node(self, section, stream, entries, node, found),
            AnyNode::Tree(node) => self.finds.tree_node(self, section, stream, node, found),
        }
    }

    /// Stores one chunk that a root will name directly. The caller logs the root within the same section.
    pub(crate) fn store_chunk(
        &self,
        _section: &Section<'_>,
        stream: StreamId,
        entry: SegmentEntry<'_>,
        own: &Own,
        early: Option<Early>,
    ) -> Result<Child> {
        self.counters.bytes_in.fetch_add(entry.child.len_bytes, Ordering::Relaxed);
        let mut child = [entry.child];
        self.place_chunks(stream, &[entry], &mut child, own, early)?;
        let [child] = child;
        Ok(child)
    }

    /// Stores a list node.
    pub(crate) fn store_node(&self, section: &Section<'_>, stream: StreamId, node: Node) -> Result<(Child, Pin)> {
        self.store_any(section, stream, AnyNode::Recipe(node))
    }

    /// Stores a tree node. Everything that it names must stay referred to until this returns: by a pin, or by a counted
    /// reference that is dropped within no earlier section.
    ///
    /// # Errors
    /// Lookup and container errors.
    pub fn store_tree_node(&self, section: &Section<'_>, stream: StreamId, node: tree::Node) -> Result<(Child, Pin)> {
        self.store_any(section, stream, AnyNode::Tree(node))
    }

    fn store_any(&self, section: &Section<'_>, stream: StreamId, node: AnyNode) -> Result<(Child, Pin)> {
        let fingerprint = self.fingerprinter.of(&node.identity_bytes());
        let len_bytes = node.len_bytes()?;
        let (found, node) = match self.known_node(fingerprint, len_bytes)? {
            Some(found) => (found, node),
            None => match self.store_new_node(section, stream, fingerprint, len_bytes, node)? {
                Stored::New(stored) => return Ok(stored),
                Stored::Meanwhile(found, node) => (found, node),
            },
        };
        self.found(section, stream, &[], node, found)
    }

    fn known_node(&self, fingerprint: Fingerprint, len_bytes: u64) -> Result<Option<(Child, Pin)>> {
        let _timed = profile::of(Component::SegmentLookup);
        // A node in a claimed container counts as known: emptying the container moves every node that the index places
        // there, also without references.
        Ok(self.pinned(fingerprint, len_bytes, self.indexes.nodes.get(&fingerprint)?))
    }

    /// Pins a node that is stored. Lost ones are not: storing them again heals every file that needs them.
    fn pinned(&self, fingerprint: Fingerprint, len_bytes: u64, cell: Option<Cell>) -> Option<(Child, Pin)> {
        let cell = cell.filter(|cell| !cell.location.is_lost())?;
        thread::linger(Step::Lookup);
        let pin = self.pins.pin_existing(fingerprint)?;
        Some((Child { fingerprint, len_bytes, hint: cell.location.container() }, pin))
    }

    fn store_new_node(
        &self,
        _section: &Section<'_>,
        stream: StreamId,
        fingerprint: Fingerprint,
        len_bytes: u64,
        node: AnyNode,
    ) -> Result<Stored> {
        let (level, references) = (node.level(), node.references().len());
        let bytes = node.encode();
        thread::linger(Step::Section);
        let (index, asked) = (&self.indexes.nodes, [fingerprint]);
        let mut sealed = index.sealed_cells_of(&asked)?;
        let _exclusive = if is_planted(Canary::NodesUnlocked) {
            None
        } else {
            Some(self.lock_store_with(
                &mut sealed,
                |sealed| index.is_current(sealed),
                |sealed| {
                    *sealed = index.sealed_cells_of(&asked)?;
                    Ok(())
                },
            )?)
        };
        let cell = index.cells_of(&asked, &mut sealed)?.into_iter().next().flatten();
        if let Some(found) = self.pinned(fingerprint, len_bytes, cell) {
            return Ok(Stored::Meanwhile(found, node));
        }
        // The children were counted when the bad or claimed copy was stored, and this copy takes its place. If they
        // were counted again, and subtracted when the claimed copy is freed, a crash in between would leave both
        // counts.
        let is_counted = cell.is_some_and(|cell| {
            cell.location.is_quarantined() || !cell.location.is_lost() && !self.pins.is_freed(&fingerprint)
        });
        let is_counted = is_counted && !is_planted(Canary::CopyCountsAgain);
        let containers = self.stores.recipes.append(stream, &[(fingerprint, &bytes)])?;
        let hint = containers.first().copied().unwrap_or(ContainerId::NONE);
        let pin = self.pins.pin_new(fingerprint);
        self.nodes.remember(fingerprint, AnyView::new(node));
        // Log before staging: a writer that finds the node logs its reference later.
        let location = Location::new(hint, bytes.len() as u32);
        if is_counted {
            self.log.log(LogOp::NodeMoved { fingerprint, container: hint, len_bytes: location.len_bytes() });
        } else {
            let op = LogOp::NodeStored { level, fingerprint, container: hint, len_bytes: location.len_bytes() };
            self.log.log_counting(op, references + 1);
        }
        self.indexes.nodes.stage(&fingerprint, location);
        // The claim was on the old copy. It must end, or writers would store the node yet again.
        self.pins.end_claim(&fingerprint);
        self.counters.nodes_stored.fetch_add(1, Ordering::Relaxed);
        Ok(Stored::New((Child { fingerprint, len_bytes, hint }, pin)))
    }

    /// Whether a chunk in this container may be referred to: not if reclaiming has claimed the container (I-4), nor if
    /// the chunk is lost.
    fn usable(&self, container: ContainerId) -> bool {
        container != ContainerId::NONE && self.no_claim_on(container)
    }

    /// Whether containers are being emptied: what of them is in use is elsewhere in a moment.
    #[must_use]
    pub fn claims_containers(&self) -> bool {
        self.any_claimed.load(Ordering::Acquire)
    }

    fn no_claim_on(&self, container: ContainerId) -> bool {
        is_planted(Canary::ContainerClaimIgnored)
            || !self.any_claimed.load(Ordering::Acquire)
            || !self.claimed_containers.read().contains(&container)
    }

    /// Ends the claims on nodes once their freeing is counted. Waits for all sections first: a writer may have found a
    /// node in the index before it was freed, and not have checked the claim yet.
    pub fn release_nodes(&self) {
        self.barrier();
        self.pins.release_claims();
    }

    /// Quarantines the copy of `fingerprint` in `container`: from now on nothing is deduplicated against it, and
    /// storing the same data again heals it. Returns false if the index places it elsewhere: then nothing is lost.
    ///
    /// For recipe nodes, no reclaiming may run at the same time (`Committer::hold_losses`).
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn lose(&self, kind: ContainerKind, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let (index, op) = match kind {
            ContainerKind::Data => (&self.indexes.chunks, LogOp::ChunkLost { fingerprint, container }),
            ContainerKind::Recipe => (&self.indexes.nodes, LogOp::NodeLost { fingerprint, container }),
        };
        let _section = self.enter();
        let _exclusive = self.lock_store();
        let Some(cell) = index.get(&fingerprint)?.filter(|cell| cell.location.container() == container) else {
            return Ok(false);
        };
        if kind == ContainerKind::Recipe {
            self.nodes.forget(&fingerprint);
        }
        index.stage(&fingerprint, Location::quarantined(cell.location.len_bytes()));
        // Behind it: an early lookup that still found the copy has the number from before.
        self.note_gone();
        self.log.log(op);
        Ok(true)
    }

    /// Stores a chunk again, from another copy of its bytes, if it is lost. Its references stay counted. Returns false if the index has a copy,
    /// or nothing refers to it.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those of the chunk; index and container errors.
    pub fn replace_chunk(&self, stream: StreamId, fingerprint: Fingerprint, bytes: &[u8]) -> Result<bool> {
        let found = self.fingerprinter.of(bytes);
        if found != fingerprint {
            return Err(StoreError::corrupt("chunk", fingerprint, found).into());
        }
        let _section = self.enter();
        if !self.indexes.chunks.get(&fingerprint)?.is_some_and(|cell| cell.location.is_lost()) {
            return Ok(false);
        }
        let child = Child { fingerprint, len_bytes: bytes.len() as u64, hint: ContainerId::NONE };
        let entry = SegmentEntry { child, data: Some(bytes), is_named: false };
        self.place_chunks(stream, &[entry], &mut [child], &Own::default(), None)?;
        Ok(true)
    }

    /// Stores a node again, from another copy of its bytes, if the index places it in `container`, or has quarantined it:
    /// no copy there can be believed. Its children stay counted as they are, as when a node moves. Returns false if the
    /// index has another copy.
    ///
    /// As with [`lose`](Self::lose), no reclaiming may free nodes at the same time.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those of the node; index and container errors.
    pub fn replace_node(
        &self,
        stream: StreamId,
        fingerprint: Fingerprint,
        container: ContainerId,
        bytes: &[u8],
    ) -> Result<bool> {
        let node = AnyNode::decode(bytes)?;
        let found = self.fingerprinter.of(&node.identity_bytes());
        if found != fingerprint {
            return Err(StoreError::corrupt("recipe node", fingerprint, found).into());
        }
        let _section = self.enter();
        let _exclusive = self.lock_store();
        let is_bad = self.indexes.nodes.get(&fingerprint)?.is_some_and(|cell| {
            cell.location.container() == container && !cell.location.is_lost() || cell.location.is_quarantined()
        });
        if !is_bad {
            return Ok(false);
        }
        let containers = self.stores.recipes.append(stream, &[(fingerprint, bytes)])?;
        let place = containers.first().copied().unwrap_or(ContainerId::NONE);
        let location = Location::new(place, bytes.len() as u32);
        self.nodes.remember(fingerprint, AnyView::new(node));
        // Log before staging, as for a new node.
        self.log.log(LogOp::NodeMoved { fingerprint, container: place, len_bytes: location.len_bytes() });
        self.indexes.nodes.stage(&fingerprint, location);
        Ok(true)
    }

    /// Claims a node that the index places in `container`. Returns false if a writer holds it or has stored it again.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn claim_node(&self, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let _exclusive = self.lock_store();
        let cell = self.indexes.nodes.get(&fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.container() == container) && self.pins.claim(fingerprint))
    }

    /// Frees a claimed node in `container` if it is garbage, that is, if nothing refers to it. Otherwise ends the
    /// claim. Returns whether it was freed.
    ///
    /// If a writer has stored the node again since the claim, it has moved the node, and the counts of the children
    /// stay. Writers store nodes under the store lock, which makes the check and the freeing one step.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn free_node(
        &self,
        level: u8,
        fingerprint: Fingerprint,
        container: ContainerId,
        references: usize,
    ) -> Result<bool> {
        let _exclusive = self.lock_store();
        let garbage = self
            .indexes
            .nodes
            .get(&fingerprint)?
            .is_some_and(|cell| cell.references == 0 && cell.location.container() == container);
        if garbage {
            self.log.log_counting(LogOp::NodeFreed { level, fingerprint, container }, references + 1);
            self.pins.note_freed(fingerprint);
        } else {
            self.pins.end_claim(&fingerprint);
        }
        Ok(garbage)
    }

    /// Ends the claim on a node whose copy in `container` cannot be read, so its children are unknown. Returns whether
    /// a writer has stored the node again: then it is sound.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn keep_unreadable_node(&self, fingerprint: Fingerprint, container: ContainerId) -> Result<bool> {
        let _exclusive = self.lock_store();
        let cell = self.indexes.nodes.get(&fingerprint)?;
        self.pins.end_claim(&fingerprint);
        Ok(cell.is_some_and(|cell| cell.location.container() != container && !cell.location.is_lost()))
    }

    /// Whether a writer holds the node.
    #[must_use]
    pub fn is_pinned(&self, fingerprint: &Fingerprint) -> bool {
        self.pins.is_pinned(fingerprint)
    }

    /// Keeps the content that a root names from being reclaimed. Call it within the section in which the root was built.
    /// `None` if the root names nothing.
    #[must_use]
    pub fn pin_root(&self, root: &Root) -> Option<RootPin> {
        self.pins.pin_root(root)
    }

    /// Returns the chunks that are pinned now, each a whole file without a counted reference. Bounded as the content that
    /// waits for its leaf.
    #[must_use]
    pub fn pinned_chunks(&self) -> HashSet<Fingerprint> {
        self.pins.pinned_chunks()
    }

    /// The pins of nodes.
    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    /// The reader of nodes.
    #[must_use]
    pub fn nodes(&self) -> &NodeReader {
        &self.nodes
    }

    /// The pool's hash function.
    #[must_use]
    pub fn fingerprinter(&self) -> &Fingerprinter {
        &self.fingerprinter
    }

    /// Returns the figures of stored and known data, and of the filters.
    #[must_use]
    pub fn stats(&self) -> DedupStats {
        let counters = &self.counters;
        DedupStats {
            bytes_in: counters.bytes_in.load(Ordering::Relaxed),
            bytes_stored: counters.bytes_stored.load(Ordering::Relaxed),
            chunks_stored: counters.chunks_stored.load(Ordering::Relaxed),
            segments_known: counters.segments_known.load(Ordering::Relaxed),
            nodes_stored: counters.nodes_stored.load(Ordering::Relaxed),
            filters: self.chain.stats(),
        }
    }
}
