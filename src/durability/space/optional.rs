//! Writes to the data root that can be delayed or dropped: the export. They must not use the room that commits and reclaiming rely on.

use std::sync::Arc;

use dedupfs_store::StoreError;
use dedupfs_store::device::Device;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_sync::OnceLock;

use super::{Demand, SpaceGuard};

/// Passes writes through to the data root while half of the reserve stays free; beyond that they fail for lack of space.
#[derive(Debug, Default)]
pub(crate) struct OptionalWrites {
    guard: OnceLock<Arc<SpaceGuard>>,
}

impl OptionalWrites {
    /// Wraps the device for such writes. Until [`begin`](Self::begin) all of them pass.
    pub(crate) fn device(self: &Arc<Self>, data: &Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(ObservedDevice::new(data.clone(), self.clone()))
    }

    /// Sets the guard that is asked from now on.
    pub(crate) fn begin(&self, guard: &Arc<SpaceGuard>) {
        // A pool has only one guard.
        let _first_counts = self.guard.set(guard.clone());
    }
}

impl Observer for OptionalWrites {
    fn around(
        &self,
        call: &Call<'_>,
        perform: &mut dyn FnMut() -> dedupfs_store::Result<()>,
    ) -> dedupfs_store::Result<()> {
        let (Call::Write { path, len_bytes, .. }, Some(guard)) = (call, self.guard.get()) else { return perform() };
        let demand = Demand { data_bytes: *len_bytes as u64, meta_bytes: 0 };
        match guard.admit_freeing(demand) {
            // Held until the device has the bytes.
            Ok(_promise) => perform(),
            Err(error) if error.is_no_space() => {
                Err(StoreError::NoSpace { operation: "write", path: (*path).to_owned() })
            }
            Err(error) => Err(error.into_store()),
        }
    }
}
