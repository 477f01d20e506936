//! Errors of mounting and unmounting, with advice.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Reason why a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant explains it and its fields")]
pub enum MountError {
    #[error("mountpoint {} does not exist; create the directory first", mountpoint.display())]
    NoMountpoint { mountpoint: PathBuf },
    #[error("mountpoint {} is not a directory", mountpoint.display())]
    NotDirectory { mountpoint: PathBuf },
    #[error(
        "mountpoint {} belongs to another user ({detail}): an ordinary user needs a directory of their own, which they may write",
        mountpoint.display()
    )]
    MountpointDenied { mountpoint: PathBuf, detail: String },
    #[error(
        "{} is a dead mount (its daemon is gone); remove it with `umount -l {}`",
        mountpoint.display(),
        mountpoint.display()
    )]
    DeadMount { mountpoint: PathBuf },
    #[error("a FUSE filesystem is already mounted on {}; unmount it first", mountpoint.display())]
    AlreadyMounted { mountpoint: PathBuf },
    #[error(
        "/dev/fuse is not there; load the kernel module with `modprobe fuse`, or start the container with \
         `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice { source: io::Error },
    #[error("/dev/fuse may not be opened by this user; run as root, or `chmod 666 /dev/fuse`")]
    DeviceDenied { source: io::Error },
    #[error(
        "this user may not mount, and the helper fusermount3 could not do it either ({detail}); run as root, or \
         install the package fuse3"
    )]
    NotPermitted { detail: String },
    #[error("allow_other needs the line `user_allow_other` in /etc/fuse.conf when mounting as an ordinary user")]
    UserAllowOther,
    /// The option has a setting of its own, or none at all.
    #[error("mount option `{option}` cannot be given here")]
    Option { option: String },
    #[error("cannot mount on {}: {source} (the kernel log may say more: `dmesg | tail`)", mountpoint.display())]
    Mount { mountpoint: PathBuf, source: io::Error },
    #[error("the kernel's FUSE and this program found no common protocol: {source}")]
    Handshake { source: io::Error },
    #[error("mounted, but the filesystem does not answer: {source}")]
    NotServing { source: io::Error },
    #[error("{} is in use; `fuser -vm {}` shows by whom", mountpoint.display(), mountpoint.display())]
    Busy { mountpoint: PathBuf },
    #[error("nothing is mounted on {}", mountpoint.display())]
    NotMounted { mountpoint: PathBuf },
    #[error("cannot unmount {}: {source}", mountpoint.display())]
    Unmount { mountpoint: PathBuf, source: io::Error },
    #[error("the FUSE session ended: no thread for it: {source}")]
    NoThread { source: io::Error },
    /// The session ended by an error instead of an unmount.
    #[error("the FUSE session ended: {source}")]
    Session { source: Arc<io::Error> },
}
