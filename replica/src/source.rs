//! The pool that is replicated: its data root, and holds on its export.

use std::sync::Arc;

use dedupfs::export::ExportPosition;
use dedupfs::{ExportHold, Pool};
use dedupfs_store::device::Device;

use crate::error::Result;

/// A pool whose export can be held.
pub trait Source: Sync {
    /// The data root.
    fn data(&self) -> &dyn Device;

    /// Brings the export up to the present state of the pool, and holds it.
    ///
    /// # Errors
    /// The pool cannot; it has no export.
    fn hold(&self) -> Result<Box<dyn Held + '_>>;
}

/// A hold. While it lasts, all containers of the export stay in their places.
pub trait Held {
    /// Where the held export ends.
    fn position(&self) -> ExportPosition;

    /// Checks that the hold lasted until now.
    ///
    /// # Errors
    /// `HoldLost`
    fn check(&self) -> Result<()>;
}

/// A pool that is open in this process.
pub struct PoolSource {
    pool: Arc<Pool>,
    data: Arc<dyn Device>,
}

impl PoolSource {
    /// Uses an open pool and the device of its data root.
    #[must_use]
    pub fn new(pool: Arc<Pool>, data: Arc<dyn Device>) -> Self {
        Self { pool, data }
    }
}

impl std::fmt::Debug for PoolSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolSource").finish_non_exhaustive()
    }
}

impl Source for PoolSource {
    fn data(&self) -> &dyn Device {
        &*self.data
    }

    fn hold(&self) -> Result<Box<dyn Held + '_>> {
        Ok(Box::new(self.pool.hold_export()?))
    }
}

impl Held for ExportHold<'_> {
    fn position(&self) -> ExportPosition {
        ExportHold::position(self)
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
