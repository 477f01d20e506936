//! Measures dedupfs through its mount: one command for each set of figures in `docs/`.
//!
//! ```text
//! cargo run --release -p dedupfs-bench -- targets --size 512M
//! ```
//! `mfdedup` mounts nothing: it simulates the stores of a paper with the chunks of real series.
//!
//! Tables go to standard output as Markdown, progress and single figures to standard error. A command uses the programs in the directory
//! that `DEDUPFS_BIN` names, or builds them. It changes nothing outside of temporary directories; these and its mounts are gone when it
//! ends, also by a failure or a signal.
#![forbid(unsafe_code)]

mod ablation;
mod ablation_data;
mod aging;
mod batch_figures;
mod big_file;
mod check;
mod cleanup;
mod command;
mod data;
mod depth;
mod depth_tables;
mod figures;
mod files;
mod images;
mod layout;
mod machine;
mod mfdedup;
mod million;
mod nbdkit;
mod options;
mod pool;
mod reclaim;
mod replicas;
mod requests;
mod retention;
mod retention_tables;
mod rivals;
mod rivals_tools;
mod rounds;
mod scale;
mod seeking;
mod serial;
mod series;
mod slow_writers;
mod sources;
mod sync_latency;
mod synced;
mod synthetic;
mod table;
mod targets;
mod versions;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The reason why a command ends without all of its figures.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line asks for the impossible.
    #[error("{0}; see --help")]
    Usage(String),
    /// A prerequisite is missing, a program failed, or content is not the same.
    #[error("{0}")]
    Failed(String),
}

/// A result, of nothing unless said otherwise.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Returns a failure with this message.
pub fn fail<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure::Failed(message.into()))
}

/// Returns a failure of a wrong command line.
pub fn usage<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure::Usage(message.into()))
}

/// Says how far the work is, on standard error.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { eprintln!("dedupfs-bench: {}", format_args!($($text)*)) };
}

/// Measures dedupfs through its mount, and prints Markdown tables.
///
/// Uses the programs in the directory DEDUPFS_BIN, or builds them. Progress goes to standard error. Changes nothing outside of temporary
/// directories, which it removes.
#[derive(Parser)]
#[command(name = "dedupfs-bench", version)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[command(rename_all = "snake_case")]
enum Command {
    Targets(targets::Targets),
    Rivals(rivals::Rivals),
    Layout(layout::Layout),
    Aging(aging::Aging),
    Seeking(seeking::Seeking),
    Mfdedup(mfdedup::Mfdedup),
    Retention(retention::Retention),
    Ablation(ablation::Ablation),
    #[command(alias = "batch-figures")]
    BatchFigures(batch_figures::BatchFigures),
    #[command(alias = "big-file")]
    BigFile(big_file::BigFile),
    Images(images::Images),
    #[command(alias = "image-nights")]
    ImageNights(images::ImageNights),
    Disks(images::Disks),
    Staged(images::Staged),
    Rounds(rounds::RoundsArgs),
    Series(series::Series),
    #[command(alias = "slow-writers")]
    Serial(serial::Serial),
    SlowWriters(slow_writers::SlowWriters),
    Scale(scale::Scale),
    Million(million::Million),
    Depth(depth::Depth),
    Reclaim(reclaim::Reclaim),
    Replicas(replicas::Replicas),
    Requests(requests::Requests),
    #[command(alias = "sync-latency")]
    SyncLatency(sync_latency::SyncLatency),
    Versions(versions::Versions),
    #[command(alias = "aged-versions")]
    AgedVersions(versions::AgedVersions),
    Check(check::Check),
}

fn main() -> ExitCode {
    let command = Program::parse().command;
    let outcome = cleanup::on_signals().and_then(|()| {
        // A panic must not leave a mount.
        std::panic::catch_unwind(AssertUnwindSafe(|| match command {
            Command::Targets(args) => targets::run(&args),
            Command::Rivals(args) => rivals::run(&args),
            Command::Layout(args) => layout::run(&args),
            Command::Aging(args) => aging::run(&args),
            Command::Seeking(args) => seeking::run(&args),
            Command::Mfdedup(args) => mfdedup::run(&args),
            Command::Retention(args) => retention::run(&args),
            Command::Ablation(args) => ablation::run(&args),
            Command::BatchFigures(args) => batch_figures::run(&args),
            Command::BigFile(args) => big_file::run(&args),
            Command::Images(args) => images::run(&args),
            Command::ImageNights(args) => images::run_nights(&args),
            Command::Disks(args) => images::run_disks(&args),
            Command::Staged(args) => images::run_staged(&args),
            Command::Rounds(args) => rounds::run(&args),
            Command::Series(args) => series::run(&args),
            Command::Serial(args) => serial::run(&args),
            Command::SlowWriters(args) => slow_writers::run(&args),
            Command::Scale(args) => scale::run(&args),
            Command::Million(args) => million::run(&args),
            Command::Depth(args) => depth::run(&args),
            Command::Reclaim(args) => reclaim::run(&args),
            Command::Replicas(args) => replicas::run(&args),
            Command::Requests(args) => requests::run(&args),
            Command::SyncLatency(args) => sync_latency::run(&args),
            Command::Versions(args) => versions::run(&args),
            Command::AgedVersions(args) => versions::run_aged(&args),
            Command::Check(args) => check::run(&args),
        }))
        .unwrap_or_else(|_| fail("this is a defect of dedupfs-bench"))
    });
    cleanup::end(match outcome {
        Ok(()) => 0,
        Err(failure) => {
            let is_usage = matches!(failure, Failure::Usage(_));
            // A signal makes commands fail, which is no news.
            if cleanup::check().is_ok() {
                say!("{}{failure}", if is_usage { "" } else { "FAILED: " });
            }
            if is_usage { 2 } else { 1 }
        }
    })
}
