//! Errors of stores, sorted by the caller's remedy.

use super::{KEY_BYTES_MAX, Key};
use crate::StoreError;

/// Result of an operation on a store.
pub type Result<T> = std::result::Result<T, ObjectError>;

/// An error of a store.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say the meaning of each field")]
pub enum ObjectError {
    /// No object has this key.
    #[error("the object {key} does not exist")]
    Absent { key: Key },
    /// Somebody else created it first.
    #[error("the object {key} exists already, with other bytes")]
    Foreign { key: Key },
    /// It is in a class that is not read at once.
    #[error("the object {key} is in a cold storage class: have the store bring it back first ({reason})")]
    Cold { key: Key, reason: String },
    /// No answer, or the store asks to come again. It may have happened, may not have, and may still happen: try again later.
    #[error("cannot {operation} the object {key} for now: {reason}")]
    Unreachable { operation: &'static str, key: String, reason: String },
    /// The store does not allow it: rights, or a rule of the store. Trying again does not help.
    #[error("the store refuses to {operation} the object {key}: {reason}")]
    Refused { operation: &'static str, key: String, reason: String },
    /// The store is full, or a quota is.
    #[error("no space left in the store for the object {key}")]
    Full { key: Key },
    /// Bytes that came back are not those that were stored.
    #[error("the object {key} is damaged: expected {expected}, found {found}")]
    Damaged { key: Key, expected: String, found: String },
    /// Not the name of an object.
    #[error("{name:?} is not the name of an object: it has 1 to {KEY_BYTES_MAX} bytes of a-z, 0-9, - and /")]
    BadKey { name: String },
}

impl ObjectError {
    /// Whether the operation may have happened, and can be repeated.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// The error of an operation on the files of a store.
    pub(super) fn of_device(operation: &'static str, key: &Key, error: StoreError) -> Self {
        let key = key.clone();
        match error {
            StoreError::NotFound { .. } => Self::Absent { key },
            StoreError::NoSpace { .. } => Self::Full { key },
            StoreError::Corrupt { expected, found, .. } => Self::Damaged { key, expected, found },
            StoreError::Unsupported { .. } => {
                Self::Refused { operation, key: key.to_string(), reason: error.to_string() }
            }
            error => Self::Unreachable { operation, key: key.to_string(), reason: error.to_string() },
        }
    }
}
