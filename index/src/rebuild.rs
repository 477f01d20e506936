//! Building an index anew from containers and namespace (invariant I-6), in steps that survive an interruption.
//!
//! The manifest of an index that is being built says "unfinished", and [`Index::open`] refuses it. Each checkpoint of
//! the builder makes all cells and counts so far durable, together with notes about the progress ([`progress`]).
//! [`IndexBuilder::resume`] goes on from the last checkpoint. Memory is bounded if the caller writes a checkpoint
//! whenever [`IndexBuilder::wants_checkpoint`] says so.

use std::sync::Arc;

use dedupfs_store::device::Device;
use dedupfs_store::{ContainerId, Fingerprint, PoolId, Result, StoreError};

use crate::apply::Change;
use crate::cell::{Cell, Location};
use crate::index::Index;
use crate::manifest::{Extent, Manifest};
use crate::names::{MANIFEST_NAME, generation_of, is_ours, join};
use crate::options::IndexOptions;
use crate::progress;

/// Changes gathered before they are applied: enough to use each read of a bucket for many changes.
const BATCH_CHANGES: u32 = 1 << 16;

/// At most so many fingerprints without a container are logged one by one.
const TOLD_MAX: u64 = 20;

/// Builds an index from any number of cells in any order.
#[derive(Debug)]
pub struct IndexBuilder {
    pub(crate) index: Arc<Index>,
    batch: Vec<Change>,
    /// Number of counts for unset fingerprints, in this session.
    pub(crate) inconsistencies: u64,
    /// The number of the last notes.
    number: u64,
    /// Whether guides are made.
    has_guides: bool,
}

/// The remains of an interrupted build.
#[derive(Debug)]
pub struct Continued {
    /// A builder that goes on from the last checkpoint.
    pub builder: IndexBuilder,
    /// The notes of that checkpoint.
    pub notes: Vec<u8>,
    /// The row up to which the index is complete, if it is; adding to it makes it unfinished again.
    pub finished: Option<u64>,
}

impl IndexBuilder {
    /// Starts over in `directory`, regardless of its content.
    pub fn new(device: &Arc<dyn Device>, directory: &str, pool: &PoolId, options: IndexOptions) -> Result<Self> {
        options.check()?;
        device.create_directory(directory)?;
        // Attempts continue from the highest number in any file name, so that no file of the old index is written to
        // while its manifest may still be the one on the disk.
        let generation = device
            .list(directory)?
            .iter()
            .filter(|entry| is_ours(&entry.name))
            .filter_map(|entry| generation_of(&entry.name))
            .max()
            .unwrap_or(0);
        Index::initialise(&**device, directory, pool, &Manifest::empty(generation, Extent::Unfinished))?;
        progress::remove_others(&**device, directory, None)?;
        Ok(Self::of(Index::open_any(device, directory, pool, options)?, 0))
    }

    fn of(index: Index, number: u64) -> Self {
        Self { index: Arc::new(index), batch: Vec::new(), inconsistencies: 0, number, has_guides: true }
    }

    /// Continues from the last checkpoint of an earlier build in `directory`; `None` if there is nothing sound to
    /// continue. The caller must judge whether the notes still fit.
    pub fn resume(
        device: &Arc<dyn Device>,
        directory: &str,
        pool: &PoolId,
        options: IndexOptions,
    ) -> Result<Option<Continued>> {
        if !device.exists(&join(directory, MANIFEST_NAME))? {
            return Ok(None);
        }
        let found = || {
            let index = Index::open_any(device, directory, pool, options)?;
            let (position, unfinished) = (index.position(), index.checkpointer.lock().extent == Extent::Unfinished);
            let number = if unfinished { Some(position) } else { progress::newest(&**device, directory)? };
            // Nothing was noted yet, or the index has been in use.
            let Some(number) = number.filter(|&number| number > 0) else { return Ok(None) };
            let notes = progress::read(&**device, directory, pool, number)?;
            let finished = (!unfinished).then_some(position);
            index.load_guides(&mut || true);
            Ok(Some(Continued { builder: Self::of(index, number), notes, finished }))
        };
        match found() {
            Err(
                error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. } | StoreError::Unsupported { .. }),
            ) => {
                tracing::warn!("an earlier rebuild in {directory} cannot be continued: {error}");
                Ok(None)
            }
            other => other,
        }
    }

    /// Makes no guides, which take a fifth of the room.
    #[must_use]
    pub fn without_guides(self) -> Self {
        Self { has_guides: false, ..self }
    }

    /// Sets the cell of a fingerprint. If it is set again, the later one wins (scan containers in ascending order of
    /// their ids).
    pub fn set(&mut self, fingerprint: Fingerprint, location: Location, references: u32) -> Result<()> {
        self.push(Change::Set { fingerprint, cell: Cell { location, references } })
    }

    /// Adds to the references of a fingerprint. An unset fingerprint becomes a cell without a container. `hint` is a container that may have
    /// it, or `NONE`.
    pub fn count(&mut self, fingerprint: Fingerprint, delta: i64, hint: ContainerId) -> Result<()> {
        self.push(Change::Count { fingerprint, delta, hint })
    }

    /// Sets the location of a fingerprint, and keeps its references: none if it was unset.
    pub fn relocate(&mut self, fingerprint: Fingerprint, location: Location) -> Result<()> {
        self.push(Change::Insert { fingerprint, location })
    }

    /// Returns the cells of fingerprints. `hints` has a container for each of them that may have it, or `NONE`.
    ///
    /// # Errors
    /// Changes that waited cannot be applied; a file of the index cannot be read.
    pub fn cells_near(&mut self, fingerprints: &[Fingerprint], hints: &[ContainerId]) -> Result<Vec<Option<Cell>>> {
        self.apply_batch()?;
        self.index.cells_near(fingerprints, &|item| hints.get(item).copied().unwrap_or(ContainerId::NONE))
    }

    /// The index so far, for lookups beside the builder. It lacks at most the last 65,536 changes. Drop it before [`finish`](Self::finish).
    #[must_use]
    pub fn so_far(&self) -> Arc<Index> {
        Arc::clone(&self.index)
    }

    /// Removes all cells without references. Whenever memory requires it, a checkpoint with these notes (at most 512 KiB) is written.
    ///
    /// Cost: reads the counts of all tankers, and all again behind checkpoints, each of which removes an eighth of a tanker at least.
    ///
    /// # Errors
    /// A file of the index cannot be read or written.
    pub fn remove_unreferenced(&mut self, notes: &[u8]) -> Result<()> {
        let mut is_done = false;
        while !is_done {
            self.apply_batch()?;
            is_done = true;
            for part in self.index.parts() {
                if self.wants_checkpoint() {
                    self.checkpoint(notes)?;
                    // It makes tankers that are not among these parts.
                    is_done = false;
                }
                let (index, mut is_full) = (Arc::clone(&self.index), false);
                index.for_each_unreferenced(part, &mut |fingerprint, cell| {
                    // The rest of the part waits for the next visit.
                    is_full = is_full || (self.batch.is_empty() && index.wants_checkpoint());
                    if is_full {
                        is_done = false;
                        return Ok(());
                    }
                    self.push(Change::Remove { fingerprint, container: cell.location.container() })
                })?;
                self.apply_batch()?;
            }
        }
        Ok(())
    }

    fn push(&mut self, change: Change) -> Result<()> {
        self.batch.push(change);
        // For small tankers, gather no more than makes a checkpoint due.
        let limit = BATCH_CHANGES.min(self.index.options.cells_per_tanker.div_ceil(4));
        if self.batch.len() < limit as usize {
            return Ok(());
        }
        self.apply_batch()
    }

    fn apply_batch(&mut self) -> Result<()> {
        let report = self.index.apply_changes(&mut self.index.applier.lock(), 0, &self.batch)?;
        for (number, inconsistency) in (self.inconsistencies..TOLD_MAX).zip(&report.inconsistencies) {
            let fingerprint = inconsistency.fingerprint;
            tracing::error!(number, %fingerprint, "files need a fingerprint that no container has ({})", self.index.directory);
        }
        self.inconsistencies += report.count;
        self.batch.clear();
        Ok(())
    }

    /// Whether memory requires a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.index.wants_checkpoint()
    }

    /// Makes all cells and counts so far durable, together with `notes` (at most 512 KiB) about the progress: both or
    /// (on an error) neither. After an error the builder must be dropped.
    pub fn checkpoint(&mut self, notes: &[u8]) -> Result<()> {
        self.apply_batch()?;
        self.note(notes)?;
        self.write_checkpoint(self.number, Extent::Unfinished)?;
        let (device, directory) = (&*self.index.device, &self.index.directory);
        if let Err(error) = progress::remove_others(device, directory, Some(self.number)) {
            tracing::warn!("cannot remove old notes in {directory}: {error}");
        }
        Ok(())
    }

    fn note(&mut self, notes: &[u8]) -> Result<()> {
        self.number += 1;
        let index = &self.index;
        progress::write(&*index.device, &index.directory, &index.pool, self.number, notes)
    }

    /// Number of cells so far.
    pub fn cells_len(&mut self) -> Result<u64> {
        self.apply_batch()?;
        Ok(self.index.len())
    }

    /// Number of cells without a container so far.
    pub fn lost_len(&mut self) -> Result<u64> {
        self.apply_batch()?;
        Ok(self.index.lost())
    }

    /// Completes the index as the state after log row `position` and makes it durable. The notes stay until
    /// [`Index::forget_progress`], so that a build that is complete and not in use yet need not be repeated.
    ///
    /// # Errors
    /// A file cannot be written; somebody still has the index [`so_far`](Self::so_far).
    pub fn finish(mut self, position: u64, notes: &[u8]) -> Result<Index> {
        let in_use = || StoreError::Usage("an index is still looked at while it is finished".to_owned());
        if Arc::strong_count(&self.index) > 1 {
            return Err(in_use());
        }
        self.apply_batch()?;
        self.note(notes)?;
        self.write_checkpoint(position, Extent::Whole)?;
        Arc::into_inner(self.index).ok_or_else(in_use)
    }

    /// Makes guides that are due, writes a checkpoint, and loads the filters of new guides: with filters alone, each cell that is set would
    /// ask every tanker so far.
    fn write_checkpoint(&self, position: u64, extent: Extent) -> Result<()> {
        if self.has_guides
            && let Err(error) = self.index.tend_guides(&mut || true)
        {
            tracing::warn!(%error, "no guide to the tankers of the new index can be made");
        }
        let frozen = self.index.freeze_locked(&mut self.index.applier.lock(), position, extent);
        self.index.write(frozen)?;
        // A new guide without its filter would be asked for each cell.
        self.index.load_guides(&mut || true);
        Ok(())
    }
}
