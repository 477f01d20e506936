//! Taking possession of a root before anything is written there.

use std::path::Path;

use dedupfs_store::StoreError;
use dedupfs_store::device::lock::PoolLock;

use crate::control;
use crate::error::Result;

/// Locks the meta root `root`; `note` says what for.
///
/// A daemon that still answers there has the pool, whatever became of its lock: all its files may have been replaced, or it is of a
/// version that locked one file alone.
///
/// # Errors
/// `Busy`; I/O errors.
pub(crate) fn claim(root: &Path, note: &str) -> Result<PoolLock> {
    let lock = PoolLock::acquire(root, note)?;
    if control::is_living(root) {
        let owner = "a daemon that answers at its control socket, although the pool's lock was removed".to_owned();
        return Err(StoreError::Busy { what: format!("pool {}", root.display()), owner }.into());
    }
    Ok(lock)
}
