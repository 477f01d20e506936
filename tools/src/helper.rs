//! The helpers that mount(8), umount(8), mkfs(8) and fsck(8) call: the program `dedupfs` under other names.
//!
//! | name | called by |
//! |---|---|
//! | `mount.dedupfs` | `mount -t dedupfs`, a line of fstab |
//! | `mount.fuse.dedupfs` | `mount -o remount` of a mount that is not in fstab: the kernel shows this type |
//! | `umount.fuse.dedupfs` | `umount` |
//! | `mkfs.dedupfs`, `fsck.dedupfs` | `mkfs -t dedupfs`, `fsck -t dedupfs` |

mod fsck;
mod mount;
mod namespace;
mod umount;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use crate::control::Failure;
use clap::Parser;

use crate::args::helpers::{FsckHelper, MkfsHelper, MountHelper, UmountHelper};
use crate::commands::mkfs;
use crate::exit;

/// A helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Helper {
    /// Mounts.
    Mount,
    /// Unmounts.
    Umount,
    /// Formats.
    Mkfs,
    /// Checks.
    Fsck,
}

/// The names of the helpers. They are links to the program.
pub const NAMES: [(&str, Helper); 5] = [
    ("mount.dedupfs", Helper::Mount),
    ("mount.fuse.dedupfs", Helper::Mount),
    ("umount.fuse.dedupfs", Helper::Umount),
    ("mkfs.dedupfs", Helper::Mkfs),
    ("fsck.dedupfs", Helper::Fsck),
];

impl Helper {
    /// Returns the helper that this program was called as, by its first argument.
    #[must_use]
    pub fn named(first: &OsStr) -> Option<Self> {
        let name = Path::new(first).file_name()?;
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, helper)| *helper)
    }

    /// Runs the helper with this process's arguments.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let (program, code): (_, fn(&Failure) -> u8) = match self {
            Self::Mount => ("mount.dedupfs", |failure| exit::mount_code(failure.kind)),
            Self::Umount => ("umount.fuse.dedupfs", |failure| exit::mount_code(failure.kind)),
            Self::Mkfs => ("mkfs.dedupfs", |failure| exit::code(failure.kind)),
            Self::Fsck => ("fsck.dedupfs", |failure| exit::fsck_code(failure.kind)),
        };
        let result = match self {
            Self::Mount => MountHelper::try_parse().map(|args| mount::run(&args)),
            Self::Umount => UmountHelper::try_parse().map(|args| umount::run(&args)),
            Self::Mkfs => MkfsHelper::try_parse().map(|args| mkfs::run(&args.mkfs)),
            Self::Fsck => FsckHelper::try_parse().map(|args| fsck::run(&args)),
        };
        ExitCode::from(match result {
            Ok(Ok(done)) => done,
            Ok(Err(failure)) => {
                exit::report(program, &failure);
                code(&failure)
            }
            Err(error) => match exit::usage(&error) {
                exit::OK => exit::OK,
                _ => self.usage_code(),
            },
        })
    }

    const fn usage_code(self) -> u8 {
        match self {
            Self::Mount | Self::Umount => exit::MOUNT_USAGE,
            Self::Mkfs => exit::USAGE,
            Self::Fsck => exit::FSCK_USAGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_name_wherever_they_lie() {
        let named = |first: &str| Helper::named(OsStr::new(first));
        assert_eq!(named("/sbin/mount.dedupfs"), Some(Helper::Mount));
        assert_eq!(named("mount.fuse.dedupfs"), Some(Helper::Mount));
        assert_eq!(named("./umount.fuse.dedupfs"), Some(Helper::Umount));
        assert_eq!(named("fsck.dedupfs"), Some(Helper::Fsck));
        assert_eq!(named("/usr/bin/mkfs.dedupfs"), Some(Helper::Mkfs));
        for other in ["dedupfs", "/mount.dedupfs/dedupfs", "", "..", "mount.dedupfs2"] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
