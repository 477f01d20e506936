//! A pool: a meta root and a data root, opened as a whole.
//!
//! - [`format`] makes a pool.
//! - [`Pool::open`] opens lock, superblocks, namespace, containers and indexes as an [`UnrecoveredPool`], which can only be diagnosed
//!   and recovered. Recovery replays the log into the indexes and drops files that were unlinked while open. Only then a [`Pool`]
//!   exists.
//! - [`Pool::close`] makes everything durable, seals the containers and writes checkpoints of the indexes. The next open has nothing to
//!   replay.
//!
//! Dropping a pool without closing it acts like a crash: nothing more is written.

mod format;
mod indexes;
mod open;
mod parts;
mod reclaiming;
pub mod recover;
pub mod repair;
pub mod socket;
pub mod stats;
mod trial;
mod unrecovered;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dedupfs_service::Ino;
use dedupfs_store::ContainerKind;
use dedupfs_store::device::PoolLock;
use parking_lot::Mutex;

use crate::engine::Core;
use crate::progress::{NoProgress, Progress};
pub(crate) use format::relative_or_absolute;
pub use format::{format, format_on};
pub use open::OpenOptions;
pub(crate) use open::{missing_data_root, overlays};
pub(crate) use parts::DATA_DIRECTORY;
use stats::PoolStats;
use trial::TrialControl;
pub use trial::{TRIAL_MEMORY_BYTES, TrialReport};
pub(crate) use unrecovered::RecoveryReport;
pub use unrecovered::UnrecoveredPool;

use crate::config::{CLOSE_PATIENCE, EXPORT_VERIFY_AFTER};
use crate::durability::export::CopyDepth;
use crate::service::Service;
use crate::transfer::{self, PutOptions, TransferReport};
use crate::upkeep::affected::{AffectedFiles, AffectedFinder, Lost};
use crate::upkeep::check::{CheckOptions, CheckReport, Checker, RebuildReport};
use crate::upkeep::export_watch::ExportWatch;
use crate::upkeep::reclaim::ReclaimControl;
use crate::upkeep::scrub::{
    BadCopy, ScrubControl, ScrubOptions, ScrubPosition, ScrubReport, ScrubStatus, SuspectThread,
};
use dedupfs_base::ReadOnly;
use dedupfs_base::{EngineError, Result};

/// An open pool.
pub struct Pool {
    core: Arc<Core>,
    service: Arc<Service>,
    commit_thread: Mutex<Option<JoinHandle<()>>>,
    /// Closing has nothing to write: the pool was opened read-only or became so. Held across becoming read-only. Lock order: before
    /// `exclusive`.
    is_settled: Mutex<bool>,
    /// One reclaim or check at a time.
    exclusive: Mutex<()>,
    reclaiming: ReclaimControl,
    scrub: ScrubControl,
    trial: TrialControl,
    /// Only for writable pools.
    suspects: Mutex<Option<SuspectThread>>,
    /// Only for pools that were mounted for writing.
    export_watch: Mutex<Option<ExportWatch>>,
    /// Becoming read-only ended the verification of the export before it was done.
    watch_ended: Mutex<bool>,
    recovery: RecoveryReport,
    rebuilt: Option<RebuildReport>,
    /// Why the index on disk cannot be used, if an index rebuilt in memory takes its place.
    index_damage: Mutex<Option<String>>,
    /// Missing slot files. The pool was opened read-only without them.
    missing_files: Vec<String>,
    /// Held until the pool is dropped.
    _locks: Arc<Vec<PoolLock>>,
}

impl Pool {
    /// Returns the filesystem in the pool.
    #[must_use]
    pub fn service(&self) -> Arc<Service> {
        self.service.clone()
    }

    /// Copies a tree in; see `transfer::put`.
    ///
    /// # Errors
    /// As `transfer::put` says.
    pub fn put(
        &self,
        options: &PutOptions,
        from: OwnedFd,
        to: (Ino, &[u8]),
        progress: &dyn Progress,
    ) -> transfer::Result<TransferReport> {
        transfer::put(&self.core, &self.service, options, from, to, progress)
    }

    /// Copies a tree or a file out; see `transfer::get`.
    ///
    /// # Errors
    /// As `transfer::get` says.
    pub fn get(&self, ino: Ino, to: (OwnedFd, &[u8]), progress: &dyn Progress) -> transfer::Result<TransferReport> {
        transfer::get(&self.service, ino, to, progress)
    }

    /// Returns the time since the last request of a client.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        self.core.activity.idle_for()
    }

    /// Returns the number of the last commit. An equal number means that nothing was committed in between.
    #[must_use]
    pub fn last_row(&self) -> u64 {
        self.core.namespace.last_row()
    }

    /// Whether a count was found impossible, so that nothing is freed.
    #[must_use]
    pub fn has_doubt(&self) -> bool {
        self.core.namespace.has_doubt()
    }

    /// Whether changes are refused for now or for good, not counting failures.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.core.is_read_only()
    }

    /// Checks that the pool takes changes.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub fn check_writable(&self) -> Result<()> {
        self.core.begin_change().map(drop)
    }

    /// Returns the pool's parts.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the report of the recovery at opening.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Returns the notices for the user who opens the pool, in words.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        let recovered = self
            .recovery
            .is_needed()
            .then(|| format!("the pool was not closed in order, or its disk had no room for that: {}", self.recovery));
        let damage = self.index_damage.lock().clone();
        let damage =
            damage.map(|damage| format!("until the pool is closed, an index made anew in memory is used: {damage}"));
        let missing = (!self.missing_files.is_empty()).then(|| {
            let files = self.missing_files.join(", ");
            format!("{files} is missing: reads of its content give errors; put it back if it was moved away")
        });
        let doubt = self.core.namespace.has_doubt().then(|| EngineError::CountsInDoubt.to_string());
        let space = if self.core.is_read_only() { Ok(Vec::new()) } else { self.core.space.notices() };
        let export = self.core.exporter.found_at_open();
        let export = export.map(|found| {
            format!("the export on the data root was damaged ({found}): it is made anew, and counts when that is done")
        });
        // `check` reports the bytes of damaged exports.
        let kept = self.core.exporter.kept().ok().filter(|(slots, bytes)| slots + bytes > 0).map(|(slots, _)| {
            format!(
                "{slots} slots with content that no file names, and files that a recovery could not read, are kept: `dedupfs fsck --repair \
                 --give-up-unnamed` gives their space back"
            )
        });
        let notices: Vec<String> = [recovered, damage, missing, doubt, export, kept]
            .into_iter()
            .flatten()
            .chain(space.unwrap_or_default())
            .collect();
        (!notices.is_empty()).then(|| notices.join("; "))
    }

    /// Returns the report of the index rebuild, if opening was asked for one.
    #[must_use]
    pub fn rebuilt(&self) -> Option<&RebuildReport> {
        self.rebuilt.as_ref()
    }

    /// Makes everything done so far durable, content of open files included.
    ///
    /// # Errors
    /// The commit's error.
    pub fn sync(&self) -> Result<()> {
        let published = self.service.publish_all(None, None);
        self.core.committer.commit().and(published)
    }

    /// Returns figures about the pool as of now.
    ///
    /// # Errors
    /// The commit that settles the counts fails, or the index cannot be read.
    pub fn stats(&self) -> Result<PoolStats> {
        self.core.committer.settle()?;
        stats::collect(&self.core)
    }

    /// Checks the pool; see [`crate::upkeep::check`]. On a pool in use, concurrent changes can show as findings.
    ///
    /// # Errors
    /// `Busy` if a reclaim or check is running; errors that prevent the check altogether.
    pub fn check(&self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport> {
        self.end_background();
        let _one = self.exclusively()?;
        let core = &self.core;
        // Quarantining between the check of counts and the check of places would escape both.
        let _no_quarantine = core.committer.hold_losses();
        core.committer.settle()?;
        let mut report = Checker {
            namespace: &core.namespace,
            stores: &core.stores,
            indexes: &core.indexes,
            nodes: core.dedup.nodes(),
            fingerprinter: core.dedup.fingerprinter(),
            workers: &core.files.ingest.workers,
        }
        .run(options, progress)?;
        if let Some(damage) = &*self.index_damage.lock() {
            report.needs_rebuild = true;
            report.add(damage.clone());
        }
        self.check_export(options, &mut report, progress)?;
        let inconsistencies = core.committer.inconsistencies();
        if inconsistencies > 0 {
            report.needs_rebuild = true;
            report.add(format!("{inconsistencies} counts could not be right while the log was consumed"));
        }
        if core.namespace.has_doubt() {
            report.needs_rebuild = true;
            report.add(EngineError::CountsInDoubt.to_string());
        }
        Ok(report)
    }

    /// Verifies the export. Base and log are always read; the copies are read in full only if the data is.
    fn check_export(&self, options: &CheckOptions, report: &mut CheckReport, progress: &dyn Progress) -> Result<()> {
        let depth = if options.read_data { CopyDepth::Content } else { CopyDepth::Ends };
        progress.start("verifying the export", 0);
        let export = match self.core.exporter.verify(depth, &mut |_| !progress.is_cancelled()) {
            // The namespace is damaged; the rest of the report tells more.
            Err(error) if crate::durability::export::is_damage(&error) => {
                progress.finish();
                report.add(format!("the export on the data root cannot be verified: {error}"));
                return Ok(());
            }
            export => export?,
        };
        progress.finish();
        for finding in &export.findings {
            if export.renewed {
                report.note(format!("the export on the data root was bad and was made anew: {finding}"));
            } else {
                report.add(format!("export on the data root: {finding}"));
            }
        }
        report.finding_count += if export.is_bad() { export.finding_count - export.findings.len() as u64 } else { 0 };
        if export.stopped {
            report.note("the export on the data root was being written anew, and was not verified".to_owned());
        }
        let (slots, bytes) = self.core.exporter.kept()?;
        if slots + bytes > 0 {
            report.note(format!(
                "a recovery kept {slots} slots with content that no file names, and {bytes} bytes of damaged exports: `dedupfs fsck \
                 --repair --give-up-unnamed` gives that up"
            ));
        }
        report.export = Some(export);
        Ok(())
    }

    /// Reads everything that is stored and quarantines what is bad; see [`crate::upkeep::scrub`].
    ///
    /// # Errors
    /// `Busy` if a scrub is running; else as [`crate::upkeep::scrub::scrub`].
    pub fn scrub(&self, options: &ScrubOptions, progress: &dyn Progress) -> Result<ScrubReport> {
        let Some(_one) = self.scrub.running.try_lock() else {
            return Err(busy("a scrub that is running already: `dedupfs scrub --status` tells how far it is"));
        };
        let core = &self.core;
        let (mut report, found) = crate::upkeep::scrub::scrub(core, options, &self.scrub, progress)?;
        if !report.unmounted {
            match self.name_affected(&mut report, found, progress) {
                // The pool is closing, so every call fails. The error itself means nothing.
                Err(error) if core.gate.is_closing() => {
                    tracing::debug!(%error, "a scrub was stopped by the unmount");
                    report.unmounted = true;
                }
                named => named?,
            }
        }
        if report.unmounted {
            (report.finished, report.affected) = (false, AffectedFiles::default());
            (report.lost_chunks, report.lost_nodes) = (core.indexes.chunks.lost(), core.indexes.nodes.lost());
        }
        Ok(report)
    }

    /// Fills the report with the current losses and the files that need them.
    fn name_affected(&self, report: &mut ScrubReport, found: Vec<BadCopy>, progress: &dyn Progress) -> Result<()> {
        let core = &self.core;
        // Publishes open files first, so their losses are named too.
        if !core.is_read_only() && core.namespace.has_losses() {
            self.sync()?;
        }
        core.committer.settle()?;
        report.counts_in_doubt = core.namespace.has_doubt();
        let mut lost = Lost::of(&core.indexes)?;
        (report.lost_chunks, report.lost_nodes) = (lost.chunks.len() as u64, lost.nodes.len() as u64);
        for copy in found {
            match copy.kind {
                ContainerKind::Data => lost.chunks.insert(copy.fingerprint),
                ContainerKind::Recipe => lost.nodes.insert(copy.fingerprint),
            };
        }
        report.affected = self.affected(&lost, progress)?;
        Ok(())
    }

    /// Starts one verification of the export in the background, which also rewrites bad parts. For mounts; does nothing on a read-only
    /// pool.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch_export(&self) -> Result<()> {
        if !self.core.is_read_only() {
            *self.export_watch.lock() = Some(ExportWatch::start(&self.core, EXPORT_VERIFY_AFTER)?);
        }
        Ok(())
    }

    /// Ends a running scrub soon.
    pub fn stop_scrub(&self) {
        self.scrub.stop();
    }

    /// Returns the position of the running or the last scrub.
    ///
    /// # Errors
    /// The position cannot be read.
    pub fn scrub_status(&self) -> Result<ScrubStatus> {
        let core = &self.core;
        let position = match self.scrub.position() {
            None => ScrubPosition::last(&*core.meta_device, &core.pool)?,
            position => position,
        };
        let records = [core.stores.recipes.containers(), core.stores.data.containers()].concat();
        Ok(ScrubStatus {
            running: self.scrub.running.is_locked(),
            in_trial: self.trial.is_running(),
            position,
            total_bytes: records.iter().map(|record| u64::from(record.used_bytes)).sum(),
            lost_chunks: Some(core.indexes.chunks.lost()),
            lost_nodes: Some(core.indexes.nodes.lost()),
        })
    }

    /// Finds the files that need lost content.
    fn affected(&self, lost: &Lost, progress: &dyn Progress) -> Result<AffectedFiles> {
        let core = &self.core;
        let finder = AffectedFinder {
            namespace: &core.namespace,
            recipe_index: &core.indexes.nodes,
            nodes: core.dedup.nodes(),
            progress,
        };
        finder.find(lost)
    }

    /// Closes the pool: makes everything durable, seals the containers and writes checkpoints of the indexes. Calls of the service fail
    /// from then on.
    ///
    /// # Errors
    /// An error that prevented durability. The pool is closed all the same, as after a crash.
    pub fn close(&self) -> Result<()> {
        if self.commit_thread.lock().is_none() {
            return Ok(());
        }
        self.scrub.stop();
        self.reclaiming.close();
        self.core.exporter.hurry(true);
        drop(self.export_watch.lock().take());
        drop(self.suspects.lock().take());
        if *self.is_settled.lock() {
            // All changes are durable already, or were only made in memory.
            self.core.gate.close(CLOSE_PATIENCE);
            self.stop();
            return Ok(());
        }
        // From here on, new changes are refused, because they could not become durable. Accepted changes are published.
        let drained = self.core.gate.drain(CLOSE_PATIENCE);
        if !drained {
            tracing::error!("a request hangs: the pool is closed without its changes");
        }
        // Log rows of a reclaim behind the last checkpoint would need a recovery.
        let ended = self.reclaiming.end(CLOSE_PATIENCE);
        if ended.is_none() {
            tracing::error!("a reclaim hangs: the pool is closed meanwhile, and the next mount recovers its changes");
        }
        let published = self.service.publish_all(None, (!drained).then_some(CLOSE_PATIENCE));
        self.core.gate.close(CLOSE_PATIENCE);
        let outcome = self.put_in_order();
        self.stop();
        // A running check reads the namespace, so the namespace is then not compacted.
        if outcome.is_ok()
            && let Some(_one) = self.exclusive.try_lock()
            && let Err(error) = self.core.exporter.while_quiet(|| self.core.namespace.compact_small())
        {
            tracing::warn!(%error, "the namespace was not made smaller");
        }
        outcome.and(published)
    }

    /// Seals the containers and makes everything durable, so the next open has nothing to recover.
    fn put_in_order(&self) -> Result<()> {
        let (core, committer) = (&self.core, &self.core.committer);
        core.stores.data.seal_all();
        core.stores.recipes.seal_all();
        match committer.checkpoint() {
            // This last round trims the log.
            Ok(_) => committer
                .settle()
                .and_then(|()| committer.export())
                .and_then(|()| committer.settle())
                .and_then(|()| core.exporter.sync_note()),
            Err(error) => committer.commit().and(if error.is_no_space() {
                tracing::warn!(
                    "no room to close the pool in order: all written data is durable, and the next mount counts the end of the \
                     log anew, once there is room for that"
                );
                Ok(())
            } else {
                Err(error)
            }),
        }
    }

    /// Makes the pool read-only for a while. On return everything is durable, and nothing is written until
    /// [`set_writable`](Self::set_writable). Stops a running scrub or reclaim.
    ///
    /// # Errors
    /// `Busy` if a check is running, or if a scrub, reclaim or request does not end; an error that prevented durability. After an error
    /// the pool stays writable.
    pub fn set_read_only(&self) -> Result<()> {
        let mut is_settled = self.is_settled.lock();
        if *is_settled {
            return Ok(());
        }
        let _no_reclaim = self.reclaiming.end(CLOSE_PATIENCE).ok_or_else(|| busy("a reclaim that does not end"))?;
        let _one = self.exclusively()?;
        self.scrub.stop();
        self.core.exporter.hurry(true);
        *self.watch_ended.lock() |= self.export_watch.lock().take().is_some_and(ExportWatch::end);
        let no_scrub = self.scrub.running.try_lock_for(CLOSE_PATIENCE);
        self.core.exporter.hurry(false);
        let outcome = match no_scrub {
            Some(_no_scrub) => self.pause_and_sync(),
            None => Err(busy("a scrub that does not end")),
        };
        *is_settled = outcome.is_ok();
        if outcome.is_err() {
            self.resume_watch();
        }
        outcome
    }

    /// Pauses changes and makes everything durable. After an error the pool stays writable.
    fn pause_and_sync(&self) -> Result<()> {
        if !self.core.gate.pause(CLOSE_PATIENCE) {
            return Err(busy("a request that does not end"));
        }
        let outcome = self.service.publish_all(None, Some(CLOSE_PATIENCE)).and_then(|()| self.put_in_order());
        if outcome.is_err() {
            self.core.gate.resume();
        }
        outcome
    }

    /// Ends the read-only state that [`set_read_only`](Self::set_read_only) began.
    ///
    /// # Errors
    /// `ReadOnly` for a pool that was opened read-only, or that a failure made read-only.
    pub fn set_writable(&self) -> Result<()> {
        let mut is_settled = self.is_settled.lock();
        if self.core.opened_read_only {
            return Err(ReadOnly::RecoveredInMemory.into());
        }
        self.core.check_failure()?;
        self.core.gate.resume();
        *is_settled = false;
        self.resume_watch();
        Ok(())
    }

    /// Restarts the verification of the export if becoming read-only ended it.
    fn resume_watch(&self) {
        if std::mem::take(&mut *self.watch_ended.lock())
            && let Err(error) = self.watch_export()
        {
            tracing::warn!(%error, "the export is not verified in the background");
        }
    }

    /// Ends a background run of reclaiming: explicit requests go first.
    fn end_background(&self) {
        if self.reclaiming.is_in_background() {
            drop(self.reclaiming.end(CLOSE_PATIENCE));
        }
    }

    fn exclusively(&self) -> Result<parking_lot::MutexGuard<'_, ()>> {
        self.exclusive.try_lock().ok_or_else(running_already)
    }

    fn stop(&self) {
        self.core.exporter.hurry(true);
        drop(self.export_watch.lock().take());
        drop(self.suspects.lock().take());
        self.core.committer.stop();
        if let Some(thread) = self.commit_thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the commit thread panicked");
        }
    }
}

fn running_already() -> EngineError {
    busy("a reclaim or check that is running already: wait for it to end")
}

fn busy(owner: &str) -> EngineError {
    dedupfs_store::StoreError::Busy { what: "the pool".to_owned(), owner: owner.to_owned() }.into()
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
        // Workers with a job and clients with the service may hold parts of the pool a moment longer.
        self.core.stores.data.stop();
        self.core.stores.recipes.stop();
        self.core.namespace.end();
    }
}
