//! The whole engine in a world that one seed decides: threads, time, disks, clients and troubles.
//!
//!     cargo run --release --manifest-path tests/world/Cargo.toml -- --seed 7      # one seed, told as a story
//!     cargo run --release --manifest-path tests/world/Cargo.toml -- --from 0 --count 1000
//!     cargo run --release --manifest-path tests/world/Cargo.toml -- --shrink 7    # from a seed that fails to a small plan
//!
//! A seed makes a [`plan`]. [`seed`] runs it: life after life, each a [`day`], then the [`last_day`]. In a life several
//! [`client`]s work on a [`pool`] that lies on [`disk`]s, and tell the [`judge`]. [`history`] outlives the lives.
//! `docs/safety.md` says what the world covers, `CONTRIBUTING.md` how to add to it.

mod attempt;
mod canaries;
mod client;
mod content;
mod day;
mod dice;
mod disk;
mod errors;
mod fault;
mod form;
mod frozen;
mod hashes;
mod history;
mod judge;
mod kept;
mod last_day;
mod name;
#[path = "../../crash/client.rs"]
#[expect(dead_code, reason = "shared with the tests of power losses")]
mod operations;
mod plan;
mod pool;
mod seed;
mod shrink;
mod source;
mod tools;
mod tree;
mod versions;

use std::ops::Range;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use clap::Parser;
use dedupfs_sync::canary::Canary;
use dedupfs_sync::world;

use crate::kept::Kept;
use crate::name::Named;
use crate::plan::Plan;

/// Runs dedupfs in worlds that seeds decide.
#[derive(Parser)]
struct Arguments {
    /// Tell the story of this seed.
    #[arg(long, group = "mode")]
    seed: Option<u64>,
    /// Tell the story of the plan in this file, which --shrink wrote. Its canary is planted with --canary only.
    #[arg(long, group = "mode", value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Find a small plan that fails as this seed does.
    #[arg(long, group = "mode", value_name = "SEED")]
    shrink: Option<u64>,
    /// Smaller plans that are tried at most.
    #[arg(long, requires = "shrink", default_value_t = 500)]
    tries: u64,
    /// Go on with smaller plans that fail under several seeds, not under a lucky one: such a plan outlives changes of the engine.
    #[arg(long, requires = "shrink")]
    firm: bool,
    /// Keep the small plan as tests/world/kept/NAME.json.
    #[arg(long, requires = "shrink", value_name = "NAME")]
    keep: Option<String>,
    /// Run all kept plans: each must notice its canary, and pass without.
    #[arg(long, group = "mode", conflicts_with = "canary")]
    kept: bool,
    /// First of several seeds.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Run as many seeds as this time allows, instead of a number.
    #[arg(long)]
    seconds: Option<u64>,
    /// Processes that run seeds side by side; up to 100 seeds run in this one alone.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Run each seed twice; all that happened must be equal.
    #[arg(long)]
    twice: bool,
    /// Make this mistake in every world.
    #[arg(long, value_parser = Canary::by_name)]
    canary: Option<Canary>,
    /// Search for each mistake in turn, and print after how many seeds it is found.
    #[arg(long, group = "mode")]
    canaries: bool,
    /// Stop at the first seed that fails, and print how many were tried.
    #[arg(long, hide = true)]
    until_found: bool,
    /// Print the counts as numbers alone, for the process that started this one.
    #[arg(long, hide = true)]
    counts: bool,
    /// Run the plan of the standard input, for the process that started this one.
    #[arg(long, hide = true, group = "mode")]
    attempt: bool,
    /// Longest time of a world, in seconds, for the process that started this one.
    #[arg(long, hide = true, default_value_t = PATIENCE_SECS)]
    patience: u64,
}

/// Seeds that one process runs: what a killed life leaks goes with the process.
const BATCH: u64 = 100;
/// Beginning of the line with the counts of a batch.
const COUNTS: &str = "counts ";
/// Longest time of a world, in seconds: most take some milliseconds.
const PATIENCE_SECS: u64 = 120;

/// Runs a plan on a thread of its own, so that nothing of earlier ones is left.
fn run(plan: Plan, with_story: bool, arguments: &Arguments) -> Result<seed::Outcome, String> {
    let (canary, seed) = (arguments.canary, plan.seed);
    let run = move || {
        world::plant(canary);
        hashes::decide(seed);
        seed::run(plan, with_story)
    };
    let (ended, end) = mpsc::channel();
    let run = move || {
        // If nobody waits any more, the process ends.
        let _gone = ended.send(run());
    };
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(run).expect("starts a thread");
    match end.recv_timeout(Duration::from_secs(arguments.patience)) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            println!("seed {seed}: does not end");
            std::process::exit(3);
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("the world itself panicked".to_owned()),
        Ok(outcome) => {
            // Values of the thread are dropped by then.
            let _ended = thread.join();
            outcome
        }
    }
}

/// What became of several seeds.
#[derive(Default)]
struct Sum([u64; 8]);

const NAMES: [&str; 8] =
    ["seeds", "failures", "lives", "crashes", "requests", "refused", "device operations", "recoveries"];

impl Sum {
    fn add(&mut self, counts: [u64; 8]) {
        self.0.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    fn run(&mut self, seed: u64, arguments: &Arguments) {
        let outcome = run(Plan::new(seed), false, arguments);
        let again = arguments.twice.then(|| run(Plan::new(seed), false, arguments));
        let is_other = again.is_some_and(|again| again != outcome);
        if is_other {
            println!("seed {seed}: happens otherwise the second time");
        }
        if let Err(error) = &outcome {
            println!("seed {seed}: {error}");
        }
        let fails = u64::from(is_other || outcome.is_err());
        let of = outcome.unwrap_or_default();
        self.add([1, fails, of.lives, of.crashes, of.requests, of.refused, of.device_operations, of.recoveries]);
    }

    /// Has other processes run batches of seeds, until `is_enough`.
    fn run_batches(&mut self, arguments: &Arguments, is_enough: impl Fn(u64) -> bool + Sync) {
        let (next, sum) = (AtomicU64::new(0), Mutex::new(self));
        std::thread::scope(|scope| {
            for _ in 0..arguments.jobs {
                scope.spawn(|| {
                    loop {
                        let done = next.fetch_add(BATCH, Ordering::Relaxed);
                        if is_enough(done) {
                            return;
                        }
                        let count = if arguments.seconds.is_some() { BATCH } else { BATCH.min(arguments.count - done) };
                        let mut seeds = arguments.from + done..arguments.from + done + count;
                        while !seeds.is_empty() {
                            let counts = batch(arguments, &seeds);
                            // One that ends its process counts, too; the rest gets a process of its own.
                            seeds.start += counts[0];
                            sum.lock().unwrap_or_else(PoisonError::into_inner).add(counts);
                        }
                    }
                });
            }
        });
    }
}

/// Has another process run these seeds, and prints the failures that it tells. A seed that ends the process is the last, and has
/// failed.
fn batch(arguments: &Arguments, seeds: &Range<u64>) -> [u64; 8] {
    let mut command = attempt::this_program(arguments.canary);
    let (from, count) = (seeds.start, seeds.end - seeds.start);
    command.args(["--counts", "--from", &from.to_string(), "--count", &count.to_string()]);
    if arguments.twice {
        command.arg("--twice");
    }
    let output = command.stderr(Stdio::null()).output().expect("starts a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_counts = |line: &&str| line.starts_with(COUNTS);
    text.lines().filter(|line| !is_counts(line)).for_each(|line| println!("{line}"));
    let counts = text.lines().rfind(is_counts).map(|line| line.split(' ').filter_map(|count| count.parse().ok()));
    let counts = counts.and_then(|counts| <[u64; 8]>::try_from(counts.collect::<Vec<_>>()).ok());
    let mut counts = counts.unwrap_or_default();
    if counts[0] < count {
        println!("seed {}: the process ended with {}", from + counts[0], output.status);
        counts[0] += 1;
        counts[1] += 1;
    }
    counts
}

/// Tells the story of a plan.
fn tell(plan: Plan, arguments: &Arguments) -> Result<(), String> {
    run(plan, true, arguments).map(|outcome| println!("{outcome:?}"))
}

/// Prints the error, if there is one. Returns the exit code.
fn told(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The engine's own log is part of a story.
    errors::keep(arguments.seed.is_some() || arguments.plan.is_some());
    if arguments.canaries {
        return canaries::table(arguments.canary, arguments.from, arguments.count, arguments.jobs);
    }
    if let Some(seed) = arguments.seed {
        return told(tell(Plan::new(seed), &arguments));
    }
    if let Some(path) = &arguments.plan {
        return told(Kept::read(path).and_then(|kept| tell(kept.plan, &arguments)));
    }
    if let Some(seed) = arguments.shrink {
        let how = shrink::How {
            canary: arguments.canary,
            tries_max: arguments.tries,
            is_firm: arguments.firm,
            keep: arguments.keep.as_deref(),
        };
        return told(shrink::shrink(seed, &how));
    }
    if arguments.kept {
        return told(kept::run_all());
    }
    if arguments.attempt {
        return told(run(attempt::given(), false, &arguments).map(drop));
    }
    if arguments.until_found {
        let seeds = arguments.from..arguments.from + arguments.count;
        let is_found = |seed: &u64| {
            println!("seed");
            // A world that fails without the canary has found something else.
            run(Plan::new(*seed), false, &arguments).is_err()
                && (arguments.canary.is_none()
                    || attempt::attempt(&Plan::new(*seed), None, attempt::ATTEMPT_SECS).is_ok())
        };
        let found = seeds.clone().find(is_found);
        println!("tried {}", found.map_or(arguments.count, |seed| seed - arguments.from + 1));
        return if found.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let begun = Instant::now();
    let mut sum = Sum::default();
    match arguments.seconds {
        Some(seconds) => sum.run_batches(&arguments, |_| begun.elapsed().as_secs() >= seconds),
        None if arguments.counts || arguments.count <= BATCH => {
            for seed in arguments.from..arguments.from + arguments.count {
                sum.run(seed, &arguments);
                if arguments.counts {
                    // After each seed: the next one may end the process.
                    println!("{COUNTS}{}", sum.0.map(|count| count.to_string()).join(" "));
                }
            }
        }
        None => sum.run_batches(&arguments, |done| done >= arguments.count),
    }
    if arguments.counts {
        return ExitCode::SUCCESS;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let counts = NAMES.iter().zip(sum.0).map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ");
    println!("{counts} in {seconds:.1} s, from seed {}", arguments.from);
    println!(
        "each second: {:.1} seeds, {:.0} requests, {:.0} device operations, {:.1} crashes",
        sum.0[0] as f64 / seconds,
        sum.0[4] as f64 / seconds,
        sum.0[6] as f64 / seconds,
        sum.0[3] as f64 / seconds
    );
    if sum.0[1] == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
