//! The order in which the newest recipes use the moved chunks, so that emptying containers mends fragmentation
//! (`ARCHITECTURE.md`, *The life of an unlink, and reclaiming*).
//!
//! The newest versions are walked first, unless arranging ([`super::arrange`]) is off or room is short. Then all files and
//! frozen trees are walked from the newest to the oldest, each from its end to its beginning. A chunk gets the highest
//! free place when it is first met. So the newest file that uses a chunk decides. Files made one after another (a
//! backup) lie in the order in which they were made, which is the order of a restore.
//!
//! Cost: one read of each recipe node of the newest files, until all chunks are found or as much is read as the
//! caller allows. Chunks not met by then come first, in their old order. Memory: 44 bytes for each moved chunk and 32
//! for each node met, a sixteenth of `--memory` at most.

use std::collections::HashMap;
use std::ops::ControlFlow;

use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

use super::Run;
use super::arrange::Usage;
use super::newest::{INODES_PER_NODE, Walk};

/// Work on the newest versions, as a multiple of that on the other files.
const NEWEST_FACTOR: u64 = 16;
/// References of a node of a large file. Nodes of small files have fewer, and more of them may be read.
const REFERENCES_PER_NODE: u64 = 512;

/// The places of moved chunks or nodes; see the module's head.
pub(super) struct RestoreOrder {
    /// 0: not met yet.
    places: HashMap<Fingerprint, u32>,
    /// The next place, from the end.
    next: u32,
    missing: usize,
    /// Places above it are of content that the newest versions use. `None`: all may be.
    active_above: Option<u32>,
}

impl RestoreOrder {
    /// Finds the places of `wanted`, chunks or nodes, with the work of reading `nodes_max` nodes of large files, and [`NEWEST_FACTOR`] times as
    /// much for the newest versions. Unreadable nodes are left out: that costs only order. If the newest versions are too large, nobody knows what
    /// else they use: then everything counts as used by them.
    pub(super) fn find(run: &Run<'_>, wanted: impl Iterator<Item = Fingerprint>, nodes_max: u64) -> Self {
        let places: HashMap<Fingerprint, u32> = wanted.map(|fingerprint| (fingerprint, 0)).collect();
        let mut order = Self { missing: places.len(), places, next: u32::MAX, active_above: None };
        if order.missing == 0 {
            return order;
        }
        let Usage { newest, .. } = &run.usage;
        let factor = if newest.is_empty() { 1 } else { 1 + NEWEST_FACTOR };
        let references_max = nodes_max.saturating_mul(factor).saturating_mul(REFERENCES_PER_NODE);
        let walk = Walk::new(run.core.dedup.nodes(), run.pace, run.memory.walked_nodes);
        let mut walk = walk.bounded(references_max, nodes_max.saturating_mul(INODES_PER_NODE));
        let walked = walk.versions(newest, &mut |reference, _| order.visit(reference));
        let is_whole = walked.is_continue() || order.missing == 0;
        order.active_above = is_whole.then_some(order.next);
        if walked.is_continue() {
            walk.all(&run.core.namespace, &mut |reference, _| order.visit(reference));
        }
        order
    }

    fn visit(&mut self, reference: &Reference) -> ControlFlow<()> {
        self.meet(&reference.fingerprint());
        if self.missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether a place is that of content that the newest versions use.
    pub(super) fn is_active(&self, place: u32) -> bool {
        self.active_above.is_none_or(|above| place > above)
    }

    /// Returns its place among the others: lower places come first.
    pub(super) fn place_of(&self, fingerprint: &Fingerprint) -> u32 {
        self.places.get(fingerprint).copied().unwrap_or(0)
    }

    fn meet(&mut self, fingerprint: &Fingerprint) {
        if let Some(place) = self.places.get_mut(fingerprint)
            && *place == 0
        {
            *place = self.next;
            // Never 0: there are fewer chunks than places.
            self.next = self.next.saturating_sub(1).max(1);
            self.missing -= 1;
        }
    }
}
