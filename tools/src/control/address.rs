//! The addresses at which a daemon listens.
//!
//! 1. A socket file in the pool, named as [`short_path`] says.
//! 2. A socket in the abstract namespace, without a file, for a pool whose disk has failed, is full or cannot be written. Its name holds
//!    the device number of the mount and a hash of the pool's path, because a device number may be used again. Any process may take such a
//!    name, so a client checks the credentials of the other end.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use dedupfs::socket::{SOCKET_NAME, is_living, short_path};
use dedupfs_store::device::owner;

/// Listens on the socket in `root`. Replaces a socket that a killed daemon left, but not a living one. The caller holds the pool's lock.
pub(super) fn bind(root: &Path) -> io::Result<UnixListener> {
    if is_living(root) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    remove(root)?;
    let (path, directory) = short_path(root)?;
    let listener = UnixListener::bind(&path)?;
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, only_owner)?;
    owner::give_socket(&directory, SOCKET_NAME)?;
    Ok(listener)
}

/// The abstract name of the daemon that serves the pool at `root` through the mount with this device number (such as "0:57").
fn beside(root: &Path, device: &str) -> io::Result<SocketAddr> {
    let pool = blake3::hash(root.as_os_str().as_bytes()).to_hex();
    SocketAddr::from_abstract_name(format!("dedupfs/{device}/{pool}"))
}

pub(super) fn bind_beside(root: &Path, device: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&beside(root, device)?)
}

/// Connects to the abstract name. Any process may have taken it.
pub(super) fn connect_beside(root: &Path, device: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&beside(root, device)?)
}

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
