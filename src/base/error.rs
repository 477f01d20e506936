//! The engine's error type, sorted by the caller's possible reactions. `service` has the one match to error numbers.

use std::sync::Arc;

use dedupfs_store::StoreError;

/// Result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// An error of another library. Clones share it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// The reason why a pool takes no changes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadOnly {
    /// It was opened read-only.
    #[error("it was mounted so")]
    Mounted,
    /// It lies in a version.
    #[error("a version never changes. `dedupfs forget` removes it, `dedupfs thaw` makes a copy that can be changed")]
    Frozen,
    /// It was opened read-only, so a remount cannot make it writable.
    #[error("it was mounted so, and is recovered in memory only. Unmount it, and mount it for writing")]
    RecoveredInMemory,
    /// It was made read-only for a while.
    #[error("it was remounted read-only")]
    Remounted,
    /// It is being closed.
    #[error("it is being unmounted")]
    Unmounting,
    /// Its containers are closed.
    #[error("it is closed")]
    Closed,
    /// Another process may write to it.
    #[error(
        "it is not locked any more: {0}. All data synced before is safe; end the other process, if there is one, unmount the pool, check \
         it with `dedupfs fsck`, and mount it again"
    )]
    LockLost(#[source] StoreError),
    /// A commit failed for good.
    #[error(
        "a failure put the state of the disk in doubt: {0}. All data synced before is safe; unmount the pool, see to the disk, and mount \
         it again"
    )]
    Failed(#[source] Box<EngineError>),
    /// Content may be missing that was accepted.
    #[error("a worker panicked while it stored data")]
    WorkerPanicked,
}

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Durable bytes: I/O, space, damage, lock.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The embedded store of the namespace failed.
    #[error("the namespace store failed: {0}")]
    Database(#[source] Cause),
    /// The name, inode or container does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// The object is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// The object is a directory.
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
    /// Not allowed on this object for any caller.
    #[error("operation not permitted")]
    NotPermitted,
    /// Not allowed on an object of this kind.
    #[error("not allowed on this kind of file")]
    NotAllowed,
    /// Not supported by this filesystem.
    #[error("operation not supported")]
    NotSupported,
    /// A chunk that was named without its bytes is not in the pool.
    #[error(
        "a chunk that was named is not in the pool: it was reclaimed meanwhile, or was to come with something that is not stored"
    )]
    ChunkGone,
    /// Invalid arguments.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The change of names leads across the border of a version.
    #[error("a version is a filesystem of its own: copy instead of moving or linking")]
    OtherFilesystem,
    /// A release without versions made the pool, and can still open it.
    #[error(
        "a release without versions made this pool: `dedupfs series set MNT/DIR` with rules lets it have versions, and that release \
         refuses it then"
    )]
    NoVersions,
    /// A version is kept until a time, in seconds since 1970.
    #[error("the version is locked until {0} seconds after 1970")]
    LockedUntil(i64),
    /// A version cannot be part of another.
    #[error("{0} is a version: make the new one of a directory without versions")]
    HoldsVersion(String),
    /// A directory cannot be frozen now, with the reason.
    #[error("{0}")]
    NotToFreeze(String),
    /// Beyond the end of the file (SEEK_DATA, SEEK_HOLE).
    #[error("offset lies beyond the end")]
    BeyondEnd,
    /// The handle is not open (any more), or not for this operation.
    #[error("bad file handle")]
    BadHandle,
    /// The pool is mounted read-only, or turned read-only after a failure.
    #[error("the filesystem is read-only: {0}")]
    ReadOnly(#[from] ReadOnly),
    /// The pool has no space for more data (a reserve is kept for deleting and reclaiming).
    #[error("no space left in the pool")]
    NoSpace,
    /// No space, with advice on where to free some.
    #[error("no space left in the pool: {0}")]
    OutOfSpace(String),
    /// An impossible count was met, or the indexes were rebuilt without recipe nodes that files need. No count is trusted: nothing is
    /// freed until the indexes are rebuilt with all nodes.
    #[error(
        "counts of references are in doubt, and nothing is freed: content that looks unused may be needed by files. Files can be read, \
         and written while there is space; deleting gives none back. If recipe nodes are lost: the data root may have copies, from which \
         `dedupfs recover --force POOL` (with `--data DIR` if the content lies elsewhere) makes a new meta root; if not, back the same data up again, or delete the files that \
         `dedupfs fsck` names. Then unmount the pool and run `dedupfs fsck --rebuild-index POOL`, which counts again from the files \
         themselves, and reclaim again"
    )]
    CountsInDoubt,
    /// Work that gives a result only when it is done was ended early, by request or because the pool closes.
    #[error("{0} was ended early")]
    Ended(&'static str),
    /// A count would take more memory than it may.
    #[error(
        "counting this takes more than the {max_mib} MiB of memory that a count may have: run `dedupfs-gc` if much was removed, mount the pool \
         with a larger --memory, or name fewer versions at once"
    )]
    CountTooLarge {
        /// The memory that it may have.
        max_mib: u64,
    },
    /// A defect of dedupfs itself; the operation failed and nothing wrong was stored.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl EngineError {
    /// Wraps an error of the embedded store, or the text of one.
    pub fn database(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Database(Arc::from(cause.into()))
    }

    /// Converts to an error of durable bytes, for callers that know only these.
    #[must_use]
    pub fn into_store(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            other => StoreError::Usage(other.to_string()),
        }
    }

    /// Whether a sync failed, so that nothing more counts as durable (I-7).
    #[must_use]
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Self::Store(StoreError::SyncFailed { .. }))
    }

    /// Whether freeing space may help. Never after a failed sync, for any reason.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace | Self::OutOfSpace(_) | Self::Store(StoreError::NoSpace { .. }))
    }
}
