//! Command lines of the three programs, and of the [`helpers`].

pub mod helpers;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use dedupfs::pool::FilterPlan;
use dedupfs_store::container::Compression;
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};

use crate::{duration, exit, size};

/// A deduplicating filesystem for backups.
///
/// A pool is a directory in which everything that is written is stored once and compressed. Format one, mount it,
/// point rsync, tar or cp at the mountpoint; restore by copying out.
#[derive(Parser, Debug)]
#[command(name = "dedupfs", version, after_help = exit::HELP_OF_ALL, after_long_help = LONG_HELP)]
pub struct Dedupfs {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const LONG_HELP: &str = "\
Example:
  dedupfs mkfs /srv/pool
  dedupfs mount /srv/pool /mnt/backup
  dedupfs put /home /mnt/backup/home-monday
  rsync -aHAX --numeric-ids /srv/ /mnt/backup/srv/
  dedupfs-stats /mnt/backup
  dedupfs get /mnt/backup/home-monday /home.restored
  rm -r /mnt/backup/home-sunday && dedupfs-gc /mnt/backup
  dedupfs umount /mnt/backup

What fsync acknowledged survives a power loss; what was closed without it is durable 5 seconds later.
A daemon that was killed leaves a mountpoint that answers \"Transport endpoint is not connected\", never an empty
directory; `dedupfs mount POOL MNT` again removes it and recovers the pool.

Exit codes: 0 ok; 1 failed; 2 usage; 3 not a pool, a part of it missing, or of an unknown format;
  4 pool in use; 5 no space; 6 pool damaged; 7 FUSE unavailable; 8 mountpoint absent, taken or busy.
  put and get: 9 copied, but not all of it. mkfs: 10 the directory is taken. fsck and scrub have their own, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage.";

/// The commands of `dedupfs`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Format a directory as a pool
    Mkfs(MkfsArgs),
    /// Mount a pool; returns when the mount serves
    Mount(MountArgs),
    /// Unmount; returns when everything is durable and the daemon has ended
    Umount(UmountArgs),
    /// Copy a tree into a mounted pool, as cp -a does, but faster
    Put(PutArgs),
    /// Copy a tree out of a mounted pool, as cp -a does, but faster
    Get(GetArgs),
    /// Make everything written so far durable
    Sync(SyncArgs),
    /// Check a pool, or make its index anew
    Fsck(FsckArgs),
    /// Read everything that is stored, quarantine what is bad, and name the files that need it
    Scrub(ScrubArgs),
    /// Make a lost or damaged meta root anew from the data root
    Recover(RecoverArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// Formats the directory POOL, which must be empty or absent. The options hold for the life of the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_MKFS)]
pub struct MkfsArgs {
    /// Directory of the pool: names, recipes and index (the meta root); put it on an SSD
    pub pool: PathBuf,
    /// Directory for the content (the data root), empty or absent; may lie on a slower disk [default: in POOL]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How content is cut: `mincdc` is faster and finds more, `fastcdc` is the well-known one
    #[arg(long, default_value = "mincdc", value_name = "mincdc|fastcdc",
          value_parser = PossibleValuesParser::new(["mincdc", "fastcdc"]).try_map(|name| name.parse::<ChunkerKind>()))]
    pub chunker: ChunkerKind,
    /// Mean size of a chunk, 4K to 64K: smaller finds more duplicates, larger needs less index
    #[arg(long, default_value = "8K", value_name = "SIZE", value_parser = size::parse_chunk)]
    pub chunk_size: u32,
    /// What identifies a chunk: `blake3` (32 bytes) or `sha1` (20 bytes, for comparisons with older systems)
    #[arg(long, default_value = "blake3", value_name = "blake3|sha1",
          value_parser = PossibleValuesParser::new(["blake3", "sha1"]).try_map(|name| name.parse::<FingerprintAlgorithm>()))]
    pub fingerprint: FingerprintAlgorithm,
    /// `none`, or `zstd:LEVEL` with a level from 1 (fast) to 19 (small)
    #[arg(long, default_value = "zstd:1", value_name = "none|zstd:LEVEL")]
    pub compression: Compression,
    /// Size of a container, the unit in which space is written and reclaimed, 1M to 64M
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = size::parse_container)]
    pub container_size: u32,
    /// Fingerprints of a tanker, the unit in which the index is written: 1K to 64M
    #[arg(long, default_value = "1M", value_name = "NUMBER", value_parser = size::parse_tanker)]
    pub tanker_cells: u32,
    /// Buckets of a tanker, the units in which the index is read; a power of two
    #[arg(long, default_value = "2048", value_name = "NUMBER", value_parser = size::parse_buckets)]
    pub tanker_buckets: u32,
}

/// Mounts POOL on the directory MNT and returns when the mount serves; a daemon keeps serving it.
///
/// The daemon logs to dedupfs.log in the pool. It ends, with everything durable, at `dedupfs umount`, at umount(8),
/// and on SIGTERM, SIGINT and SIGHUP.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = exit::HELP)]
pub struct MountArgs {
    /// Pool to mount
    pub pool: PathBuf,
    /// Directory to mount on
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// Stay in the foreground and log to the standard error output
    #[arg(long, short)]
    pub foreground: bool,
    /// Bound of all caches and buffers together, such as 512M or 2G
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub memory: u64,
    /// Filters that look chunks up, in this order, `sealed` last; leaving one out costs time, never a duplicate. `compare`
    /// behind it reads each chunk that is found and compares the bytes: damage heals, a hash collision is an I/O error
    #[arg(long, default_value_t, value_name = "LIST")]
    pub filters: FilterPlan,
    /// Log to this file instead
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// ro, allow_other, relatime, noatime, nodiratime, dev, suid, noexec, sync, dirsync, threads=N, keep_awake=auto|on|off
    /// (idle cores poll while small requests follow one another, as root; auto: on virtual machines of at most eight cores), data_limit=SIZE,
    /// meta_limit=SIZE (what the pool may occupy on the disk of its content, and on that of names and index, such as 500G),
    /// remount; several with commas. gc, gc=idle reclaim space in the background, the latter only while nobody reads or writes;
    /// gc_threshold=PERCENT, gc_leave=PERCENT, gc_share=PERCENT as in dedupfs-gc, gc_window=22-6 for hours of the day (local time),
    /// gc_interval=SECONDS between two looks [60]. Also memory=SIZE, filters=LIST (`:` between filters) and log_file=FILE, which count
    /// before the options above
    #[arg(long, short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// The process that serves; standard output is a pipe to the one that started it.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub daemon_child: bool,
}

impl MountArgs {
    /// In the background, with everything else in `options`.
    #[must_use]
    pub fn with_options(pool: PathBuf, mountpoint: PathBuf, options: Vec<String>) -> Self {
        Self {
            pool,
            mountpoint,
            foreground: false,
            memory: dedupfs::config::MEMORY_BYTES_DEFAULT,
            filters: FilterPlan::default(),
            log_file: None,
            options,
            daemon_child: false,
        }
    }
}

/// Unmounts MNT and returns when everything is durable, the daemon has ended and the pool is free.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP)]
pub struct UmountArgs {
    /// Mountpoint, or the pool that is mounted
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// Detach at once even if files are open there; still returns only when the last of them is closed
    #[arg(long, short)]
    pub lazy: bool,
}

/// Copies a directory with all in it, or a file, into a mounted pool: `dedupfs put /home /mnt/backup/home-monday`.
///
/// As `cp -a`, with owners, times, access lists and other extended attributes, hard links, holes and devices; but the daemon reads the tree
/// by itself, on all cores, and needs no request of the kernel for each file. NAME is there when all of it is, and durable when this
/// returns; interrupted, nothing is left of it. What cannot be read, or changed meanwhile, is told on the standard error output, and the rest is copied:
/// exit code 9 then. For root and the user who mounted the pool; an ordinary user's copy is that user's. A symbolic link as SOURCE is
/// followed. What a crash leaves is in a directory `.dedupfs-put-…` beside NAME, which the next put there removes.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_COPIES)]
pub struct PutArgs {
    /// Directory or regular file to copy
    pub source: PathBuf,
    /// Its new name in the mount; must not be there yet
    #[arg(value_name = "MNT/NAME")]
    pub destination: PathBuf,
    /// Leave out what is mounted within the tree (the pool itself and its mount always are)
    #[arg(long, short = 'x')]
    pub one_file_system: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Copies a directory with all in it, or a file, out of a mounted pool: `dedupfs get /mnt/backup/home-monday /home`.
///
/// As `cp -a`, with owners, times, access lists and other extended attributes, hard links, holes and devices; but the daemon writes the tree
/// by itself, on all cores, and needs no request of the kernel for each file. It is durable when this returns; interrupted, what was
/// copied until then stays. A file whose content is damaged is told on the standard error output and left out (what can be read of it, the
/// mount gives), and the rest is copied: exit code 9 then. For root and the user who mounted the pool. A symbolic link as SOURCE is followed.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_COPIES)]
pub struct GetArgs {
    /// Directory or regular file to copy; the mount itself is everything in it
    #[arg(value_name = "MNT/NAME")]
    pub source: PathBuf,
    /// Its new name; must not be there yet
    pub destination: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Makes everything that was written so far durable, as fsync of every file would.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub struct SyncArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub target: PathBuf,
}

/// Checks every name, inode, recipe, reference count and container, and changes nothing unless it is told to.
///
/// A pool needs no check after a crash: mounting recovers it. On a mounted pool, changes made meanwhile can show as
/// findings; unmount first for a verdict. Files that need what is lost are named. --repair tells what it is
/// going to change, asks, and changes it.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage.")]
pub struct FsckArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub target: PathBuf,
    /// Also read and verify all content
    #[arg(long)]
    pub read_data: bool,
    /// Put right what is wrong: superblocks, namespace, counts, indexes, files left over; with --read-data also quarantine content
    /// that is bad. The pool must not be mounted
    #[arg(long, conflicts_with = "rebuild_index")]
    pub repair: bool,
    /// Also give up what a recovery could not name and kept: content without names, and the export that was damaged
    #[arg(long, requires = "repair")]
    pub give_up_unnamed: bool,
    /// Do not ask before changing anything
    #[arg(long, short)]
    pub yes: bool,
    /// Where the data root is, for a pool whose meta superblock cannot be read, or if it moved
    #[arg(long, value_name = "DIR", requires = "repair")]
    pub data: Option<PathBuf>,
    /// Make the index anew from the containers and the namespace, then check; the pool must not be mounted. The old
    /// index counts until the new one is complete, and an interrupted rebuild goes on when it is started again. With
    /// --read-data chunks that are damaged are given up, so that the next backup of the same data heals the files
    #[arg(long)]
    pub rebuild_index: bool,
    /// Instead of checking: make a meta root from the data root alone, compare it with the pool's own, and remove it again. Tells
    /// whether a lost meta root would come back whole; also of a mounted pool
    #[arg(long, conflicts_with_all = ["repair", "rebuild_index", "read_data"])]
    pub trial_recovery: bool,
    /// Where that meta root is made; takes as much room as the pool's own [default: POOL]
    #[arg(long, value_name = "DIR", requires = "trial_recovery")]
    pub scratch: Option<PathBuf>,
    /// Bound of all caches and buffers together, such as 512M or 2G; the check of a mounted pool has those of the mount
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub memory: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Makes the meta root POOL anew from what is exported to the data root: names, recipes and index.
///
/// For a meta root that is gone (then POOL is a new directory), or damaged beyond repair. The pool comes back as it was at its
/// last export: at most a minute before a crash, or at the last unmount. The data root is only read until all is made, so
/// what is interrupted can be started again. An old meta root that turns up later is refused from then on.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub struct RecoverArgs {
    /// Directory of the new meta root, empty or absent; or the pool whose names are lost
    pub pool: PathBuf,
    /// Directory with the content (the data root) [default: what the superblock in POOL says, else POOL]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Replace a meta root that is there: only when it is beyond repair, for it knows more than the data root. And go on although the
    /// data root gives less than it should: what nothing names is kept then. Asks before
    #[arg(long)]
    pub force: bool,
    /// Do not ask before replacing anything
    #[arg(long, short)]
    pub yes: bool,
    /// Bound of all caches and buffers together, such as 512M or 2G
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub memory: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads everything that is stored and compares it with its checksums and names, while the pool is used.
///
/// What is bad is quarantined: never deduplicated against again, and replaced when the same data is backed up again, which
/// makes the files whole. The files that need it are named. Interrupted (Ctrl-C, --stop, a crash), the next scrub goes on.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes, as fsck's: 0 sound; 1 the export was bad and was written anew; 4 files need what is lost, or the
  export is bad; 8 could not be made; 16 usage."
)]
pub struct ScrubArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub target: PathBuf,
    /// Read at most so many bytes a second, such as 50M; 0: as fast as the disks give, which slows backups down
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size::parse)]
    pub rate: u64,
    /// Begin anew instead of going on where the last scrub was stopped
    #[arg(long)]
    pub restart: bool,
    /// Only tell how far the scrub that runs, or the last one, has come
    #[arg(long, conflicts_with_all = ["stop", "restart", "rate"])]
    pub status: bool,
    /// End the scrub that runs; the next one goes on there
    #[arg(long, conflicts_with_all = ["restart", "rate"])]
    pub stop: bool,
    /// Behind a scrub that came to its end: `dedupfs fsck --trial-recovery`
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    pub trial_recovery: bool,
    /// Where that makes its meta root [default: POOL]
    #[arg(long, value_name = "DIR", requires = "trial_recovery")]
    pub scratch: Option<PathBuf>,
    /// Print the result as JSON, with all files
    #[arg(long)]
    pub json: bool,
}

/// Writes man pages and shell completions into directories; for installing.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Directory for man pages
    #[arg(long, value_name = "DIR")]
    pub man: Option<PathBuf>,
    /// Directory for completions of bash
    #[arg(long, value_name = "DIR")]
    pub bash: Option<PathBuf>,
    /// Directory for completions of zsh
    #[arg(long, value_name = "DIR")]
    pub zsh: Option<PathBuf>,
    /// Directory for completions of fish
    #[arg(long, value_name = "DIR")]
    pub fish: Option<PathBuf>,
}

/// Show what a pool holds and what it saves.
///
/// A mounted pool's daemon is asked, another pool is opened for it. What was deleted still counts as unique until
/// dedupfs-gc has gone through the recipes: `dedupfs-gc --dry-run` tells what it would free.
#[derive(Parser, Debug)]
#[command(name = "dedupfs-stats", version, after_help = exit::HELP_WITHOUT_MOUNT)]
pub struct Stats {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub target: PathBuf,
    /// Print all figures as JSON, sizes in bytes
    #[arg(long)]
    pub json: bool,
}

/// Give back the space of what was deleted.
///
/// Frees what nothing refers to any more, and empties containers that hold little else by copying the rest forward: the emptiest
/// first, until no more garbage is left than may stay. Backups go on meanwhile, and it gives way to them. Interrupted (Ctrl-C,
/// --stop, a limit, a crash), it loses nothing, and the next one goes on.
#[derive(Parser, Debug)]
#[command(name = "dedupfs-gc", version, after_help = exit::HELP_OF_GC)]
pub struct Gc {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub target: PathBuf,
    /// Empty only containers of which less than so many percent are in use, 0 to 100; 0 frees only what is dead as a whole
    /// [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub threshold: Option<u8>,
    /// Garbage that may stay, in percent of what is in use [default: 5, or 0 with --threshold]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub leave: Option<u8>,
    /// Share of the time to work while clients read and write, in percent; 0: only while nobody does
    #[arg(long, default_value_t = dedupfs::config::RECLAIM_SHARE_PERCENT, value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub share: u8,
    /// End after so long, such as 30m or 2h; the next run goes on
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub max_time: Option<Duration>,
    /// End after so much was read and written in containers, such as 100G; the next run goes on
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub max_io: Option<u64>,
    /// Only tell what would be done, and how long it would take
    #[arg(long, conflicts_with_all = ["max_time", "max_io"])]
    pub dry_run: bool,
    /// Only tell what reclaiming is at, or did last
    #[arg(long, conflicts_with_all = RUN_OPTIONS)]
    pub status: bool,
    /// Hold the run under way, and let no other begin until --resume; lasts as long as the mount
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with = "status")]
    pub pause: bool,
    /// End a pause
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with_all = ["status", "pause"])]
    pub resume: bool,
    /// End the run under way after the step that it is at; the next run goes on
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with_all = ["status", "pause", "resume"])]
    pub stop: bool,
    /// Print JSON, sizes in bytes: a line of status now and then, and the result as the last line
    #[arg(long)]
    pub json: bool,
}

/// Options of `dedupfs-gc` that make sense only for a run.
const RUN_OPTIONS: [&str; 5] = ["threshold", "leave", "max_time", "max_io", "dry_run"];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_lines_are_sound() {
        Dedupfs::command().debug_assert();
        Stats::command().debug_assert();
        Gc::command().debug_assert();
    }

    #[test]
    fn sizes_and_names_are_checked() {
        let parse = |line: &str| Dedupfs::try_parse_from(line.split(' '));
        let formatted = parse("dedupfs mkfs /p --chunk-size 16K --fingerprint sha1 --compression none");
        assert!(
            formatted.is_ok_and(|parsed| matches!(parsed.command, Command::Mkfs(MkfsArgs { chunk_size: 16384, .. })))
        );
        for line in [
            "dedupfs",
            "dedupfs mkfs",
            "dedupfs mkfs /p --chunk-size 8Q",
            "dedupfs mkfs /p --chunk-size 1M",
            "dedupfs mkfs /p --chunker other",
            "dedupfs mkfs /p --compression zstd:99",
            "dedupfs mkfs /p --unknown",
            "dedupfs mount /p",
            "dedupfs mount /p /m --memory 1",
            "dedupfs dance",
        ] {
            assert!(parse(line).is_err_and(|error| error.use_stderr()), "{line}");
        }
        assert!(Gc::try_parse_from(["dedupfs-gc", "/p", "--threshold", "101"]).is_err());
    }

    #[test]
    fn help_repeats_the_exit_codes() {
        assert!(LONG_HELP.ends_with(exit::HELP_OF_ALL));
    }
}
