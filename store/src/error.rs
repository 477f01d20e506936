//! One error type for the layer of durable bytes, sorted by what a caller can do about it.

use std::io;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What went wrong with durable bytes.
///
/// Cloneable, because an error on the write path is remembered and reported again (invariant I-7).
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation for a reason other than space.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// What was tried: "read", "write", "sync", …
        operation: &'static str,
        /// Path relative to the device's root.
        path: String,
        /// The cause.
        source: std::sync::Arc<io::Error>,
    },
    /// The device is full. Nothing already acknowledged is affected.
    #[error("no space left on the device while trying to {operation} {path}")]
    NoSpace {
        /// What was tried.
        operation: &'static str,
        /// Path relative to the device's root.
        path: String,
    },
    /// What was written to a file, or the names changed in a directory, could not be made durable, for whatever reason: also
    /// for lack of space. The system may have dropped it, and tells only once, so that a later success proves nothing
    /// (invariant I-7): nothing may be believed durable until it was written again elsewhere.
    #[error("cannot make {path} durable: {source}")]
    SyncFailed {
        /// Path relative to the device's root.
        path: String,
        /// The cause.
        source: std::sync::Arc<io::Error>,
    },
    /// Bytes on disk are not what they must be.
    #[error("{what} is damaged: expected {expected}, found {found}")]
    Corrupt {
        /// Which object, with its place: "region at 4096 of container 1.7".
        what: String,
        /// What a sound object has.
        expected: String,
        /// What was found.
        found: String,
    },
    /// Two different contents have one fingerprint: the hash function of the pool does not tell them apart. Nothing is
    /// damaged, and the second one cannot be stored.
    #[error(
        "hash collision: other content with the fingerprint {fingerprint} is in {place} already, sound and different: this \
         content cannot be stored in this pool, and nothing was overwritten"
    )]
    Collision {
        /// What both hash to.
        fingerprint: String,
        /// Where the content lies that came first.
        place: String,
    },
    /// A format, feature or option that this version does not know (invariant I-8).
    #[error("{what}: {found} is not supported ({advice})")]
    Unsupported {
        /// Which object.
        what: String,
        /// The value found.
        found: String,
        /// What the user can do.
        advice: String,
    },
    /// A file or directory that is not there.
    #[error("{path} does not exist")]
    NotFound {
        /// Path relative to the device's root, or as the user gave it.
        path: String,
    },
    /// Somebody else uses it.
    #[error("{what} is in use by {owner}")]
    Busy {
        /// What is in use.
        what: String,
        /// Who uses it, e.g. "process 4711 (dedupfs mount)".
        owner: String,
    },
    /// The pool is locked by this process no more, as far as others can see.
    #[error("{path} was removed or replaced while the pool was in use: another process may write it by now")]
    LockLost {
        /// The locked file.
        path: String,
    },
    /// The caller or the user asked for something that makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl StoreError {
    /// Wraps an [`io::Error`], telling lack of space, absence and the rest apart.
    #[must_use]
    pub fn from_io(operation: &'static str, path: impl Into<String>, error: io::Error) -> Self {
        let path = path.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { operation, path },
            io::ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Io { operation, path, source: std::sync::Arc::new(error) },
        }
    }

    /// Wraps the error of a sync of a file or directory.
    #[must_use]
    pub fn from_sync(path: impl Into<String>, error: io::Error) -> Self {
        Self::SyncFailed { path: path.into(), source: std::sync::Arc::new(error) }
    }

    /// A [`StoreError::Corrupt`] from displayable values.
    pub fn corrupt(what: impl Into<String>, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Self {
        Self::Corrupt { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }
}
