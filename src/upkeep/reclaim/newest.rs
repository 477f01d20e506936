//! The walk through what files and frozen trees refer to, the newest first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use dedupfs_base::Result;
use dedupfs_content::{AnyView, NodeReader};
use dedupfs_namespace::Namespace;
use dedupfs_store::recipe::Reference;

use super::pace::Pace;
use crate::versions::list::VersionInfo;

/// Nodes read before the run gives way to clients.
const NODES_AT_ONCE: usize = 64;
/// Inodes visited at most for each node that may be read: those of small files need none.
pub(super) const INODES_PER_NODE: u64 = 64;
/// Reading a node costs as much as so many of its references.
const NODE_AS_REFERENCES: u64 = 16;

/// Returns the frozen tree of the newest complete and readable version of each directory, and of each source in it that has several: sources
/// that are backed up in turn are all arranged, and a source that has another path each time counts once.
///
/// `versions` are in the order of their completion, as [`list`](crate::versions::list::list) returns them.
pub(super) fn newest_of(namespace: &Namespace, versions: &[VersionInfo]) -> Result<Vec<Reference>> {
    let (mut by_directory, mut by_source) = (HashMap::new(), HashMap::new());
    for version in versions.iter().filter(|version| !version.incomplete && !version.is_unknown) {
        by_directory.insert(&version.directory, version.ino);
        let of_source = by_source.entry((&version.directory, &version.source, &version.host)).or_insert((0_u64, 0));
        *of_source = (of_source.0 + 1, version.ino);
    }
    let of_sources = by_source.into_values().filter(|(count, _)| *count > 1).map(|(_, ino)| ino);
    let inos: BTreeSet<u64> = by_directory.into_values().chain(of_sources).collect();
    let mut newest = Vec::with_capacity(inos.len());
    for ino in inos {
        let tree = namespace.inode_shared(ino)?.and_then(|inode| inode.root.reference());
        newest.extend(tree);
    }
    Ok(newest)
}

/// A walk that visits each node once. Memory: some 40 bytes for each node.
pub(super) struct Walk<'a> {
    nodes: &'a NodeReader,
    pace: &'a Pace<'a>,
    /// Nodes that may be read at most.
    nodes_max: u64,
    /// References that may still be read.
    references_left: u64,
    inodes_max: u64,
    /// Words of the fingerprints of nodes. Two nodes with the same word would cost order alone.
    met: HashSet<u64>,
}

/// Visits a reference, and the content of its node unless that is unreadable.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&Reference, Option<&AnyView>) -> ControlFlow<()>;

impl<'a> Walk<'a> {
    pub(super) fn new(nodes: &'a NodeReader, pace: &'a Pace<'a>, nodes_max: u64) -> Self {
        let inodes_max = nodes_max.saturating_mul(INODES_PER_NODE);
        Self { nodes, pace, nodes_max, references_left: u64::MAX, inodes_max, met: HashSet::new() }
    }

    /// Bounds the work as well: nodes of small files have few references, and cost less than others.
    pub(super) fn bounded(self, references_max: u64, inodes_max: u64) -> Self {
        Self { references_left: references_max, inodes_max, ..self }
    }

    /// Visits a reference and everything below it, from the end to the beginning, until `visit` breaks off or as many
    /// nodes were read as may be, or the run should end. Gives way to clients.
    pub(super) fn below(&mut self, root: Reference, visit: Visit<'_>) -> ControlFlow<()> {
        let mut to_visit = vec![root];
        while let Some(reference) = to_visit.pop() {
            let Reference::Node { child, .. } = reference else {
                visit(&reference, None)?;
                continue;
            };
            if self.met.len() as u64 >= self.nodes_max || self.references_left == 0 {
                return ControlFlow::Break(());
            }
            if self.met.len().is_multiple_of(NODES_AT_ONCE) && self.pace.between_steps().is_some() {
                return ControlFlow::Break(());
            }
            if self.met.insert(child.fingerprint.second_word()) {
                let view = self.nodes.node_of(&child.fingerprint, child.hint).ok();
                visit(&reference, view.as_ref())?;
                let references = view.as_ref().map_or(0, |view| view.references().len() as u64);
                self.references_left = self.references_left.saturating_sub(references + NODE_AS_REFERENCES);
                // The last one pushed is visited first.
                to_visit.extend(view.iter().flat_map(AnyView::references));
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits these trees, the last one first.
    pub(super) fn versions(&mut self, newest: &[Reference], visit: Visit<'_>) -> ControlFlow<()> {
        newest.iter().rev().try_for_each(|tree| self.below(*tree, visit))
    }

    /// Visits files and frozen trees from the newest to the oldest: as many nodes and inodes as may be.
    pub(super) fn all(&mut self, namespace: &Namespace, visit: Visit<'_>) {
        let mut inodes_left = self.inodes_max;
        let walked = namespace.for_each_newest(&mut |inode| {
            inodes_left = inodes_left.saturating_sub(1);
            let walked = inode.root.reference().map_or(ControlFlow::Continue(()), |root| self.below(root, visit));
            Ok(if inodes_left == 0 { ControlFlow::Break(()) } else { walked })
        });
        if let Err(error) = walked {
            tracing::warn!(%error, "cannot list all files: some content is not in order, or keeps stale hints");
        }
    }
}
