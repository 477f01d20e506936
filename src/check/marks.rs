//! Counts recomputed by marking: from the inodes' roots and the nodes' children.

use std::collections::HashMap;

use dedupfs_index::Index;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Root;

use super::{CheckReport, Checker};
use crate::error::Result;
use crate::pool::Progress;

/// How often each chunk and node is referred to.
#[derive(Default)]
pub struct Marks {
    /// Chunks.
    pub chunks: HashMap<Fingerprint, u32>,
    /// Recipe nodes.
    pub nodes: HashMap<Fingerprint, u32>,
}

impl Marks {
    /// Marks what a root refers to; the node, if it is one.
    pub fn root(&mut self, root: &Root) {
        match root {
            Root::Empty | Root::Zero { .. } => {}
            Root::Chunk(child) => mark(&mut self.chunks, child.fingerprint),
            Root::Node { child, .. } => mark(&mut self.nodes, child.fingerprint),
        }
    }

    /// Marks a child of a node of `level`.
    pub fn child(&mut self, level: u8, fingerprint: Fingerprint) {
        if !fingerprint.is_zero() {
            mark(if level == 0 { &mut self.chunks } else { &mut self.nodes }, fingerprint);
        }
    }
}

fn mark(marks: &mut HashMap<Fingerprint, u32>, fingerprint: Fingerprint) {
    let count = marks.entry(fingerprint).or_insert(0);
    *count = count.saturating_add(1);
}

impl Checker<'_> {
    pub(super) fn check_counts(&self, report: &mut CheckReport, progress: &dyn Progress) -> Result<()> {
        let mut marks = Marks::default();
        self.namespace.for_each_inode(&mut |inode| {
            report.inodes += 1;
            marks.root(&inode.root);
            Ok(())
        })?;
        // Every node that the index has counts its children, also one that nothing refers to yet.
        let mut cells = Vec::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            // A lost one counts nothing; the comparison tells of it.
            if !cell.location.is_lost() {
                cells.push((fingerprint, cell.location.container));
            }
            Ok(())
        })?;
        progress.start("counting references", cells.len() as u64);
        for (fingerprint, container) in cells {
            report.nodes += 1;
            progress.advance(1);
            match self.nodes.node_of(&fingerprint, container) {
                Ok(view) => view.children().iter().for_each(|child| marks.child(view.level, child.fingerprint)),
                Err(error) => report.add(format!("recipe node {fingerprint} in container {container}: {error}")),
            }
        }
        progress.finish();
        compare("recipe node", self.recipe_index, marks.nodes, report)?;
        compare("chunk", self.chunk_index, marks.chunks, report)
    }
}

fn compare(what: &str, index: &Index, mut marks: HashMap<Fingerprint, u32>, report: &mut CheckReport) -> Result<()> {
    index.for_each(&mut |fingerprint, cell| {
        let marked = marks.remove(&fingerprint).unwrap_or(0);
        if cell.references != marked {
            report.add(format!("{what} {fingerprint}: the index counts {}, marking finds {marked}", cell.references));
        }
        if cell.location.is_lost() && marked > 0 {
            report.add(format!(
                "{what} {fingerprint} is lost and {marked} times needed: backing the same data up again heals it"
            ));
        }
        Ok(())
    })?;
    for (fingerprint, marked) in marks {
        report.add(format!("{what} {fingerprint} is referred to {marked} times, but the index does not have it"));
    }
    Ok(())
}
