//! The one mapping from the engine's errors to error numbers.

use std::io::ErrorKind;

use dedupfs_base::EngineError;
use dedupfs_service::Errno;
use dedupfs_store::StoreError;

/// Returns the error number that a client sees. Details that it cannot see (regions, files of the pool) go to the log.
pub(crate) fn errno(error: &EngineError) -> Errno {
    match error {
        EngineError::NotFound => Errno::ENOENT,
        EngineError::Exists => Errno::EEXIST,
        EngineError::NotDirectory => Errno::ENOTDIR,
        EngineError::IsDirectory => Errno::EISDIR,
        EngineError::NotEmpty => Errno::ENOTEMPTY,
        EngineError::NameTooLong => Errno::ENAMETOOLONG,
        EngineError::TooManyLinks => Errno::EMLINK,
        EngineError::NoAttribute => Errno::ENODATA,
        EngineError::AttributeNameTooLong => Errno::ERANGE,
        EngineError::AttributeTooLong => Errno::E2BIG,
        EngineError::FileTooLarge => Errno::EFBIG,
        EngineError::NotPermitted | EngineError::LockedUntil(_) => Errno::EPERM,
        EngineError::NotAllowed => Errno::EACCES,
        EngineError::NotSupported | EngineError::NoVersions => Errno::EOPNOTSUPP,
        EngineError::Invalid(_) | EngineError::HoldsVersion(_) => Errno::EINVAL,
        EngineError::BeyondEnd => Errno::ENXIO,
        EngineError::OtherFilesystem => Errno::EXDEV,
        EngineError::BadHandle => Errno::EBADF,
        EngineError::ReadOnly(_) => Errno::EROFS,
        EngineError::NoSpace | EngineError::OutOfSpace(_) | EngineError::Store(StoreError::NoSpace { .. }) => {
            Errno::ENOSPC
        }
        // Some devices report that they are full only at a sync.
        EngineError::Store(StoreError::SyncFailed { source, .. })
            if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            Errno::ENOSPC
        }
        EngineError::Store(StoreError::Busy { .. }) | EngineError::NotToFreeze(_) => Errno::EBUSY,
        EngineError::Store(
            StoreError::Io { .. }
            | StoreError::SyncFailed { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Collision { .. }
            | StoreError::Unsupported { .. }
            | StoreError::NotFound { .. }
            | StoreError::LockLost { .. }
            | StoreError::Usage(_),
        )
        | EngineError::Database(_)
        | EngineError::ChunkGone
        | EngineError::CountsInDoubt
        | EngineError::Ended(_)
        | EngineError::CountTooLarge { .. }
        | EngineError::Internal(_) => {
            tracing::error!(%error, "a client gets an I/O error");
            Errno::EIO
        }
    }
}
