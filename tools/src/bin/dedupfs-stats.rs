//! `dedupfs-stats`: shows the content and the savings of a pool.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use dedupfs_tools::args::Stats;
use dedupfs_tools::commands::stats;
use dedupfs_tools::{exit, panics};

fn main() -> ExitCode {
    panics::install();
    dedupfs::allocator::set_up();
    match Stats::try_parse() {
        Ok(args) => exit::conclude("dedupfs-stats", stats::run(&args)),
        Err(error) => ExitCode::from(exit::usage(&error)),
    }
}
