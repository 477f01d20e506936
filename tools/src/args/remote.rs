//! Command lines of stores on other machines.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{duration, exit, size};

/// Finds out whether a store can hold copies of pools.
///
/// Stores of one protocol differ where it matters: some let two writers create one object. Writes some hundred objects below a new
/// prefix, the longest of 8 MiB, and removes them again; of a directory, empty directories stay.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_STORES)]
pub(crate) struct StoreCheckArgs {
    /// `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`, with credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), or a
    /// directory
    #[arg(value_name = "STORE")]
    pub(crate) store: String,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The key of an encrypted replica.
#[derive(Args, Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KeyOptions {
    /// Key file of the replica, if it is encrypted
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// File with the passphrase of the key file, in its first line [default: DEDUPFS_PASSPHRASE in the environment, else asked for]
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

/// How a replica is read where its pool is not.
#[derive(Args, Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ViewArgs {
    /// The key
    #[command(flatten)]
    pub(crate) key: KeyOptions,
    /// With a replica: directory on a disk of this machine that keeps its names, and content that was read. What is read is not encrypted there
    /// [default: /var/cache/dedupfs for root, else ~/.cache/dedupfs]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// With a replica: content that is kept there. Names, indexes and tables of contents, about one or two percent of the pool, come on top [default: 20G for mounts, else none]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_size)]
    pub(crate) cache_size: Option<u64>,
}

/// Copies a pool to a store on another machine, encrypted, and each byte once: `dedupfs replicate /mnt/backup
/// s3://bucket/pool --key pool.key`.
///
/// Each run makes a commit, a state of the whole pool. Backups go on meanwhile, and nothing waits for the store. `--init` makes the replica,
/// and the key file if there is none: a lost key file, or a lost passphrase, is a lost replica. Keep a copy of the key file on another machine. Objects that later commits
/// do not need are removed by `dedupfs replica gc` alone, so this command needs no right to remove. `dedupfs recover --from` makes the pool anew.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct ReplicateArgs {
    /// Pool, or where it is mounted
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&class=NAME`, with credentials in the environment (AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY), or a directory
    #[arg(value_name = "STORE")]
    pub(crate) store: String,
    /// Make the replica first, in a store that has none, if the store does for it
    #[arg(long)]
    pub(crate) init: bool,
    /// With --init: do not encrypt. For a store of one's own
    #[arg(long, requires = "init", conflicts_with = "key")]
    pub(crate) plain: bool,
    /// The key
    #[command(flatten)]
    pub(crate) key: KeyOptions,
    /// Go on for ever, a run each time: 15m, 1h, 1d. Without it, one run is made
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,
    /// One run. This is the default
    #[arg(long, conflicts_with = "every")]
    pub(crate) once: bool,
    /// Requests at the same time, 1 to 64. Each takes three times the size of a container in memory
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) connections: u64,
    /// Continue a replica that another state of the pool made: behind a recovery, or on a new machine. That one cannot replicate any more then
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Ask the store for each object of the replica, and upload lost ones again
    #[arg(long)]
    pub(crate) complete: bool,
    /// Print the results as JSON, a line each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Looks after replicas.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct ReplicaArgs {
    /// The task
    #[command(subcommand)]
    pub(crate) command: ReplicaCommand,
}

/// The tasks of a replica.
#[derive(Subcommand, Debug)]
pub(crate) enum ReplicaCommand {
    Status(StatusArgs),
    Verify(VerifyArgs),
    Gc(ReplicaGcArgs),
}

/// Tells how far the replicas of a pool are, without asking the stores.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct StatusArgs {
    /// Pool, or where it is mounted
    #[arg(value_name = "POOL|MNT")]
    pub(crate) target: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a replica back and compares each object with its name. Needs neither the pool nor its machine.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct VerifyArgs {
    /// The store, as for `dedupfs replicate`
    #[arg(value_name = "STORE")]
    pub(crate) store: String,
    /// The key
    #[command(flatten)]
    pub(crate) key: KeyOptions,
    /// Read one container in so many, from a random one on, and all commits since the last base
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) each: u64,
    /// Remove damaged objects, so that `dedupfs replicate --complete` uploads them again
    #[arg(long)]
    pub(crate) remove_damaged: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Removes objects that the newest state of a replica has not needed for some time: content of removed backups, earlier commits, and leftovers
/// of runs that were cut off. Run it with credentials that may remove objects; `dedupfs replicate` does without.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct ReplicaGcArgs {
    /// The store, as for `dedupfs replicate`
    #[arg(value_name = "STORE")]
    pub(crate) store: String,
    /// The key
    #[command(flatten)]
    pub(crate) key: KeyOptions,
    /// Keep objects for so long after they were last needed
    #[arg(long, value_name = "TIME", default_value = "3d", value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// Remove nothing: tell the numbers
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes key files of encrypted replicas, and changes their passphrases.
///
/// A key file has the secret of a replica, wrapped by one or more passphrases. Changing them does not touch the replica. Copies of the file that were
/// made before are opened by the former passphrases.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_REPLICAS)]
pub(crate) struct KeyArgs {
    /// The task
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

/// The tasks of a key file.
#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make a new secret in a new key file
    New(KeyFileArgs),
    /// List the wrappings
    List(KeyFileArgs),
    /// Add a wrapping, by another passphrase
    Add(NamedKeyArgs),
    /// Remove a wrapping
    Remove(NamedKeyArgs),
    /// Replace the passphrase that opens the file by another one
    Rotate(KeyFileArgs),
}

/// A key file and passphrases.
#[derive(Args, Debug)]
pub(crate) struct KeyFileArgs {
    /// The key file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// File with the present passphrase, in its first line [default: DEDUPFS_PASSPHRASE in the environment, else asked for]
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// File with the new passphrase, in its first line [default: asked for]
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
}

/// A wrapping of a key file.
#[derive(Args, Debug)]
pub(crate) struct NamedKeyArgs {
    /// The key file
    #[command(flatten)]
    pub(crate) of: KeyFileArgs,
    /// Name of the wrapping
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}
