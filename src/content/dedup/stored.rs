//! Stored chunks for the byte compare filter: reads them from containers and computes their fingerprints.

use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_index::filter::{Reads, StoredChunks};
use dedupfs_store::{ContainerId, Fingerprint, Result};

use crate::containers::{ContainerStore, reads_of_this_thread};
use crate::fingerprint::Fingerprinter;

/// The stored chunks of a pool.
pub struct ContainerChunks {
    store: Arc<ContainerStore>,
    fingerprinter: Fingerprinter,
}

impl ContainerChunks {
    /// The chunks in `store`, named by `fingerprinter`.
    #[must_use]
    pub fn new(store: Arc<ContainerStore>, fingerprinter: Fingerprinter) -> Self {
        Self { store, fingerprinter }
    }
}

impl StoredChunks for ContainerChunks {
    fn read(&self, container: ContainerId, fingerprint: &Fingerprint, look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // Any length is accepted: chunks of different lengths may collide too.
        let stored = self.store.read_chunk(container, fingerprint, None).map_err(EngineError::into_store)?;
        if let Some(stored) = &stored {
            look(stored);
        }
        Ok(stored.is_some())
    }

    fn fingerprint_of(&self, bytes: &[u8]) -> Fingerprint {
        self.fingerprinter.of(bytes)
    }

    fn reads_of_this_thread(&self) -> Reads {
        reads_of_this_thread()
    }
}
