//! Command lines of the helpers that mount(8), umount(8), mkfs(8) and fsck(8) call.

use std::path::PathBuf;

use clap::Parser;

use super::MkfsArgs;

/// Exit codes of the helpers of mount(8) and umount(8), which pass them on.
const MOUNT_CODES: &str = "Exit codes, as mount(8): 0 ok; 1 usage; 2 FUSE unavailable; 32 failed.";

/// Mount a dedupfs pool, called by mount(8).
///
/// `mount -t dedupfs POOL MNT` and lines of fstab(5) call this. It returns when the mount serves; a daemon keeps serving it. `mount -o
/// remount,ro MNT` makes everything durable and lets nothing be written until `mount -o remount,rw MNT`.
#[derive(Parser, Debug)]
#[command(name = "mount.dedupfs", version, after_help = MOUNT_CODES, after_long_help = MOUNT_LONG_HELP)]
pub(crate) struct MountHelper {
    /// Directory of the pool
    pub(crate) pool: PathBuf,
    /// Directory to mount on
    #[arg(value_name = "MNT")]
    pub(crate) mountpoint: PathBuf,
    /// Options as for `dedupfs mount`, also memory=SIZE, filters=LIST (with `:` between filters), log_file=FILE, and remount; options of
    /// mount(8) and systemd are ignored
    #[arg(short, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Ignore unknown options
    #[arg(short)]
    pub(crate) sloppy: bool,
    /// Check everything, but do not mount
    #[arg(short)]
    pub(crate) fake: bool,
    /// Do not record the mount for umount(8), which then does not wait for the daemon
    #[arg(short)]
    pub(crate) no_mtab: bool,
    /// Report each step
    #[arg(short)]
    pub(crate) verbose: bool,
    /// Mount namespace to mount in: a process id or a file
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub(crate) namespace: Option<PathBuf>,
    /// Without effect: the type is dedupfs
    #[arg(short = 't', value_name = "TYPE")]
    pub(crate) filesystem_type: Option<String>,
}

const MOUNT_LONG_HELP: &str = "\
In fstab(5):
  /srv/pool  /mnt/backup  dedupfs  noauto,nofail,memory=1G,x-systemd.requires-mounts-for=/srv,x-systemd.mount-timeout=15min  0  0

Exit codes, as mount(8): 0 ok; 1 usage; 2 FUSE unavailable; 32 failed.";

/// Unmount a dedupfs, called by umount(8).
///
/// `umount MNT` calls this, and so returns when everything is durable and the daemon has ended, as `dedupfs umount` does. `umount -i MNT`
/// does not call it: the daemon still makes everything durable, but umount does not wait for it.
#[derive(Parser, Debug)]
#[command(name = "umount.fuse.dedupfs", version, after_help = MOUNT_CODES)]
pub(crate) struct UmountHelper {
    /// Mountpoint, or the pool that is mounted
    #[arg(value_name = "MNT")]
    pub(crate) mountpoint: PathBuf,
    /// Detach at once even if files are open there, and wait for nothing
    #[arg(short)]
    pub(crate) lazy: bool,
    /// Cut users of the mount off with errors, if it hangs; unwritten data is lost
    #[arg(short, conflicts_with = "lazy")]
    pub(crate) force: bool,
    /// Remount it read-only if it is busy
    #[arg(short)]
    pub(crate) read_only: bool,
    /// Without effect: there is no /etc/mtab to write
    #[arg(short)]
    pub(crate) no_mtab: bool,
    /// Report each step
    #[arg(short)]
    pub(crate) verbose: bool,
    /// Mount namespace to unmount in: a process id or a file
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub(crate) namespace: Option<PathBuf>,
    /// Without effect: the type is dedupfs
    #[arg(short = 't', value_name = "TYPE")]
    pub(crate) filesystem_type: Option<String>,
}

/// Format a directory as a dedupfs pool, called by mkfs(8): the same as `dedupfs mkfs`.
#[derive(Parser, Debug)]
#[command(name = "mkfs.dedupfs", version)]
pub(crate) struct MkfsHelper {
    /// All options of `dedupfs mkfs`.
    #[command(flatten)]
    pub(crate) mkfs: MkfsArgs,
}

/// Check a dedupfs pool, called by fsck(8).
///
/// A pool needs no check after a crash, because mounting recovers it. So with -a or -p, as at boot, only its superblocks are checked.
/// Without an option everything is checked; repairs are listed, asked about, and made. Use -y or -n where nobody can answer.
#[derive(Parser, Debug)]
#[command(name = "fsck.dedupfs", version, after_help = FSCK_CODES)]
pub(crate) struct FsckHelper {
    /// Directory of the pool. A mounted one is only checked, and with -a or -p left alone
    pub(crate) pool: PathBuf,
    /// The same as -p
    #[arg(short = 'a', conflicts_with_all = ["no", "yes"])]
    pub(crate) automatic: bool,
    /// Only the quick and safe part, without questions: the superblocks
    #[arg(short = 'p', conflicts_with_all = ["no", "yes"])]
    pub(crate) preen: bool,
    /// Check everything, change nothing
    #[arg(short = 'n', conflicts_with = "yes")]
    pub(crate) no: bool,
    /// Check everything, and make possible repairs without asking
    #[arg(short = 'y')]
    pub(crate) yes: bool,
    /// Check everything also with -a or -p; errors are reported and left
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Without effect: asking is the default
    #[arg(short = 'r')]
    pub(crate) interactive: bool,
    /// Report each step
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Without effect: progress goes to standard error
    #[arg(short = 'C', value_name = "FD", allow_hyphen_values = true)]
    pub(crate) progress: Option<i32>,
    /// Also read and verify all content
    #[arg(long)]
    pub(crate) read_data: bool,
}

const FSCK_CODES: &str = "Exit codes, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_lines_are_sound() {
        MountHelper::command().debug_assert();
        UmountHelper::command().debug_assert();
        MkfsHelper::command().debug_assert();
        FsckHelper::command().debug_assert();
    }

    #[test]
    fn helpers_are_called_as_the_manuals_say() {
        for line in [
            "mount.dedupfs /p /m",
            "mount.dedupfs /p /m -o rw,noexec",
            "mount.dedupfs /p /m -sfnv -N 12 -o ro -t fuse.dedupfs",
        ] {
            assert!(MountHelper::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in ["umount.fuse.dedupfs /m", "umount.fuse.dedupfs /m -lnrv -N /proc/1/ns/mnt -t fuse.dedupfs"] {
            assert!(UmountHelper::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in ["fsck.dedupfs /p", "fsck.dedupfs -a -C0 /p", "fsck.dedupfs -p -f /p", "fsck.dedupfs -y -C -1 /p"] {
            assert!(FsckHelper::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        assert!(FsckHelper::try_parse_from(["fsck.dedupfs", "-n", "-y", "/p"]).is_err());
        let mkfs = MkfsHelper::try_parse_from(["mkfs.dedupfs", "/p", "--chunk-size", "16K"]);
        assert!(mkfs.is_ok_and(|parsed| parsed.mkfs.chunk_size == 16384));
    }
}
