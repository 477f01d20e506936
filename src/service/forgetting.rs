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

/// The names that may be removed.
#[derive(Default)]
pub(super) struct Forgetting(Mutex<HashMap<(Ino, Vec<u8>), Instant>>);

impl Service {
    /// Lets the next rmdir of this name remove it, although it is a version.
    pub(crate) fn allow_forgetting(&self, directory: Ino, name: &[u8]) {
        let mut permissions = self.forgetting.0.lock();
        permissions.retain(|_, given| given.elapsed() < PERMITTED_FOR);
        if permissions.len() < PERMISSIONS_MAX {
            permissions.insert((directory, name.to_vec()), Instant::now());
        }
    }

    /// Whether this name may be removed now, although it is a version. Uses the permission up.
    pub(super) fn may_forget(&self, directory: Ino, name: &[u8]) -> Result<bool> {
        let namespace = &self.core.namespace;
        if !namespace.lookup(directory, name)?.is_some_and(|(ino, _)| is_frozen(ino)) {
            return Ok(false);
        }
        let given = self.forgetting.0.lock().remove(&(directory, name.to_vec()));
        Ok(given.is_some_and(|given| given.elapsed() < PERMITTED_FOR)
            || namespace.xattr(directory, WORK_MARK)?.is_some())
    }
}
