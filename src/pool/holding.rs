//! Holding the export of an open pool, for copies of it on other machines.

use dedupfs_base::Result;
use dedupfs_namespace::Namespace;
use dedupfs_store::StoreError;

use super::Pool;
use crate::durability::export::{ExportPosition, HeldExport};

/// A hold on a pool's export: until it is dropped, no slot is freed that the export names.
#[derive(Debug)]
pub struct ExportHold<'a> {
    held: HeldExport<'a>,
    namespace: &'a Namespace,
}

impl ExportHold<'_> {
    /// Where the held export ends.
    #[must_use]
    pub fn position(&self) -> ExportPosition {
        self.held.position()
    }

    /// Whether the export has everything that was committed. One of a pool that was opened read-only may lack the last changes before a crash.
    ///
    /// # Errors
    /// The namespace cannot be read.
    pub fn is_complete(&self) -> Result<bool> {
        let mut is_complete = true;
        self.namespace.export_source()?.changes_after(self.held.row(), &mut |keys| {
            is_complete &= keys.is_empty();
            Ok(())
        })?;
        Ok(is_complete)
    }
}

impl Pool {
    /// Brings the export on the data root up to the present state, and holds it. The base may be replaced meanwhile: open its files
    /// behind this, and hold anew if they are gone.
    ///
    /// # Errors
    /// The commit or the export fails; `Usage` if the pool has no export yet.
    pub fn hold_export(&self) -> Result<ExportHold<'_>> {
        if !self.is_read_only() {
            self.sync()?;
            self.core.committer.export()?;
        }
        let held = self.core.exporter.hold();
        if held.position().generation == 0 {
            let message = "the pool has no export on its data root yet: it is being written, or there is no room for it there; mount the \
                           pool for writing and try again in a minute";
            return Err(StoreError::Usage(message.to_owned()).into());
        }
        Ok(ExportHold { held, namespace: &self.core.namespace })
    }
}
