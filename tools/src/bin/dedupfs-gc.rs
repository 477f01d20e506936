//! `dedupfs-gc`: gives back the space of deleted data.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use dedupfs_tools::args::Gc;
use dedupfs_tools::commands::gc;
use dedupfs_tools::{exit, panics};

fn main() -> ExitCode {
    panics::install();
    dedupfs::allocator::set_up();
    match Gc::try_parse() {
        Ok(args) => exit::conclude("dedupfs-gc", gc::run(&args)),
        Err(error) => ExitCode::from(exit::usage(&error)),
    }
}
