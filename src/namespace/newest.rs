//! Visiting files and frozen trees from the newest to the oldest, for work in the order of the newest backup.

use std::ops::ControlFlow;

use dedupfs_base::Result;

use super::Namespace;
use super::base::guarded;
use super::inode::Inode;

/// Inodes read from one snapshot. A snapshot held for long keeps the store from reusing its pages.
const INODES_AT_ONCE: usize = 4096;

impl Namespace {
    /// Visits the committed inodes with content from the newest to the oldest, until `visit` breaks. Changes in the meantime
    /// may be seen or not. Damaged inodes are skipped.
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
    /// Adds the inodes with content among the last `limit` inodes before `end`, last first. Returns where to continue, if there are
    /// more.
    fn files_before(&self, end: u64, limit: usize, files: &mut Vec<Inode>) -> Result<Option<u64>> {
        let range = self.tables.inodes.range_owned(0..end).map_err(|error| self.explain(error))?;
        let mut last = None;
        for (number, row) in range.rev().enumerate() {
            if number == limit {
                return Ok(last);
            }
            let (key, value) = row.map_err(|error| self.explain(error))?;
            last = Some(key.value());
            // Damaged inodes are reported by checks.
            if let Ok(inode) = Inode::decode(key.value(), value.value())
                && inode.root.reference().is_some()
            {
                files.push(inode);
            }
        }
        Ok(None)
    }
}
