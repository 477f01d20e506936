//! Copying trees into the pool and out of it, past the kernel: what `cp -a` does through the mount, without its requests.
//!
//! Through the mount each file costs some seven requests, one behind the other, whatever answers them. Here the
//! daemon reads the tree, or writes it, by itself, on all cores, with the same [`Service`](crate::service::Service) behind it.
//!
//! - [`put`]: a tree from a disk into a directory that the kernel does not see into until the tree is whole;
//! - [`get`]: a tree out of the pool to a disk;
//! - [`directory`]: the directories on the way, of which only some are open;
//! - [`crew`]: threads that copy files, while one walks through the directories;
//! - [`disk`]: the side that is no pool: what its filesystem tells and takes;
//! - [`several_names`]: hard links;
//! - [`tally`]: what was copied, what could not be, and what ends it.
//!
//! What cannot be copied by itself (no permission, changed meanwhile, a name too long) is told, and the rest goes on; what
//! no file would get over (no space, a failed disk) ends it. A directory gets its attributes when all that is in it is
//! done: the last of its files gives them.
//!
//! Memory: a buffer of 1 MiB for each thread, the directories on the way, names of one directory at a time and of directories
//! that are still to come, the numbers of files with several names that have not all been seen, and, of [`get`], the numbers of the
//! directories in the directory being listed. Descriptors: [`directory`] keeps 64, and each batch of files that waits has one.

mod crew;
mod directory;
mod disk;
mod get;
#[cfg(test)]
mod hostile_tests;
mod pseudo;
mod put;
mod several_names;
mod tally;
#[cfg(test)]
mod tests;

use std::io;

use serde::{Deserialize, Serialize};

pub use self::get::get;
pub use self::put::{Owner, PutOptions, put};
use crate::error::EngineError;

/// Things that are told in words; of more there is only their number.
pub const PROBLEMS_TOLD_MAX: usize = 1000;
/// Bytes of all that is told in words: an answer stays short however deep the tree is.
pub const PROBLEMS_BYTES_MAX: usize = 1 << 20;
/// Longest path that is told; of a longer one its ends are. As many bytes as a path may have for the kernel.
pub const PATH_TOLD_BYTES_MAX: usize = 4096;

/// What could not be copied, or not as it should.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Where in the tree, from its top; names that are no UTF-8 are shown with replacements, and what is longer than
    /// [`PATH_TOLD_BYTES_MAX`] with `…` in its middle.
    pub path: String,
    /// What is wrong.
    pub what: String,
}

/// What was copied.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TransferReport {
    /// Regular files, each content once.
    pub files: u64,
    /// Directories, with the top one.
    pub directories: u64,
    /// Further names of files that were copied.
    pub hard_links: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Content of the files, in bytes, without holes.
    pub content_bytes: u64,
    /// How long it took.
    pub elapsed_ms: u64,
    /// What could not be copied, or not as it should.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

/// Why a tree was not copied.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The pool.
    #[error(transparent)]
    Pool(#[from] EngineError),
    /// The disk on the other side.
    #[error("{what}: {error}")]
    Disk {
        /// What was tried, with the path.
        what: String,
        /// What it said.
        error: io::Error,
    },
    /// What was to be copied, or its new name.
    #[error("{0}")]
    Top(String),
    /// Whoever wanted it wants it no more.
    #[error("interrupted")]
    Interrupted,
}

/// Result of copying.
pub type Result<T> = std::result::Result<T, TransferError>;
