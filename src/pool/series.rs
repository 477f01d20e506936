//! Series: directories with rules by which their versions are kept.

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::is_frozen;
use dedupfs_service::{Ino, XattrMode};

use super::Pool;
use crate::versions::series::{SERIES_RECORD, SeriesRecord};

impl Pool {
    /// Returns the record of a directory, if it is a series.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`; the record is damaged, or of a newer release; I/O errors.
    pub fn series(&self, directory: Ino) -> Result<Option<SeriesRecord>> {
        let namespace = &self.core.namespace;
        let inode = namespace.inode_shared(directory)?.ok_or(EngineError::NotFound)?;
        if !inode.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        namespace.xattr(directory, SERIES_RECORD)?.map(|record| SeriesRecord::decode(&record)).transpose()
    }

    /// Makes a live directory a series, or a plain directory; durable on return. Returns the record that it had.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`; `Invalid` in a version; `ReadOnly`; `NoSpace`; the flags of the directory forbid it.
    pub fn set_series(&self, directory: Ino, record: Option<SeriesRecord>) -> Result<Option<SeriesRecord>> {
        if is_frozen(directory) {
            return Err(EngineError::Invalid("a version never changes: name the directory that holds versions"));
        }
        let namespace = &self.core.namespace;
        let before;
        {
            let _pass = self.core.begin_change()?;
            let _room = self.core.promise_change();
            // Rules that this release cannot read are replaced all the same.
            before = match self.series(directory) {
                Ok(before) => before,
                Err(error @ (EngineError::NotFound | EngineError::NotDirectory)) => return Err(error),
                Err(_) => None,
            };
            let inode = namespace.inode_shared(directory)?.ok_or(EngineError::NotFound)?;
            inode.check_unprotected()?;
            // The kernel caches attributes and is not told of this change, so the time of the last change stays.
            match record {
                Some(record) => {
                    // Older releases would show the record to clients.
                    namespace.allow_versions()?;
                    namespace.set_xattr(directory, SERIES_RECORD, &record.encode(), XattrMode::Any, inode.ctime)?;
                }
                None => match namespace.remove_xattr(directory, SERIES_RECORD, inode.ctime) {
                    Ok(_) | Err(EngineError::NoAttribute) => {}
                    Err(error) => return Err(error),
                },
            }
        }
        self.core.committer.commit()?;
        Ok(before)
    }
}
