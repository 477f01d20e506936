//! The command line of `dedupfs cluster`.

use std::path::PathBuf;

use clap::Args;

use crate::exit;

/// Puts disks of several machines into one pool, each duplicate found across all of them: run it at each machine, with the same plan.
///
/// Machines read changed segments, cut them, and ask for the chunks in the order of the pool's index, in at most 35 MB of memory with up to four machines. Only chunks that
/// are new travel to the first machine, which has the pool. Disks must stand still: snapshots. A round is committed once, when each of its
/// disks was put or has a problem; started again, the command goes on with the first round that is not committed. Traffic is not encrypted: use a private network. The guide has
/// the form of a plan.
#[derive(Args, Debug)]
#[command(after_help = exit::HELP_OF_DISKS)]
pub(crate) struct ClusterArgs {
    /// The plan, a TOML file
    pub(crate) plan: PathBuf,
    /// The name of this machine in the plan
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: String,
    /// Seconds for all machines to come
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) join_within: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
