//! Directories for scratch files: qemu saves there what the guest overwrites while a disk is read.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A scratch file must find room for at least this part of the disk.
const LEAST_PART: u64 = 20;

/// Checks that a directory has a minimum of room, and that others can neither read nor replace the files in it.
pub(super) fn check(directory: &Path, size_bytes: u64) -> Result<(), String> {
    let shown = directory.display();
    let cannot = |error: std::io::Error| format!("cannot look at the scratch directory {shown}: {error}");
    let mode = directory.metadata().map_err(cannot)?.mode();
    if mode & 0o003 != 0 {
        return Err(format!(
            "the scratch directory {shown} is open to others, and content of the guest will lie there: make one of mode 0700 for the user of qemu"
        ));
    }
    let room = rustix::fs::statvfs(directory).map_err(|errno| cannot(errno.into()))?;
    let (free_bytes, wanted_bytes) = (room.f_bavail.saturating_mul(room.f_frsize), size_bytes / LEAST_PART);
    match free_bytes >= wanted_bytes {
        true => Ok(()),
        false => Err(format!(
            "the scratch directory {shown} has {free_bytes} bytes free: a twentieth of the disk, {wanted_bytes} bytes, is the least, \
             because writes of the guest fail when it is full"
        )),
    }
}
