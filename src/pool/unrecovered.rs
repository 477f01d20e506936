//! A pool as the last process left it, perhaps in a crash. It can only be diagnosed and recovered.
//!
//! Recovery takes these steps. A crash may interrupt any of them, and the next recovery repeats it.
//! 1. Raise the writer epoch, so that container ids are new.
//! 2. Remove files that never came to count: unfinished checkpoints, a replaced index, slots at the end of slot files that no record
//!    names.
//! 3. Replay the log rows behind the checkpoints of the indexes.
//! 4. Drop files that were unlinked while open.
//!
//! A container that was being filled is valid up to the mark in its record, and is never appended to again. Cost: proportional to the
//! rows behind the checkpoints. Only unsealed containers that a row or a reader needs are scanned.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{ContainerChunks, DedupParts, Deduplicator, Fingerprinter, Indexes};
use dedupfs_index::Index;

use dedupfs_store::device::{Device, PoolLock};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

use super::Pool;
use super::indexes::{self, Rebuild};
use super::open::OpenOptions;
use super::parts::{Parts, Sources, TablesOf};
use super::trial::TrialControl;
use crate::config::{MemoryPlan, PUBLISH_AFTER, PUBLISH_PATIENCE};
use crate::durability::commit::{CommitParts, Committer};
use crate::durability::export::Exporter;
use crate::durability::indexes::fingerprints_at_most;
use crate::durability::space::OptionalWrites;
use crate::progress::Progress;
use crate::service::Service;
use crate::upkeep::index_watch;
use crate::upkeep::reclaim::ReclaimControl;
use crate::upkeep::scrub::{ScrubControl, suspects};

/// The defects of a pool before its recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Log rows behind the checkpoints of the indexes.
    pub rows_to_replay: u64,
    /// Containers that were not sealed.
    pub containers_cut: u64,
    /// Files unlinked while open.
    pub orphans: u64,
    /// Missing slot files that container records point into.
    pub missing_files: Vec<String>,
    /// Why the index cannot be used as it is.
    pub index_damage: Option<String>,
    /// Whether files need lost content.
    pub has_losses: bool,
    /// Whether a count that cannot be right was met.
    pub has_doubt: bool,
}

impl Diagnosis {
    /// Whether the pool was closed in order and nothing is missing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Self { rows_to_replay, containers_cut: _, orphans, missing_files, index_damage, has_losses, has_doubt } =
            self;
        let is_whole = missing_files.is_empty() && index_damage.is_none() && !has_losses && !has_doubt;
        (*rows_to_replay, *orphans) == (0, 0) && is_whole
    }
}

/// The work that a recovery did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Log rows replayed into the indexes.
    pub rows_replayed: u64,
    /// Containers left open; they end at their last durable region.
    pub containers_cut: u64,
    /// Removed files of unfinished checkpoints and replaced indexes.
    pub files_removed: u64,
    /// Bytes freed at the end of slot files that no container used.
    pub bytes_trimmed: u64,
    /// Dropped files that had been unlinked while open.
    pub orphans_dropped: u64,
    /// Duration in milliseconds, including opening.
    pub elapsed_ms: u64,
}

impl RecoveryReport {
    /// Whether there was something to recover.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        let Self { rows_replayed, containers_cut: _, files_removed, bytes_trimmed, orphans_dropped, elapsed_ms: _ } =
            self;
        [rows_replayed, files_removed, bytes_trimmed, orphans_dropped].into_iter().any(|count| *count > 0)
    }
}

impl std::fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "recovered in {} ms: ", self.elapsed_ms)?;
        write!(f, "{} rows of the log replayed, ", self.rows_replayed)?;
        write!(f, "{} containers end at their last durable region, ", self.containers_cut)?;
        write!(f, "{} unlinked files dropped, ", self.orphans_dropped)?;
        write!(
            f,
            "{} unfinished files and {} bytes without a container removed",
            self.files_removed, self.bytes_trimmed
        )
    }
}

/// A pool that was found and is not recovered yet.
pub struct UnrecoveredPool {
    superblock: Superblock,
    options: OpenOptions,
    memory: MemoryPlan,
    sources: Sources,
    /// The chunk and recipe indexes; `None` if they are to be rebuilt.
    indexes: Option<Result<(Index, Index)>>,
    started: Instant,
}

impl UnrecoveredPool {
    /// Finds the pool on these devices. The caller has its locks. Changes nothing, except for repairs that the namespace's embedded
    /// store makes on itself.
    ///
    /// # Errors
    /// No pool, a damaged one or one of another version; devices of different pools; I/O errors. A damaged index is not an error here.
    pub fn open(meta_device: &Arc<dyn Device>, data_device: &Arc<dyn Device>, options: &OpenOptions) -> Result<Self> {
        let started = Instant::now();
        let superblock = Superblock::read(&**meta_device, Role::Meta)?;
        let data = Superblock::read(&**data_device, Role::Data)?;
        Superblock::check_pair(&superblock, &data)?;
        let memory = MemoryPlan::new(options.memory_bytes, fingerprints_at_most(&**meta_device, &superblock));
        let sources = Sources::open(meta_device, data_device, &superblock, &memory)?;
        let mut pool = Self { superblock, options: options.clone(), memory, sources, indexes: None, started };
        if !options.rebuild_index {
            let opened = pool.sources.index_sources(&pool.superblock, &pool.memory).open();
            pool.indexes = Some(opened);
        }
        Ok(pool)
    }

    /// Returns the defects of the pool.
    ///
    /// # Errors
    /// The namespace cannot be read.
    pub fn diagnose(&self) -> Result<Diagnosis> {
        let namespace = &self.sources.namespace;
        let (position, index_damage) = match &self.indexes {
            Some(Ok((chunks, nodes))) => (Some(chunks.position().min(nodes.position())), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        let mut rows_to_replay = 0;
        if let Some(position) = position {
            namespace.log_after(position, &mut |_, _| {
                rows_to_replay += 1;
                Ok(())
            })?;
        }
        Ok(Diagnosis {
            rows_to_replay,
            containers_cut: self.sources.unsealed_containers(),
            orphans: namespace.orphans()?.len() as u64,
            missing_files: self.sources.missing_files(),
            index_damage,
            has_losses: namespace.has_losses(),
            has_doubt: namespace.has_doubt(),
        })
    }

    /// Recovers the pool and puts it to work.
    ///
    /// # Errors
    /// The index is damaged or the log cannot be replayed, with advice; a slot file is missing (unless the pool is read-only); I/O
    /// errors. The next attempt goes on from the same state.
    pub fn recover(mut self, locks: Arc<Vec<PoolLock>>, progress: &dyn Progress) -> Result<Arc<Pool>> {
        let read_only = self.options.read_only;
        let mut recovery =
            RecoveryReport { containers_cut: self.sources.unsealed_containers(), ..RecoveryReport::default() };
        self.sources.namespace.begin_writing()?;
        let fingerprinter = Fingerprinter::new(self.superblock.properties.fingerprint);
        let (chunks, nodes, rebuilt) = match self.indexes.take() {
            Some(opened) => opened.map(|(chunks, nodes)| (chunks, nodes, None))?,
            None => {
                let rebuild = Rebuild { options: &self.options, fingerprinter: &fingerprinter, progress };
                let sources = self.sources.index_sources(&self.superblock, &self.memory);
                let report = sources.rebuild(&rebuild)?;
                // With the shares of memory of a pool at work.
                let (chunks, nodes) = sources.open()?;
                (chunks, nodes, Some(report))
            }
        };
        let Self { superblock, options, memory, sources, started, .. } = self;
        let indexes = Indexes { chunks: Arc::new(chunks), nodes: Arc::new(nodes) };
        let parts = Parts { sources, indexes };
        parts.check_positions()?;
        let mut missing_files = Vec::new();
        if read_only {
            missing_files = parts.missing_files_that_count();
        } else if rebuilt.is_none() {
            parts.check_files()?;
        }
        // Opened before anything is freed: the exporter keeps the slots that the last export names.
        let optional = Arc::<OptionalWrites>::default();
        let mut exported = parts.export_parts(&superblock, !read_only);
        exported.device = optional.device(&exported.device);
        exported.locks = Arc::downgrade(&locks);
        let exporter = Exporter::open(exported)?;
        let space = parts.space(&superblock, options.limits)?;
        optional.begin(&space.guard);
        if !read_only {
            recovery.files_removed = indexes::clear_away(&*parts.meta_device, parts.namespace.index_side())
                + indexes::remove_leftovers([&parts.indexes.chunks, &parts.indexes.nodes]);
            recovery.bytes_trimmed = parts.stores.data.trim() + parts.stores.recipes.trim();
            super::trial::remove_leftover(&*parts.meta_device);
        }
        // The recipe index gets no tables: nodes are freed one by one, which leaves few containers whole.
        parts.indexes.chunks.set_container_tables(Arc::new(TablesOf(parts.stores.data.clone())));
        let dedup = Arc::new(Deduplicator::new(DedupParts {
            stores: parts.stores.clone(),
            indexes: parts.indexes.clone(),
            chain: options.filters.chain(&parts.indexes.chunks, || {
                Arc::new(ContainerChunks::new(parts.stores.data.clone(), fingerprinter))
            }),
            fingerprinter,
            log: parts.namespace.clone(),
            node_cache_bytes: memory.node_cache_bytes,
        }));
        let committer = Committer::new(CommitParts {
            namespace: parts.namespace.clone(),
            stores: parts.stores.clone(),
            indexes: parts.indexes.clone(),
            dedup: dedup.clone(),
            space: space.guard.clone(),
            exporter: exporter.clone(),
            locks: Arc::downgrade(&locks),
            pending_operations_max: memory.pending_operations_max(),
        });
        // Rows to replay ask the indexes for each new chunk.
        let position = parts.indexes.chunks.position().min(parts.indexes.nodes.position());
        // A log that cannot be read is told by the replay, with advice.
        if parts.namespace.has_log_after(position).unwrap_or(true) {
            parts.indexes.chunks.load_guides(&mut || true);
            parts.indexes.nodes.load_guides(&mut || true);
        }
        recovery.rows_replayed = committer.replay().map_err(|error| match error {
            EngineError::Store(error) => indexes::replay_advice(error, &parts.missing_files()).into(),
            other => other,
        })?;
        let orphans = if is_planted(Canary::OrphansStay) { Vec::new() } else { parts.namespace.orphans()? };
        for ino in orphans {
            match parts.namespace.drop_orphan(ino) {
                Ok(()) => recovery.orphans_dropped += 1,
                // The table of orphans contradicts the inode. The inode is kept with its content.
                Err(error @ (EngineError::Invalid(_) | EngineError::NotFound)) => {
                    tracing::error!(ino, %error, "an inode that was to be dropped is kept: see `dedupfs fsck`");
                }
                Err(error) => return Err(error),
            }
        }
        let core = Arc::new(parts.into_core(&superblock, memory, read_only, dedup, committer, (space, exporter)));
        let service = Service::new(core.clone(), options.access_times);
        let for_thread = Arc::downgrade(&service);
        let publish_old = Box::new(move || {
            if let Some(service) = for_thread.upgrade() {
                // Each file keeps its own error for the processes that have it open.
                let _remembered = service.publish_all(Some(PUBLISH_AFTER), Some(PUBLISH_PATIENCE));
                service.trim_if_idle();
            }
        });
        let commit_thread = core.committer.start(options.commit_interval, publish_old)?;
        recovery.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if recovery.is_needed() {
            tracing::info!(%recovery, "recovered after an unclean end");
        }
        let suspects = if read_only { None } else { Some(suspects::start(&core)?) };
        let index_watch = Some(index_watch::start(&core, options.commit_interval)?);
        Ok(Arc::new(Pool {
            core,
            service,
            reclaiming: ReclaimControl::default(),
            scrub: ScrubControl::default(),
            trial: TrialControl::default(),
            snapshots_made: Mutex::default(),
            suspects: Mutex::new(suspects),
            export_watch: Mutex::new(None),
            index_watch: Mutex::new(index_watch),
            watch_ended: Mutex::new(false),
            commit_thread: Mutex::new(Some(commit_thread)),
            is_settled: Mutex::new(read_only),
            exclusive: Mutex::new(()),
            recovery,
            rebuilt,
            index_damage: Mutex::new(None),
            missing_files,
            _locks: locks,
        }))
    }
}
