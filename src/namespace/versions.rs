//! Versions: directories whose content is a frozen tree.
//!
//! A version is an inode of its own in a live directory. Its root is a tree node, and the table of names has none of
//! its entries. So counting, exports, checks and repair treat it as any directory with content.
//!
//! Inode numbers below [`FIRST_VERSION`] are of live inodes. Above them, the high bits are the number of a version and
//! the low [`PLACE_BITS`] are a place in its tree: the number of entries before it in a walk. Place 0 is the version
//! itself. Files with several names have places of their own. Numbers of versions ascend. One that
//! was removed last may be used again after the next opening, with another generation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino, Timestamp};
use dedupfs_store::LogOp;
use dedupfs_store::recipe::Root;
use dedupfs_sync::canary::{Canary, is_planted};

use super::Namespace;
use super::inode::{Entry, Inode};
use super::names::{check_name, gain_subdirectory, touch};

/// Bits of an inode number that are the place in a frozen tree.
pub const PLACE_BITS: u32 = 36;
/// Inode number of the first version. Smaller ones are of live inodes.
pub const FIRST_VERSION: Ino = 1 << PLACE_BITS;
/// Places from here on are of files with several names: this, and the number of the link.
pub const FIRST_LINKED_PLACE: u64 = FIRST_VERSION >> 1;
/// Number of inode numbers, which are positive as signed numbers.
const INO_END: Ino = 1 << 63;

/// Attributes whose names begin so are records of the namespace. No request sees or sets them.
pub const RECORD_PREFIX: &[u8] = b"dedupfs.";
/// The record of a version.
pub const VERSION_RECORD: &[u8] = b"dedupfs.version";

/// Whether the number is of a version, or of an inode in its tree.
#[must_use]
pub const fn is_frozen(ino: Ino) -> bool {
    ino >= FIRST_VERSION
}

/// The number of the version to which a frozen inode belongs; a live inode's own number.
#[must_use]
pub const fn version_of(ino: Ino) -> Ino {
    if is_frozen(ino) { ino >> PLACE_BITS << PLACE_BITS } else { ino }
}

/// The least number of a version that is greater than all numbers up to `ino`.
pub(super) const fn version_behind(ino: Ino) -> Ino {
    ((ino >> PLACE_BITS) + 1) << PLACE_BITS
}

/// The place of a frozen inode in its tree.
#[must_use]
pub const fn place_of(ino: Ino) -> u64 {
    ino & (FIRST_VERSION - 1)
}

/// The version that [`Namespace::add_version`] names.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// Kind of its uppermost inode.
    pub kind: FileKind,
    /// Permission bits (0o7777) of its uppermost inode.
    pub mode: u16,
    /// Owner of its uppermost inode.
    pub uid: u32,
    /// Group of its uppermost inode.
    pub gid: u32,
    /// Last change of its uppermost inode.
    pub mtime: Timestamp,
    /// The top of its tree.
    pub root: Root,
    /// Bytes of all its files that are no holes.
    pub data_bytes: u64,
    /// Its record.
    pub record: Vec<u8>,
}

impl Namespace {
    /// Whether the pool may have versions. Releases that do not know them refuse it then.
    #[must_use]
    pub fn has_versions(&self) -> bool {
        self.has_versions.load(Ordering::Relaxed)
    }

    /// Checks that the pool may have versions.
    ///
    /// # Errors
    /// `NoVersions`.
    pub fn check_versions(&self) -> Result<()> {
        if self.has_versions() || is_planted(Canary::TreeBeforeFlag) { Ok(()) } else { Err(EngineError::NoVersions) }
    }

    /// Lets the pool have versions, durably. Call it before a tree node is logged (I-8).
    ///
    /// # Errors
    /// It could not be recorded; nothing is changed then.
    pub fn allow_versions(&self) -> Result<()> {
        if self.has_versions() {
            return Ok(());
        }
        self.change_header(|header| header.has_versions = true)
    }

    /// Names a version in a live directory, and logs that its root is referred to. The tree must be stored, and its top
    /// pinned.
    ///
    /// # Errors
    /// `Exists`, those of a new name; all numbers of versions are used up.
    pub fn add_version(&self, parent: Ino, name: &[u8], new: &NewVersion, now: Timestamp) -> Result<Inode> {
        check_name(name)?;
        new.root.check()?;
        if is_planted(Canary::TreeBeforeFlag) {
            self.allow_versions()?;
        }
        if !matches!(new.root, Root::Tree { .. }) || !self.has_versions() {
            return Err(EngineError::Internal("a version without a tree, or in a pool without versions"));
        }
        let (_lock, mut draft) = self.begin()?;
        let directory = draft.directory(parent)?;
        if self.entry(parent, name)?.is_some() {
            return Err(EngineError::Exists);
        }
        directory.check_takes_entries()?;
        directory.size_bytes += 1;
        touch(directory, now);
        let is_directory = new.kind == FileKind::Directory;
        if is_directory {
            gain_subdirectory(directory)?;
        }
        let ino = self.next_version.load(Ordering::Relaxed);
        if ino >= INO_END {
            return Err(EngineError::Invalid("all numbers of versions are used up: copy the pool into a new one"));
        }
        self.next_version.store(ino + FIRST_VERSION, Ordering::Relaxed);
        let inode = Inode {
            ino,
            generation: self.writer_epoch(),
            kind: new.kind,
            mode: new.mode & 0o7777,
            nlink: if is_directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            rdev: 0,
            size_bytes: 0,
            atime: new.mtime,
            mtime: new.mtime,
            ctime: now,
            root: new.root,
            parent: if is_directory { parent } else { 0 },
            xattr_count: 1,
            symlink_target: None,
            flags: 0,
            data_bytes: new.data_bytes,
        };
        let entry = Entry { ino, kind: inode.kind, cookie: self.new_cookie() };
        draft.name(parent, &Arc::from(name), None, Some(entry));
        draft.xattr(ino, Arc::from(VERSION_RECORD), Some(Arc::from(&*new.record)));
        draft.log_root(LogOp::RootAdded, new.root);
        draft.create(inode.clone());
        draft.apply();
        Ok(inode)
    }

    /// Takes the name of a version; returns its inode afterwards, an orphan that holds the tree until
    /// [`drop_orphan`](Self::drop_orphan).
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is of no version.
    pub fn forget_version(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<Inode> {
        self.remove(parent, name, now, |entry, _| match is_frozen(entry.ino) {
            true => Ok(()),
            false => Err(EngineError::Invalid("this is no version")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_to_their_version_and_place() {
        assert!(!is_frozen(FIRST_VERSION - 1) && version_of(77) == 77);
        assert_eq!((version_behind(0), version_behind(FIRST_VERSION - 1)), (FIRST_VERSION, FIRST_VERSION));
        assert_eq!(version_behind(FIRST_VERSION), 2 * FIRST_VERSION);
        let version = FIRST_VERSION * 5;
        for place in [0, 1, FIRST_VERSION - 1] {
            assert!(is_frozen(version + place));
            assert_eq!((version_of(version + place), place_of(version + place)), (version, place));
        }
    }
}
