//! The command line of `dedupfs batch`.

use std::path::PathBuf;

use clap::Args;

use crate::exit;

/// Backs up the disks of a plan, one version of each: `dedupfs batch /etc/dedupfs/nightly.toml`.
///
/// Each disk is brought to a point in time, read as `dedupfs put --changed` does, and let go. A disk that fails is tried again, as
/// often as the plan says, and does not stop the others. The state is in the pool alone: the newest version of a disk tells from which checkpoint its changes count.
/// The guide has the form of a plan.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_DISKS)]
pub(crate) struct BatchArgs {
    /// The plan, a TOML file
    pub(crate) plan: PathBuf,
    /// Only the disks whose names have this pattern, such as `web-*/vda`
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Vec<String>,
    /// Begin nothing: show the base of each disk, and its estimated times
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Begin nothing: show how long the night takes and snapshots live, for each order, and for rounds as of `dedupfs cluster`
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) simulate: bool,
    /// Begin also outside of the window of the plan
    #[arg(long)]
    pub(crate) now: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
