//! Locks a root before anything is written to it.

use std::path::Path;

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::device::lock::PoolLock;

use super::socket::is_living;

/// Locks the meta root `root`; `note` names the purpose.
///
/// The lock alone is not enough: a daemon that answers on the control socket still owns the pool. All its files may have been replaced,
/// or its version may lock only one file.
///
/// # Errors
/// `Busy`; I/O errors.
pub fn claim(root: &Path, note: &str) -> Result<PoolLock> {
    let lock = PoolLock::acquire(root, note)?;
    if is_living(root) {
        let owner = "a daemon that answers at its control socket, although the pool's lock was removed".to_owned();
        return Err(StoreError::Busy { what: format!("pool {}", root.display()), owner }.into());
    }
    Ok(lock)
}
