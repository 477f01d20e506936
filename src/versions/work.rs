//! The directories in which `put` and `snapshot` work. A version in one has no name of its own yet.

use dedupfs_base::Result;
use dedupfs_namespace::{CommittedView, Inode};

/// Extended attribute of these directories.
pub(crate) const WORK_MARK: &[u8] = b"user.dedupfs.put";
/// Beginning of their names.
const WORK_PREFIX: &[u8] = b".dedupfs-put-";

/// Whether a directory of this name is one in which `put` or `snapshot` works, or worked when it was killed. A name or a
/// mark alone proves nothing.
pub(crate) fn is_work(view: &CommittedView, name: &[u8], directory: &Inode) -> Result<bool> {
    let has_name = name.starts_with(WORK_PREFIX) && directory.xattr_count > 0;
    Ok(has_name && view.record(directory.ino, WORK_MARK)?.is_some())
}
