//! The engine's error type, sorted by what a caller can do. The one match to error numbers is in `service`.

use dedupfs_store::StoreError;

/// Result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// What went wrong in the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Durable bytes: I/O, space, damage, lock.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The embedded store of the namespace failed.
    #[error("the namespace store failed: {0}")]
    Database(String),
    /// A name, inode or container that is not there.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was not wanted.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory is not empty")]
    NotEmpty,
    /// More than 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// The link count is at its limit.
    #[error("too many links")]
    TooManyLinks,
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// More than 255 bytes.
    #[error("the attribute's name is too long")]
    AttributeNameTooLong,
    /// An extended attribute is longer than the limit.
    #[error("attribute value is too long")]
    AttributeTooLong,
    /// The file would exceed the size limit.
    #[error("file is too large")]
    FileTooLarge,
    /// Not allowed on this object, whoever asks.
    #[error("operation not permitted")]
    NotPermitted,
    /// Not allowed on an object of this kind.
    #[error("not allowed on this kind of file")]
    NotAllowed,
    /// Not supported by this filesystem.
    #[error("operation not supported")]
    NotSupported,
    /// Arguments that make no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Beyond the end of the file (SEEK_DATA, SEEK_HOLE).
    #[error("offset lies beyond the end")]
    BeyondEnd,
    /// A handle that is not open (any more), or not for this.
    #[error("bad file handle")]
    BadHandle,
    /// The pool is mounted read-only, or turned read-only after a failure.
    #[error("the filesystem is read-only{0}")]
    ReadOnly(String),
    /// The pool has no space for more data (a reserve is kept for deleting and reclaiming).
    #[error("no space left in the pool")]
    NoSpace,
    /// The same, with what must be freed first.
    #[error("no space left in the pool: {0}")]
    OutOfSpace(String),
    /// A count could not be right, so none is believed: nothing is freed until the indexes are made anew.
    #[error(
        "counts of what is in use could not be right, so nothing is freed: what is there could be what files need. Files can be read, and \
         written while there is space; deleting gives none back. Unmount the pool and run `dedupfs fsck --rebuild-index POOL`, which counts \
         anew from the files themselves; then reclaim again"
    )]
    CountsInDoubt,
    /// A defect of dedupfs itself; the operation failed and nothing wrong was stored.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl EngineError {
    /// The same for those who know only the errors of durable bytes.
    #[must_use]
    pub fn into_store(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            other => StoreError::Usage(other.to_string()),
        }
    }

    /// Whether something could not be made durable, so that nothing more may be believed durable (I-7).
    #[must_use]
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Self::Store(StoreError::SyncFailed { .. }))
    }

    /// Whether freeing space may help. Never after a failed sync, whatever its reason.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace | Self::OutOfSpace(_) | Self::Store(StoreError::NoSpace { .. }))
    }
}
