//! Naming a finished tree: from here on it is a version.

use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_namespace::NewVersion;
use dedupfs_service::{FileKind, Ino, Timestamp};
use dedupfs_store::codec::checksum;
use dedupfs_store::recipe::Root;
use serde::{Deserialize, Serialize};

use super::build::Built;
use super::record::VersionRecord;
use crate::engine::Core;

/// The facts about a version that its maker knows.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The directory of which it is made.
    pub source: Vec<u8>,
    /// The host on which that directory lies.
    pub host: Vec<u8>,
}

impl Origin {
    /// Returns a number that tells sources and hosts apart.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        checksum(&[&*self.source, &[0], &*self.host].concat())
    }
}

/// A version that was made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionReport {
    /// Inode number.
    #[serde(default)]
    pub ino: Ino,
    /// Fingerprint of its top, in hexadecimal digits: equal trees have equal ones, also in other pools with the same
    /// properties.
    pub fingerprint: String,
    /// Entries, the uppermost one not included.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Lengths of the files.
    pub logical_bytes: u64,
    /// Bytes of chunks that were stored meanwhile.
    pub new_bytes: u64,
    /// Tree nodes, those that were known included, but not those of directories that were taken over.
    pub tree_nodes: u64,
    /// Files that became several, because there are too many files with several names.
    pub unlinked: u64,
    /// Time that making it took.
    pub elapsed_ms: u64,
    /// Inode number of the version whose unchanged entries were taken over.
    #[serde(default)]
    pub base: Option<Ino>,
    /// Entries that were taken over and not read.
    #[serde(default)]
    pub taken_over: u64,
    /// Why there is no base, or why it was given up on the way.
    #[serde(default)]
    pub without_base: Option<String>,
    /// Entries that were to be taken over and were read for comparison.
    #[serde(default)]
    pub verified: u64,
    /// Of these, the ones whose content differs. They are in the version as they were read.
    #[serde(default)]
    pub lied: u64,
    /// The part of `taken_over` that an earlier put, which did not come to its end, had read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// Entries that a put took over from incomplete versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Resumed {
    /// Their number.
    pub entries: u64,
    /// The time of the last incomplete version, in seconds since 1970.
    pub from_secs: i64,
}

/// The circumstances under which a tree was built.
pub(crate) struct Making<'a> {
    pub(crate) origin: &'a Origin,
    /// Bytes of chunks that were stored meanwhile.
    pub(crate) new_bytes: u64,
    /// Entries that could not be copied, or not completely.
    pub(crate) problems: u64,
    pub(crate) elapsed: Duration,
    /// Whether it lacks files that its maker has not come to.
    pub(crate) is_incomplete: bool,
    pub(crate) completed: Timestamp,
    /// The time that counts as that of its completion, in seconds since 1970, if it is another one.
    pub(crate) dated_secs: Option<i64>,
}

/// Names a finished tree `name` in the directory `into`.
///
/// # Errors
/// `Exists`, those of a new name.
pub(crate) fn name_version(
    core: &Core,
    built: Built,
    (into, name): (Ino, &[u8]),
    making: &Making<'_>,
) -> Result<VersionReport> {
    let Built { root, pin, entry, totals } = built;
    let elapsed_ms = u64::try_from(making.elapsed.as_millis()).unwrap_or(u64::MAX);
    let record = VersionRecord {
        completed_secs: making.dated_secs.unwrap_or(making.completed.secs),
        is_dated: making.dated_secs.is_some(),
        duration_ms: elapsed_ms,
        files: totals.files,
        entries: totals.entries,
        logical_bytes: totals.logical_bytes,
        new_bytes: making.new_bytes,
        problems: making.problems + totals.unlinked,
        is_incomplete: making.is_incomplete,
        source: making.origin.source.clone(),
        host: making.origin.host.clone(),
        ..VersionRecord::default()
    };
    let new = NewVersion {
        kind: FileKind::Directory,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        mtime: Timestamp { secs: entry.mtime_secs, nanos: entry.mtime_nanos },
        root,
        data_bytes: totals.data_bytes,
        record: record.encode(),
    };
    let inode = core.namespace.add_version(into, name, &new, making.completed)?;
    // From here on the version's root holds the tree.
    drop(pin);
    let fingerprint = match root {
        Root::Tree { child, .. } => child.fingerprint.to_string(),
        _ => String::new(),
    };
    Ok(VersionReport {
        ino: inode.ino,
        fingerprint,
        entries: totals.entries,
        files: totals.files,
        logical_bytes: totals.logical_bytes,
        new_bytes: making.new_bytes,
        tree_nodes: totals.nodes,
        unlinked: totals.unlinked,
        elapsed_ms,
        ..VersionReport::default()
    })
}
