//! Rebuilding the indexes from nothing but containers and namespace (invariant I-6).
//!
//! The new indexes are built on the side that does not count ([`IndexSide`]), beside the old ones. The old ones stay
//! unchanged until one transaction of the namespace makes both new ones count. Reason: `docs/decisions/0011`.
//!
//! 1. *Tables*: the tables of data containers, each read once in ascending order, give fingerprints and places.
//! 2. *Marking*: the tables of recipe containers, the inodes' roots and the lists below them show the live nodes.
//!    Chunks that are whole files are counted on the way.
//! 3. *Nodes*: live segments are read once, in the order of their places, and their chunks are counted. Neighbours name
//!    neighbours, so counting stays within few tankers. Nodes without references are left out and count nothing: their
//!    bytes are garbage.
//! 4. *Change of sides*.
//!
//! Content that files refer to and no container has is kept with its count and without a container. The next backup of
//! the same data stores it again and makes those files whole.
//!
//! Each checkpoint of the index of chunks carries a [`Notes`], so an interrupted rebuild resumes there. Only the marks
//! are computed again. It starts over if the pool has changed ([`state::Basis`]), or if more of it is readable than
//! before. Memory: that of an index, and of the [`marks`].

mod ahead;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod marks;
mod segments;
mod state;
mod tables;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Fingerprinter, Stores};
use dedupfs_index::{Continued, Index, IndexBuilder, IndexOptions, Location};
use dedupfs_namespace::{IndexSide, Namespace};
use dedupfs_store::device::Device;
use dedupfs_store::{PoolId, StoreError};
use serde::{Deserialize, Serialize};

use self::state::{Basis, Notes, Phase};
use crate::progress::Progress;

/// The result of a rebuild.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RebuildReport {
    /// Containers of the pool.
    pub containers: u64,
    /// Of these, containers of chunks that an earlier, interrupted rebuild had taken.
    pub containers_before: u64,
    /// Chunks in the new index.
    pub chunks: u64,
    /// Recipe nodes in the new index.
    pub nodes: u64,
    /// Chunks that files need, and that no container has or only damaged.
    pub lost_chunks: u64,
    /// Recipe nodes that files need and no container has.
    pub lost_nodes: u64,
    /// Tables, nodes and chunks that files need and that could not be read: reading these files fails there.
    pub missing: u64,
}

/// Whether the error is final, so that trying again is useless.
fn is_loss(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. }))
}

/// The place of an index being built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuildPlace<'a> {
    pub directory: &'a str,
    /// Its shape and memory.
    pub options: IndexOptions,
}

/// The sources of a rebuild, and its target.
pub(crate) struct Rebuilder<'a> {
    /// Device of the meta root.
    pub device: &'a Arc<dyn Device>,
    pub pool: &'a PoolId,
    /// The side that does not count; it is built.
    pub side: IndexSide,
    /// Its index of chunks.
    pub chunks: BuildPlace<'a>,
    /// Its index of recipe nodes.
    pub nodes: BuildPlace<'a>,
    /// Source of the roots.
    pub namespace: &'a Namespace,
    /// Containers of chunks and of recipe nodes.
    pub stores: &'a Stores,
    /// Checks nodes.
    pub fingerprinter: &'a Fingerprinter,
    /// Read all chunks, and treat those as lost that do not match their fingerprints.
    pub read_data: bool,
    /// Make guides to the new tankers.
    pub with_guides: bool,
    /// Receives the progress.
    pub progress: &'a dyn Progress,
}

/// The indexes being built.
struct Build {
    state: Notes,
    chunks: IndexBuilder,
    nodes: IndexBuilder,
}

impl Build {
    /// Makes the progress durable. Nodes go first: setting a node twice is harmless, but counts must be counted once.
    fn save(&mut self) -> Result<()> {
        let notes = self.state.encode();
        if self.state.phase >= Phase::Nodes {
            self.nodes.checkpoint(&notes)?;
        }
        Ok(self.chunks.checkpoint(&notes)?)
    }
}

impl Rebuilder<'_> {
    /// Resumes an interrupted rebuild or starts one, and changes sides. Damage costs the damaged content, not the
    /// rebuild.
    ///
    /// # Errors
    /// A disk does not answer, or is full; the namespace cannot be read. The old indexes then still count, and the next
    /// rebuild resumes. If the change of sides itself failed, it is unknown which side counts.
    pub(crate) fn run(&self) -> Result<(Index, Index, RebuildReport)> {
        let basis = Basis::new(self.namespace, self.stores, self.read_data);
        if let Some(build) = self.resume(basis)? {
            match self.build(build) {
                // The unfinished indexes are damaged, or the pool now shows more or other content.
                Err(error) if is_loss(&error) => {
                    self.progress.say(&format!("the unfinished rebuild is thrown away: {error}"));
                }
                outcome => return outcome,
            }
        }
        // Nodes first: those of an earlier rebuild must never be combined with these chunks.
        let nodes = self.start(&self.nodes)?;
        let build = Build { state: Notes::new(basis), nodes, chunks: self.start(&self.chunks)? };
        self.build(build)
    }

    fn start(&self, place: &BuildPlace<'_>) -> Result<IndexBuilder> {
        Ok(self.guided(IndexBuilder::new(self.device, place.directory, self.pool, place.options)?))
    }

    fn left_at(&self, place: &BuildPlace<'_>) -> Result<Option<Continued>> {
        let left = IndexBuilder::resume(self.device, place.directory, self.pool, place.options)?;
        Ok(left.map(|left| Continued { builder: self.guided(left.builder), ..left }))
    }

    fn guided(&self, builder: IndexBuilder) -> IndexBuilder {
        if self.with_guides { builder } else { builder.without_guides() }
    }

    /// Returns the state of an interrupted rebuild, if it still fits the pool.
    fn resume(&self, basis: Basis) -> Result<Option<Build>> {
        let Some(Continued { builder: chunks, notes, finished }) = self.left_at(&self.chunks)? else { return Ok(None) };
        let discard = |why: &str| {
            self.progress.say(&format!("an unfinished rebuild is thrown away: {why}"));
            Ok(None)
        };
        let state = match Notes::decode(&notes) {
            Ok(state) => state,
            Err(error) => return discard(&error.to_string()),
        };
        if state.basis.read_data != basis.read_data {
            return discard("it was started with and without --read-data");
        }
        if state.basis != basis {
            return discard("the pool has been changed since");
        }
        if finished != (state.phase == Phase::Done).then_some(basis.row) {
            return discard("it does not match its notes");
        }
        if let Some(container) = self.readable_again(&state.given_up)? {
            return discard(&format!("container {container} could not be read then and can be now"));
        }
        // The index of nodes is empty before their phase.
        let nodes = if state.phase < Phase::Nodes {
            self.start(&self.nodes)?
        } else {
            match self.left_at(&self.nodes)? {
                Some(nodes) => nodes.builder,
                None => return discard("its index of recipe nodes is gone"),
            }
        };
        self.progress.say("an unfinished rebuild goes on");
        Ok(Some(Build { state, chunks, nodes }))
    }

    fn build(&self, mut build: Build) -> Result<(Index, Index, RebuildReport)> {
        let mut report = RebuildReport {
            containers: (self.stores.data.containers().len() + self.stores.recipes.containers().len()) as u64,
            containers_before: self.taken(&build.state),
            ..RebuildReport::default()
        };
        if build.state.phase == Phase::Tables {
            self.take_tables(&mut build)?;
            build.state.enter(Phase::Inodes);
            build.save()?;
        }
        if build.state.phase < Phase::Done {
            let marks = self.mark(&mut build)?;
            if build.state.phase == Phase::Inodes {
                build.state.enter(Phase::Nodes);
                build.state.marks = marks.digest();
                for (fingerprint, references) in marks.lost() {
                    build.nodes.set(fingerprint, Location::Lost, references)?;
                }
                build.save()?;
            }
            if build.state.marks != marks.digest() {
                return Err(StoreError::corrupt("recipes", "the same live nodes as before", "others").into());
            }
            self.count_segments(&mut build, &marks)?;
            // If marking could read a table and counting could not, the chunks of its nodes would be counted too low.
            let (found, live) = (build.nodes.cells()?, marks.live_count());
            if found != live {
                return Err(StoreError::corrupt("recipes", format!("{live} live nodes"), found).into());
            }
            build.state.missing += marks.missing + build.chunks.lost()?;
            build.state.enter(Phase::Done);
        }
        report.missing = build.state.missing;
        let (row, notes) = (build.state.basis.row, build.state.encode());
        let nodes = build.nodes.finish(row, &notes)?;
        let chunks = build.chunks.finish(row, &notes)?;
        (report.lost_chunks, report.lost_nodes) = (chunks.lost(), nodes.lost());
        (report.chunks, report.nodes) = (chunks.len() - report.lost_chunks, nodes.len() - report.lost_nodes);
        // Recorded together with the indexes: the next backup must heal the losses. Children of lost nodes are not counted. They may
        // be all that a recovery from copies of those nodes needs.
        self.namespace.change_side(self.side, report.missing > 0, report.lost_nodes > 0)?;
        Ok((chunks, nodes, report))
    }

    /// Returns the number of data containers whose tables were taken before.
    fn taken(&self, state: &Notes) -> u64 {
        let records = self.stores.data.containers();
        let through = if state.phase == Phase::Tables { state.through } else { u64::MAX };
        records.iter().filter(|record| record.id.0 <= through).count() as u64
    }
}
