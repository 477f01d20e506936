//! The order in which the newest recipes use the moved chunks, so that emptying containers mends fragmentation
//! (`ARCHITECTURE.md`, *The life of an unlink, and reclaiming*).
//!
//! The newest versions are walked first, unless arranging ([`super::arrange`]) is off or room is short. Then all files and
//! frozen trees are walked from the newest to the oldest, each from its end to its beginning. A chunk gets the highest
//! free place when it is first met. So the newest file that uses a chunk decides. Files made one after another (a
//! backup) lie in the order in which they were made, which is the order of a restore.
//!
//! Cost: one read of each recipe node of the newest files, until all chunks are found or as many nodes are read as the
//! caller allows. Chunks not met by then come first, in their old order. Memory: 44 bytes for each moved chunk and 32
//! for each node met.

use std::collections::HashMap;
use std::ops::ControlFlow;

use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

use super::Run;
use super::newest::Walk;

/// Nodes of the newest versions that may be read, as a multiple of those for the other files.
const NEWEST_FACTOR: u64 = 16;

/// The places of moved chunks or nodes; see the module's head.
pub(super) struct RestoreOrder {
    /// 0: not met yet.
    places: HashMap<Fingerprint, u32>,
    /// The next place, from the end.
    next: u32,
    missing: usize,
    /// Places above it are of content that the newest versions use.
    active_above: u32,
}

impl RestoreOrder {
    /// Finds the places of `wanted`, chunks or nodes, reading at most `nodes_max` nodes, and up to [`NEWEST_FACTOR`] times as
    /// many more if the newest versions were walked before. Unreadable nodes are left out: that costs only order.
    pub(super) fn find(run: &Run<'_>, wanted: impl Iterator<Item = Fingerprint>, nodes_max: u64) -> Self {
        let places: HashMap<Fingerprint, u32> = wanted.map(|fingerprint| (fingerprint, 0)).collect();
        let mut order = Self { missing: places.len(), places, next: u32::MAX, active_above: u32::MAX };
        if order.missing == 0 {
            return order;
        }
        let of_newest = run.usage.nodes.min(nodes_max.saturating_mul(NEWEST_FACTOR));
        let mut walk = Walk::new(run.core.dedup.nodes(), run.pace, nodes_max.saturating_add(of_newest));
        let walked = walk.versions(&run.usage.newest, &mut |reference, _| order.visit(reference));
        order.active_above = order.next;
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
        place > self.active_above
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
