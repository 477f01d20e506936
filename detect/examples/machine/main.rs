//! One machine of a round, with disks and a pool that are made up from a seed. Machine 0 compares all that lands with an oracle.
//!
//! `machine --machines 127.0.0.1:7001,127.0.0.1:7002 --me 0`, and another one with `--me 1`.

mod role;
mod synthetic;

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    if role::play(&role::Options::parse()) { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
