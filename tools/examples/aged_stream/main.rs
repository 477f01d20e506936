//! Writes one generation of a synthetic series of backups to standard output: see `stream.rs`.
//!
//! ```text
//! cargo run --release -p dedupfs-tools --example aged_stream -- --generation 2 --size 1G >second
//! ```

mod stream;
mod tape;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use dedupfs_tools::parse_size;

use stream::Pattern;

/// Writes one generation of a synthetic series of backups to standard output. It consists of runs of random length: unique data, data that
/// repeats an earlier part of the generation, and data of the previous generation (dedupv1's tech report, section 4.1). The same options
/// give the same bytes.
#[derive(Parser)]
struct Arguments {
    /// Number of the series
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the generation in the series, from 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    generation: u32,
    /// Bytes of each generation, such as 512M
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Share of bytes that repeat earlier bytes of the same generation
    #[arg(long, default_value_t = Pattern::default().internal)]
    internal: f64,
    /// Share of all redundant bytes, from the second generation on
    #[arg(long, default_value_t = Pattern::default().redundant)]
    redundant: f64,
    /// Print the number of ranges on standard error
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let shares = [arguments.internal, arguments.redundant];
    if shares.iter().any(|share| !(0.0..=1.0).contains(share)) || arguments.internal >= 1.0 {
        eprintln!("aged_stream: shares are numbers from 0 to 1, and not everything can repeat itself");
        return ExitCode::from(2);
    }
    let pattern = Pattern { internal: arguments.internal, redundant: arguments.redundant, ..Pattern::default() };
    let generation = stream::generation(arguments.seed, arguments.generation, arguments.size, &pattern);
    if arguments.verbose {
        eprintln!("aged_stream: {} bytes in {} ranges", generation.len_bytes(), generation.ranges().len());
    }
    let mut out = io::stdout().lock();
    match stream::write(arguments.seed, &generation, &mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aged_stream: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
