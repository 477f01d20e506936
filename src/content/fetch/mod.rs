//! Fetching bytes by fingerprint: the hint comes first, then the index, which is the authority.
//!
//! A container in a recipe is a hint: reclaiming may have moved the chunk. The hint is checked against the container's
//! own table. If the container is gone, forwarding notes may lead to the copy. Otherwise the index is asked. A chunk that moves between the index's answer and
//! the read is looked up again, a bounded number of times.

mod ahead;
mod nodes;
mod sweep;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Index;
use dedupfs_store::node::Node;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};

use crate::containers::{ChunkData, ContainerStore};
use crate::fingerprint::Fingerprinter;
use crate::limits::READ_RETRIES;

use ahead::Places;

pub use nodes::{AnyView, NodeReader, NodeView};
pub use sweep::{Sweep, SweepTarget};

/// Reads chunks (or recipe nodes) of one kind.
#[derive(Clone)]
pub struct Fetcher {
    store: Arc<ContainerStore>,
    index: Arc<Index>,
    places: Arc<Places>,
    fingerprinter: Fingerprinter,
}

impl Fetcher {
    /// Makes a fetcher for the kind of data in `store` and `index`.
    #[must_use]
    pub fn new(store: Arc<ContainerStore>, index: Arc<Index>, fingerprinter: Fingerprinter) -> Self {
        Self { store, index, places: Arc::new(ahead::places()), fingerprinter }
    }

    /// Returns the bytes of `fingerprint`, which must be `len_bytes` long if that is known.
    ///
    /// A copy in a damaged container is used only if the index has no other copy and does not call it lost: its frame
    /// may be sound while its bytes do not fit the fingerprint.
    ///
    /// # Errors
    /// `Corrupt` if the region with the chunk is damaged, no container has it, or it is quarantined; I/O errors.
    pub(crate) fn fetch(
        &self,
        fingerprint: &Fingerprint,
        hint: ContainerId,
        len_bytes: Option<u32>,
    ) -> Result<ChunkData> {
        let mut failure = None;
        let is_doubtful = self.store.is_damaged(hint);
        if hint != ContainerId::NONE && !is_doubtful {
            match self.store.read_chunk(hint, fingerprint, len_bytes) {
                Ok(Some(data)) => return Ok(data),
                Ok(None) if is_planted(Canary::StaleHint) => {
                    return Err(StoreError::corrupt(format!("chunk {fingerprint}"), "a right hint", hint).into());
                }
                Ok(None) => {
                    if let Some(data) = self.moved(fingerprint, hint, len_bytes) {
                        return Ok(data);
                    }
                }
                // The hint may name an old copy; the index may know a sound one.
                Err(error) => failure = Some((hint, error)),
            }
        }
        let _timed = profile::of(Component::ReadLookup);
        self.store.count_lookup();
        for _ in 0..READ_RETRIES {
            let Some(cell) = self.index.get(fingerprint)? else {
                // The row that names the chunk may not be counted yet: try the hint.
                if is_doubtful && let Some(data) = self.store.read_chunk(hint, fingerprint, len_bytes)? {
                    return Ok(data);
                }
                break;
            };
            let container = cell.location.container();
            if cell.location.is_lost() {
                let found = "none: backing the same data up again heals it";
                let lost = StoreError::corrupt(format!("chunk {fingerprint}"), "a sound copy", found);
                return Err(failure.map_or_else(|| lost.into(), |(_, error)| error));
            }
            if let Some((hint, failure)) = failure.take_if(|(hint, _)| *hint == container) {
                return Err(self.suspected(hint, failure));
            }
            match self.store.read_chunk(container, fingerprint, len_bytes) {
                Ok(Some(data)) => return Ok(data),
                Ok(None) => {}
                Err(error) => return Err(self.suspected(container, error)),
            }
        }
        let missing =
            || StoreError::corrupt(format!("chunk {fingerprint}"), "a container that holds it", "none").into();
        Err(failure.map_or_else(missing, |(_, error)| error))
    }

    /// Returns the bytes of a chunk that is not in the container of its hint, if they can be found without the index, and
    /// are right. Otherwise the index decides: a copy that was found bad may have been replaced by another one.
    fn moved(&self, fingerprint: &Fingerprint, hint: ContainerId, len_bytes: Option<u32>) -> Option<ChunkData> {
        let container = self.store.successor(hint, fingerprint).or_else(|| self.places.get(fingerprint))?;
        let is_sound = !self.store.is_damaged(container);
        let read = is_sound.then(|| self.store.read_chunk(container, fingerprint, len_bytes).ok()).flatten().flatten();
        read.filter(|bytes| self.fits(fingerprint, bytes))
    }

    fn fits(&self, fingerprint: &Fingerprint, bytes: &[u8]) -> bool {
        match self.store.kind() {
            ContainerKind::Data => self.fingerprinter.of(bytes) == *fingerprint,
            ContainerKind::Recipe => {
                Node::decode(bytes).is_ok_and(|node| self.fingerprinter.of(&node.identity_bytes()) == *fingerprint)
            }
        }
    }

    /// Has the container checked and its damage quarantined. Returns `error`.
    fn suspected(&self, container: ContainerId, error: EngineError) -> EngineError {
        self.store.suspect(container);
        error
    }

    /// Reports that the bytes fetched for `fingerprint` do not fit it, so that their container is checked.
    pub(crate) fn suspect(&self, fingerprint: &Fingerprint) {
        if let Ok(Some(cell)) = self.index.get(fingerprint)
            && !cell.location.is_lost()
        {
            self.store.suspect(cell.location.container());
        }
    }

    /// Returns the bytes of a chunk that a recipe names.
    pub(crate) fn chunk(&self, child: &Child) -> Result<ChunkData> {
        let len_bytes = u32::try_from(child.len_bytes).map_err(|_| {
            StoreError::corrupt(format!("chunk {}", child.fingerprint), "at most 4 GiB", child.len_bytes)
        })?;
        self.fetch(&child.fingerprint, child.hint, Some(len_bytes))
    }

    /// Whether the chunk is in the container of its hint, or where notes lead from it, and can be read without the disk. The
    /// copy may still prove wrong; then the index is asked.
    pub(crate) fn is_cached(&self, fingerprint: &Fingerprint, hint: ContainerId) -> bool {
        self.store.cached(hint, fingerprint)
    }

    /// The containers behind this fetcher.
    pub(crate) fn store(&self) -> &Arc<ContainerStore> {
        &self.store
    }
}
