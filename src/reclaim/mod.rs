//! Reclaiming space: MAD2 section 3.5's counting fingerprints and dedupv1 section 3.7's collection, with claims.
//!
//! 1. **Nodes**: recipe nodes that nothing refers to are claimed, rechecked and freed; that lowers the counts of
//!    their children, which may free further nodes, until none is left. What a backup shares with others costs
//!    nothing here: only its own nodes are touched.
//! 2. **Containers**: those whose live share is below the threshold are claimed; after all writers that might have
//!    seen them have gone on, live chunks are copied forward, dead ones removed from the index, all of that is
//!    committed and checkpointed, and only then are the containers forgotten and their slots freed (I-4).
//!
//! A crash at any point leaves both copies or one; the index names exactly one, and the other is garbage that the
//! next run finds. Cost: one read of a freed node; one read and one write per live chunk of a chosen container;
//! a table of contents for each chosen container; two scans of the indexes.

mod containers;
mod control;
mod nodes;
mod plan;

use std::sync::Arc;

use dedupfs_index::Index;
use serde::{Deserialize, Serialize};

pub use control::ReclaimControl;

use crate::commit::Committer;
use crate::config::RECLAIM_THRESHOLD_PERCENT;
use crate::containers::ContainerStore;
use crate::dedup::Deduplicator;
use crate::error::Result;
use crate::export::Exporter;
use crate::namespace::Namespace;
use crate::pool::{Progress, SpaceGuard};

/// How to reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimOptions {
    /// Containers whose live share (percent of the chunk bytes put into them) is below this are emptied.
    pub threshold_percent: u8,
    /// Only plan.
    pub dry_run: bool,
}

impl Default for ReclaimOptions {
    fn default() -> Self {
        Self { threshold_percent: RECLAIM_THRESHOLD_PERCENT, dry_run: false }
    }
}

/// What was, or would be, done.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// It was stopped before it was done: the next one goes on.
    #[serde(default)]
    pub stopped: bool,
    /// Recipe nodes freed.
    pub nodes_freed: u64,
    /// Recipe nodes that nothing refers to and that stay, with all that they name, because they cannot be read.
    pub nodes_unreadable: u64,
    /// Chunks that nothing refers to any more, removed from the index.
    pub chunks_removed: u64,
    /// Chunks and nodes copied forward out of containers that were emptied.
    pub chunks_moved: u64,
    /// Their bytes, uncompressed.
    pub moved_bytes: u64,
    /// Containers freed.
    pub containers_freed: u64,
    /// Containers left as they are because something in them cannot be read: `dedupfs fsck --read-data` tells more.
    pub containers_damaged: u64,
    /// Containers left as they are because there is no space to copy what is alive in them.
    #[serde(default)]
    pub containers_without_space: u64,
    /// Uncompressed bytes that nothing refers to and that stay, because their containers are above the threshold.
    pub garbage_left_bytes: u64,
    /// Physical bytes of the pool before.
    pub physical_before_bytes: u64,
    /// Physical bytes after; for a dry run what is expected.
    pub physical_after_bytes: u64,
}

/// What reclaiming works on.
pub struct Reclaimer<'a> {
    /// Where frees are logged.
    pub namespace: &'a Namespace,
    /// Containers of chunks.
    pub data: &'a Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: &'a Arc<ContainerStore>,
    /// Index of chunks.
    pub chunk_index: &'a Index,
    /// Index of recipe nodes.
    pub recipe_index: &'a Index,
    /// Claims and copies.
    pub dedup: &'a Deduplicator,
    /// Commits and checkpoints.
    pub committer: &'a Committer,
    /// How much may be copied at a time.
    pub space: &'a SpaceGuard,
    /// Copies of the namespace on the data root.
    pub exporter: &'a Exporter,
    /// Says when to end.
    pub control: &'a ReclaimControl,
    /// Physical bytes of the pool now.
    pub physical_bytes: &'a dyn Fn() -> Result<u64>,
}

impl Reclaimer<'_> {
    /// Reclaims, or plans.
    ///
    /// # Errors
    /// I/O errors and damage met on the way; what was done until then stays done and valid.
    pub fn run(&self, options: &ReclaimOptions, progress: &dyn Progress) -> Result<ReclaimReport> {
        self.committer.settle()?;
        let mut report = ReclaimReport {
            dry_run: options.dry_run,
            physical_before_bytes: (self.physical_bytes)()?,
            ..ReclaimReport::default()
        };
        if options.dry_run {
            self.plan(options, &mut report)?;
            return Ok(report);
        }
        let outcome = self.execute(options, &mut report, progress);
        // A removal that is logged and not counted yet must not be undone by a writer that finds what it removes: after a
        // failure the claims stay until everything logged is counted, if need be until the next mount.
        if outcome.is_ok() || self.committer.settle().is_ok() {
            self.dedup.release_nodes();
            self.dedup.release_containers();
        }
        outcome?;
        report.physical_after_bytes = (self.physical_bytes)()?;
        Ok(report)
    }

    fn note_stop(&self, report: &mut ReclaimReport) -> bool {
        report.stopped = self.control.is_stopped();
        report.stopped
    }

    fn execute(&self, options: &ReclaimOptions, report: &mut ReclaimReport, progress: &dyn Progress) -> Result<()> {
        self.free_nodes(report, progress)?;
        if self.note_stop(report) {
            return Ok(());
        }
        self.forget_lost_chunks(report)?;
        self.data.seal_all();
        self.recipes.seal_all();
        self.committer.settle()?;
        self.note_losses()?;
        self.empty_containers(false, options, report, progress)?;
        self.empty_containers(true, options, report, progress)?;
        if self.note_stop(report) {
            return Ok(());
        }
        self.committer.checkpoint()?;
        // This round trims the log that the checkpoint made superfluous.
        self.committer.settle()?;
        self.committer.export()?;
        self.exporter.shrink()?;
        // What the export does not need any more goes.
        self.committer.settle()?;
        // Everything is freed by now; a namespace that cannot be made smaller is no reason to say otherwise.
        if let Err(error) = self.exporter.while_quiet(|| self.namespace.compact()) {
            tracing::warn!(%error, "the namespace stays as large as it is; the next run makes it smaller");
        }
        Ok(())
    }
}
