//! The source of container tables.

use std::fmt;
use std::sync::{Arc, OnceLock};

use dedupfs_store::{ContainerId, Fingerprint, Result};

/// Supplies the tables of containers: in the engine, the container store.
pub trait ContainerTables: Send + Sync {
    /// Calls `each` with fingerprint and length in bytes of every chunk of a container, in any order; `false` if the
    /// container does not exist.
    ///
    /// # Errors
    /// The table cannot be read: the lookup goes on without it.
    fn read_table(&self, container: ContainerId, each: &mut dyn FnMut(Fingerprint, u32)) -> Result<bool>;
}

/// The source, once it is set: the index is opened before the container store.
#[derive(Default)]
pub(crate) struct Tables(OnceLock<Arc<dyn ContainerTables>>);

impl Tables {
    pub(crate) fn set(&self, tables: Arc<dyn ContainerTables>) {
        self.0.get_or_init(|| tables);
    }

    pub(crate) fn get(&self) -> Option<&Arc<dyn ContainerTables>> {
        self.0.get()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "tables" } else { "no tables" })
    }
}
