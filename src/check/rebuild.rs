//! The index from nothing but containers and namespace (invariant I-6).
//!
//! 1. The tables of all containers give fingerprints and places (a later container wins over an earlier one);
//! 2. marking from the inodes' roots gives the counts;
//! 3. recipe nodes that no root reaches are left out, so that they count nothing: their bytes are garbage;
//! 4. what files refer to and nobody has is kept with its count and no container: the next backup of the same data
//!    stores it again, and those files are whole again.
//!
//! An interrupted rebuild leaves an index that says so and is refused. Memory: 40 bytes for each node, and for each
//! chunk that is referred to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_index::{Index, IndexBuilder, Location};
use dedupfs_store::recipe::{Node, Root};
use dedupfs_store::{Fingerprint, StoreError};
use serde::{Deserialize, Serialize};

use super::marks::Marks;
use crate::containers::ContainerStore;
use crate::error::{EngineError, Result};
use crate::fingerprint::Fingerprinter;
use crate::namespace::Namespace;
use crate::pool::Progress;

/// What a rebuild found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RebuildReport {
    /// Containers read.
    pub containers: u64,
    /// Chunks in the new index.
    pub chunks: u64,
    /// Recipe nodes in the new index.
    pub nodes: u64,
    /// Chunks that files need and no container has, or has damaged.
    pub lost_chunks: u64,
    /// Recipe nodes that files need and no container has.
    pub lost_nodes: u64,
    /// Tables, nodes and chunks that files need and that could not be read: those files have holes of errors.
    pub missing: u64,
}

/// Cells of what is lost.
fn lost(index: &Index) -> Result<u64> {
    let mut lost = 0;
    index.for_each(&mut |_, cell| {
        lost += u64::from(cell.location.is_lost());
        Ok(())
    })?;
    Ok(lost)
}

/// Whether trying again is of no use.
fn is_loss(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. }))
}

/// What an index is rebuilt from.
pub struct Rebuilder<'a> {
    /// Roots.
    pub namespace: &'a Namespace,
    /// Containers of chunks.
    pub data: &'a Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: &'a Arc<ContainerStore>,
    /// Checks nodes.
    pub fingerprinter: &'a Fingerprinter,
    /// Read all chunks, and take those for lost that are not what their names say.
    pub read_data: bool,
    /// Told of the steps.
    pub progress: &'a dyn Progress,
}

impl Rebuilder<'_> {
    /// Reads everything first, and only then starts over with `builders` of chunks and of nodes. Damage costs what it
    /// covers, not the rebuild.
    ///
    /// # Errors
    /// The namespace cannot be read; the new index cannot be written.
    pub fn run(
        &self,
        builders: &dyn Fn() -> Result<(IndexBuilder, IndexBuilder)>,
    ) -> Result<(Index, Index, RebuildReport)> {
        let mut report = RebuildReport::default();
        let mut places = HashMap::new();
        self.for_each_entry(self.recipes, &mut report, &mut |print, location| {
            places.insert(print, location);
            Ok(())
        })?;
        let marks = self.mark(&mut places, &mut report)?;
        let (mut found, mut damaged, mut sound) = (HashSet::new(), HashSet::new(), 0_u64);
        self.for_each_entry(self.data, &mut report, &mut |print, location| {
            if self.read_data && !self.is_sound(&print, location)? {
                damaged.insert((location.container, print));
                return Ok(());
            }
            sound += 1;
            if marks.chunks.contains_key(&print) {
                found.insert(print);
            }
            Ok(())
        })?;
        // All tables were read: from here on only the meta root can fail.
        let (mut chunks, mut nodes) = builders()?;
        for (print, references) in &marks.nodes {
            nodes.set(*print, places.get(print).copied().unwrap_or(Location::LOST), *references)?;
        }
        let mut seen_already = RebuildReport::default();
        self.for_each_entry(self.data, &mut seen_already, &mut |print, location| {
            if damaged.contains(&(location.container, print)) {
                return Ok(());
            }
            sound = sound.wrapping_sub(1);
            Ok(chunks.set(print, location, 0)?)
        })?;
        // A table that could be read a moment ago: what it holds is not lost, and must not be taken for it.
        if sound != 0 {
            let expected = "the tables that were read a moment ago";
            return Err(StoreError::corrupt("the containers", expected, "others: start the rebuild again").into());
        }
        report.missing += (marks.chunks.len() - found.len()) as u64;
        for (print, references) in &marks.chunks {
            match found.contains(print) {
                true => chunks.count(*print, i64::from(*references))?,
                false => chunks.set(*print, Location::LOST, *references)?,
            }
        }
        // Known before the index is: a backup that comes next must heal.
        self.namespace.set_losses(report.missing > 0)?;
        let row = self.namespace.last_row();
        let (chunks, nodes) = (chunks.finish(row)?, nodes.finish(row)?);
        let (lost_chunks, lost_nodes) = (lost(&chunks)?, lost(&nodes)?);
        (report.chunks, report.nodes) = (chunks.len() - lost_chunks, nodes.len() - lost_nodes);
        (report.lost_chunks, report.lost_nodes) = (lost_chunks, lost_nodes);
        Ok((chunks, nodes, report))
    }

    /// Whether a chunk can be read and is what its name says.
    fn is_sound(&self, print: &Fingerprint, location: Location) -> Result<bool> {
        match self.data.read_chunk(location.container, print, Some(location.len_bytes)) {
            Ok(data) => Ok(data.is_some_and(|data| self.fingerprinter.of(&data) == *print)),
            Err(error) if is_loss(&error) => {
                tracing::error!(chunk = %print, container = %location.container, %error, "a chunk is given up");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn for_each_entry(
        &self,
        store: &ContainerStore,
        report: &mut RebuildReport,
        visit: &mut dyn FnMut(Fingerprint, Location) -> Result<()>,
    ) -> Result<()> {
        let mut records = store.containers();
        records.sort_unstable_by_key(|record| record.id);
        self.progress.start("reading tables of containers", records.len() as u64);
        for record in records {
            report.containers += 1;
            self.progress.advance(1);
            let table = match store.table(record.id) {
                Ok(Some(table)) => table,
                Ok(None) => continue,
                // Only damage and absence are final; a disk that does not answer may answer later.
                Err(error) if is_loss(&error) => {
                    tracing::error!(container = %record.id, %error, "a container's table cannot be read");
                    report.missing += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for entry in &table.entries {
                visit(entry.fingerprint, Location { container: record.id, len_bytes: entry.len_bytes })?;
            }
        }
        self.progress.finish();
        Ok(())
    }

    fn mark(&self, places: &mut HashMap<Fingerprint, Location>, report: &mut RebuildReport) -> Result<Marks> {
        let mut marks = Marks::default();
        let mut work: Vec<Fingerprint> = Vec::new();
        self.progress.start("marking from the files", 0);
        self.namespace.for_each_inode(&mut |inode| {
            self.progress.advance(1);
            if let Root::Node { child, .. } = &inode.root
                && !marks.nodes.contains_key(&child.fingerprint)
            {
                work.push(child.fingerprint);
            }
            marks.root(&inode.root);
            while let Some(print) = work.pop() {
                let node = match self.node(&print, places) {
                    Ok(node) => node,
                    Err(error) if is_loss(&error) => {
                        tracing::error!(ino = inode.ino, %error, "a recipe node cannot be read");
                        report.missing += 1;
                        places.remove(&print);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                for child in node.children {
                    if node.level > 0 && !child.fingerprint.is_zero() && !marks.nodes.contains_key(&child.fingerprint) {
                        work.push(child.fingerprint);
                    }
                    marks.child(node.level, child.fingerprint);
                }
            }
            Ok(())
        })?;
        self.progress.finish();
        Ok(marks)
    }

    fn node(&self, print: &Fingerprint, places: &HashMap<Fingerprint, Location>) -> Result<Node> {
        let missing = || StoreError::corrupt("recipe node", print, "no container that has it");
        let location = places.get(print).ok_or_else(missing)?;
        let bytes =
            self.recipes.read_chunk(location.container, print, Some(location.len_bytes))?.ok_or_else(missing)?;
        let node = Node::decode(&bytes)?;
        let found = self.fingerprinter.of(&node.identity_bytes());
        if found != *print {
            return Err(StoreError::corrupt("recipe node", print, found).into());
        }
        Ok(node)
    }
}
