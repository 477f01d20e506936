//! Requirements of these tests on the machine.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

/// Tools with the Debian package of each.
const TOOLS: [(&str, &str); 34] = [
    ("rsync", "rsync"),
    ("tar", "tar"),
    ("cp", "coreutils"),
    ("dd", "coreutils"),
    ("du", "coreutils"),
    ("rm", "coreutils"),
    ("truncate", "coreutils"),
    ("cmp", "diffutils"),
    ("diff", "diffutils"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("getfacl", "acl"),
    ("python3", "python3"),
    ("cc", "gcc"),
    ("fallocate", "util-linux"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("flock", "util-linux"),
    ("fsck", "util-linux"),
    ("mount", "mount"),
    ("find", "findutils"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("findmnt", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_io", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("chattr", "e2fsprogs"),
    ("lsattr", "e2fsprogs"),
    ("git", "git"),
    ("sqlite3", "sqlite3"),
    ("pgrep", "procps"),
];

/// Whether the tests can run. For an ordinary user they cannot, and standard error says so.
///
/// # Panics
/// As root, if something is missing: skipped tests would prove nothing.
#[must_use]
pub fn is_fit() -> bool {
    if !rustix::process::geteuid().is_root() {
        // The test harness swallows eprintln.
        let _ = writeln!(std::io::stderr(), "left out: needs root");
        return false;
    }
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    assert!(fuse.is_ok(), "/dev/fuse cannot be opened ({fuse:?}): load the module fuse");
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| find(tool).is_none()).collect();
    assert!(missing.is_empty(), "missing (tool, package): {missing:?}; tools/test.sh installs what is needed");
    true
}

/// Returns the search path with sbin, which users may not have.
#[must_use]
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

fn find(tool: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path()).map(|directory| directory.join(tool)).find(|path| path.is_file())
}
