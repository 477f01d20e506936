//! Files from the newest to the oldest, for work that is done in the order of the newest backup.

use std::ops::ControlFlow;

use dedupfs_fuse::service::FileKind;

use super::Namespace;
use super::base::guarded;
use super::inode::Inode;
use crate::error::Result;

/// Inodes read from one snapshot: a snapshot that is kept for long keeps the store from using its pages again.
const INODES_AT_ONCE: usize = 4096;

impl Namespace {
    /// Visits the regular files that are committed, from the one that was made last to the first, until `visit` says so. What
    /// changes meanwhile may be seen or not. Damaged inodes are left out.
    ///
    /// # Errors
    /// The store cannot be read; those of `visit`.
    pub fn for_each_newest(&self, visit: &mut dyn FnMut(&Inode) -> Result<ControlFlow<()>>) -> Result<()> {
        let mut end = u64::MAX;
        loop {
            let mut files = Vec::new();
            let next = {
                let base = self.snapshot()?;
                guarded(&base.session, || base.files_before(end, INODES_AT_ONCE, &mut files))?
            };
            for inode in &files {
                if visit(inode)?.is_break() {
                    return Ok(());
                }
            }
            match next {
                Some(ino) => end = ino,
                None => return Ok(()),
            }
        }
    }
}

impl super::base::Snapshot {
    /// The files among the last `limit` inodes before `end`, last first; the answer is where to go on, if there are more.
    fn files_before(&self, end: u64, limit: usize, files: &mut Vec<Inode>) -> Result<Option<u64>> {
        let range = self.tables.inodes.range_owned(0..end).map_err(|error| self.explain(error))?;
        let mut last = None;
        for (number, row) in range.rev().enumerate() {
            if number == limit {
                return Ok(last);
            }
            let (key, value) = row.map_err(|error| self.explain(error))?;
            last = Some(key.value());
            // What cannot be read is for checks to tell.
            if let Ok(inode) = Inode::decode(key.value(), value.value())
                && inode.kind == FileKind::Regular
            {
                files.push(inode);
            }
        }
        Ok(None)
    }
}
