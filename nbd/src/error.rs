//! Errors, in words for the operator.

use std::io;

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that is none, or that asks for something this client lacks.
    #[error("{0}")]
    Address(String),
    /// The server cannot be reached.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// Its address.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the NBD server broke: {0}")]
    Broken(io::Error),
    /// The server sent nothing for too long.
    #[error("the NBD server has not answered for {secs} s")]
    Silent {
        /// Seconds of silence.
        secs: u64,
    },
    /// The caller does not wait for longer.
    #[error("given up")]
    GivenUp,
    /// The server refuses a request, in its words.
    #[error("the NBD server refuses {what}: {why}")]
    Refused {
        /// The request.
        what: String,
        /// Its reason.
        why: String,
    },
    /// The server does not keep to the protocol.
    #[error("the NBD server breaks the protocol: {0}")]
    Protocol(String),
    /// The connection failed earlier, for this reason.
    #[error("{0}")]
    Failed(String),
    /// More than the caller can use.
    #[error("{0}")]
    Limit(String),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn protocol(why: impl Into<String>) -> Self {
        Self::Protocol(why.into())
    }
}
