//! The whole engine in a world that one seed decides: threads, time, disks, clients and accidents.
//!
//!     cargo run --release --manifest-path tests/world/Cargo.toml -- --seed 7      # one seed, told as a story
//!     cargo run --release --manifest-path tests/world/Cargo.toml -- --from 0 --count 1000

mod client;
mod dice;
mod disk;
mod hashes;
mod judge;
#[path = "../../crash/client.rs"]
#[expect(dead_code, reason = "shared with the tests of power losses")]
mod operations;
mod plan;
mod seed;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

/// Runs dedupfs in worlds that seeds decide.
#[derive(Parser)]
struct Arguments {
    /// Tell the story of this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// First of several seeds.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Run each seed twice; all that happened must be equal.
    #[arg(long)]
    twice: bool,
}

/// Runs a seed on a thread of its own, so that nothing of earlier seeds is left.
fn run(seed: u64, with_story: bool) -> Result<seed::Outcome, String> {
    let run = move || {
        hashes::decide(seed);
        seed::run(seed, with_story)
    };
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(run).expect("starts a thread");
    thread.join().unwrap_or_else(|_| Err(format!("seed {seed}: the world itself panicked")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return match run(seed, true) {
            Ok(outcome) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let begun = Instant::now();
    let (mut failures, mut lives, mut crashes) = (0, 0, 0);
    for seed in arguments.from..arguments.from + arguments.count {
        let outcome = run(seed, false);
        let again = arguments.twice.then(|| run(seed, false));
        match outcome {
            Ok(first) if again.as_ref().is_some_and(|again| again.as_ref() != Ok(&first)) => {
                failures += 1;
                println!("seed {seed}: happens otherwise the second time: {first:?}, then {again:?}");
            }
            Ok(outcome) => {
                lives += outcome.lives;
                crashes += outcome.crashes;
            }
            Err(error) => {
                failures += 1;
                println!("{error}");
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} seeds, {lives} lives, {crashes} crashes, {failures} failures in {seconds:.1} s: {:.1} seeds each second",
        arguments.count,
        arguments.count as f64 / seconds
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
