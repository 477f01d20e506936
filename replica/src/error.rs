//! Errors of replicas, with advice.

use dedupfs::EngineError;
use dedupfs_store::StoreError;
use dedupfs_store::objects::ObjectError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ReplicaError>;

/// An error of a replica. The pool goes on whatever it is.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say the meaning of each field")]
pub enum ReplicaError {
    /// The store failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The pool failed.
    #[error(transparent)]
    Pool(#[from] EngineError),
    /// There is none.
    #[error(
        "{place} has no replica: is its disk mounted, and is the address right? A new one is made by `dedupfs replicate --init`"
    )]
    Absent { place: String },
    /// There is one already.
    #[error("{place} has a replica already, of pool {pool}: leave out --init to continue it, or name another place")]
    Exists { place: String, pool: String },
    /// It cannot be decrypted, or is not encrypted.
    #[error("the replica in {place} {why}")]
    WrongKey { place: String, why: &'static str },
    /// It belongs to another pool.
    #[error("the replica in {place} is of pool {found}, and not of {expected}: name another place for this pool")]
    OtherPool { place: String, found: String, expected: String },
    /// Another writer created the next commit.
    #[error(
        "{place} has a commit {number} that another writer made: nothing more is replicated from here. If two machines use copies of one pool, \
         end one of them. If this pool alone shall go on, --take-over continues the replica from here; nothing is removed before the grace period"
    )]
    Fenced { place: String, number: u64 },
    /// The pool is not the one that made the newest commit, or an older state of it.
    #[error(
        "the replica in {place} was made by {why}: nothing was changed. If this pool shall go on from here, --take-over continues the \
         replica with it; content of the replica alone is removed behind the grace period. Else `dedupfs recover NEW_POOL --from {place}` \
         brings back the state of the replica"
    )]
    NotOurs { place: String, why: String },
    /// Something in the store is not as it was stored.
    #[error("the replica is damaged: {what}: expected {expected}, found {found}")]
    Damaged { what: String, expected: String, found: String },
    /// The caller ended the work. The next run finds the uploaded objects again.
    #[error("it was ended; the next run goes on from there")]
    Ended,
    /// The pool was unmounted meanwhile.
    #[error("the pool was unmounted or its daemon ended: nothing was committed, and the next run goes on from there")]
    HoldLost,
    /// The pool cannot be held now.
    #[error("the pool cannot be held now: {0}")]
    NotNow(String),
    /// It cannot be done.
    #[error("{0}")]
    Usage(String),
}

impl From<StoreError> for ReplicaError {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

impl ReplicaError {
    /// Makes a [`Damaged`](Self::Damaged) from displayable values.
    pub(crate) fn damaged(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Damaged { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// The error of bytes that came from the store and are not of the format.
    pub(crate) fn of_bytes(error: StoreError) -> Self {
        match error {
            StoreError::Corrupt { what, expected, found } => Self::Damaged { what, expected, found },
            other => other.into(),
        }
    }

    /// Whether something in the store is gone or damaged, so that trying again does not help.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Object(ObjectError::Damaged { .. } | ObjectError::Absent { .. }))
    }

    /// Whether trying again later may help, without anybody doing something about it.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Object(_) | Self::Pool(_) | Self::HoldLost | Self::NotNow(_) => true,
            Self::Absent { .. }
            | Self::Exists { .. }
            | Self::WrongKey { .. }
            | Self::OtherPool { .. }
            | Self::Fenced { .. }
            | Self::NotOurs { .. }
            | Self::Damaged { .. }
            | Self::Ended
            | Self::Usage(_) => false,
        }
    }
}
