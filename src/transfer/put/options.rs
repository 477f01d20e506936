//! What of a tree is copied, and for whom.

use serde::{Deserialize, Serialize};

/// What of a tree is copied.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PutOptions {
    /// Leave out what is mounted within the tree, but for the empty directory.
    pub one_file_system: bool,
    /// Of what is mounted within the tree, leave this device out: the pool's own mount.
    pub leaves_out_device: Option<u64>,
    /// Leave out what is in these directories (device and inode): the pool's own roots.
    pub leaves_out_directories: Vec<(u64, u64)>,
    /// For whom it is copied, if that is not the superuser.
    pub owner: Option<Owner>,
}

/// An ordinary user: what they copy is theirs, as with `cp -a`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Further groups they are in: a file of one of those keeps it.
    pub groups: Vec<u32>,
}

impl Owner {
    /// Owner, group and mode of a copy: bits that lend the rights of others go.
    #[must_use]
    pub fn of_copy(&self, uid: u32, gid: u32, mode: u16) -> (u32, u32, u16) {
        let keeps_group = gid == self.gid || self.groups.contains(&gid);
        let lends = if uid == self.uid && keeps_group { 0 } else { 0o6000 };
        (self.uid, if keeps_group { gid } else { self.gid }, mode & !lends)
    }
}
