//! Healing of lost content from a copy of the pool elsewhere.

use dedupfs_base::Result;

use super::Pool;
use crate::upkeep::scrub::LostContent;

impl Pool {
    /// Returns chunks and recipe nodes that files need and no container has, at most so many.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn lost_content(&self, max: usize) -> Result<Vec<LostContent>> {
        self.core.lost_content(max)
    }

    /// Returns the bytes of a chunk or recipe node that this pool has.
    ///
    /// # Errors
    /// They cannot be read; damage.
    pub fn stored_content(&self, content: &LostContent) -> Result<Option<Vec<u8>>> {
        self.core.stored_content(content)
    }

    /// Stores lost content again, durably; returns how much of it was lost. Bytes that are of another fingerprint are left out.
    ///
    /// # Errors
    /// `ReadOnly`; no room; damage of indexes; a commit failed.
    pub fn heal(&self, copies: &[(LostContent, &[u8])]) -> Result<u64> {
        let _pass = self.core.begin_change()?;
        self.core.heal(copies)
    }
}
