//! Rebuilding the indexes from nothing but containers and namespace (invariant I-6).
//!
//! The new indexes are built on the side that does not count ([`IndexSide`]), beside the old ones. The old ones stay
//! unchanged until one transaction of the namespace makes both new ones count. Reason: `docs/decisions/0011`.
//!
//! 1. *Tables*: the tables of data containers, each read once in ascending order, give fingerprints and places.
//! 2. *Marking*: the tables of recipe containers give nodes and places. The inodes' roots, and the nodes that name nodes, give
//!    the references to nodes. Chunks that are whole files are counted on the way.
//! 3. *Nodes*: nodes with references are read, in the order of their containers, and their chunks are counted. Neighbours name
//!    neighbours, so counting stays within few tankers. Nodes without references are removed and count nothing: their
//!    bytes are garbage.
//! 4. *Change of sides*.
//!
//! Content that files refer to and no container has is kept with its count and without a container. The next backup of
//! the same data stores it again and makes those files whole.
//!
//! Each checkpoint of the index of chunks carries a [`Notes`], so an interrupted rebuild resumes there. Marking alone starts from
//! its beginning. The rebuild starts over if the pool has changed ([`state::Basis`]), or if more of it is readable than
//! before. Memory: that of both indexes, and of references and containers that are looked at together ([`marks`], [`ahead`]).

mod ahead;
mod chunks;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod marks;
mod nodes;
mod state;
mod tables;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Fingerprinter, Stores};
use dedupfs_index::{Continued, Index, IndexBuilder, IndexOptions};
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
    /// Recipe nodes that files need, and that no container has or only damaged.
    pub lost_nodes: u64,
    /// Tables of containers that cannot be read, and lost chunks and nodes: reading files that need them fails there.
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
    /// Makes the progress durable. The index of nodes is written first, because it may be ahead of the notes. A chunk that was counted
    /// behind the notes would be counted twice. Until all nodes are marked, they are no progress: marking starts over.
    fn save(&mut self) -> Result<()> {
        let notes = self.state.encode();
        if self.state.phase >= Phase::Nodes {
            self.nodes.checkpoint(&notes)?;
        }
        Ok(self.chunks.checkpoint(&notes)?)
    }

    /// While nodes are marked: writes their changes if memory requires it.
    fn save_nodes_if_due(&mut self) -> Result<()> {
        if self.nodes.wants_checkpoint() {
            self.nodes.checkpoint(&self.state.encode())?;
        }
        Ok(())
    }
}

impl Rebuilder<'_> {
    /// Resumes an interrupted rebuild or starts one, and changes sides. Damage costs the damaged content, not the
    /// rebuild.
    ///
    /// # Errors
    /// A disk does not answer, or is full; the namespace cannot be read; a recipe container became unreadable meanwhile. The old
    /// indexes then still count, and the next rebuild resumes or starts over. If the change of sides itself failed, it is unknown which side counts.
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
            let how = if state.basis.read_data { "with" } else { "without" };
            return discard(&format!("it was started {how} --read-data"));
        }
        if state.basis != basis {
            return discard("the pool has been changed since");
        }
        if finished != (state.phase == Phase::Done).then_some(basis.row) {
            return discard("it does not match its notes");
        }
        if let Some(container) = self.readable_again(&state)? {
            return discard(&format!("container {container} could not be read then and can be now"));
        }
        // Marking starts from its beginning.
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
        if build.state.phase == Phase::Inodes {
            self.mark(&mut build)?;
            build.state.enter(Phase::Nodes);
            build.state.nodes_passed = build.nodes.lost_len()?;
            build.save()?;
        }
        if build.state.phase == Phase::Nodes {
            self.count_chunks(&mut build)?;
            build.nodes.remove_unreferenced(&build.state.encode())?;
            // Each node must be passed once. One is missed if its table could be read by marking alone, or if a crash kept its new place
            // but not the counts of its chunks.
            let (live, passed) = (build.nodes.cells_len()?, build.state.nodes_passed);
            if live != passed {
                return Err(StoreError::corrupt("recipes", format!("{live} nodes with references"), passed).into());
            }
            build.state.enter(Phase::Done);
        }
        let Build { state, chunks, nodes } = build;
        let (row, notes) = (state.basis.row, state.encode());
        let nodes = nodes.finish(row, &notes)?;
        let chunks = chunks.finish(row, &notes)?;
        (report.lost_chunks, report.lost_nodes) = (chunks.lost(), nodes.lost());
        (report.chunks, report.nodes) = (chunks.len() - report.lost_chunks, nodes.len() - report.lost_nodes);
        let unread = state.unread_data.containers() + state.unread_recipes.containers();
        // A list that something names as a segment was not followed, so its nodes count too little.
        let is_misnamed = state.lists_left != 0 || state.misnamed > 0;
        report.missing = unread + report.lost_chunks + report.lost_nodes + u64::from(is_misnamed);
        if is_misnamed {
            tracing::error!(
                "a file or recipe node names a node by a wrong level: counts are in doubt, and nothing is freed"
            );
        }
        // Recorded together with the indexes: the next backup must heal the losses. Lost nodes put the counts in doubt: their children are
        // not counted, and may be all that a recovery from copies of those nodes needs.
        self.namespace.change_side(self.side, report.missing > 0, report.lost_nodes > 0 || is_misnamed)?;
        Ok((chunks, nodes, report))
    }

    /// Returns the number of data containers whose tables were taken before.
    fn taken(&self, state: &Notes) -> u64 {
        let records = self.stores.data.containers();
        let through = if state.phase == Phase::Tables { state.through } else { u64::MAX };
        records.iter().filter(|record| record.id.0 <= through).count() as u64
    }
}
