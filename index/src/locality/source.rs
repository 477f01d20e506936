//! Where tables of containers come from.

use std::fmt;
use std::sync::{Arc, OnceLock};

use dedupfs_store::{ContainerId, Fingerprint, Result};

/// Gives the tables of containers: in the engine, the container store.
pub trait ContainerTables: Send + Sync {
    /// Calls `each` with fingerprint and length in bytes of every chunk of a container, in any order; false if there is no such
    /// container.
    ///
    /// # Errors
    /// The table cannot be read: the lookup goes on without it.
    fn read_table(&self, container: ContainerId, each: &mut dyn FnMut(Fingerprint, u32)) -> Result<bool>;
}

/// The source, once it is known: the index is opened before what knows containers.
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
