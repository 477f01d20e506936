//! Copying live chunks and nodes out of containers that are being emptied.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_index::{Location, SealedCells};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, LogOp};

use super::Deduplicator;
use crate::containers::StreamId;

/// What [`Deduplicator::copy_forward`] did.
#[derive(Default, Debug)]
pub struct CopiedForward {
    /// Number of the copies.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes by which they are longer than what they were copied from, or shorter.
    pub grown_bytes: i64,
    /// From which container into which one a copy went, each pair at least once.
    pub moves: Vec<(ContainerId, ContainerId)>,
}

/// A chunk or node to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded<'a> {
    /// The claimed container in which it was found.
    pub from: ContainerId,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Deduplicator {
    /// Copies live chunks or nodes out of claimed containers: appends them for `stream`, in this order, and stages
    /// their new places. Skips those that have another place by now.
    ///
    /// `sealed` holds the cells of these fingerprints in the sealed tankers, in their order. Writers wait during this
    /// call, so pass a few MiB at a time.
    ///
    /// # Errors
    /// Index and container errors. A chunk that was not staged keeps its place.
    pub fn copy_forward(
        &self,
        kind: ContainerKind,
        stream: StreamId,
        chunks: &[Forwarded<'_>],
        sealed: &mut SealedCells,
    ) -> Result<CopiedForward> {
        let (index, store) = (self.indexes.of(kind), self.stores.of(kind));
        let fingerprints: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.fingerprint).collect();
        let _section = self.enter();
        let _exclusive = self.lock_store_with(
            sealed,
            |sealed| index.is_current(sealed),
            |sealed| {
                *sealed = index.sealed_cells_in(&fingerprints, &|item| chunks[item].from)?;
                Ok(())
            },
        )?;
        let cells = index.cells_of(&fingerprints, sealed)?;
        let mut seen = HashSet::with_capacity(chunks.len());
        let mut copied: Vec<(Fingerprint, &[u8])> = Vec::with_capacity(chunks.len());
        let mut from = Vec::with_capacity(chunks.len());
        let mut grown_bytes = 0;
        for (chunk, cell) in chunks.iter().zip(&cells) {
            if let Some(cell) = cell.filter(|cell| cell.location.container() == chunk.from)
                && seen.insert(chunk.fingerprint)
            {
                grown_bytes += chunk.bytes.len() as i64 - i64::from(cell.location.len_bytes());
                copied.push((chunk.fingerprint, chunk.bytes));
                from.push(chunk.from);
            }
        }
        let containers = store.append(stream, &copied)?;
        for ((fingerprint, bytes), &container) in copied.iter().zip(&containers) {
            let len_bytes = bytes.len() as u32;
            if kind == ContainerKind::Recipe {
                self.log.log(LogOp::NodeMoved { fingerprint: *fingerprint, container, len_bytes });
                // The copy can have other hints.
                self.nodes.forget(fingerprint);
            }
            index.stage(fingerprint, Location::new(container, len_bytes));
        }
        let mut moves: Vec<_> = from.into_iter().zip(containers).collect();
        moves.dedup();
        let bytes = copied.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        Ok(CopiedForward { chunks: copied.len() as u64, bytes, grown_bytes, moves })
    }

    /// Claims containers for reclaiming: after the next [`barrier`](Self::barrier) no new reference to them is made.
    pub fn claim_containers(&self, containers: impl IntoIterator<Item = ContainerId>) {
        self.claimed_containers.write().extend(containers);
        self.any_claimed.store(true, Ordering::Release);
        // Before the caller's barrier: a section that does not see it ends before anything is removed.
        self.note_gone();
    }

    /// Ends the claims on these containers; waits for sections as [`release_nodes`](Self::release_nodes) does.
    pub fn release_containers_of(&self, containers: &[ContainerId]) {
        // Before the barrier: a section that does not see it ends before the claims do.
        self.note_gone();
        self.barrier();
        let mut claimed = self.claimed_containers.write();
        containers.iter().for_each(|container| {
            claimed.remove(container);
        });
        self.any_claimed.store(!claimed.is_empty(), Ordering::Release);
    }

    /// Ends the claims on all containers; waits for sections as [`release_nodes`](Self::release_nodes) does.
    pub fn release_containers(&self) {
        self.note_gone();
        self.barrier();
        self.any_claimed.store(false, Ordering::Release);
        self.claimed_containers.write().clear();
    }
}
