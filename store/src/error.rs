//! The error type of the layer of durable bytes, sorted by the caller's possible reactions.

use std::io;
use std::sync::Arc;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// An error of the layer of durable bytes. Paths are relative to the device's root.
///
/// It can be cloned, because an error on the write path is remembered and reported again (invariant I-7).
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say the meaning of each field")]
pub enum StoreError {
    /// The operating system refused an operation for a reason other than space.
    #[error("cannot {operation} {path}: {source}")]
    Io { operation: &'static str, path: String, source: Arc<io::Error> },
    /// The device is full. Nothing already acknowledged is affected.
    #[error("no space left on the device while trying to {operation} {path}")]
    NoSpace { operation: &'static str, path: String },
    /// Writes to a file, or changes of names in a directory, could not be made durable, for any reason, including lack
    /// of space. The system may have dropped them, and it reports that only once, so a later success proves nothing
    /// (invariant I-7). The data is not durable until it is written again elsewhere.
    #[error("cannot make {path} durable: {source}")]
    SyncFailed { path: String, source: Arc<io::Error> },
    /// Bytes on disk differ from the format or their checksum.
    #[error("{what} is damaged: expected {expected}, found {found}")]
    Corrupt { what: String, expected: String, found: String },
    /// Two different contents have one fingerprint: the pool's hash function does not distinguish them. Nothing is
    /// damaged, but the second one cannot be stored.
    #[error(
        "hash collision: other content with the fingerprint {fingerprint} is in {place} already, sound and different: this \
         content cannot be stored in this pool, and nothing was overwritten"
    )]
    Collision { fingerprint: String, place: String },
    /// A format, feature or option that this version does not know (invariant I-8).
    #[error("{what}: {found} is not supported ({advice})")]
    Unsupported { what: String, found: String, advice: String },
    /// A file or directory does not exist.
    #[error("{path} does not exist")]
    NotFound { path: String },
    /// Another process uses the object.
    #[error("{what} is in use by {owner}")]
    Busy { what: String, owner: String },
    /// This process's lock no longer keeps other processes out of the pool.
    #[error("{path} was removed or replaced while the pool was in use: another process may write it by now")]
    LockLost { path: String },
    /// The caller or the user made a request that makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl StoreError {
    /// Wraps an [`io::Error`]; tells lack of space, absence and other causes apart.
    pub fn from_io(operation: &'static str, path: impl Into<String>, error: io::Error) -> Self {
        let path = path.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { operation, path },
            io::ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Io { operation, path, source: Arc::new(error) },
        }
    }

    pub(crate) fn from_sync(path: impl Into<String>, error: io::Error) -> Self {
        Self::SyncFailed { path: path.into(), source: Arc::new(error) }
    }

    /// Makes a [`StoreError::Unsupported`] about bytes of a newer version.
    pub fn newer(what: impl Into<String>, found: impl Into<String>) -> Self {
        let advice = "it was written by a newer version of dedupfs: use that version or a later one".to_owned();
        Self::Unsupported { what: what.into(), found: found.into(), advice }
    }

    /// Makes a [`StoreError::Corrupt`] from displayable values.
    pub fn corrupt(what: impl Into<String>, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Self {
        Self::Corrupt { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// Compares a stored checksum with the one of the bytes; `name` says which checksum it is.
    pub(crate) fn check_sum(what: &str, name: &str, expected: u64, found: u64) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(Self::corrupt(what, format!("{name} {expected:#018x}"), format!("{found:#018x}")))
    }
}
