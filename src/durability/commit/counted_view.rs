//! Views in which counts and references agree: one commit of the namespace, with both indexes as of its row.
//!
//! The commit thread has the names of a row when its round is done, and the counting thread has the counts of that row later. So a
//! request goes with the row: the round adds its view to it, and the counting of the row adds the moments of the indexes, and answers.

use dedupfs_base::{EngineError, Result};
use dedupfs_content::Indexes;
use dedupfs_index::Moment;
use dedupfs_namespace::{CommittedView, Namespace};
use dedupfs_sync::channel::{Sender, bounded};

use super::Committer;

/// The names of one commit, and the cells of both indexes with exactly the rows up to it counted.
pub(crate) struct CountedView {
    /// While it lives, the store of the namespace grows with every commit.
    pub(crate) names: CommittedView,
    pub(crate) cells: CellsView,
}

/// The cells of both indexes at one row.
pub(crate) struct CellsView {
    pub(crate) chunks: Moment,
    pub(crate) nodes: Moment,
}

impl CellsView {
    /// Number of cells.
    pub(crate) fn len(&self) -> u64 {
        self.chunks.len() + self.nodes.len()
    }

    /// Bytes of memory that the view takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunks.memory_bytes() + self.nodes.memory_bytes()
    }
}

/// A request for a counted view.
pub(super) struct ViewRequest(Sender<Result<CountedView>>);

impl ViewRequest {
    /// Adds the names of a round that is done. No other round may have begun.
    pub(super) fn with_names(self, namespace: &Namespace) -> ViewRequestWithNames {
        ViewRequestWithNames { names: namespace.committed(), asker: self.0 }
    }
}

/// A request that has its names.
pub(super) struct ViewRequestWithNames {
    names: Result<CommittedView>,
    asker: Sender<Result<CountedView>>,
}

impl ViewRequestWithNames {
    /// Answers, when the row of its names is counted and no later one.
    pub(super) fn answer(self, indexes: &Indexes) {
        let moments = || CellsView { chunks: indexes.chunks.moment(), nodes: indexes.nodes.moment() };
        let view = self.names.map(|names| CountedView { names, cells: moments() });
        // One message has room. Nobody may wait for it any more.
        let _sent = self.asker.send(view);
    }
}

impl Committer {
    /// Commits, and returns a view that shows everything done before this call. One thread at a time may ask.
    ///
    /// # Errors
    /// The round's error; the reason why nothing is counted any more; the names cannot be read.
    pub(crate) fn counted_view(&self) -> Result<CountedView> {
        let (asker, answer) = bounded(1);
        *self.request.lock() = Some(ViewRequest(asker));
        let settled = self.settle();
        // Still there if no round took place.
        drop(self.request.lock().take());
        settled?;
        answer.recv().map_err(|_| self.failure().unwrap_or(EngineError::Internal("no round showed its names")))?
    }
}
