//! The options of a put: which parts of a tree are copied, and for which user.

use std::num::NonZeroU64;

use dedupfs_service::Ino;
use serde::{Deserialize, Serialize};

use super::frozen::BaseChoice;
use crate::versions::name::Origin;

/// Which parts of a tree are copied, and for which user.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PutOptions {
    /// Leave out all mounts within the tree, except for the empty directory.
    pub one_file_system: bool,
    /// Device of a mount within the tree to leave out: the pool's own mount.
    pub leaves_out_device: Option<u64>,
    /// Directories whose content is left out (device and inode): the pool's own roots.
    pub leaves_out_directories: Vec<(u64, u64)>,
    /// The user that copies, if it is not the superuser.
    pub owner: Option<Owner>,
    /// Bytes a second that are read at most.
    #[serde(default)]
    pub bytes_per_sec: Option<NonZeroU64>,
    /// Make a version, not a live tree.
    #[serde(default)]
    pub version: Option<VersionOptions>,
}

/// Changes of a file within this time before it was read may be followed by others that show in no time: a file may be
/// mapped, and the kernel notes the first change of a page alone until it has written that page, 35 s later at most.
pub const RACY_MS: u64 = 60_000;

/// How a version is made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionOptions {
    /// The source, for its record.
    pub origin: Origin,
    /// The version whose unchanged entries are taken over.
    pub base: BaseChoice,
    /// Percentage of the entries to be taken over that are read and compared.
    pub verify_percent: u8,
    /// An entry that changed less than this time before it was read is read the next time, too. Milliseconds.
    pub racy_ms: u64,
    /// The directory beside which earlier puts of the source left incomplete versions. What they vouch for is taken over,
    /// too.
    #[serde(default)]
    pub resume_in: Option<Ino>,
    /// Time of work between two incomplete versions, in milliseconds; 0: none is named.
    #[serde(default)]
    pub incomplete_every_ms: u64,
}

impl Default for VersionOptions {
    fn default() -> Self {
        Self {
            origin: Origin::default(),
            base: BaseChoice::None,
            verify_percent: 0,
            racy_ms: RACY_MS,
            resume_in: None,
            incomplete_every_ms: 0,
        }
    }
}

/// An ordinary user. The copies belong to this user, as with `cp -a`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Further groups of the user. A file of one of these keeps its group.
    pub groups: Vec<u32>,
}

impl Owner {
    /// Returns owner, group and mode of a copy. Removes set-ID bits that would lend another user's or group's rights.
    #[must_use]
    pub fn of_copy(&self, uid: u32, gid: u32, mode: u16) -> (u32, u32, u16) {
        let keeps_group = gid == self.gid || self.groups.contains(&gid);
        let lends = if uid == self.uid && keeps_group { 0 } else { 0o6000 };
        (self.uid, if keeps_group { gid } else { self.gid }, mode & !lends)
    }
}
