//! Copies trees into the pool and out of it without the kernel: the work of `cp -a` through the mount, without its requests.
//!
//! Through the mount, each file costs some seven requests, one after the other. Here the daemon itself reads or writes the tree, on all
//! cores, with the same [`Service`](crate::Service).
//!
//! - [`mod@put`]: a tree from a disk into a directory that the kernel cannot see into until the tree is complete;
//! - [`mod@get`]: a tree out of the pool to a disk;
//! - [`mod@thaw`]: a version into a live tree;
//! - [`directory`]: the directories on the way, of which only some are open;
//! - [`crew`]: threads that copy files, while one walks through the directories;
//! - [`disk`]: attributes in the filesystem of the disk;
//! - [`several_names`]: hard links;
//! - [`pace`]: the rate of reading;
//! - [`tally`]: counts, problems, and the error that ends a transfer.
//!
//! A problem of one entry (no permission, changed meanwhile, a name too long) is reported, and the rest goes on. A problem that every
//! further file would meet (no space, a failed disk) ends the transfer. A directory gets its attributes when everything in it is done, from
//! the thread that finishes its last file.
//!
//! Memory: a buffer of 1 MiB for each thread; the directories on the way; the names of one directory at a time and of directories still to
//! be entered; the inode numbers of files with several names that have not all been seen; for [`mod@get`], the inode numbers of the directories
//! in the directory being listed, and two windows of files (`get/window.rs`). Descriptors: [`directory`] keeps 64 open, each waiting batch of files has one, and a
//! [`mod@get`] keeps 128 files open whose content arrives.

#[cfg(test)]
mod choosing_tests;
mod crew;
mod directory;
mod disk;
mod get;
#[cfg(test)]
mod hostile_tests;
mod pace;
mod pseudo;
mod put;
#[cfg(test)]
mod restore_tests;
mod several_names;
mod tally;
#[cfg(test)]
mod tests;
mod thaw;

use std::io;

use serde::{Deserialize, Serialize};

pub use self::get::Patterns;
pub(crate) use self::get::get;
pub use self::pace::Pace;
pub use self::put::{
    ANSWER_BYTES, BaseChoice, CHECKED_XATTR, Cutter, Cutting, ImageBase, ImageFiles, ImageOptions, ImageReport,
    NAMED_RECORD_BYTES, NamedImage, Owner, PutOptions, QUESTION_BYTES, RACY_MS, TOKEN_BYTES_MAX, TOKEN_XATTR,
    VerifyImage, VersionOptions, encode_named,
};
pub(crate) use self::put::{answer, put, put_image, put_version};
pub use self::thaw::ThawReport;
pub(crate) use self::thaw::thaw;
use crate::versions::name::VersionReport;
use dedupfs_base::EngineError;
pub use dedupfs_content::{ASKED_AT_ONCE, Change, Changes, NamedBytes, NamedChunk, SEALED_BYTES};
pub use dedupfs_store::Fingerprint;

/// Limit of problems that a report describes. The others are only counted.
pub(crate) const PROBLEMS_TOLD_MAX: usize = 1000;
/// Limit of bytes of all described problems: an answer stays short for any depth of the tree.
pub(crate) const PROBLEMS_BYTES_MAX: usize = 1 << 20;
/// Longest path in a report. Of a longer one only its ends are shown. The kernel takes paths of as many bytes.
pub(crate) const PATH_TOLD_BYTES_MAX: usize = 4096;

/// An entry that could not be copied, or not completely.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// The path in the tree, from its top. Invalid UTF-8 is shown with replacement characters, and a path longer than
    /// [`PATH_TOLD_BYTES_MAX`] with `…` in its middle.
    pub path: String,
    /// The problem.
    pub what: String,
}

/// The result of a transfer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TransferReport {
    /// Regular files. A file with several names counts once.
    pub files: u64,
    /// Directories, with the top one.
    pub directories: u64,
    /// Further names of files that were copied.
    pub hard_links: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Content of the files, in bytes, without holes.
    pub content_bytes: u64,
    /// Duration of the transfer.
    pub elapsed_ms: u64,
    /// Number of entries that could not be copied, or not completely.
    pub problem_count: u64,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// Directories that were searched, if patterns chose what was copied. The others could have nothing that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched_directories: Option<u64>,
    /// The version that was made, if it was to be one. Messages of tools have another `version`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "made")]
    pub version: Option<VersionReport>,
    /// The image that was put, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageReport>,
}

/// Reason why a tree was not copied.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// An error of the pool.
    #[error(transparent)]
    Pool(#[from] EngineError),
    /// An error of the disk on the other side.
    #[error("{what}: {error}")]
    Disk {
        /// The attempt, with the path.
        what: String,
        /// The error of the disk.
        error: io::Error,
    },
    /// A pattern that makes no sense.
    #[error("the pattern `{pattern}` makes no sense: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        why: String,
    },
    /// The patterns leave nothing of the tree. Nothing was made.
    #[error("nothing in the tree is chosen by these patterns, so nothing was copied")]
    NothingChosen,
    /// A problem with the tree's top or its new name.
    #[error("{0}")]
    Top(String),
    /// The client cancelled the transfer or has gone.
    #[error("interrupted")]
    Interrupted,
}

/// Result of copying.
pub type Result<T> = std::result::Result<T, TransferError>;
