//! The time of last access: which reads change it.
//!
//! The kernel leaves it to the service, and shows it the reads that its page cache does not answer. So a file whose time is
//! due is opened without what is cached of it: the first read then comes here (and the bytes from the caches of the pool).
//!
//! Cost: one lookup of the inode for each read; one change of the namespace, part of the next commit, where relatime asks
//! for one: for a file that is read often, once a day. Nothing is changed where little room is left.

use dedupfs_fuse::service::{Ino, OpenOptions, access_is_due};

use super::open_files::{Live, OpenFile};
use super::{Service, now};
use crate::error::Result;
use crate::namespace::Inode;

/// Whose times of last access reading changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// As Linux' `relatime`: if the time is not later than the last change, or a day old.
    #[default]
    Relative,
    /// The same, but not of directories (`nodiratime`).
    RelativeButDirectories,
    /// Nobody's (`noatime`).
    Never,
}

impl Service {
    /// Whether reading this inode now changes its time; `live` is what is not published of it.
    fn access_changes(&self, inode: &Inode, live: Live) -> bool {
        let kept = match self.access_times {
            AccessTimes::Relative => false,
            AccessTimes::RelativeButDirectories => inode.is_directory(),
            AccessTimes::Never => true,
        };
        let (mtime, ctime) = live.times(inode);
        !kept
            && !self.core.is_read_only()
            && !inode.chattr_flags().no_access_time
            && access_is_due(inode.atime, mtime, ctime, now())
    }

    /// Whether a file that is opened so has to be read from here, and not from what the kernel has cached. Not for handles
    /// that write: databases open what they just wrote again and again.
    pub(super) fn access_must_be_seen(&self, inode: &Inode, how: OpenOptions) -> bool {
        how.read
            && !how.write
            && !how.no_access_time
            && self.access_changes(inode, Live::default())
            && !self.core.space.is_tight()
    }

    /// A file was read.
    pub(super) fn note_file_access(&self, file: &OpenFile) {
        self.note_access(file.ino, || *file.live.lock());
    }

    /// A directory or a symbolic link was read.
    pub(super) fn note_node_access(&self, ino: Ino) {
        self.note_access(ino, Live::default);
    }

    fn note_access(&self, ino: Ino, live: impl FnOnce() -> Live) {
        if self.access_times == AccessTimes::Never || self.core.is_read_only() {
            return;
        }
        let Ok(Some(inode)) = self.core.namespace.inode_shared(ino) else { return };
        if self.access_changes(&inode, live())
            && let Err(error) = self.set_access_time(ino)
        {
            // Whoever reads got what was asked for.
            tracing::debug!(ino, %error, "a time of last access was not changed");
        }
    }

    fn set_access_time(&self, ino: Ino) -> Result<()> {
        let _pass = self.core.begin_change()?;
        // Nor where commits do not keep up: a read waits for none.
        let pending_max = self.core.memory.pending_operations_max();
        if self.core.space.is_tight() || self.core.namespace.pending_operations() >= pending_max {
            return Ok(());
        }
        let _room = self.core.promise_change();
        self.core.namespace.update(ino, &mut |inode| inode.atime = now())?;
        Ok(())
    }
}
