//! Counts recomputed by marking: from the inodes' roots and the nodes' children.
//!
//! The cells of both indexes take more memory than there is, so they are marked by ranges of fingerprints: one range in memory at a time. All
//! roots and nodes are read again for each range.

use dedupfs_base::{EngineError, Result};
use dedupfs_content::AnyView;
use dedupfs_index::Prefixes;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::marked::{MARK_BYTES, Marked};
use super::{CheckReport, Checker};
use crate::progress::Progress;
use crate::upkeep::affected::Lost;

/// Nodes that are read together, in the order of their containers: 40 bytes for each.
const NODES_AT_ONCE: usize = if cfg!(test) { 50 } else { 1 << 18 };

/// Both indexes, as far as their fingerprints lie in a range.
struct Marks {
    chunks: Marked,
    nodes: Marked,
}

impl Marks {
    /// Marks a chunk or node that a root or a node names.
    fn mark(&mut self, reference: &Reference) {
        let marked = match reference.kind() {
            ContainerKind::Data => &mut self.chunks,
            ContainerKind::Recipe => &mut self.nodes,
        };
        marked.mark(reference.fingerprint());
    }
}

/// What is found at the nodes.
#[derive(Default)]
struct Nodes {
    /// All passes find the same, but for what can no longer be read.
    is_first_pass: bool,
    tree_nodes: u64,
    /// Some nodes count children that nobody knows.
    is_surplus_known: bool,
}

impl Checker<'_> {
    pub(super) fn check_counts(
        &self,
        report: &mut CheckReport,
        lost: &mut Lost,
        progress: &dyn Progress,
    ) -> Result<()> {
        let cells = self.indexes.chunks.len() + self.indexes.nodes.len();
        // Few in tests, so that small pools have several ranges.
        let at_once = if cfg!(test) { 200 } else { (self.memory_bytes / MARK_BYTES).max(1) };
        let ranges = u32::try_from(cells.div_ceil(at_once).max(1)).unwrap_or(u32::MAX);
        let (mut found, mut surplus) = (Nodes::default(), [("recipe node", 0), ("chunk", 0)]);
        for (number, range) in (1..).zip(Prefixes::split(ranges)) {
            found.is_first_pass = number == 1;
            let pass = if ranges > 1 { format!(", pass {number} of {ranges}") } else { String::new() };
            progress.start(&format!("counting references{pass}"), self.indexes.nodes.len());
            let mut marks = Marks {
                chunks: Marked::load(&self.indexes.chunks, range, ranges)?,
                nodes: Marked::load(&self.indexes.nodes, range, ranges)?,
            };
            self.namespace.for_each_inode(&mut |inode| {
                report.inodes += u64::from(number == 1);
                inode.root.reference().iter().for_each(|reference| marks.mark(reference));
                Ok(())
            })?;
            self.mark_children(&mut marks, report, (lost, &mut found), progress)?;
            progress.finish();
            for ((what, surplus), marks) in surplus.iter_mut().zip([&marks.nodes, &marks.chunks]) {
                *surplus += compare(what, marks, found.is_surplus_known, report);
            }
        }
        for (what, surplus) in surplus.into_iter().filter(|(_, surplus)| *surplus > 0) {
            report.note(format!("{surplus} {what} counts include those of recipe nodes that cannot be read"));
        }
        if found.tree_nodes > 0 && !self.namespace.has_versions() {
            report.add(format!(
                "{} tree nodes lie in a pool that does not say that it has versions, and an older release would free what they \
                 name: mount it with this release, and run `dedupfs series set` on a directory",
                found.tree_nodes
            ));
        }
        Ok(())
    }

    /// Marks what the nodes of the index name. Every one counts its children, even one without references.
    fn mark_children(
        &self,
        marks: &mut Marks,
        report: &mut CheckReport,
        (lost, found): (&mut Lost, &mut Nodes),
        progress: &dyn Progress,
    ) -> Result<()> {
        let (mut waiting, mut ended) = (Vec::new(), Ok(()));
        self.indexes.nodes.for_each(&mut |fingerprint, cell| {
            // A damaged copy still counts its children, but they are unknown.
            found.is_surplus_known |= cell.location.is_quarantined();
            // A lost node without a damaged copy counts nothing; the comparison reports it.
            if !cell.location.is_lost() && ended.is_ok() {
                waiting.push((cell.location.container(), fingerprint));
            }
            if waiting.len() >= NODES_AT_ONCE {
                ended = self.read_nodes(&mut waiting, marks, report, (lost, found), progress);
            }
            Ok(())
        })?;
        ended?;
        self.read_nodes(&mut waiting, marks, report, (lost, found), progress)
    }

    /// Marks what these nodes name, and forgets them.
    fn read_nodes(
        &self,
        waiting: &mut Vec<(ContainerId, Fingerprint)>,
        marks: &mut Marks,
        report: &mut CheckReport,
        (lost, found): (&mut Lost, &mut Nodes),
        progress: &dyn Progress,
    ) -> Result<()> {
        waiting.sort_unstable();
        for (container, fingerprint) in waiting.drain(..) {
            if (self.is_ended)() {
                return Err(EngineError::Ended("the check"));
            }
            progress.advance(1);
            report.nodes += u64::from(found.is_first_pass);
            match self.nodes.node_of(&fingerprint, container) {
                Ok(view) => {
                    found.tree_nodes += u64::from(found.is_first_pass && matches!(view, AnyView::Tree(_)));
                    view.references().iter().for_each(|reference| marks.mark(reference));
                }
                // Also one that an earlier pass could read.
                Err(error) => {
                    found.is_surplus_known = true;
                    if lost.nodes.insert(fingerprint) {
                        report.bad_copies += 1;
                        report.add(format!("recipe node {fingerprint} in container {container}: {error}"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Compares the counts of an index with the marks. With `is_surplus_known` some unreadable nodes still count their
/// children, so counts above the marks are no error: their number is returned.
fn compare(what: &str, marks: &Marked, is_surplus_known: bool, report: &mut CheckReport) -> u64 {
    let mut surplus = 0_u64;
    for cell in marks.cells() {
        let (fingerprint, marked) = (cell.fingerprint, cell.marks);
        if cell.references > marked && is_surplus_known {
            surplus += 1;
        } else if cell.references != marked {
            report.needs_rebuild = true;
            report.add_to(&format!("{what}s whose references are counted differently by index and marking"), || {
                format!("{what} {fingerprint}: the index counts {}, marking finds {marked}", cell.references)
            });
        }
        if cell.is_lost && marked > 0 {
            report.add_to(&format!("{what}s that are lost and needed: backing the same data up again heals them"), || {
                format!("{what} {fingerprint} is lost and {marked} times needed: backing the same data up again heals it")
            });
        }
    }
    report.needs_rebuild |= !marks.unknown().is_empty();
    for (fingerprint, marked) in marks.unknown() {
        report.add_to(&format!("{what}s that are referred to, but the index does not have them"), || {
            format!("{what} {fingerprint} is referred to {marked} times, but the index does not have it")
        });
    }
    surplus
}
