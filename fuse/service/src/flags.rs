//! Flags of inodes (chattr), and the changes that they allow.

use super::{AttributeChanges, OpenOptions, TimeChange};

/// The flags that chattr(1) sets on a regular file or a directory. A new inode inherits its directory's `no_dump` and `no_access_time`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFlags {
    /// Nobody can change, remove, rename or link it, or change an entry of the directory (EPERM).
    pub immutable: bool,
    /// The file's content only grows; the directory's entries stay. It cannot be removed, renamed or linked (EPERM).
    pub append_only: bool,
    /// A wish: dump(8) leaves the file out.
    pub no_dump: bool,
    /// Reading does not change the time of last access.
    pub no_access_time: bool,
}

impl InodeFlags {
    /// Whether the inode keeps its names, mode, owner, set times and extended attributes.
    #[must_use]
    pub fn protect(self) -> bool {
        self.immutable || self.append_only
    }

    /// The flags of an inode that is created in a directory with these flags.
    #[must_use]
    pub fn inherited(self) -> Self {
        Self { immutable: false, append_only: false, ..self }
    }

    /// Whether a regular file or directory with these flags can be opened with these options.
    #[must_use]
    pub fn admit(self, how: OpenOptions) -> bool {
        let changes = how.write || how.truncate;
        !(self.immutable && changes || self.append_only && (how.truncate || how.write && !how.append))
    }

    /// Whether these attributes may be changed. Setting the times to now is as harmless as appending.
    #[must_use]
    pub fn admit_change(self, changes: &AttributeChanges) -> bool {
        let at = |time: Option<TimeChange>| matches!(time, Some(TimeChange::At(_)));
        let identity = changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some();
        let set = identity || changes.size_bytes.is_some() || at(changes.atime) || at(changes.mtime);
        let now = changes.atime.is_some() || changes.mtime.is_some();
        !(self.protect() && set || self.immutable && now)
    }
}
