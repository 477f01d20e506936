//! Errors of a round.

use std::io;
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A round ended early. Nothing of it is committed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file of this machine failed.
    #[error("cannot {step} in {}: {source}; see that it can be written to and has room, or name another directory", .directory.display())]
    Io {
        /// The operation, as a verb with its object.
        step: &'static str,
        /// The directory of the file.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A spool cannot be written or read.
    #[error(transparent)]
    Spool(#[from] dedupfs_spool::Error),
    /// The pool gave no answer, or one that cannot be.
    #[error("the pool does not answer: {0}; see that it is mounted, and repeat it")]
    Pool(String),
    /// A disk cannot be read, or its machine gives asks that cannot be.
    #[error("disk {disk} cannot be backed up: {why}")]
    Disk {
        /// Its number.
        disk: u32,
        /// The reason, with the step that helps.
        why: String,
    },
    /// The connection to a machine broke.
    #[error("machine {machine} is lost: {why}; see that it and the network are up, and repeat the round")]
    Lost {
        /// Its index.
        machine: usize,
        /// The end of the connection.
        why: String,
    },
    /// Another machine ended the round, and told why.
    #[error("machine {machine} ended the round: {why}")]
    Failed {
        /// Its index.
        machine: usize,
        /// Its own error, in words.
        why: String,
    },
    /// A machine means another round of the same job: one of the two has not heard of a commit.
    #[error("machine {machine} is at round {round}, not {here}; start all machines anew")]
    OtherRound {
        /// Its index.
        machine: usize,
        /// Its round.
        round: u64,
        /// The round of this machine.
        here: u64,
    },
    /// Machine 0 has no more rounds.
    #[error("all rounds are over; {failed} disks of this machine are not stored")]
    Over {
        /// Disks of this machine that are not stored.
        failed: u32,
    },
    /// A machine, a request or a file does not fit to the round.
    #[error("{0}")]
    Refused(String),
    /// A part of this crate broke a promise.
    #[error(
        "the detector is in a state that cannot be: {0}; nothing was stored wrongly, repeat the round and report this"
    )]
    Broken(String),
    /// The caller asked for the end.
    #[error("the round was ended on request; repeat it")]
    Ended,
}
