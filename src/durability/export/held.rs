//! Holds: while somebody reads the export, everything that it needs stays.

use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_namespace::Exported;
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};

use super::files::Current;
use super::reached::ReachedNote;
use super::{Exporter, files};

/// A hold on the export; see [`Exporter::hold`].
pub(crate) struct HeldExport<'a> {
    pub(super) exporter: &'a Exporter,
    pub(super) exported: Exported,
    pub(super) current: Option<Current>,
}

impl std::fmt::Debug for HeldExport<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldExport").field("row", &self.exported.row).finish_non_exhaustive()
    }
}

impl HeldExport<'_> {
    /// The commit that was exported at the time of the hold.
    pub(crate) fn row(&self) -> u64 {
        self.exported.row
    }

    /// Whether another base has replaced the held one.
    pub(crate) fn is_replaced(&self) -> bool {
        self.exporter.state.lock().exported.generation != self.exported.generation
    }

    /// Cuts a view of the data root where the held export ended: groups appended later may be there in part.
    ///
    /// # Errors
    /// The view cannot be changed. A missing log is not an error here.
    pub(crate) fn cut_view(&self, view: &dyn Device) -> Result<()> {
        if self.exported.generation == 0 {
            return Ok(());
        }
        match view.open(&files::log_path(self.exported.generation), OpenMode::Write) {
            Ok(log) if log.len()? > self.exported.log_bytes => log.set_len(self.exported.log_bytes)?,
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // The note describes the groups appended since.
        ReachedNote::default().remove(view)
    }
}

impl Drop for HeldExport<'_> {
    fn drop(&mut self) {
        let mut state = self.exporter.state.lock();
        state.held = state.held.and_then(|(holders, row)| (holders > 1).then_some((holders - 1, row)));
    }
}

impl Exporter {
    /// Keeps everything the current export needs until the hold is dropped: the slots that it names, and the notes of keys changed
    /// since.
    pub(crate) fn hold(&self) -> HeldExport<'_> {
        // With this lock held, nobody is about to free slots that the export named a moment ago.
        let work = self.working.lock();
        let current = work.live.as_ref().map(|live| live.current);
        let mut state = self.state.lock();
        let exported = state.exported;
        let (holders, first) = state.held.unwrap_or((0, exported.row));
        state.held = Some((holders + 1, first));
        HeldExport { exporter: self, exported, current }
    }

    /// Runs `run` while no export reads the namespace. A base under way is given up and tried again later.
    pub(crate) fn while_quiet<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.give_up.swap(true, Ordering::Relaxed);
        let _no_base = self.building.lock();
        let _no_group = self.working.lock();
        self.give_up.store(before, Ordering::Relaxed);
        run()
    }
}
