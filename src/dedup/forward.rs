//! Copying what stays alive out of containers that are emptied.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use dedupfs_index::{Location, SealedCells};
use dedupfs_store::{ContainerId, Fingerprint, waiting};

use super::Deduplicator;
use crate::containers::StreamId;
use crate::error::Result;
use crate::namespace::LogOp;

/// A chunk or node that is to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded<'a> {
    /// The claimed container in which it was found.
    pub from: ContainerId,
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Deduplicator {
    /// Copies chunks or nodes that stay alive out of claimed containers: appends them for `stream`, in this order, and stages
    /// their new places, but for those that have another place by now. Returns how many were copied, and their bytes.
    ///
    /// `sealed` is what the sealed tankers say of these, in their order. Writers wait for it meanwhile: a few MiB at a time.
    ///
    /// # Errors
    /// Index and container errors; what was not staged stays where it is.
    pub fn copy_forward(
        &self,
        recipe: bool,
        stream: StreamId,
        chunks: &[Forwarded<'_>],
        sealed: &mut SealedCells,
    ) -> Result<(u64, u64)> {
        let (index, store) = if recipe { (&self.recipe_index, &self.recipes) } else { (&self.chunk_index, &self.data) };
        let fingerprints: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.fingerprint).collect();
        let _section = self.enter();
        let _exclusive = waiting::lock(&self.store_lock);
        let cells = index.cells_of(&fingerprints, sealed)?;
        let mut seen = HashSet::with_capacity(chunks.len());
        let mut copied: Vec<(Fingerprint, &[u8])> = Vec::with_capacity(chunks.len());
        for (chunk, cell) in chunks.iter().zip(&cells) {
            if cell.is_some_and(|cell| cell.location.container == chunk.from) && seen.insert(chunk.fingerprint) {
                copied.push((chunk.fingerprint, chunk.bytes));
            }
        }
        let containers = store.append(stream, &copied)?;
        for ((fingerprint, bytes), &container) in copied.iter().zip(&containers) {
            let len_bytes = bytes.len() as u32;
            if recipe {
                self.namespace.log(LogOp::NodeMoved { fingerprint: *fingerprint, container, len_bytes });
            }
            index.stage(fingerprint, Location { container, len_bytes });
        }
        Ok((copied.len() as u64, copied.iter().map(|(_, bytes)| bytes.len() as u64).sum()))
    }

    /// Claims containers for reclaiming: from the next [`barrier`](Self::barrier) on nothing new refers to them.
    pub fn claim_containers(&self, containers: impl IntoIterator<Item = ContainerId>) {
        self.claimed_containers.write().extend(containers);
        self.any_claimed.store(true, Ordering::Release);
    }

    /// Ends the claims on these containers, as [`release_nodes`](Self::release_nodes) does.
    pub fn release_containers_of(&self, containers: &[ContainerId]) {
        self.barrier();
        let mut claimed = self.claimed_containers.write();
        containers.iter().for_each(|container| {
            claimed.remove(container);
        });
        self.any_claimed.store(!claimed.is_empty(), Ordering::Release);
    }

    /// Ends the claims on all containers, as [`release_nodes`](Self::release_nodes) does.
    pub fn release_containers(&self) {
        self.barrier();
        self.any_claimed.store(false, Ordering::Release);
        self.claimed_containers.write().clear();
    }
}
