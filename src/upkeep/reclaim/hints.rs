//! Nodes that move get present hints: a node is encoded anew when it is copied forward, with the containers in which
//! the index now places what the node names. Readers of it then need neither notes nor the index.
//!
//! Hints are outside of a node's fingerprint, so it stays the same node. A hint at a container that the same batch
//! empties stays as it is: its copy is not placed yet, and the batch's note leads to it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use dedupfs_base::Result;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::Run;
use super::newest::Walk;

/// Moved bytes for each node that may be read to find stale hints.
const MOVED_BYTES_PER_HINT_NODE: u64 = 16 << 10;
/// Bytes of recipe containers that may be emptied in any case.
const RECIPE_BYTES_MIN: u64 = 64 << 20;

impl Run<'_> {
    /// Returns the check whether a hint leads nowhere: its container is gone, or will be freed.
    pub(super) fn stale_hints(&self) -> impl Fn(&Reference) -> bool + use<'_> {
        let emptied: HashSet<ContainerId> = self.emptied.iter().map(|emptied| emptied.id).collect();
        move |reference| {
            let hint = reference.child().hint;
            !self.core.stores.of(reference.kind()).is_known(hint) || emptied.contains(&hint)
        }
    }

    /// Returns each node, encoded with present hints. Nodes that need none, and damaged ones, come back as they are.
    /// Cost: one lookup for all stale hints; some 150 bytes of memory for each.
    pub(super) fn with_present_hints(&self, nodes: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let is_stale = self.stale_hints();
        let decoded: Vec<Option<Node>> = nodes.iter().map(|bytes| Node::decode(bytes).ok()).collect();
        let references = decoded.iter().flatten().flat_map(Node::references);
        let stale: Vec<Reference> = references.filter(|reference| is_stale(reference)).collect();
        let mut present = HashMap::with_capacity(stale.len());
        for kind in [ContainerKind::Data, ContainerKind::Recipe] {
            let of_kind = stale.iter().filter(|reference| reference.kind() == kind);
            let fingerprints: Vec<Fingerprint> = of_kind.map(Reference::fingerprint).collect();
            present.extend(self.containers_of(kind, &fingerprints)?.into_iter().map(|(print, at)| ((kind, print), at)));
        }
        let now = |reference: &Reference| {
            is_stale(reference).then(|| present.get(&(reference.kind(), reference.fingerprint())).copied()).flatten()
        };
        let renewed = |(node, bytes): (Option<Node>, &&[u8])| match node {
            Some(mut node) if !present.is_empty() => {
                node.renew_hints(&now);
                node.encode()
            }
            _ => bytes.to_vec(),
        };
        Ok(decoded.into_iter().zip(nodes).map(renewed).collect())
    }

    /// Returns the recipe containers to empty because nodes in them have stale hints. Nodes that stay cannot get present
    /// ones: their readers would go on finding the old copy.
    ///
    /// Reads at most one node for each [`MOVED_BYTES_PER_HINT_NODE`] moved, the newest files first. The containers with the
    /// most such nodes come first. Together they hold an eighth of the moved bytes at most, or [`RECIPE_BYTES_MIN`] if that is
    /// more.
    pub(super) fn recipes_with_stale_hints(&self) -> Result<HashSet<ContainerId>> {
        let moved_bytes = self.report.moved_bytes;
        if moved_bytes == 0 || self.core.space.is_tight() {
            return Ok(HashSet::new());
        }
        let nodes_max = (moved_bytes / MOVED_BYTES_PER_HINT_NODE).min(self.memory.group_chunks);
        let (is_stale, mut nodes) = (self.stale_hints(), Vec::new());
        let mut walk = Walk::new(self.core.dedup.nodes(), self.pace, nodes_max);
        walk.all(&self.core.namespace, &mut |reference, view| {
            if view.is_some_and(|view| view.references().iter().any(&is_stale)) {
                nodes.push(reference.fingerprint());
            }
            ControlFlow::Continue(())
        });
        let mut counts = HashMap::<ContainerId, u64>::new();
        for (_, container) in self.containers_of(ContainerKind::Recipe, &nodes)? {
            *counts.entry(container).or_default() += 1;
        }
        let mut containers: Vec<(u64, ContainerId)> = counts.into_iter().map(|(id, count)| (count, id)).collect();
        containers.sort_unstable_by(|one, other| other.cmp(one));
        let mut left_bytes = (moved_bytes / 8).max(RECIPE_BYTES_MIN);
        containers.retain(|(_, container)| {
            let bytes = self.core.indexes.nodes.occupied(*container).bytes;
            let fits = bytes <= left_bytes;
            left_bytes -= if fits { bytes } else { 0 };
            fits
        });
        Ok(containers.into_iter().map(|(_, container)| container).collect())
    }

    /// Returns the containers in which the index places these chunks or nodes.
    pub(super) fn containers_of(
        &self,
        kind: ContainerKind,
        fingerprints: &[Fingerprint],
    ) -> Result<Vec<(Fingerprint, ContainerId)>> {
        let index = self.core.indexes.of(kind);
        let mut sealed = index.sealed_cells_of(fingerprints)?;
        let cells = index.cells_of(fingerprints, &mut sealed)?;
        let placed = fingerprints.iter().zip(cells).filter_map(|(fingerprint, cell)| {
            cell.filter(|cell| !cell.location.is_lost()).map(|cell| (*fingerprint, cell.location.container()))
        });
        Ok(placed.collect())
    }
}
