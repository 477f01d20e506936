//! A pool: a meta root and a data root, opened as a whole.
//!
//! - [`format()`] makes a pool.
//! - [`Pool::open`] opens lock, superblocks, namespace, containers and indexes as an [`UnrecoveredPool`], recovers that, and returns the
//!   [`Pool`]. Recovery replays the log into the indexes and drops files that were unlinked while open.
//! - [`Pool::close`] makes everything durable, seals the containers and writes checkpoints of the indexes. The next open has nothing to
//!   replay.
//!
//! Dropping a pool without closing it acts like a crash: nothing more is written.

mod checking;
mod closing;
mod format;
mod freezing;
mod healing;
mod holding;
mod indexes;
mod open;
mod parts;
mod profile;
mod reclaiming;
pub mod recover;
pub mod repair;
mod series;
pub mod socket;
pub mod stats;
mod trial;
mod unrecovered;
mod versions;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dedupfs_namespace::is_frozen;
use dedupfs_service::Ino;
use dedupfs_store::device::PoolLock;
use dedupfs_sync::Mutex;
use dedupfs_sync::thread::JoinHandle;

use crate::engine::Core;
use crate::progress::{NoProgress, Progress};
pub(crate) use format::relative_or_absolute;
pub use format::{format, format_on};
pub use holding::ExportHold;
pub use open::OpenOptions;
pub(crate) use open::{missing_data_root, overlays};
pub(crate) use parts::{DATA_DIRECTORY, RECIPE_DIRECTORY};
pub use recover::recover_on;
use stats::PoolStats;
use trial::TrialControl;
pub use trial::{TRIAL_MEMORY_BYTES, TrialReport};
pub(crate) use unrecovered::RecoveryReport;
pub use unrecovered::UnrecoveredPool;

use crate::config::CLOSE_PATIENCE;
use crate::service::Service;
use crate::transfer::{self, Cutting, ImageFiles, ImageOptions, Patterns, PutOptions, TransferReport};
use crate::upkeep::beside::Beside;
use crate::upkeep::check::RebuildReport;
use crate::upkeep::reclaim::ReclaimControl;
use crate::upkeep::scrub::ScrubControl;
use crate::versions::snapshot::SnapshotsMade;
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
    /// A leaf.
    snapshots_made: Mutex<SnapshotsMade>,
    /// Only for writable pools.
    suspects: Mutex<Option<Beside>>,
    index_watch: Mutex<Option<Beside>>,
    /// Only for pools that were mounted for writing.
    export_watch: Mutex<Option<Beside>>,
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

    /// Whether the pool may have versions, so that releases without them refuse it.
    #[must_use]
    pub fn has_versions(&self) -> bool {
        self.core.namespace.has_versions()
    }

    /// Copies a tree in; see `transfer::put` and `transfer::put_version`.
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
        match &options.version {
            // A pool of a release without versions stays one that this release can open.
            Some(version) if self.has_versions() => {
                transfer::put_version(&self.core, &self.service, (options, version), from, to, progress)
            }
            _ => transfer::put(&self.core, &self.service, options, from, to, progress),
        }
    }

    /// Puts the image of a disk; see `transfer::put_image`.
    ///
    /// # Errors
    /// As `transfer::put_image` says; those of a pool without versions.
    pub fn put_image(
        &self,
        options: &ImageOptions,
        files: ImageFiles,
        to: (Ino, &[u8]),
        progress: &dyn Progress,
    ) -> transfer::Result<TransferReport> {
        transfer::put_image(&self.core, &self.service, options, files, to, progress)
    }

    /// Returns how content is cut and named in this pool.
    #[must_use]
    pub fn cutting(&self) -> Cutting {
        Cutting::of(&self.core)
    }

    /// Answers questions about chunks ahead of their content: [`QUESTION_BYTES`](transfer::QUESTION_BYTES) each, at most
    /// [`ASKED_AT_ONCE`](transfer::ASKED_AT_ONCE). Returns [`ANSWER_BYTES`](transfer::ANSWER_BYTES) for each.
    ///
    /// # Errors
    /// `Invalid` for questions that are cut off, or too many, and if the pool compares bytes; the index cannot be read.
    pub fn answer_ahead(&self, questions: &[u8]) -> Result<Vec<u8>> {
        transfer::answer(&self.core, questions)
    }

    /// Copies a tree, or what `patterns` choose of it, or a file out; see `transfer::get`.
    ///
    /// # Errors
    /// As `transfer::get` says.
    pub fn get(
        &self,
        ino: Ino,
        to: (OwnedFd, &[u8]),
        patterns: &Patterns,
        progress: &dyn Progress,
    ) -> transfer::Result<TransferReport> {
        // Also a version that is forgotten meanwhile is copied to its end.
        let _held = is_frozen(ino).then(|| self.service.hold_version(ino));
        transfer::get(&self.service, ino, to, patterns, progress)
    }

    /// Measures the time of a seek of the data disk, for a quarter of a second at most, so that content is read as suits it. `None` if
    /// there is too little content to tell.
    pub fn measure_seeks(&self) -> Option<Duration> {
        // Recipes may lie on another disk.
        let _of_recipes = self.core.stores.recipes.measure_seeks();
        self.core.stores.data.measure_seeks()
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

    /// Ends a background run of reclaiming: explicit requests go first.
    fn end_background(&self) {
        if self.reclaiming.is_in_background() {
            drop(self.reclaiming.end(CLOSE_PATIENCE));
        }
    }

    fn exclusively(&self) -> Result<dedupfs_sync::MutexGuard<'_, ()>> {
        self.exclusive.try_lock().ok_or_else(running_already)
    }

    fn stop(&self) {
        self.core.exporter.hurry(true);
        drop(self.export_watch.lock().take());
        drop(self.suspects.lock().take());
        drop(self.index_watch.lock().take());
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
