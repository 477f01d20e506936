//! The order in which the newest recipes use the moved chunks, so that emptying containers mends fragmentation
//! (`ARCHITECTURE.md`, *The life of an unlink, and reclaiming*).
//!
//! The newest versions are walked first, unless arranging ([`super::arrange`]) is off or room is short. Then all files and
//! frozen trees are walked from the newest to the oldest, each from its end to its beginning. A chunk gets the highest
//! free place when it is first met. So the newest file that uses a chunk decides. Files made one after another (a
//! backup) lie in the order in which they were made, which is the order of a restore.
//!
//! Within a batch, tree nodes come before recipe nodes: clients list whole directories before they open the first file. If
//! tree nodes lay between recipes, a listing would read all recipes, which leave the cache before the files are read.
//!
//! Cost: one read of each recipe node of the newest files, until all chunks are found or as much is read as the
//! caller allows. Chunks not met by then come first, in their old order. Memory: 44 bytes for each moved chunk and 32
//! for each node met, a sixteenth of `--memory` at most.

use std::collections::HashMap;
use std::ops::ControlFlow;

use dedupfs_content::AnyView;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

use super::Run;
use super::arrange::Usage;
use super::newest::{INODES_PER_NODE, Walk};

/// Work on the newest versions, as a multiple of that on the other files.
const NEWEST_FACTOR: u64 = 16;
/// References of a node of a large file. Nodes of small files have fewer, and more of them may be read.
const REFERENCES_PER_NODE: u64 = 512;

/// The place of a chunk or node among those that are moved. Its fields sort it, in this order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    is_active: bool,
    is_behind_trees: bool,
    rank: u32,
}

impl Place {
    /// Whether the newest versions use it. Places of such content come behind all others.
    pub(super) fn is_active(self) -> bool {
        self.is_active
    }

    /// Returns when the walk met it: the first one has the greatest rank.
    pub(super) fn rank(self) -> u32 {
        self.rank
    }
}

/// Bit that is set beside the rank of all that is no tree node.
const BEHIND_TREES: u32 = 1;
/// Ranks leave room for the bit.
const STEP: u32 = 2;

/// The places of moved chunks or nodes; see the module's head.
pub(super) struct RestoreOrder {
    /// For each the rank with [`BEHIND_TREES`], in one word. 0: not met yet.
    met: HashMap<Fingerprint, u32>,
    /// The next rank, from the end.
    next: u32,
    missing: usize,
    /// Ranks above it are of content that the newest versions use. `None`: all may be.
    active_above: Option<u32>,
}

impl RestoreOrder {
    /// Finds the places of `wanted`, chunks or nodes, with the work of reading `nodes_max` nodes of large files, and [`NEWEST_FACTOR`] times as
    /// much for the newest versions. Unreadable nodes are left out: that costs only order. If the newest versions are too large, nobody knows what
    /// else they use: then everything counts as used by them.
    pub(super) fn find(run: &Run<'_>, wanted: impl Iterator<Item = Fingerprint>, nodes_max: u64) -> Self {
        let met: HashMap<Fingerprint, u32> = wanted.map(|fingerprint| (fingerprint, 0)).collect();
        let mut order = Self { missing: met.len(), met, next: u32::MAX - BEHIND_TREES, active_above: None };
        if order.missing == 0 {
            return order;
        }
        let Usage { newest, .. } = &run.usage;
        let factor = if newest.is_empty() { 1 } else { 1 + NEWEST_FACTOR };
        let references_max = nodes_max.saturating_mul(factor).saturating_mul(REFERENCES_PER_NODE);
        let walk = Walk::new(run.core.dedup.nodes(), run.pace, run.memory.walked_nodes);
        let mut walk = walk.bounded(references_max, nodes_max.saturating_mul(INODES_PER_NODE));
        let walked = walk.versions(newest, &mut |reference, view| order.visit(reference, view));
        let is_whole = walked.is_continue() || order.missing == 0;
        order.active_above = is_whole.then_some(order.next);
        if walked.is_continue() {
            walk.all(&run.core.namespace, &mut |reference, view| order.visit(reference, view));
        }
        order
    }

    fn visit(&mut self, reference: &Reference, view: Option<&AnyView>) -> ControlFlow<()> {
        self.meet(&reference.fingerprint(), matches!(view, Some(AnyView::Tree(_))));
        if self.missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns its place among the others.
    pub(super) fn place_of(&self, fingerprint: &Fingerprint) -> Place {
        let met = self.met.get(fingerprint).copied().unwrap_or(0);
        let rank = met & !BEHIND_TREES;
        let is_active = self.active_above.is_none_or(|above| rank > above);
        Place { is_active, is_behind_trees: met & BEHIND_TREES != 0, rank }
    }

    fn meet(&mut self, fingerprint: &Fingerprint, is_tree: bool) {
        if let Some(met) = self.met.get_mut(fingerprint)
            && *met == 0
        {
            *met = if is_tree { self.next } else { self.next | BEHIND_TREES };
            // Never 0: there are fewer chunks than places.
            self.next = self.next.saturating_sub(STEP).max(STEP);
            self.missing -= 1;
        }
    }
}
