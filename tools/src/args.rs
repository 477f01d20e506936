//! Command lines of the three programs and of the [`helpers`].

#![expect(rustdoc::broken_intra_doc_links, reason = "brackets show defaults in help texts")]

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod copies;
pub(crate) mod helpers;
#[cfg(feature = "remote")]
pub(crate) mod remote;
pub(crate) mod versions;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use dedupfs::FilterPlan;
use dedupfs::reclaim::Arranging;
use dedupfs_store::container::Compression;
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};

use self::batch::BatchArgs;
use self::cluster::ClusterArgs;
use self::copies::{GetArgs, PutArgs};
use self::versions::{
    DiffArgs, ForgetArgs, FreezeArgs, HistoryArgs, ListArgs, PruneArgs, SeriesArgs, SnapshotArgs, ThawArgs,
};
use crate::{duration, exit, size};

/// A deduplicating filesystem for backups.
///
/// A pool is a directory that stores each piece of data once, compressed. Format one, mount it, point rsync, tar or cp at the mountpoint;
/// restore by copying out.
#[derive(Parser, Debug)]
#[command(name = "dedupfs", version, after_help = exit::HELP_OF_ALL, after_long_help = format!("{EXAMPLE}\n\n{}", exit::HELP_OF_ALL))]
pub(crate) struct Dedupfs {
    /// The command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLE: &str = "\
Example:
  dedupfs mkfs /srv/pool
  dedupfs mount /srv/pool /mnt/backup
  dedupfs put /home /mnt/backup/home-monday
  rsync -aHAX --numeric-ids /srv/ /mnt/backup/srv/
  dedupfs-stats /mnt/backup
  dedupfs get /mnt/backup/home-monday /home.restored
  dedupfs get --include '*.odt' /mnt/backup/home-monday /home.letters
  dedupfs snapshot /mnt/backup/srv /mnt/backup/srv-monday
  dedupfs list /mnt/backup
  dedupfs forget /mnt/backup/home-sunday && dedupfs-gc /mnt/backup
  dedupfs umount /mnt/backup

Data that fsync acknowledged survives a power loss; files closed without it are durable 5 seconds later.
A daemon that was killed leaves a mountpoint that answers \"Transport endpoint is not connected\", never an empty
directory; `dedupfs mount POOL MNT` again removes it and recovers the pool.";

/// The commands of `dedupfs`. The help and the page of a command are the text of its arguments; a text here would replace it.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Mkfs(MkfsArgs),
    Mount(MountArgs),
    Umount(UmountArgs),
    Put(PutArgs),
    Get(GetArgs),
    Batch(BatchArgs),
    Cluster(ClusterArgs),
    Snapshot(SnapshotArgs),
    Freeze(FreezeArgs),
    Thaw(ThawArgs),
    List(ListArgs),
    Diff(DiffArgs),
    History(HistoryArgs),
    Forget(ForgetArgs),
    Prune(PruneArgs),
    Series(SeriesArgs),
    Sync(SyncArgs),
    Fsck(FsckArgs),
    Scrub(ScrubArgs),
    Recover(RecoverArgs),
    #[cfg(feature = "remote")]
    Replicate(remote::ReplicateArgs),
    #[cfg(feature = "remote")]
    Replica(remote::ReplicaArgs),
    #[cfg(feature = "remote")]
    Key(remote::KeyArgs),
    #[cfg(feature = "remote")]
    StoreCheck(remote::StoreCheckArgs),
    #[command(hide = true)]
    Generate(GenerateArgs),
}

impl Command {
    /// Whether the result, or the failure, is to be printed as JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Mkfs(args) => args.json,
            Self::Mount(args) => args.json && !args.daemon_child,
            Self::Umount(args) => args.json,
            Self::Put(args) => args.json,
            Self::Get(args) => args.json,
            Self::Batch(args) => args.json,
            Self::Cluster(args) => args.json,
            Self::Snapshot(args) => args.json,
            Self::Thaw(args) => args.json,
            Self::List(args) => args.json,
            Self::Freeze(args) => args.json,
            Self::Diff(args) => args.json,
            Self::History(args) => args.json,
            Self::Forget(args) => args.json,
            Self::Prune(args) => args.json,
            Self::Series(args) => args.command.wants_json(),
            Self::Sync(args) => args.json,
            Self::Fsck(args) => args.json,
            Self::Scrub(args) => args.json,
            Self::Recover(args) => args.json,
            #[cfg(feature = "remote")]
            Self::Replicate(args) => args.json,
            #[cfg(feature = "remote")]
            Self::Replica(args) => match &args.command {
                remote::ReplicaCommand::Status(args) => args.json,
                remote::ReplicaCommand::Verify(args) => args.json,
                remote::ReplicaCommand::Gc(args) => args.json,
            },
            #[cfg(feature = "remote")]
            Self::Key(_) => false,
            #[cfg(feature = "remote")]
            Self::StoreCheck(args) => args.json,
            Self::Generate(args) => args.json,
        }
    }
}

/// Formats the directory POOL, which must be empty or absent, as a pool.
///
/// The options hold for the life of the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_MKFS)]
pub(crate) struct MkfsArgs {
    /// Directory of the pool: names, recipes and index (the meta root); put it on an SSD
    pub(crate) pool: PathBuf,
    /// Directory for the content (the data root), empty or absent; may lie on a slower disk [default: in POOL]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Method of cutting content into chunks: `mincdc` is faster and finds more, `fastcdc` is the well-known one
    #[arg(long, default_value = "mincdc", value_name = "mincdc|fastcdc",
          value_parser = PossibleValuesParser::new(["mincdc", "fastcdc"]).try_map(|name| name.parse::<ChunkerKind>()))]
    pub(crate) chunker: ChunkerKind,
    /// Mean size of a chunk, 4K to 64K: smaller finds more duplicates, larger needs less index
    #[arg(long, default_value = "8K", value_name = "SIZE", value_parser = size::parse_chunk)]
    pub(crate) chunk_size: u32,
    /// Hash that identifies a chunk: `blake3` (32 bytes) or `sha1` (20 bytes, for comparisons with older systems)
    #[arg(long, default_value = "blake3", value_name = "blake3|sha1",
          value_parser = PossibleValuesParser::new(["blake3", "sha1"]).try_map(|name| name.parse::<FingerprintAlgorithm>()))]
    pub(crate) fingerprint: FingerprintAlgorithm,
    /// Compression of content: `none`, or `zstd:LEVEL` with a level from 1 (fast) to 19 (small)
    #[arg(long, default_value = "zstd:1", value_name = "none|zstd:LEVEL")]
    pub(crate) compression: Compression,
    /// Size of a container, the unit in which space is written and reclaimed, 1M to 64M
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = size::parse_container)]
    pub(crate) container_size: u32,
    /// Fingerprints of a tanker, the unit in which the index is written: 1K to 64M
    #[arg(long, default_value = "1M", value_name = "NUMBER", value_parser = size::parse_tanker)]
    pub(crate) tanker_cells: u32,
    /// Buckets of a tanker, the units in which the index is read; a power of two
    #[arg(long, default_value = "2048", value_name = "NUMBER", value_parser = size::parse_buckets)]
    pub(crate) tanker_buckets: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Mounts POOL on the directory MNT and returns when the mount serves; a daemon keeps serving it.
///
/// The daemon logs to dedupfs.log in the pool. It ends, with everything durable, at `dedupfs umount`, at umount(8),
/// and on SIGTERM, SIGINT and SIGHUP.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
#[command(after_help = exit::HELP)]
pub(crate) struct MountArgs {
    /// Pool to mount. Or, with `-o ro`, the replica of one on any machine: `s3://BUCKET/PREFIX?endpoint=URL`, or the directory of a replica
    pub(crate) pool: PathBuf,
    /// Directory to mount on
    #[arg(value_name = "MNT")]
    pub(crate) mountpoint: PathBuf,
    /// Stay in the foreground and log to the standard error output
    #[arg(long, short)]
    pub(crate) foreground: bool,
    /// Memory limit for all caches and buffers together, such as 512M or 2G
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub(crate) memory: u64,
    /// Filters that look chunks up, in this order, `sealed` last. Leaving one out costs time, never a duplicate. `compare` at the end reads
    /// each chunk that was found and compares the bytes: damage heals, a hash collision is an I/O error
    #[arg(long, default_value_t, value_name = "LIST")]
    pub(crate) filters: FilterPlan,
    /// Log to this file instead
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// ro, allow_other, relatime, noatime, nodiratime, dev, suid, noexec, sync, dirsync, remount; separate options by commas. no_open (with
    /// ro): the kernel reads without opening files. threads=N. keep_awake=auto|on|off: idle cores poll while small requests follow one another
    /// (root only; auto: on virtual machines of at most eight cores). data_limit=SIZE, meta_limit=SIZE: space that the pool may take on the
    /// disk of its content, and on that of names and index, such as 500G. gc, gc=idle: reclaim space in the background, always or only while
    /// nobody reads or writes; gc_threshold=PERCENT, gc_leave=PERCENT, gc_share=PERCENT as in dedupfs-gc; gc_window=22-6: hours of the day
    /// (local time); gc_interval=SECONDS between two checks [60]; arrange=idle|on|off: put content of new versions together, only while
    /// nobody reads or writes, always, or never [idle]. memory=SIZE, filters=LIST (`:` between filters), log_file=FILE,
    /// key=FILE, passphrase_file=FILE, cache=DIR and cache_size=SIZE are as the options of these names
    #[arg(long, short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) json: bool,
    /// How a replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: remote::ViewArgs,
    /// End when the process with this number ends, which started this one
    #[arg(long, hide = true, requires = "daemon_child")]
    pub(crate) ends_with_parent: Option<i32>,
    /// The secret of a replica comes through the standard input
    #[arg(long, hide = true, requires = "daemon_child")]
    pub(crate) secret_stdin: bool,
    /// The newest state of a replica
    #[arg(long, hide = true, requires = "daemon_child")]
    pub(crate) state: Option<String>,
    /// The process that serves. Its standard output is a pipe to the process that started it
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(crate) daemon_child: bool,
}

impl MountArgs {
    /// Arguments of a mount in the background, with everything else in `options`.
    pub(crate) fn with_options(pool: PathBuf, mountpoint: PathBuf, options: Vec<String>) -> Self {
        Self {
            pool,
            mountpoint,
            foreground: false,
            memory: dedupfs::config::MEMORY_BYTES_DEFAULT,
            filters: FilterPlan::default(),
            log_file: None,
            options,
            json: false,
            #[cfg(feature = "remote")]
            view: remote::ViewArgs::default(),
            ends_with_parent: None,
            secret_stdin: false,
            state: None,
            daemon_child: false,
        }
    }
}

/// Unmounts MNT and returns when everything is durable, the daemon has ended and the pool is free.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP)]
pub(crate) struct UmountArgs {
    /// Mountpoint, or the pool that is mounted
    #[arg(value_name = "MNT")]
    pub(crate) mountpoint: PathBuf,
    /// Detach at once even if files are open there. Still returns only when the last of them is closed
    #[arg(long, short)]
    pub(crate) lazy: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes everything written so far durable, as fsync of every file would.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SyncArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks every name, inode, recipe, reference count and container; repairs if told to.
///
/// Changes nothing unless told to. A pool needs no check after a crash: mounting recovers it. A mounted pool is checked as it was when the
/// check began. Names the files that need lost content. --repair lists its changes, asks, and makes them, while the pool is not mounted.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes, as e2fsck: 0 clean; 1 corrected; 4 errors left; 8 could not check; 16 usage; 32 ended early."
)]
pub(crate) struct FsckArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// Also read and verify all content
    #[arg(long)]
    pub(crate) read_data: bool,
    /// Repair superblocks, namespace, counts, indexes and left-over files; with --read-data also quarantine damaged content. The pool must
    /// not be mounted
    #[arg(long, conflicts_with = "rebuild_index")]
    pub(crate) repair: bool,
    /// Also give up content that a recovery kept but could not name, and the damaged export
    #[arg(long, requires = "repair")]
    pub(crate) give_up_unnamed: bool,
    /// Do not ask before changing anything
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Location of the data root, for a pool whose meta superblock cannot be read, or if the data root moved
    #[arg(long, value_name = "DIR", requires = "repair")]
    pub(crate) data: Option<PathBuf>,
    /// Rebuild the index from the containers and the namespace, then check; the pool must not be mounted. The old index counts until the
    /// new one is complete. An interrupted rebuild continues when it is started again. With --read-data, damaged chunks are given up, so
    /// that the next backup of the same data heals the files
    #[arg(long)]
    pub(crate) rebuild_index: bool,
    /// Instead of checking: make a meta root from the data root alone, compare it with the pool's own, and remove it again. Shows whether a
    /// lost meta root could be recovered completely. Also for a mounted pool
    #[arg(long, conflicts_with_all = ["repair", "rebuild_index", "read_data"])]
    pub(crate) trial_recovery: bool,
    /// Place for temporary files, an existing directory: those of a check whose pool does not fit into --memory, half of its room at most; or
    /// the trial's meta root, half as large again as the pool's own, and 64 MiB [default: POOL]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Memory limit for all caches and buffers together, such as 512M or 2G. The check of a mounted pool uses the mount's
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub(crate) memory: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rebuilds the meta root POOL from the export on the data root: names, recipes and index.
///
/// For a meta root that is gone (then POOL is a new directory), or damaged beyond repair. The pool comes back as it was at its last export:
/// at most a minute before a crash, or at the last unmount. The data root is only read until everything is made, so an interrupted recovery
/// can be started again. An old meta root that turns up later is refused from then on.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct RecoverArgs {
    /// Directory of the new meta root, empty or absent; or the pool whose names are lost
    pub(crate) pool: PathBuf,
    /// Directory with the content (the data root) [default: as in the superblock in POOL, else POOL]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Bring everything back from a replica that `dedupfs replicate` made: `s3://BUCKET/PREFIX?endpoint=URL`, or a directory. POOL is a new or empty
    /// directory then, and so is DIR. An interrupted recovery goes on if it is started again
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "STORE")]
    pub(crate) from: Option<String>,
    /// The key of the replica
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) key: remote::KeyOptions,
    /// Replace an existing meta root. Only when it is beyond repair, for it knows more than the data root. Also go on although the data
    /// root gives less than it should; content without names is then kept. Asks before
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask before replacing anything
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Memory limit for all caches and buffers together, such as 512M or 2G
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = size::parse_memory)]
    pub(crate) memory: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads everything that is stored and compares it with its checksums and names, while the pool is used.
///
/// Damage is quarantined: new backups no longer deduplicate against it, and a new backup of the same data replaces it and makes the files
/// whole. The files that need it are named. If interrupted (Ctrl-C, --stop, a crash), the next scrub continues.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes, as fsck's: 0 sound; 1 the export was bad and was written anew; 4 files need what is lost, or the
  export is bad; 8 could not be made; 16 usage; 32 ended early by Ctrl-C, --stop or an unmount (added to the others)."
)]
pub(crate) struct ScrubArgs {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// Limit of bytes read per second, such as 50M; 0: as fast as the disks allow, which slows backups down
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size::parse_size)]
    pub(crate) rate: u64,
    /// Begin anew instead of continuing the last scrub
    #[arg(long)]
    pub(crate) restart: bool,
    /// Only show the progress of the running scrub, or of the last one
    #[arg(long, conflicts_with_all = ["stop", "restart", "rate"])]
    pub(crate) status: bool,
    /// Stop the running scrub, or trial recovery; the next scrub continues there
    #[arg(long, conflicts_with_all = ["restart", "rate"])]
    pub(crate) stop: bool,
    /// After a complete scrub, also run `dedupfs fsck --trial-recovery`
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    pub(crate) trial_recovery: bool,
    /// Behind the scrub, store lost content again from a replica of the pool that `dedupfs replicate` made: `s3://BUCKET/PREFIX?endpoint=URL`,
    /// or a directory
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "STORE", conflicts_with_all = ["status", "stop"])]
    pub(crate) heal_from: Option<PathBuf>,
    /// How the replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: remote::ViewArgs,
    /// Place for the trial's meta root [default: POOL]
    #[arg(long, value_name = "DIR", requires = "trial_recovery")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print the result as JSON, with all files
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes man pages and shell completions into directories, for installing.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Directory for man pages
    #[arg(long, value_name = "DIR")]
    pub(crate) man: Option<PathBuf>,
    /// Directory for completions of bash
    #[arg(long, value_name = "DIR")]
    pub(crate) bash: Option<PathBuf>,
    /// Directory for completions of zsh
    #[arg(long, value_name = "DIR")]
    pub(crate) zsh: Option<PathBuf>,
    /// Directory for completions of fish
    #[arg(long, value_name = "DIR")]
    pub(crate) fish: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the content and the savings of a pool.
///
/// Asks the daemon of a mounted pool; opens any other pool. Deleted content still counts as unique until dedupfs-gc has gone through the
/// recipes: `dedupfs-gc --dry-run` shows how much it would free.
#[derive(Parser, Debug)]
#[command(name = "dedupfs-stats", version, after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct Stats {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT", required_unless_present_any = ["would_free", "tree"])]
    pub(crate) target: Option<PathBuf>,
    /// Show what removing these versions, directories or files of one mount would free: exact in chunks and nodes, an estimate on the disks
    #[arg(long, value_name = "MNT/NAME", num_args = 1.., conflicts_with = "target")]
    pub(crate) would_free: Vec<PathBuf>,
    /// Show what a version or directory holds: names, bytes, what is stored for it, what of that nothing else in the pool needs, and its
    /// fingerprint, which proves a version. Reads no content
    #[arg(long, value_name = "MNT/DIR", conflicts_with_all = ["target", "would_free"])]
    pub(crate) tree: Option<PathBuf>,
    /// Show where the time of a mounted pool has gone since its mount: the work of each component, and the waits of its threads
    #[arg(long, requires = "target")]
    pub(crate) profile: bool,
    /// Print all figures as JSON, sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Give back the space of deleted data.
///
/// Frees content that nothing refers to any more. Empties containers that hold little else by copying the rest forward: the emptiest first,
/// until no more garbage is left than may stay. Backups go on meanwhile, and it gives way to them. If interrupted (Ctrl-C, --stop, a limit,
/// a crash), nothing is lost, and the next run continues.
#[derive(Parser, Debug)]
#[command(name = "dedupfs-gc", version, after_help = exit::HELP_OF_GC)]
pub(crate) struct Gc {
    /// Pool or mountpoint
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// Empty only containers with less than this percentage in use, 0 to 100; 0 frees only containers without live content [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) threshold: Option<u8>,
    /// Garbage that may stay, in percent of the content in use [default: 5, or 0 with --threshold]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) leave: Option<u8>,
    /// Share of the time to work while clients read and write, in percent; 0: only while none does
    #[arg(long, default_value_t = dedupfs::config::RECLAIM_SHARE_PERCENT, value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) share: u8,
    /// End after this time, such as 30m or 2h; the next run continues
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_time: Option<Duration>,
    /// End after this many bytes were read and written in containers, such as 100G; the next run continues
    #[arg(long, value_name = "SIZE", value_parser = size::parse_size)]
    pub(crate) max_io: Option<u64>,
    /// Move content of the newest versions together, so that they are restored in a row: three bytes for each new one of
    /// versions, or all that lies scattered, or nothing
    #[arg(long, value_enum, default_value_t, value_name = "HOW MUCH")]
    pub(crate) arrange: Arrange,
    /// Only show the plan, and how long it would take
    #[arg(long, conflicts_with_all = ["max_time", "max_io"])]
    pub(crate) dry_run: bool,
    /// Only show the state of reclaiming, or the last result
    #[arg(long, conflicts_with_all = RUN_OPTIONS)]
    pub(crate) status: bool,
    /// Pause the run under way, and let no other begin until --resume. A pause lasts as long as the mount
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with = "status")]
    pub(crate) pause: bool,
    /// End a pause
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with_all = ["status", "pause"])]
    pub(crate) resume: bool,
    /// End the run under way after its current step; the next run continues
    #[arg(long, conflicts_with_all = RUN_OPTIONS, conflicts_with_all = ["status", "pause", "resume"])]
    pub(crate) stop: bool,
    /// Print JSON, sizes in bytes: now and then a line of status, and the result as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much `dedupfs-gc` arranges.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Arrange {
    Off,
    #[default]
    Budget,
    All,
}

impl From<Arrange> for Arranging {
    fn from(arrange: Arrange) -> Self {
        match arrange {
            Arrange::Off => Self::Off,
            Arrange::Budget => Self::Budget,
            Arrange::All => Self::All,
        }
    }
}

/// Options of `dedupfs-gc` that make sense only for a run.
const RUN_OPTIONS: [&str; 6] = ["threshold", "leave", "arrange", "max_time", "max_io", "dry_run"];

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
}
