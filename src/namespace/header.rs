//! The facts about a whole pool that the namespace keeps in its header: losses, doubt of counts, the side of the indexes,
//! versions.

use std::sync::atomic::Ordering;

use dedupfs_base::Result;

use super::tables::{Header, IndexSide};
use super::{Namespace, commit};

impl Namespace {
    /// Whether files may refer to content that no container has. The indexes know what it is, unless there is a [doubt](Self::has_doubt).
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.has_losses.load(Ordering::Relaxed)
    }

    /// Records durably whether there are losses.
    pub fn set_losses(&self, has_losses: bool) -> Result<()> {
        if has_losses {
            // In force even if recording fails; the next commit records it, too.
            self.has_losses.store(true, Ordering::Relaxed);
        }
        self.change_header(|header| header.has_losses = has_losses)
    }

    /// Whether counts of the indexes are in doubt. Then nothing may be freed by them. The doubt lasts from the first
    /// impossible count, or from a rebuild that could not read all recipe nodes, until a rebuild that can.
    #[must_use]
    pub fn has_doubt(&self) -> bool {
        self.has_doubt.load(Ordering::Relaxed)
    }

    /// Records durably that counts of the indexes are in doubt, and that there may be losses. Both are in force even if
    /// recording fails.
    ///
    /// # Errors
    /// The doubt could not be recorded. The next commit, or the next call, records it.
    pub fn set_doubt(&self) -> Result<()> {
        self.has_doubt.store(true, Ordering::Relaxed);
        self.has_losses.store(true, Ordering::Relaxed);
        if self.store.lock().header.has_doubt {
            return Ok(());
        }
        self.change_header(|header| (header.has_doubt, header.has_losses) = (true, true))
    }

    /// The side of the indexes that counts.
    #[must_use]
    pub fn index_side(&self) -> IndexSide {
        if self.is_side_b.load(Ordering::Relaxed) { IndexSide::B } else { IndexSide::A }
    }

    /// Makes the indexes of this side count, durably, and records whether they have cells of lost content, and whether
    /// their counts are in doubt. These indexes are rebuilt, so the call ends any doubt of before.
    ///
    /// # Errors
    /// It is unknown which side counts. Only opening the namespace again tells.
    pub fn change_side(&self, index_side: IndexSide, has_losses: bool, has_doubt: bool) -> Result<()> {
        self.change_header(|header| {
            (header.index_side, header.has_losses, header.has_doubt) = (index_side, has_losses, has_doubt);
        })
    }

    pub(super) fn change_header(&self, change: impl FnOnce(&mut Header)) -> Result<()> {
        let mut store = self.store.lock();
        self.health.check()?;
        if store.database.is_none() || store.session.is_failed() {
            let snapshot = store.reopen()?;
            self.state.write().base = Some(snapshot);
        }
        // A doubt that could not be recorded stays in force.
        let mut header = Header { has_doubt: store.header.has_doubt || self.has_doubt(), ..store.header };
        change(&mut header);
        commit::write_header(&store, &header)?;
        store.header = header;
        self.has_losses.store(header.has_losses, Ordering::Relaxed);
        self.has_doubt.store(header.has_doubt, Ordering::Relaxed);
        self.is_side_b.store(header.index_side == IndexSide::B, Ordering::Relaxed);
        self.has_versions.store(header.has_versions, Ordering::Relaxed);
        Ok(())
    }
}
