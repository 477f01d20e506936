//! Turns the operations log into counts (invariant I-3): the counting fingerprints of MAD2 section 3.5, updated in the
//! background as in dedupv1 section 3.7.
//!
//! Chunks become known when an `Extend` makes them durable. A chunk without references is garbage, but sound. Nodes
//! become known only by their own entries: a round may make a node durable that was stored after its generation was
//! frozen, and whose chunks the round does not have. If such a node were known after a crash, the next backup of the
//! same data would rest on it.
//!
//! Log entries are short, and applying them expands them: a stored node counts its children up by one, a freed one
//! counts them down. Rows are applied in order. Each index skips the rows up to its position, so a replay after a
//! crash gives the same state. Cost: one hash table access per chunk of a new segment; nothing for known segments.

use std::cell::Cell;

use dedupfs_base::Result;
use dedupfs_content::{AnyView, Extended, Indexes, NodeReader, Stores};
use dedupfs_index::{Change, Location};
use dedupfs_store::recipe::{Child, Reference, Root};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, LogOp};
use dedupfs_sync::canary::{Canary, is_planted};

/// Applies log rows to both indexes.
pub(crate) struct Applier<'a> {
    /// Index of chunks and index of recipe nodes.
    pub indexes: &'a Indexes,
    /// Reader of nodes whose children are counted.
    pub nodes: &'a NodeReader,
    /// Containers of both kinds; for their tables, when a row is replayed.
    pub stores: &'a Stores,
    /// Whether a replayed container lacks chunks that its record counts. The index does not know these chunks, so
    /// counting them makes them lost.
    pub lacks: Cell<bool>,
}

/// Changes of one row that are not applied yet.
struct Pending {
    row: u64,
    chunks: Vec<Change>,
    recipes: Vec<Change>,
    /// So many are applied at once.
    most: u64,
    total: u64,
    inconsistencies: u64,
    doubts: u64,
}

/// The result of applying a row.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Applied {
    /// Changes applied.
    pub changes: u64,
    /// Counts that are impossible; `dedupfs fsck` tells more.
    pub inconsistencies: u64,
    /// Of these, the ones that put counts in doubt.
    pub doubts: u64,
}

impl Applier<'_> {
    /// Applies one row. `fresh` has the entries that this row's `Extend`s made durable. Without it (replay) they are
    /// read from the containers.
    ///
    /// # Errors
    /// Reading a node or table failed. The indexes then miss a part of this row: no later row may be applied.
    pub(crate) fn apply(&self, row: u64, ops: &[LogOp], fresh: Option<&[Extended]>) -> Result<Applied> {
        let most = self.indexes.chunks.changes_at_once();
        let mut pending =
            Pending { row, chunks: Vec::new(), recipes: Vec::new(), most, total: 0, inconsistencies: 0, doubts: 0 };
        let fresh_chunks = fresh.unwrap_or_default().iter().filter(|extended| extended.kind == ContainerKind::Data);
        for extended in fresh_chunks {
            for entry in &extended.entries {
                let location = Location::new(extended.container, entry.len_bytes);
                self.insert(&mut pending, extended.kind, entry.fingerprint, location)?;
            }
        }
        for op in ops {
            match op {
                LogOp::Extend { container, kind, from_bytes, to_bytes } => {
                    if fresh.is_none() && *kind == ContainerKind::Data && !is_planted(Canary::ReplayWithoutChunks) {
                        self.replay_extend(&mut pending, *container, *kind, *from_bytes, *to_bytes)?;
                    }
                }
                LogOp::RootAdded(_) if is_planted(Canary::RootNotAdded) => {}
                LogOp::RootDropped(_) if is_planted(Canary::RootNotDropped) => {}
                LogOp::RootAdded(root) => self.count_root(&mut pending, root, 1)?,
                LogOp::RootDropped(root) => self.count_root(&mut pending, root, -1)?,
                LogOp::NodeStored { fingerprint, container, len_bytes, .. } => {
                    let location = Location::new(*container, *len_bytes);
                    if fresh.is_some() || !is_planted(Canary::ReplayWithoutNodes) {
                        self.insert(&mut pending, ContainerKind::Recipe, *fingerprint, location)?;
                    }
                    if !is_planted(Canary::ChildrenNotCounted) {
                        self.count_children(&mut pending, fingerprint, *container, 1)?;
                    }
                }
                LogOp::NodeMoved { .. } if is_planted(Canary::MovedNotNoted) => {}
                LogOp::NodeMoved { fingerprint, container, len_bytes } => {
                    let location = Location::new(*container, *len_bytes);
                    self.insert(&mut pending, ContainerKind::Recipe, *fingerprint, location)?;
                }
                LogOp::NodeFreed { fingerprint, container, .. } => {
                    // A lost node counts nothing. A node stored under its name since then is another copy.
                    if *container != ContainerId::NONE && !is_planted(Canary::ChildrenNotFreed) {
                        self.count_children(&mut pending, fingerprint, *container, -1)?;
                    }
                    let change = Change::Remove { fingerprint: *fingerprint, container: *container };
                    if !is_planted(Canary::FreedNodeStays) {
                        self.push(&mut pending, ContainerKind::Recipe, change)?;
                    }
                }
                LogOp::ChunkLost { fingerprint, container } => {
                    let change = Change::Lose { fingerprint: *fingerprint, container: *container };
                    self.push(&mut pending, ContainerKind::Data, change)?;
                }
                LogOp::NodeLost { fingerprint, container } => {
                    let change = Change::Lose { fingerprint: *fingerprint, container: *container };
                    self.push(&mut pending, ContainerKind::Recipe, change)?;
                }
                LogOp::ChunkRemoved { fingerprint, container } => {
                    let change = Change::Remove { fingerprint: *fingerprint, container: *container };
                    self.push(&mut pending, ContainerKind::Data, change)?;
                }
            }
        }
        self.apply_pending(&mut pending)?;
        let Pending { total: changes, inconsistencies, doubts, .. } = pending;
        Ok(Applied { changes, inconsistencies, doubts })
    }

    fn insert(
        &self,
        pending: &mut Pending,
        kind: ContainerKind,
        fingerprint: Fingerprint,
        location: Location,
    ) -> Result<()> {
        self.push(pending, kind, Change::Insert { fingerprint, location })
    }

    fn replay_extend(
        &self,
        pending: &mut Pending,
        container: ContainerId,
        kind: ContainerKind,
        from_bytes: u32,
        to_bytes: u32,
    ) -> Result<()> {
        let store = self.stores.of(kind);
        let Some(table) = store.table(container)? else {
            // Reclaimed later. Either its checkpoint covered this row, or its content is inserted from the new place.
            return Ok(());
        };
        if store.record(container).is_some_and(|record| (table.entries.len() as u64) < u64::from(record.chunks)) {
            self.lacks.set(true);
        }
        for region in table.regions.iter().filter(|region| (from_bytes..to_bytes).contains(&region.offset_bytes)) {
            let entries = table.entries.iter().skip(region.first_entry as usize).take(region.entry_count as usize);
            for entry in entries {
                let location = Location::new(container, entry.len_bytes);
                self.insert(pending, kind, entry.fingerprint, location)?;
            }
        }
        Ok(())
    }

    fn count_root(&self, pending: &mut Pending, root: &Root, delta: i64) -> Result<()> {
        root.reference().map_or(Ok(()), |reference| self.count(pending, &reference, delta))
    }

    fn count_children(
        &self,
        pending: &mut Pending,
        fingerprint: &Fingerprint,
        container: ContainerId,
        delta: i64,
    ) -> Result<()> {
        // If both positions cover this row, the node is not needed, and may have been reclaimed.
        if pending.row <= self.indexes.chunks.position().min(self.indexes.nodes.position()) {
            return Ok(());
        }
        let view = self.nodes.node_of(fingerprint, container)?;
        let mut references = view.references();
        if is_planted(Canary::TreeChildNotCounted) && delta > 0 && matches!(view, AnyView::Tree(_)) {
            references.pop();
        }
        references.iter().try_for_each(|reference| self.count(pending, reference, delta))
    }

    fn count(&self, pending: &mut Pending, reference: &Reference, delta: i64) -> Result<()> {
        let Child { fingerprint, hint, .. } = *reference.child();
        self.push(pending, reference.kind(), Change::Count { fingerprint, delta, hint })
    }

    fn push(&self, pending: &mut Pending, kind: ContainerKind, change: Change) -> Result<()> {
        match kind {
            ContainerKind::Data => pending.chunks.push(change),
            ContainerKind::Recipe => pending.recipes.push(change),
        }
        // It bounds memory for rows of any size.
        let is_enough = (pending.chunks.len() + pending.recipes.len()) as u64 >= pending.most;
        if is_enough { self.apply_pending(pending) } else { Ok(()) }
    }

    fn apply_pending(&self, pending: &mut Pending) -> Result<()> {
        for (index, changes) in
            [(&self.indexes.chunks, &mut pending.chunks), (&self.indexes.nodes, &mut pending.recipes)]
        {
            // A commit without changes has the row of the one before, which may be complete already.
            if pending.row > index.position() && !changes.is_empty() {
                let report = index.apply(pending.row, changes)?;
                pending.inconsistencies += report.count;
                pending.doubts += report.doubts - if self.lacks.get() { report.needed } else { 0 };
                pending.total += changes.len() as u64;
            }
            changes.clear();
        }
        Ok(())
    }
}
