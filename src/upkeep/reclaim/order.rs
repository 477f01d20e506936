//! The order in which the newest recipes use the moved chunks, so that emptying containers mends fragmentation
//! (`ARCHITECTURE.md`, *The life of an unlink, and reclaiming*).
//!
//! The files and frozen trees are walked from the newest to the oldest, each from its end to its beginning. A chunk gets the highest
//! free place when it is first met. So the newest file that uses a chunk decides. Files made one after another (a
//! backup) lie in the order in which they were made, which is the order of a restore.
//!
//! Cost: one read of each recipe node of the newest files, until all chunks are found or as many nodes are read as the
//! caller allows. Chunks not met by then come first, in their old order. Memory: 44 bytes for each moved chunk and 32
//! for each node met.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use dedupfs_content::NodeReader;
use dedupfs_namespace::Namespace;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

/// Inodes visited at most for each node that may be read: those of small files need none.
const INODES_PER_NODE: u64 = 64;

/// The places of moved chunks or nodes; see the module's head.
pub(super) struct RestoreOrder {
    /// 0: not met yet.
    places: HashMap<Fingerprint, u32>,
    /// The next place, from the end.
    next: u32,
    missing: usize,
    met: HashSet<Fingerprint>,
    nodes_left: u64,
    inodes_left: u64,
}

impl RestoreOrder {
    /// Finds the places of `wanted`, chunks or nodes, reading at most `nodes_max` nodes. Unreadable nodes are left out:
    /// that costs only order.
    pub(super) fn find(
        namespace: &Namespace,
        nodes: &NodeReader,
        wanted: impl Iterator<Item = Fingerprint>,
        nodes_max: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Self {
        let places: HashMap<Fingerprint, u32> = wanted.map(|fingerprint| (fingerprint, 0)).collect();
        let mut order = Self {
            missing: places.len(),
            places,
            next: u32::MAX,
            met: HashSet::new(),
            nodes_left: nodes_max,
            inodes_left: nodes_max.saturating_mul(INODES_PER_NODE),
        };
        if order.missing == 0 {
            return order;
        }
        let walked = namespace.for_each_newest(&mut |inode| {
            if let Some(reference) = inode.root.reference() {
                order.walk(nodes, reference);
            }
            order.inodes_left = order.inodes_left.saturating_sub(1);
            let is_done = order.missing == 0 || order.nodes_left == 0 || order.inodes_left == 0 || is_stopped();
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        if let Err(error) = walked {
            tracing::warn!(%error, "some moved chunks are not in the order of the newest files");
        }
        order.met = HashSet::new();
        order
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

    /// Walks a chunk, or a node with everything below it, last child first.
    fn walk(&mut self, nodes: &NodeReader, reference: Reference) {
        let mut stack = vec![reference];
        while let Some(reference) = stack.pop() {
            if self.missing == 0 {
                return;
            }
            let fingerprint = reference.fingerprint();
            let Reference::Node { child, .. } = reference else {
                self.meet(&fingerprint);
                continue;
            };
            if self.nodes_left == 0 {
                return;
            }
            if !self.met.insert(fingerprint) {
                continue;
            }
            self.meet(&fingerprint);
            self.nodes_left -= 1;
            // The last one pushed is walked first.
            if let Ok(view) = nodes.node_of(&fingerprint, child.hint) {
                stack.extend(view.references());
            }
        }
    }
}
