//! Reclaiming of an open pool: one run at a time, and its status.

use dedupfs_base::{ReadOnly, Result};

use super::{Pool, Progress, busy, running_already};
use crate::upkeep::reclaim::{LastRun, ReclaimControl, ReclaimOptions, ReclaimReport, ReclaimStatus, has_new_versions};
use crate::versions::notes;

impl Pool {
    /// Frees garbage; see [`crate::upkeep::reclaim`].
    ///
    /// # Errors
    /// `Busy` if a reclaim or check is running, `ReadOnly` if the pool is closing; else as [`crate::upkeep::reclaim`] says.
    pub fn reclaim(&self, options: &ReclaimOptions, progress: &dyn Progress) -> Result<ReclaimReport> {
        let core = &self.core;
        // A dry run changes nothing, so nobody waits for its end. `running` is released last: a caller that waited for it finds the
        // pool free.
        if !options.dry_run && self.reclaiming.is_ending() {
            return Err(busy("a snapshot, or others that wait for the end of reclaiming: try again"));
        }
        if !options.is_background {
            self.end_background();
        }
        let running = (!options.dry_run).then(|| self.reclaiming.running.try_lock().ok_or_else(running_already));
        let _running = running.transpose()?;
        let _one = self.exclusively()?;
        if !options.dry_run && core.gate.is_closing() {
            return Err(ReadOnly::Unmounting.into());
        }
        if core.is_read_only() && !options.dry_run {
            return Err(dedupfs_store::StoreError::Usage(
                "the pool is mounted read-only and reclaiming would change it: unmount it, or mount it for writing"
                    .to_owned(),
            )
            .into());
        }
        if !options.dry_run && self.reclaiming.is_paused() {
            return Err(dedupfs_store::StoreError::Usage(
                "reclaiming is paused: `dedupfs-gc --resume` with the pool or mountpoint ends that".to_owned(),
            )
            .into());
        }
        if !options.dry_run
            && let Err(error) = notes::clean_pool(core)
        {
            tracing::warn!(%error, "the notes of versions that are gone cannot be removed");
        }
        crate::upkeep::reclaim::reclaim(core, options, &self.reclaiming, progress)
            .map_err(|error| core.space.explain(error))
    }

    /// Whether there are versions for which content was not arranged yet.
    ///
    /// # Errors
    /// The namespace's.
    pub fn has_new_versions(&self) -> Result<bool> {
        has_new_versions(&self.core)
    }

    /// Returns the control that stops, pauses and resumes reclaiming.
    #[must_use]
    pub fn reclaiming(&self) -> &ReclaimControl {
        &self.reclaiming
    }

    /// Returns the state of the running or the last reclaim.
    #[must_use]
    pub fn reclaim_status(&self) -> ReclaimStatus {
        let core = &self.core;
        let (chunks, nodes) = (core.indexes.chunks.occupied_total(), core.indexes.nodes.occupied_total());
        let mut stored_bytes = 0;
        for store in [&core.stores.data, &core.stores.recipes] {
            store.for_each_closed(&mut |record| stored_bytes += record.chunk_bytes);
        }
        let live_bytes = chunks.live_bytes + nodes.bytes;
        ReclaimStatus {
            running: self.reclaiming.running(),
            paused: self.reclaiming.is_paused(),
            last: LastRun::read_or_none(&*core.meta_device, &core.pool),
            is_known: [&core.indexes.chunks, &core.indexes.nodes]
                .iter()
                .all(|index| index.stats().tankers_without_occupancy == 0),
            counts_in_doubt: core.namespace.has_doubt(),
            live_bytes,
            garbage_bytes: stored_bytes.saturating_sub(live_bytes),
            background: None,
        }
    }
}
