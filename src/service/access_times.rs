//! Updates of access times by reads.
//!
//! The kernel leaves access times to the service, and forwards only reads that its page cache does not answer. So a file with a due
//! access time is opened without its cached pages: the first read then reaches the service (and the pool's caches supply the bytes).
//!
//! Cost: one lookup of the inode for each read. Where relatime asks for an update, one change of the namespace in the next commit: once
//! a day for a file that is read often. No update when room is tight.

use dedupfs_base::Result;
use dedupfs_namespace::{Inode, is_frozen};
use dedupfs_service::{Ino, OpenOptions, access_is_due};

use super::open_files::{Live, OpenFile};
use super::{Service, now};

/// Which inodes get new access times when they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// As Linux' `relatime`: if the time is not later than the last change, or a day old.
    #[default]
    Relative,
    /// As `Relative`, but not for directories (`nodiratime`).
    RelativeButDirectories,
    /// None (`noatime`).
    Never,
}

impl Service {
    /// Whether reading this inode now changes its access time; `live` holds its unpublished values.
    fn access_changes(&self, inode: &Inode, live: Live) -> bool {
        let kept = match self.access_times {
            _ if is_frozen(inode.ino) => true,
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

    /// Whether a file opened like this must be read from the service instead of the kernel's cache. Handles that write are exempt:
    /// databases reopen files they just wrote again and again.
    pub(super) fn access_must_be_seen(&self, inode: &Inode, how: OpenOptions) -> bool {
        how.read
            && !how.write
            && !how.no_access_time
            && self.access_changes(inode, Live::default())
            && !self.core.space.is_tight()
    }

    /// Notes a read of a file.
    pub(super) fn note_file_access(&self, file: &OpenFile) {
        self.note_access(file.ino, || *file.live.lock());
    }

    /// Notes a read of a directory or symbolic link.
    pub(super) fn note_node_access(&self, ino: Ino) {
        self.note_access(ino, Live::default);
    }

    fn note_access(&self, ino: Ino, live: impl FnOnce() -> Live) {
        if self.access_times == AccessTimes::Never || self.core.is_read_only() || is_frozen(ino) {
            return;
        }
        let Ok(Some(inode)) = self.core.namespace.inode_shared(ino) else { return };
        if self.access_changes(&inode, live())
            && let Err(error) = self.set_access_time(ino)
        {
            // The read itself succeeded.
            tracing::debug!(ino, %error, "a time of last access was not changed");
        }
    }

    fn set_access_time(&self, ino: Ino) -> Result<()> {
        let _pass = self.core.begin_change()?;
        // No update when commits fall behind: a read must not wait for one.
        let pending_max = self.core.memory_at_opening.pending_operations_max();
        if self.core.space.is_tight() || self.core.namespace.pending_operations() >= pending_max {
            return Ok(());
        }
        let _room = self.core.promise_change();
        self.core.namespace.update(ino, &mut |inode| inode.atime = now())?;
        Ok(())
    }
}
