//! Command lines for versions: making, listing and removing them.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use dedupfs::Scope;
use dedupfs::retention::{Count, Percent, RelativeTo, Rules, Span};

use crate::exit;

/// Makes a version of a directory in a mount: `dedupfs snapshot MNT/web1/current MNT/web1/2026-11-23`.
///
/// A version is a frozen copy of names, attributes and content. It never changes, can be read as any directory, and shares everything with
/// the directory of which it is made: no content is read or written, and a further version of an unchanged directory takes no space.
/// Content counts as it was written when the command began. Nothing may change in a version, also for root; `dedupfs forget` removes it as
/// a whole. NAME appears when the version is complete, and is durable when this returns. Prints the fingerprint of the version: equal trees
/// have equal ones. For root and the user who mounted the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SnapshotArgs {
    /// Directory in a mount. It may not hold versions
    #[arg(value_name = "MNT/DIR")]
    pub(crate) source: PathBuf,
    /// New name in the same mount; must not exist
    #[arg(value_name = "MNT/NAME")]
    pub(crate) destination: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes a version of a live directory, in its place: `dedupfs freeze MNT/web1/2026-11-23`.
///
/// The directory keeps its name and everything in it, and never changes from then on. No content is read or written. What was written until
/// then is in the version; if anything changes meanwhile, it tries again, and refuses at last. A directory in which a file is open
/// for writing is refused, and so are one that holds versions, one with files that chattr(1) protects, and the root of the mount. For
/// existing backups: `dedupfs freeze --all MNT/web1` takes each live directory in MNT/web1, the oldest first. It can be interrupted and
/// started again. For root and the user who mounted the pool, with the right to write to the directories.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_FREEZING)]
pub(crate) struct FreezeArgs {
    /// Live directories in a mount
    #[arg(value_name = "MNT/DIR", required = true)]
    pub(crate) directories: Vec<PathBuf>,
    /// Freeze the live directories in each MNT/DIR instead
    #[arg(long)]
    pub(crate) all: bool,
    /// The time that counts as that of the backup: a date in its `name` such as 2026-11-23 or 20261123T0230, in local time; its `mtime`; or
    /// `now` [default: now; with --all the name]
    #[arg(long, value_name = "name|mtime|now")]
    pub(crate) time: Option<TimeOf>,
    /// Only show what would be frozen, and the times
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The time that counts as that of a backup.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimeOf {
    /// A date in the name.
    Name,
    /// Last change of the directory.
    Mtime,
    /// The present.
    Now,
}

/// Makes a live tree of a version, or of a directory in one: `dedupfs thaw MNT/web1/2026-11-23 MNT/web1/work`.
///
/// The live tree can be changed. It shares all content with the version, so no content is read or written. NAME appears when the tree is
/// complete, and is durable when this returns. For root and the user who mounted the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct ThawArgs {
    /// Version, or a directory in one
    #[arg(value_name = "MNT/VERSION")]
    pub(crate) source: PathBuf,
    /// New name in the same mount; must not exist
    #[arg(value_name = "MNT/NAME")]
    pub(crate) destination: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Removes versions, each as a whole: `dedupfs forget MNT/web1/2026-11-01`.
///
/// The name goes at once, also if the version has millions of files. `dedupfs-gc` gives the space back. Files of the version that are open
/// can be read until they are closed. rmdir(1) and `rm -r` do not remove a version. A live directory is refused: `rm -r` removes it. With
/// several versions it goes on after an error. For root and the user who mounted the pool, with the right to write to the directory.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_FORGETTING)]
pub(crate) struct ForgetArgs {
    /// Versions to remove
    #[arg(value_name = "MNT/NAME", required = true)]
    pub(crate) versions: Vec<PathBuf>,
    /// Remove nothing; show the bytes that the removal would free
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the versions of a pool, or of one directory, in the order of their completion.
///
/// Shows name, time of completion (local time), the host and directory of which it was made, files, their size, bytes that were new with
/// it, and the beginning of its fingerprint. Works without a mount, too: give the pool. For root and the user who mounted the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct ListArgs {
    /// Mountpoint or pool, for all versions; or a directory in a mount, for those directly in it; without it, the only mount. Or a replica:
    /// `s3://BUCKET/PREFIX?endpoint=URL`, `file:///DIRECTORY`
    #[arg(value_name = "POOL|MNT|MNT/DIR|STORE")]
    pub(crate) target: Option<PathBuf>,
    /// Also count the bytes that only this version holds: what its removal alone would free, before compression. Exact. Takes time for what
    /// is unique in each version, and reads no content
    #[arg(long)]
    pub(crate) sizes: bool,
    /// How a replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: super::remote::ViewArgs,
    /// Print the result as JSON, with whole fingerprints and sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tells the differences of two versions, or of directories in them: `dedupfs diff MNT/web1/2026-11-22 MNT/web1/2026-11-23`.
///
/// Takes the time of the difference, and reads no content. A line for each name that differs: `+` added, `-` removed, both with everything
/// below; `M` other content; `T` of another kind, such as a directory in place of a file; `U` only attributes, with --attributes. A file
/// that was moved is removed and added. The exit code does not tell whether there are differences. For root and the user who mounted the
/// pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct DiffArgs {
    /// Version, or a directory in one. Also of a replica: `s3://BUCKET/PREFIX/NAME?endpoint=URL`, `file:///DIRECTORY/NAME`
    #[arg(value_name = "MNT/BEFORE|STORE/BEFORE")]
    pub(crate) before: PathBuf,
    /// The same of a later one
    #[arg(value_name = "MNT/AFTER|STORE/AFTER")]
    pub(crate) after: PathBuf,
    /// List names of which only attributes differ, too: mode, owner, flags, extended attributes and access lists, hard links, or the time of
    /// change of anything but a directory
    #[arg(long)]
    pub(crate) attributes: bool,
    /// How a replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: super::remote::ViewArgs,
    /// Print JSON: lines of changes, and a line with their sums
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tells in which versions of a directory a path has which content: `dedupfs history MNT/web1 etc/passwd`.
///
/// Versions one behind the other that have the same there share a line. Reads no content. Symbolic links are not followed. For root and the
/// user who mounted the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct HistoryArgs {
    /// Directory that holds versions. Also of a replica: `s3://BUCKET/PREFIX/DIR?endpoint=URL`, `file:///DIRECTORY/DIR`
    #[arg(value_name = "MNT/DIR|STORE/DIR")]
    pub(crate) directory: PathBuf,
    /// Path within each version; `.` for all of it
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// How a replica is read
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub(crate) view: super::remote::ViewArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rules that say which versions stay. A version stays if any rule keeps it.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RuleArgs {
    /// Keep the last versions, a number or `all`
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_last: Option<Count>,
    /// Keep the newest version of each of the last hours that have versions
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_hourly: Option<Count>,
    /// Keep the newest version of each of the last days that have versions
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_daily: Option<Count>,
    /// Keep the newest version of each of the last weeks that have versions
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_weekly: Option<Count>,
    /// Keep the newest version of each of the last months that have versions
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_monthly: Option<Count>,
    /// Keep the newest version of each of the last years that have versions
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) keep_yearly: Option<Count>,
    /// Keep all versions of a span such as 30d or 1y6m, counted back as --relative-to says
    #[arg(long, value_name = "SPAN")]
    pub(crate) keep_within: Option<Span>,
    /// After the other rules: remove the oldest of the kept versions, one after the other, and reclaim after each, until at most this
    /// share of the disk under the data root is used, as df(1) counts. Alone it keeps all versions for which there is space
    #[arg(long, value_name = "PERCENT")]
    pub(crate) free_until: Option<Percent>,
    /// Moment from which --keep-within counts back: `newest` version, so that without new backups nothing grows old, or `now`
    /// [default: newest]
    #[arg(long, value_name = "newest|now")]
    pub(crate) relative_to: Option<RelativeTo>,
    /// Permit rules that keep nothing. The last good version stays all the same
    #[arg(long)]
    pub(crate) keep_none: bool,
}

impl RuleArgs {
    /// Returns the rules; `None` if no option was given.
    pub(crate) fn rules(&self) -> Option<Rules> {
        let Self { keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly, .. } = *self;
        let Self { keep_within, free_until, relative_to, keep_none, .. } = *self;
        let rules = Rules {
            keep_last,
            keep_hourly,
            keep_daily,
            keep_weekly,
            keep_monthly,
            keep_yearly,
            keep_within,
            free_until,
            relative_to: relative_to.unwrap_or_default(),
            keep_none,
        };
        (*self != Self::default()).then_some(rules)
    }
}

/// Removes the versions of a directory that no rule keeps: `dedupfs prune MNT/web1 --keep-last 3 --keep-daily 7`.
///
/// The rules are those of restic. Without rules on the command line those of the series are used (`dedupfs series set`). Prints for each
/// version whether it stays, and why. The last good version always stays, and so do locked ones. `dedupfs-gc` gives the space back. Days
/// and other periods are those of the local time zone. For root and the user who mounted the pool.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_FORGETTING)]
pub(crate) struct PruneArgs {
    /// Directory that holds the versions
    #[arg(value_name = "MNT/DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Only show the decisions, and what they would free
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Sets, shows and removes the rules by which the versions of a directory are kept.
///
/// A directory with rules is a series. `dedupfs prune` uses them if it is given none. For root and the user who mounted the pool.
#[derive(Args, Debug)]
#[command(disable_help_subcommand = true, after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SeriesArgs {
    #[command(subcommand)]
    pub(crate) command: SeriesCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SeriesCommand {
    Set(SeriesSetArgs),
    Show(SeriesShowArgs),
    Unset(SeriesUnsetArgs),
}

impl SeriesCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Set(args) => args.json,
            Self::Show(args) => args.json,
            Self::Unset(args) => args.json,
        }
    }
}

/// Gives a directory rules in place of those that it has: `dedupfs series set MNT/web1 --keep-daily 7 --keep-weekly 4`.
///
/// Lets a pool of a release without versions have some; that release refuses the pool from then on.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SeriesSetArgs {
    /// Directory that holds, or is to hold, versions
    #[arg(value_name = "MNT/DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Compare the content of new versions with all of the pool, or with the former version alone [pool]. `neighbour` asks the
    /// index on the disk for chunks of the former version only; content that skipped a version is stored again, until dedupfs-gc takes the first copy away
    #[arg(long, value_name = "pool|neighbour")]
    pub(crate) scope: Option<ScopeArg>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The values of `--scope`.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub(crate) enum ScopeArg {
    #[default]
    Pool,
    Neighbour,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Pool => Self::Pool,
            ScopeArg::Neighbour => Self::Neighbour,
        }
    }
}

/// Shows the rules of a directory, as options of `dedupfs prune`.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SeriesShowArgs {
    /// Directory that holds versions. Also of a replica: `s3://BUCKET/PREFIX/DIR?endpoint=URL`, `file:///DIRECTORY/DIR`
    #[arg(value_name = "MNT/DIR|STORE/DIR")]
    pub(crate) directory: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Takes the rules of a directory away. Its versions stay.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_WITHOUT_MOUNT)]
pub(crate) struct SeriesUnsetArgs {
    /// Directory that holds versions. Also of a replica: `s3://BUCKET/PREFIX/DIR?endpoint=URL`, `file:///DIRECTORY/DIR`
    #[arg(value_name = "MNT/DIR|STORE/DIR")]
    pub(crate) directory: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, Dedupfs};

    fn rules(options: &str) -> Result<Option<Rules>, clap::Error> {
        let line = format!("dedupfs prune /m/web1 {options}");
        Dedupfs::try_parse_from(line.split_whitespace()).map(|parsed| match parsed.command {
            Command::Prune(args) => args.rules.rules(),
            _ => None,
        })
    }

    #[test]
    fn rules_are_read_as_they_are_shown() {
        for options in [
            "--keep-last 3 --keep-hourly 24 --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --keep-yearly all",
            "--keep-within 1y5m7d2h --relative-to now",
            "--free-until 80%",
            "--keep-none",
        ] {
            let read = rules(options);
            assert!(read.as_ref().is_ok_and(|read| read.is_some_and(|read| read.to_string() == options)), "{read:?}");
        }
        assert!(rules("").is_ok_and(|read| read.is_none()));
        assert!(rules("--keep-last -1").is_ok_and(|read| read.is_some_and(|read| read.keep_last == Some(Count::ALL))));
    }

    #[test]
    fn senseless_rules_say_how_to_write_them() {
        for (options, advice) in [
            ("--keep-last many", "write a number such as 7, or all"),
            ("--keep-within 3", "such as 30d or 1y5m7d2h"),
            ("--free-until 0", "such as 80%"),
            ("--relative-to tomorrow", "write newest or now"),
        ] {
            let said = rules(options).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(advice), "{options}: {said}");
        }
    }
}
