//! Why a mount or unmount failed, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Nothing there.
    #[error("mountpoint {} does not exist; create the directory first", mountpoint.display())]
    NoMountpoint {
        /// Where it was to be.
        mountpoint: PathBuf,
    },
    /// Not a directory.
    #[error("mountpoint {} is not a directory", mountpoint.display())]
    NotDirectory {
        /// What was given.
        mountpoint: PathBuf,
    },
    /// An ordinary user may only mount on what is theirs.
    #[error(
        "mountpoint {} belongs to somebody else ({detail}): an ordinary user needs a directory of their own, which they may write",
        mountpoint.display()
    )]
    MountpointDenied {
        /// Where it was to be.
        mountpoint: PathBuf,
        /// What the helper said.
        detail: String,
    },
    /// A killed daemon left its mount behind.
    #[error(
        "{} is a dead mount (its daemon is gone); remove it with `umount -l {}`",
        mountpoint.display(),
        mountpoint.display()
    )]
    DeadMount {
        /// Where it is.
        mountpoint: PathBuf,
    },
    /// Something is mounted there already.
    #[error("a FUSE filesystem is already mounted on {}; unmount it first", mountpoint.display())]
    AlreadyMounted {
        /// Where it is.
        mountpoint: PathBuf,
    },
    /// No FUSE in this kernel or container.
    #[error(
        "/dev/fuse is not there; load the kernel module with `modprobe fuse`, or start the container with \
         `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice {
        /// What open said.
        source: io::Error,
    },
    /// /dev/fuse may not be opened.
    #[error("/dev/fuse may not be opened by this user; run as root, or `chmod 666 /dev/fuse`")]
    DeviceDenied {
        /// What open said.
        source: io::Error,
    },
    /// Neither mount(2) nor the helper is allowed to.
    #[error(
        "this user may not mount, and the helper fusermount3 could not do it either ({detail}); run as root, or \
         install the package fuse3"
    )]
    NotPermitted {
        /// What the helper said.
        detail: String,
    },
    /// `allow_other` without the administrator's consent.
    #[error("allow_other needs the line `user_allow_other` in /etc/fuse.conf when mounting as an ordinary user")]
    UserAllowOther,
    /// An option that has a setting of its own, or none at all.
    #[error("mount option `{option}` cannot be given here")]
    Option {
        /// The option.
        option: String,
    },
    /// mount(2) failed.
    #[error("cannot mount on {}: {source} (the kernel log may say more: `dmesg | tail`)", mountpoint.display())]
    Mount {
        /// Where.
        mountpoint: PathBuf,
        /// What mount said.
        source: io::Error,
    },
    /// Mounted, but the kernel and we do not understand each other.
    #[error("the kernel's FUSE and this program found no common protocol: {source}")]
    Handshake {
        /// What went wrong.
        source: io::Error,
    },
    /// Mounted, but a first request failed.
    #[error("mounted, but the filesystem does not answer: {source}")]
    NotServing {
        /// What stat said.
        source: io::Error,
    },
    /// Files are open on it.
    #[error("{} is in use; `fuser -vm {}` shows by whom", mountpoint.display(), mountpoint.display())]
    Busy {
        /// Where.
        mountpoint: PathBuf,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on {}", mountpoint.display())]
    NotMounted {
        /// Where.
        mountpoint: PathBuf,
    },
    /// umount failed otherwise.
    #[error("cannot unmount {}: {source}", mountpoint.display())]
    Unmount {
        /// Where.
        mountpoint: PathBuf,
        /// What umount said.
        source: io::Error,
    },
    /// The session ended by an error instead of an unmount.
    #[error("the FUSE session ended: {reason}")]
    Session {
        /// Why.
        reason: String,
    },
}
