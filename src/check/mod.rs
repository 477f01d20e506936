//! Checking a pool: what is written down against what follows from the rest.
//!
//! - names: entries, link counts, reachability (the namespace's own check);
//! - counts: each index's counts against those recomputed by marking from the roots and nodes;
//! - places: each cell's container really has that chunk, by the container's own table;
//! - with `read_data`: every region is read, and every chunk hashed and compared with its name.
//!
//! Nothing is changed. Memory: 40 bytes for each distinct chunk and node that is referred to.

pub mod affected;
mod marks;
mod places;
mod rebuild;
pub mod repair;

use std::sync::Arc;

use dedupfs_index::Index;
use serde::{Deserialize, Serialize};

pub use rebuild::{BuildPlace, RebuildReport, Rebuilder};

use self::affected::{AffectedFiles, AffectedFinder, Lost};
use crate::containers::{ContainerStore, WorkerPool};
use crate::error::Result;
use crate::fingerprint::Fingerprinter;
use crate::namespace::Namespace;
use crate::pool::Progress;
use crate::recipe::NodeReader;

/// How thoroughly to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckOptions {
    /// Read and verify all data, not only what describes it.
    pub read_data: bool,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// Each thing that is wrong, at most [`FINDINGS_MAX`] of them.
    pub findings: Vec<String>,
    /// All things that are wrong.
    pub finding_count: u64,
    /// Some of it goes when the indexes are made anew.
    #[serde(default)]
    pub needs_rebuild: bool,
    /// Chunks and nodes that are bad where the index places them; for checks that read content.
    #[serde(default)]
    pub bad_copies: u64,
    /// What is not as it was written and does no harm, at most [`FINDINGS_MAX`] of them.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Files that need what is lost or cannot be read.
    #[serde(default)]
    pub affected: AffectedFiles,
    /// Inodes checked.
    pub inodes: u64,
    /// Recipe nodes checked.
    pub nodes: u64,
    /// Chunks checked.
    pub chunks: u64,
    /// Containers checked.
    pub containers: u64,
    /// Bytes of content read and hashed.
    pub bytes_read: u64,
}

/// Findings that are told in words.
pub const FINDINGS_MAX: usize = 100;

impl CheckReport {
    /// Notes a finding.
    pub fn add(&mut self, finding: String) {
        self.finding_count += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Notes what does no harm.
    pub fn note(&mut self, note: String) {
        if self.notes.len() < FINDINGS_MAX {
            self.notes.push(note);
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.finding_count == 0
    }
}

/// What a check works on. Counts must be settled before.
pub struct Checker<'a> {
    /// Inodes and names.
    pub namespace: &'a Namespace,
    /// Containers of chunks.
    pub data: &'a Arc<ContainerStore>,
    /// Containers of recipe nodes.
    pub recipes: &'a Arc<ContainerStore>,
    /// Index of chunks.
    pub chunk_index: &'a Index,
    /// Index of recipe nodes.
    pub recipe_index: &'a Index,
    /// Reads nodes.
    pub nodes: &'a NodeReader,
    /// Compares content with names.
    pub fingerprinter: &'a Fingerprinter,
    /// Hash what was read.
    pub workers: &'a Arc<WorkerPool>,
}

impl Checker<'_> {
    /// Checks everything.
    ///
    /// # Errors
    /// Only what prevents checking at all; what is wrong with the pool is in the report.
    pub fn run(&self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        self.namespace.check()?.into_iter().for_each(|finding| report.add(format!("namespace: {finding}")));
        for (name, index) in [("chunk", self.chunk_index), ("recipe", self.recipe_index)] {
            if let Err(error) = index.self_check() {
                report.needs_rebuild = true;
                report.add(format!("{name} index: {error}"));
            }
        }
        let mut lost = Lost::of(self.chunk_index, self.recipe_index)?;
        self.check_counts(&mut report, &mut lost, progress)?;
        self.check_places(options, &mut report, &mut lost, progress)?;
        let finder =
            AffectedFinder { namespace: self.namespace, recipe_index: self.recipe_index, nodes: self.nodes, progress };
        report.affected = finder.find(&lost)?;
        Ok(report)
    }
}
