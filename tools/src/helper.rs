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

use crate::args::helpers::MkfsHelper;
use crate::commands::mkfs;
use crate::exit;
use crate::programs::run;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Helper {
    Mount,
    Umount,
    Mkfs,
    Fsck,
}

/// The names of the helpers. They are links to the program.
pub(crate) const NAMES: [(&str, Helper); 5] = [
    ("mount.dedupfs", Helper::Mount),
    ("mount.fuse.dedupfs", Helper::Mount),
    ("umount.fuse.dedupfs", Helper::Umount),
    ("mkfs.dedupfs", Helper::Mkfs),
    ("fsck.dedupfs", Helper::Fsck),
];

impl Helper {
    /// Returns the helper that this program was called as, by its first argument.
    pub(crate) fn named(first: &OsStr) -> Option<Self> {
        let name = Path::new(first).file_name()?;
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, helper)| *helper)
    }

    pub(crate) fn run(self) -> ExitCode {
        match self {
            Self::Mount => run("mount.dedupfs", mount::run, exit::mount_code),
            Self::Umount => run("umount.fuse.dedupfs", umount::run, exit::mount_code),
            Self::Mkfs => run("mkfs.dedupfs", |args: &MkfsHelper| mkfs::run(&args.mkfs), exit::code),
            Self::Fsck => run("fsck.dedupfs", fsck::run, exit::fsck_code),
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
