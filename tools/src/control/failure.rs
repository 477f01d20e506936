//! Failures as tools report them: a message and an exit code. They cross the control socket.

use std::io;
#[cfg(feature = "remote")]
use std::path::Path;

use dedupfs::EngineError;
use dedupfs::transfer::TransferError;
use dedupfs_store::StoreError;
use serde::{Deserialize, Serialize};

/// Advice if a put finds the pool full.
const ADVICE_ON_SPACE: &str = "; remove old versions (`dedupfs prune` or `dedupfs forget`) and run `dedupfs-gc`, or give the pool's disk more room";

/// The kinds of failure, by the remedy that the user has. Each kind is one exit code of the tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    Failed,
    Usage,
    /// Not a pool, a pool with a missing part, or a format that this version does not know.
    NotAPool,
    PoolInUse,
    NoSpace,
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

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

impl FailureKind {
    pub(crate) fn because(self, message: impl Into<String>) -> Failure {
        Failure { kind: self, message: message.into() }
    }
}

impl Failure {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        FailureKind::Failed.because(message)
    }

    /// Gives a usage error another kind, where the command line is valid.
    pub(crate) fn usage_as(self, kind: FailureKind) -> Self {
        Self { kind: if self.kind == FailureKind::Usage { kind } else { self.kind }, ..self }
    }

    /// Names a path in the message as the user gave it.
    #[cfg(feature = "remote")]
    pub(crate) fn renamed(self, path: &Path, given: &Path) -> Self {
        Self { message: self.message.replace(&*path.to_string_lossy(), &given.to_string_lossy()), ..self }
    }

    /// Puts advice, or another text, behind the message.
    pub(crate) fn and(self, text: &str) -> Self {
        Self { message: self.message + text, ..self }
    }

    pub(crate) fn while_trying(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
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
            EngineError::Invalid(_) | EngineError::HoldsVersion(_) | EngineError::NoVersions => Self::Usage,
            EngineError::CountsInDoubt => Self::Damaged,
            EngineError::Ended(_) => Self::Ended,
            _ => Self::Failed,
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        FailureKind::from(&error).because(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        FailureKind::from(&error).because(error.to_string())
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Pool(error) if error.is_no_space() => Self::from(error).and(ADVICE_ON_SPACE),
            TransferError::Pool(error) => error.into(),
            TransferError::Disk { error: ref cause, .. } if lacks_room(cause) => {
                FailureKind::NoSpace.because(error.to_string())
            }
            TransferError::Pattern { .. } => FailureKind::Usage.because(error.to_string()),
            TransferError::Disk { .. }
            | TransferError::NothingChosen
            | TransferError::Top(_)
            | TransferError::Interrupted => Self::failed(error.to_string()),
        }
    }
}

pub(crate) fn lacks_room(error: &io::Error) -> bool {
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

    /// A put that found the pool full named no next step.
    #[test]
    fn regression_a_put_into_a_full_pool_is_told_what_to_do() {
        let failure = Failure::from(TransferError::from(EngineError::NoSpace));
        assert_eq!(failure.kind, FailureKind::NoSpace);
        assert_eq!(failure.message, format!("no space left in the pool{ADVICE_ON_SPACE}"));
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
