//! The place of the daemon's control socket on the meta root, and the lock that heeds it.
//!
//! A socket address holds 107 bytes of path, and a pool's path may be longer. So the directory is opened and the socket is named through
//! `/proc/self/fd/N/`, which is always short.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::device::PoolLock;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Name of the socket on the pool's meta root.
pub const SOCKET_NAME: &str = "control.sock";

/// A short path to the socket, and the open directory that it leads through.
///
/// # Errors
/// The directory cannot be opened.
pub fn short_path(root: &Path) -> io::Result<(PathBuf, File)> {
    let directory = File::open(root)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd())), directory))
}

/// Whether a process listens at the socket in `root`. Never waits.
#[must_use]
pub fn is_living(root: &Path) -> bool {
    let ask = || -> io::Result<()> {
        let (path, _directory) = short_path(root)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)
    };
    match ask() {
        Ok(()) => true,
        // The daemon's backlog of connections is full.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

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
