//! Errors of mounting and unmounting, with advice.

use std::io;
use std::path::PathBuf;

/// Reason why a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint does not exist.
    #[error("mountpoint {} does not exist; create the directory first", mountpoint.display())]
    NoMountpoint {
        /// The missing directory.
        mountpoint: PathBuf,
    },
    /// The mountpoint is not a directory.
    #[error("mountpoint {} is not a directory", mountpoint.display())]
    NotDirectory {
        /// The path.
        mountpoint: PathBuf,
    },
    /// An ordinary user may mount only on their own directory.
    #[error(
        "mountpoint {} belongs to another user ({detail}): an ordinary user needs a directory of their own, which they may write",
        mountpoint.display()
    )]
    MountpointDenied {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The helper's message.
        detail: String,
    },
    /// A killed daemon left its mount behind.
    #[error(
        "{} is a dead mount (its daemon is gone); remove it with `umount -l {}`",
        mountpoint.display(),
        mountpoint.display()
    )]
    DeadMount {
        /// The mountpoint.
        mountpoint: PathBuf,
    },
    /// A FUSE filesystem is mounted there already.
    #[error("a FUSE filesystem is already mounted on {}; unmount it first", mountpoint.display())]
    AlreadyMounted {
        /// The mountpoint.
        mountpoint: PathBuf,
    },
    /// No FUSE in this kernel or container.
    #[error(
        "/dev/fuse is not there; load the kernel module with `modprobe fuse`, or start the container with \
         `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice {
        /// The error of open.
        source: io::Error,
    },
    /// /dev/fuse may not be opened by this user.
    #[error("/dev/fuse may not be opened by this user; run as root, or `chmod 666 /dev/fuse`")]
    DeviceDenied {
        /// The error of open.
        source: io::Error,
    },
    /// Neither this process nor the helper may mount.
    #[error(
        "this user may not mount, and the helper fusermount3 could not do it either ({detail}); run as root, or \
         install the package fuse3"
    )]
    NotPermitted {
        /// The helper's message.
        detail: String,
    },
    /// `allow_other` without the administrator's consent.
    #[error("allow_other needs the line `user_allow_other` in /etc/fuse.conf when mounting as an ordinary user")]
    UserAllowOther,
    /// The option has a setting of its own, or none at all.
    #[error("mount option `{option}` cannot be given here")]
    Option {
        /// The option.
        option: String,
    },
    /// mount(2) failed.
    #[error("cannot mount on {}: {source} (the kernel log may say more: `dmesg | tail`)", mountpoint.display())]
    Mount {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The error of mount.
        source: io::Error,
    },
    /// Mounted, but the handshake with the kernel failed.
    #[error("the kernel's FUSE and this program found no common protocol: {source}")]
    Handshake {
        /// The error.
        source: io::Error,
    },
    /// Mounted, but the first request failed.
    #[error("mounted, but the filesystem does not answer: {source}")]
    NotServing {
        /// The error of stat.
        source: io::Error,
    },
    /// Files are open on the mount.
    #[error("{} is in use; `fuser -vm {}` shows by whom", mountpoint.display(), mountpoint.display())]
    Busy {
        /// The mountpoint.
        mountpoint: PathBuf,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on {}", mountpoint.display())]
    NotMounted {
        /// The mountpoint.
        mountpoint: PathBuf,
    },
    /// umount failed for another reason.
    #[error("cannot unmount {}: {source}", mountpoint.display())]
    Unmount {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The error of umount.
        source: io::Error,
    },
    /// The session ended by an error instead of an unmount.
    #[error("the FUSE session ended: {reason}")]
    Session {
        /// The reason.
        reason: String,
    },
}
