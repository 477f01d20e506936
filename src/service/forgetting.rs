//! Permissions to remove versions.
//!
//! rmdir(2) of a version is refused, or removing empty directories in a tree of backups would destroy them. `dedupfs
//! forget` gets a permission for one name, and then calls rmdir(2) itself, because the kernel knows the name. A version
//! that has no name of its own yet, in the directory in which `put` and `snapshot` work, can be removed always.

use std::collections::HashMap;
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_namespace::is_frozen;
use dedupfs_service::Ino;
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;

use super::Service;
use crate::versions::work::WORK_MARK;

/// Time within which a permission must be used.
const PERMITTED_FOR: Duration = Duration::from_secs(10);
/// Bound of the permissions.
const PERMISSIONS_MAX: usize = 1024;

/// A permission: the version that had the name, and when it was given.
struct Permission {
    version: Ino,
    given: Instant,
}

/// The names that may be removed, each with its directory.
#[derive(Default)]
pub(super) struct Forgetting(Mutex<HashMap<(Ino, Vec<u8>), Permission>>);

impl Service {
    /// Lets the next rmdir of this name remove it, a version, unless another version has the name by then.
    pub(crate) fn allow_forgetting(&self, directory: Ino, name: &[u8], version: Ino) {
        let mut permissions = self.forgetting.0.lock();
        permissions.retain(|_, permission| permission.given.elapsed() < PERMITTED_FOR);
        if permissions.len() < PERMISSIONS_MAX {
            permissions.insert((directory, name.to_vec()), Permission { version, given: Instant::now() });
        }
    }

    /// Whether this name may be removed now, although it is a version. Uses the permission up.
    pub(super) fn may_forget(&self, directory: Ino, name: &[u8]) -> Result<bool> {
        let namespace = &self.core.namespace;
        let Some((found, _)) = namespace.lookup(directory, name)?.filter(|(ino, _)| is_frozen(*ino)) else {
            return Ok(false);
        };
        let permission = self.forgetting.0.lock().remove(&(directory, name.to_vec()));
        let fits = |permission: Permission| permission.version == found && permission.given.elapsed() < PERMITTED_FOR;
        Ok(permission.is_some_and(fits) || namespace.xattr(directory, WORK_MARK)?.is_some())
    }
}
