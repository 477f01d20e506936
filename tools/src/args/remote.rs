//! Command lines of stores on other machines.

use clap::Args;

use crate::exit;

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
