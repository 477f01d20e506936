//! Counts recomputed by marking: from the inodes' roots and the nodes' children.

use std::collections::HashMap;

use dedupfs_base::Result;
use dedupfs_content::AnyView;
use dedupfs_index::Index;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerKind, Fingerprint};

use super::{CheckReport, Checker};
use crate::progress::Progress;
use crate::upkeep::affected::Lost;

/// The reference counts of chunks and nodes.
#[derive(Default)]
pub(super) struct Marks {
    pub chunks: HashMap<Fingerprint, u32>,
    /// Recipe nodes.
    pub nodes: HashMap<Fingerprint, u32>,
}

impl Marks {
    /// Marks a chunk or node that a root or a node names.
    pub(super) fn mark(&mut self, reference: &Reference) {
        let marks = match reference.kind() {
            ContainerKind::Data => &mut self.chunks,
            ContainerKind::Recipe => &mut self.nodes,
        };
        let count = marks.entry(reference.fingerprint()).or_insert(0);
        *count = count.saturating_add(1);
    }
}

impl Checker<'_> {
    pub(super) fn check_counts(
        &self,
        report: &mut CheckReport,
        lost: &mut Lost,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut marks = Marks::default();
        self.namespace.for_each_inode(&mut |inode| {
            report.inodes += 1;
            inode.root.reference().iter().for_each(|reference| marks.mark(reference));
            Ok(())
        })?;
        // Every node of the index counts its children, even one without references.
        let mut cells = Vec::new();
        let mut is_surplus_known = false;
        self.indexes.nodes.for_each(&mut |fingerprint, cell| {
            // A damaged copy still counts its children, but they are unknown.
            is_surplus_known |= cell.location.is_quarantined();
            // A lost node without a damaged copy counts nothing; the comparison reports it.
            if !cell.location.is_lost() {
                cells.push((fingerprint, cell.location.container()));
            }
            Ok(())
        })?;
        progress.start("counting references", cells.len() as u64);
        let mut tree_nodes = 0_u64;
        for (fingerprint, container) in cells {
            report.nodes += 1;
            progress.advance(1);
            let view = self.nodes.node_of(&fingerprint, container);
            tree_nodes += u64::from(matches!(view, Ok(AnyView::Tree(_))));
            match view {
                Ok(view) => view.references().iter().for_each(|reference| marks.mark(reference)),
                Err(error) => {
                    is_surplus_known = true;
                    report.bad_copies += 1;
                    lost.nodes.insert(fingerprint);
                    report.add(format!("recipe node {fingerprint} in container {container}: {error}"));
                }
            }
        }
        progress.finish();
        if tree_nodes > 0 && !self.namespace.has_versions() {
            report.add(format!(
                "{tree_nodes} tree nodes lie in a pool that does not say that it has versions, and an older release would free what they \
                 name: mount it with this release, and run `dedupfs series set` on a directory"
            ));
        }
        compare("recipe node", &self.indexes.nodes, marks.nodes, is_surplus_known, report)?;
        compare("chunk", &self.indexes.chunks, marks.chunks, is_surplus_known, report)
    }
}

/// Compares the counts of an index with the marks. With `is_surplus_known` some unreadable nodes still count their
/// children, so counts above the marks are no error.
fn compare(
    what: &str,
    index: &Index,
    mut marks: HashMap<Fingerprint, u32>,
    is_surplus_known: bool,
    report: &mut CheckReport,
) -> Result<()> {
    let mut surplus = 0_u64;
    index.for_each(&mut |fingerprint, cell| {
        let marked = marks.remove(&fingerprint).unwrap_or(0);
        if cell.references > marked && is_surplus_known {
            surplus += 1;
        } else if cell.references != marked {
            report.needs_rebuild = true;
            report.add_to(&format!("{what}s whose references are counted differently by index and marking"), || {
                format!("{what} {fingerprint}: the index counts {}, marking finds {marked}", cell.references)
            });
        }
        if cell.location.is_lost() && marked > 0 {
            report.add_to(&format!("{what}s that are lost and needed: backing the same data up again heals them"), || {
                format!("{what} {fingerprint} is lost and {marked} times needed: backing the same data up again heals it")
            });
        }
        Ok(())
    })?;
    if surplus > 0 {
        report.note(format!("{surplus} {what} counts include those of recipe nodes that cannot be read"));
    }
    report.needs_rebuild |= !marks.is_empty();
    for (fingerprint, marked) in marks {
        report.add_to(&format!("{what}s that are referred to, but the index does not have them"), || {
            format!("{what} {fingerprint} is referred to {marked} times, but the index does not have it")
        });
    }
    Ok(())
}
