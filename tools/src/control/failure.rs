//! Failures as tools report them: a message and an exit code. They cross the control socket.

use std::io;

use dedupfs_store::StoreError;
use serde::{Deserialize, Serialize};

use dedupfs::EngineError;
use dedupfs::transfer::TransferError;

/// The kinds of failure, by the remedy that the user has. Each kind is one exit code of the tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// An I/O error or another failure without a kind of its own.
    Failed,
    /// The command line or the request makes no sense.
    Usage,
    /// Not a pool, a pool with a missing part, or a format that this version does not know.
    NotAPool,
    /// Another process holds the pool.
    PoolInUse,
    /// The disk under the pool is full.
    NoSpace,
    /// Bytes of the pool are wrong.
    Damaged,
    /// No FUSE on this machine, or not for this user.
    FuseUnavailable,
    /// The mountpoint is absent, taken, or has files open on it.
    MountpointUnusable,
    /// A directory that was to become a pool holds a pool or other files already.
    Occupied,
    /// Work that gives no result unless it is done was ended early, by request or an unmount.
    Ended,
}

/// A failure as the user sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Selects the exit code.
    pub kind: FailureKind,
    /// The event, with advice.
    pub message: String,
}

impl Failure {
    /// A failure of `kind`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A failure without a kind of its own.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    /// Puts the attempt in front of the message.
    #[must_use]
    pub fn while_trying(self, what: &str) -> Self {
        Self { kind: self.kind, message: format!("{what}: {}", self.message) }
    }
}

impl From<&StoreError> for FailureKind {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Io { .. } | StoreError::SyncFailed { .. } | StoreError::Collision { .. } => Self::Failed,
            StoreError::NoSpace { .. } => Self::NoSpace,
            StoreError::Corrupt { .. } => Self::Damaged,
            StoreError::Unsupported { .. } | StoreError::NotFound { .. } => Self::NotAPool,
            StoreError::Busy { .. } | StoreError::LockLost { .. } => Self::PoolInUse,
            StoreError::Usage(_) => Self::Usage,
        }
    }
}

impl From<&EngineError> for FailureKind {
    fn from(error: &EngineError) -> Self {
        match error {
            EngineError::Store(error) => error.into(),
            EngineError::NoSpace | EngineError::OutOfSpace(_) => Self::NoSpace,
            EngineError::Invalid(_) => Self::Usage,
            EngineError::CountsInDoubt => Self::Damaged,
            EngineError::Ended(_) => Self::Ended,
            _ => Self::Failed,
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::new(FailureKind::from(&error), error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(FailureKind::from(&error), error.to_string())
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Pool(error) => error.into(),
            TransferError::Disk { error: ref cause, .. } if lacks_room(cause) => {
                Self::new(FailureKind::NoSpace, error.to_string())
            }
            TransferError::Disk { .. } | TransferError::Top(_) | TransferError::Interrupted => {
                Self::failed(error.to_string())
            }
        }
    }
}

/// Whether a disk or a quota is full.
#[must_use]
pub fn lacks_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script could not tell a full destination from a failing disk.
    #[test]
    fn regression_a_full_destination_of_get_is_a_lack_of_space() {
        for (cause, kind) in [
            (io::ErrorKind::StorageFull, FailureKind::NoSpace),
            (io::ErrorKind::QuotaExceeded, FailureKind::NoSpace),
            (io::ErrorKind::ReadOnlyFilesystem, FailureKind::Failed),
        ] {
            let error = TransferError::Disk { what: "/d/file (writing)".to_owned(), error: cause.into() };
            let failure = Failure::from(error);
            assert_eq!(failure.kind, kind);
            assert!(failure.message.starts_with("/d/file (writing): "), "{failure}");
        }
    }

    #[test]
    fn errors_keep_their_message_and_get_their_kind() {
        let busy = StoreError::Busy { what: "pool /p".to_owned(), owner: "process 7 (dedupfs mount)".to_owned() };
        let failure = Failure::from(EngineError::from(busy));
        assert_eq!(failure.kind, FailureKind::PoolInUse);
        assert_eq!(failure.to_string(), "pool /p is in use by process 7 (dedupfs mount)");
        let kind = |error: StoreError| Failure::from(error).kind;
        assert_eq!(kind(StoreError::corrupt("a", "b", "c")), FailureKind::Damaged);
        assert_eq!(kind(StoreError::NoSpace { operation: "write", path: "x".to_owned() }), FailureKind::NoSpace);
        assert_eq!(kind(StoreError::NotFound { path: "x".to_owned() }), FailureKind::NotAPool);
        assert_eq!(Failure::from(EngineError::NoSpace).kind, FailureKind::NoSpace);
        assert_eq!(Failure::from(EngineError::CountsInDoubt).kind, FailureKind::Damaged);
        assert_eq!(Failure::failed("x").while_trying("cannot y").message, "cannot y: x");
    }
}
