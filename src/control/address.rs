//! Binding and connecting whatever the length of the pool's path.
//!
//! A socket address holds 107 bytes of path, a pool's path may be longer. So the directory is opened and the socket
//! is named through `/proc/self/fd/N/`, which is always short.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use dedupfs_store::device::owner;

use super::SOCKET_NAME;

/// A short path to the socket, and the open directory that it leads through.
fn short_path(root: &Path) -> io::Result<(PathBuf, File)> {
    let directory = File::open(root)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd())), directory))
}

/// Listens on the socket in `root`, replacing one that a killed daemon left. The caller holds the pool's lock.
pub(super) fn bind(root: &Path) -> io::Result<UnixListener> {
    remove(root)?;
    let (path, directory) = short_path(root)?;
    let listener = UnixListener::bind(&path)?;
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, only_owner)?;
    owner::give_socket(&directory, SOCKET_NAME)?;
    Ok(listener)
}

/// Connects to the socket in `root`.
pub(super) fn connect(root: &Path) -> io::Result<UnixStream> {
    let (path, _directory) = short_path(root)?;
    UnixStream::connect(path)
}

/// Removes the socket file; no error if there is none.
pub(super) fn remove(root: &Path) -> io::Result<()> {
    match std::fs::remove_file(root.join(SOCKET_NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
