//! Checks and scrubs of an open pool, with the files that need lost content.

use dedupfs_base::{EngineError, Result};
use dedupfs_store::ContainerKind;

use super::{Pool, busy};
use crate::config::EXPORT_VERIFY_AFTER;
use crate::durability::export::CopyDepth;
use crate::progress::Progress;
use crate::upkeep::affected::{AffectedFiles, AffectedFinder, Lost};
use crate::upkeep::check::{CheckOptions, CheckReport, Checker};
use crate::upkeep::export_watch;
use crate::upkeep::scrub::{BadCopy, ScrubOptions, ScrubPosition, ScrubReport, ScrubStatus};

impl Pool {
    /// Checks the pool; see [`crate::upkeep::check`]. Writers go on, and what they change meanwhile does not show.
    ///
    /// # Errors
    /// `Busy` if a reclaim or check is running; errors that prevent the check altogether.
    pub fn check(&self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport> {
        self.end_background();
        let _one = self.exclusively()?;
        let core = &self.core;
        // Tables are read behind the view, and a copy that is quarantined meanwhile may be repaired elsewhere.
        let no_quarantine = core.committer.hold_losses();
        core.committer.settle()?;
        // Temporary files must not go to the reserve of a root.
        let disk =
            options.scratch.as_deref().and_then(|scratch| rustix::fs::stat(scratch).ok()).map(|scratch| scratch.st_dev);
        let is_own_disk = [&core.meta_device, &core.data_device].iter().any(|root| root.filesystem_id() == disk);
        let mut report = Checker {
            core,
            memory_bytes: core.memory_at_opening.total_bytes / 2,
            has_room: &|bytes| !is_own_disk || core.space.has_room(bytes).unwrap_or(false),
            // Closing ends reclaiming first, and waits for quarantine before the gate closes.
            is_ended: &|| core.gate.is_closing() || self.reclaiming.is_closed() || progress.is_cancelled(),
        }
        .run(no_quarantine, options, progress)?;
        if let Some(damage) = &*self.index_damage.lock() {
            report.needs_rebuild = true;
            report.add(damage.clone());
        }
        self.check_export(options, &mut report, progress)?;
        let inconsistencies = core.committer.inconsistencies();
        if inconsistencies > 0 {
            report.needs_rebuild = true;
            report.add(format!("{inconsistencies} counts could not be right while the log was counted"));
        }
        if core.namespace.has_doubt() {
            // While recipe nodes are lost, a rebuild would end with the same doubt.
            report.needs_rebuild |= core.indexes.nodes.lost() == 0;
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
            *self.export_watch.lock() = Some(export_watch::start(&self.core, EXPORT_VERIFY_AFTER)?);
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
}
