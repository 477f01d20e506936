//! Command lines of copies into a pool and out of it.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use dedupfs::transfer::TOKEN_BYTES_MAX;

use crate::{exit, size};

/// Copies a directory with all in it, or a file, into a mounted pool: `dedupfs put /home /mnt/backup/home-monday`.
///
/// A directory becomes a version: it never changes, `dedupfs list` shows it, and `dedupfs forget` removes it as a whole. A file whose size,
/// times and inode number are as they were when the version before was made is not read. Copies as `cp -a` does, with owners, times,
/// access lists and other extended attributes, hard links, holes and devices. But the daemon
/// reads the tree itself, on all cores, without kernel requests for each file. NAME appears when the copy is complete, and is durable when
/// this returns. Files that cannot be read, or that changed meanwhile, are reported on standard error, and the rest is copied; the exit code
/// is then 9. For root and the user who mounted the pool; an ordinary user owns the copy. A symbolic link as SOURCE is followed. If a put
/// that worked for minutes is interrupted or dies, it leaves what it has copied in a directory `.dedupfs-put-…` beside NAME; the next put
/// of the same source there goes on from it, and removes it.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_COPIES)]
pub(crate) struct PutArgs {
    /// Directory or regular file to copy, or image of a disk: a file, a block device, or an export of an NBD server (nbd://HOST:PORT/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH)
    pub(crate) source: PathBuf,
    /// New name in the mount; must not exist
    #[arg(value_name = "MNT/NAME")]
    pub(crate) destination: PathBuf,
    /// Leave out everything mounted within the tree (the pool itself and its mount are always left out)
    #[arg(long, short = 'x')]
    pub(crate) one_file_system: bool,
    /// Make a live tree, which can be changed, instead of a version. A file alone is always live, unless it is the image of a disk
    #[arg(long)]
    pub(crate) live: bool,
    /// Version whose unchanged files, or bytes of an image, are taken over [default: the last complete one beside NAME of the same source
    /// and host; of an image: the last complete one beside NAME]
    #[arg(long, value_name = "MNT/NAME", conflicts_with_all = ["live", "reread"])]
    pub(crate) base: Option<PathBuf>,
    /// Read everything, also what did not change
    #[arg(long, conflicts_with = "live")]
    pub(crate) reread: bool,
    /// Part of what is unchanged that is read all the same and compared: a percentage, `full` or `none` [default: none; of an image: 0.5%]
    #[arg(long, value_name = "PERCENT|full|none", value_parser = parse_verify, conflicts_with = "live")]
    pub(crate) verify: Option<u32>,
    /// Bytes a second that are read of SOURCE at most, such as 50M
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    pub(crate) rate: Option<NonZeroU64>,
    /// SOURCE, a file or a block device, is the image of a disk: make a version with this image. Exports always are
    #[arg(long, conflicts_with_all = ["live", "one_file_system", "incomplete_every"])]
    pub(crate) image: bool,
    /// Read of the image only what this map names as changed since the base. Implies --image. MAP is a file, or `nbd:CONTEXT` for a map that
    /// the server of SOURCE tells, such as nbd:qemu:dirty-bitmap:NAME
    #[arg(long, value_name = "MAP", conflicts_with_all = ["live", "one_file_system", "reread", "incomplete_every"])]
    pub(crate) changed: Option<PathBuf>,
    /// Format of MAP
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", requires = "changed")]
    pub(crate) changed_format: crate::changes::Format,
    /// The state of the image at which MAP begins. If the base is of another state, everything is read
    #[arg(long, value_name = "TOKEN", requires = "changed", value_parser = parse_token)]
    pub(crate) token_from: Option<String>,
    /// Name of the state that is put, such as that of a checkpoint or bitmap: the next MAP may begin there. Implies --image
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["live", "one_file_system", "incomplete_every"], value_parser = parse_token)]
    pub(crate) token: Option<String>,
    /// Name of the image in its version [default: that in the base, or else that of SOURCE]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) file_name: Option<std::ffi::OsString>,
    /// Seconds of work after which what is complete so far is named, for the next put to go on from; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 300, conflicts_with = "live")]
    pub(crate) incomplete_every: u64,
    /// Detect duplicates of the image in stages: what changed is read and cut by this command, in at most 35 MB of memory, the index is asked in
    /// the order of its files, and only new chunks are read again, by the daemon. Pays where the index lies on a disk that seeks; implies --image
    #[arg(long, conflicts_with_all = ["live", "one_file_system", "incomplete_every"])]
    pub(crate) staged: bool,
    /// Print `read` when the image was read, and give the version its name when the standard input says `name`
    #[arg(long, hide = true)]
    pub(crate) asks_before_naming: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl PutArgs {
    /// Whether SOURCE is the image of a disk.
    pub(crate) fn is_image(&self) -> bool {
        self.image || self.staged || self.changed.is_some() || self.token.is_some() || self.source_is_export()
    }

    /// Whether SOURCE is an export of an NBD server.
    pub(crate) fn source_is_export(&self) -> bool {
        self.source.to_str().is_some_and(dedupfs_nbd::Address::is_meant)
    }
}

/// Reads a percentage, `full` or `none`. Returns millionths.
fn parse_verify(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        "full" => Ok(VERIFY_ALL),
        _ => {
            let percent: Option<f64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
            let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
            let millionths = percent.map(|percent| (percent * 10_000.0).ceil() as u32);
            millionths.ok_or_else(|| "give a percentage from 0 to 100, `full` or `none`".to_owned())
        }
    }
}

fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size::parse_size(text)?).ok_or_else(|| "a rate is above 0".to_owned())
}

/// Millionths of everything.
pub(crate) const VERIFY_ALL: u32 = 1_000_000;

fn parse_token(text: &str) -> Result<String, String> {
    match text.len() {
        1..=TOKEN_BYTES_MAX => Ok(text.to_owned()),
        _ => Err(format!("give 1 to {TOKEN_BYTES_MAX} bytes")),
    }
}

/// Copies a directory with all in it, or a file, out of a mounted pool: `dedupfs get /mnt/backup/home-monday /home.restored`.
///
/// Copies as `cp -a` does, with owners, times, access lists and other extended attributes, hard links, holes and devices. But the daemon
/// writes the tree itself, on all cores, without kernel requests for each file. The copy is durable when this returns. If interrupted,
/// everything copied so far stays. A file with damaged content is reported on standard error and left out (the mount gives its readable
/// part), and the rest is copied; the exit code is then 9, as when an --include matches nothing. If nothing at all is chosen, nothing is
/// made, and the exit code is 1. For root and the user who mounted the pool. A symbolic link as SOURCE is followed.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_COPIES)]
pub(crate) struct GetArgs {
    /// Directory or regular file to copy. The mount itself means everything in it. Also of a replica, without its pool:
    /// `s3://BUCKET/PREFIX/NAME?endpoint=URL`, `file:///DIRECTORY/NAME`
    #[arg(value_name = "MNT/NAME|STORE/NAME")]
    pub(crate) source: PathBuf,
    /// New name; must not exist
    pub(crate) destination: PathBuf,
    /// Copy only what this pattern matches, with all below it and the directories on the way. With a `/` it is a path from the top of the
    /// tree (`/passwd`, `etc/passwd`, `home/**/*.jpg`), without one any name (`*.jpg`). `*`, `?`, `[a-z]` and `{a,b}` match within a name,
    /// `**` any number of directories. Quote it. Can be given several times
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// Leave out what this pattern matches, with all below it; counts more than --include. Can be given several times
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// How a replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: super::remote::ViewArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
