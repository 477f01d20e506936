//! Building an index anew from containers and namespace (invariant I-6).
//!
//! The builder replaces what is in the directory by an empty index whose manifest says "unfinished", so that a rebuild
//! that was interrupted is never taken for an index: [`Index::open`] refuses it. Memory is bounded: a checkpoint
//! is written whenever one is due.

use std::sync::Arc;

use dedupfs_store::device::Device;
use dedupfs_store::{Fingerprint, PoolId, Result};

use crate::apply::Change;
use crate::cell::{Cell, Location};
use crate::index::Index;
use crate::manifest::Manifest;
use crate::names::is_ours;
use crate::options::IndexOptions;

/// Changes gathered before they are applied: large enough to visit each bucket of the sealed tankers once for many.
const BATCH_CHANGES: usize = 1 << 16;

/// Builds an index from cells in any order and of any number.
#[derive(Debug)]
pub struct IndexBuilder {
    index: Index,
    batch: Vec<Change>,
    inconsistencies: u64,
}

impl IndexBuilder {
    /// Starts over in `directory`, whatever is there.
    pub fn new(device: &Arc<dyn Device>, directory: &str, pool: &PoolId, options: IndexOptions) -> Result<Self> {
        options.check()?;
        device.create_directory(directory)?;
        // Attempts go on from the highest number in any file name, so that no file of the old index is written to while
        // its manifest may still be the one on the disk.
        let generation = device
            .list(directory)?
            .iter()
            .filter(|entry| is_ours(&entry.name))
            .filter_map(|entry| entry.name.rsplit_once('.')?.0.rsplit_once('-')?.1.parse::<u64>().ok())
            .max()
            .unwrap_or(0);
        Index::initialise(&**device, directory, pool, &Manifest::empty(generation, true))?;
        let index = Index::open_any(device, directory, pool, options)?;
        Ok(Self { index, batch: Vec::with_capacity(BATCH_CHANGES), inconsistencies: 0 })
    }

    /// The cell of a fingerprint. If it is set again, the later one wins (containers are to be scanned in ascending
    /// order of their ids).
    pub fn set(&mut self, fingerprint: Fingerprint, location: Location, references: u32) -> Result<()> {
        self.push(Change::Set { fingerprint, cell: Cell { location, references } })
    }

    /// Adds to the references of a fingerprint that was set before.
    pub fn count(&mut self, fingerprint: Fingerprint, delta: i64) -> Result<()> {
        self.push(Change::Count { fingerprint, delta })
    }

    fn push(&mut self, change: Change) -> Result<()> {
        self.batch.push(change);
        if self.batch.len() < BATCH_CHANGES {
            return Ok(());
        }
        self.apply_batch()
    }

    fn apply_batch(&mut self) -> Result<()> {
        {
            let mut applier = self.index.applier.lock();
            self.inconsistencies += self.index.apply_changes(&mut applier, 0, &self.batch)?.count;
            self.batch.clear();
        }
        if self.index.wants_checkpoint() {
            self.write_checkpoint(0, true)?;
        }
        Ok(())
    }

    /// Looks up what was set so far (references counted before stand in the answer).
    pub fn get(&mut self, fingerprint: &Fingerprint) -> Result<Option<Cell>> {
        self.apply_batch()?;
        self.index.committed(fingerprint)
    }

    /// Counts for fingerprints that were not set, so far.
    pub fn inconsistencies(&self) -> u64 {
        self.inconsistencies
    }

    /// Completes the index as the state after log row `position` and makes it durable.
    pub fn finish(mut self, position: u64) -> Result<Index> {
        self.apply_batch()?;
        self.write_checkpoint(position, false)?;
        Ok(self.index)
    }

    fn write_checkpoint(&self, position: u64, rebuilding: bool) -> Result<()> {
        let frozen = self.index.freeze_locked(&mut self.index.applier.lock(), position, rebuilding);
        self.index.write(frozen)
    }
}
