//! Keeping readers ahead of chunks whose recipes name containers that are gone.
//!
//! Where no forwarding note leads, the index knows the container. It is asked for all chunks of a window together, by a
//! worker: a reader that asked it chunk by chunk would wait for a bucket of a tanker each time.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_index::Index;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::cache::{Cache, weighing};
use quick_cache::UnitWeighter;

use super::Fetcher;
use crate::containers::Asking;

/// Places that are remembered until their readers come, some 64 bytes each: of more than two windows of a reader.
const PLACES_MAX: u64 = 16 * 1024;

/// The containers of chunks, as the index told lately.
pub(super) type Places = Cache<Fingerprint, ContainerId, UnitWeighter>;

/// Makes room for [`PLACES_MAX`] places; memory is taken with use.
pub(super) fn places() -> Places {
    weighing(64, PLACES_MAX, UnitWeighter)
}

impl Fetcher {
    /// Has the requested chunks read ahead; returns at once.
    pub(crate) fn start(&self, asking: Asking<'_>) {
        let unplaced = asking.start();
        if unplaced.is_empty() {
            return;
        }
        // A waiting job does not keep a closed pool alive.
        let parts = (Arc::downgrade(&self.index), Arc::downgrade(&self.store), Arc::downgrade(&self.places));
        self.store.work_ahead(Box::new(move || {
            let (index, store, places) = (parts.0.upgrade(), parts.1.upgrade(), parts.2.upgrade());
            let (Some(index), Some(store), Some(places)) = (index, store, places) else { return };
            match look_up(&index, &unplaced) {
                Ok(found) => {
                    for (container, fingerprints) in found {
                        fingerprints.iter().for_each(|fingerprint| places.insert(*fingerprint, container));
                        store.load_ahead(container, fingerprints);
                    }
                }
                // The reader meets the error, too, and reports it.
                Err(error) => tracing::debug!(%error, "chunks cannot be looked up ahead"),
            }
        }));
    }
}

/// Returns the chunks that the index knows, by their container.
pub(super) fn look_up(index: &Index, fingerprints: &[Fingerprint]) -> Result<BTreeMap<ContainerId, Vec<Fingerprint>>> {
    let _timed = profile::of(Component::ReadLookup);
    let mut sealed = index.sealed_cells_of(fingerprints)?;
    let cells = index.cells_of(fingerprints, &mut sealed)?;
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for (fingerprint, cell) in fingerprints.iter().zip(cells) {
        if let Some(cell) = cell.filter(|cell| !cell.location.is_lost()) {
            found.entry(cell.location.container()).or_default().push(*fingerprint);
        }
    }
    Ok(found)
}
