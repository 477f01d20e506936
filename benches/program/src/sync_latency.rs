//! How long small synced writes take while the index is busy.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::data::Random;
use crate::options::{PoolOptions, Words};
use crate::pool::{self, Bench};
use crate::table::rate;
use crate::{Outcome, command, files, machine, synced};

/// Work of the index beside the synced writes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Busy {
    /// While random data is written
    Write,
    /// While dedupfs-gc frees the recipes of such data, which was written and deleted before
    Free,
}

/// Measures how long small synced writes take while the index is busy.
///
/// It seals a tanker beside them, or counts freed nodes.
#[derive(clap::Args)]
pub struct SyncLatency {
    /// Work beside the synced writes
    #[arg(long = "while", value_enum, default_value_t = Busy::Write)]
    busy: Busy,
    /// Size of the random data, in chunks of 4 KiB: 4G fill a tanker of 2^20 fingerprints (with `free` tankers are a quarter of that)
    #[arg(long, default_value = "5G", value_parser = parse_size)]
    size: u64,
    /// [default: TMPDIR or /var/tmp]
    #[arg(long, default_value_os_t = machine::scratch_parent(), hide_default_value = true)]
    dir: PathBuf,
    /// Memory of the mount; with less than 1G tankers are sealed before they are full
    #[arg(long, default_value = "1G")]
    memory: String,
}

/// Runs the command.
pub fn run(args: &SyncLatency) -> Outcome {
    let cells = if args.busy == Busy::Free { " --tanker-cells 262144" } else { "" };
    let words = |text: String| Words(text.split_whitespace().map(str::to_owned).collect());
    let (mkfs, mount) = (words(format!("--chunk-size 4K{cells}")), words(format!("--memory {}", args.memory)));
    let options = PoolOptions { dir: args.dir.clone(), mkfs, mount };
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, mut pool, .. } = Bench::new(&programs, &[], &options, 0, args.size + (2 << 30))?;
    println!("{}", machine::describe(&work)?);
    pool.format()?;
    pool.mount()?;
    let big = pool.at("big");
    if args.busy == Busy::Free {
        write_big(&big, args.size)?;
        // The index begins with as little in memory as it can.
        pool.remount_cold(false)?;
        files::remove(&big)?;
    }
    let (summary, synced) = synced::beside(&pool.at("synced"), || match args.busy {
        Busy::Write => write_big(&big, args.size),
        Busy::Free => command!(pool::program("dedupfs-gc"), &pool.mnt).text(),
    })?;
    let tankers = pool.stats()?.number("chunk_index.sealed_tankers")?;
    pool.unmount()?;
    println!(
        "{} synced files of some bytes, {tankers} tankers sealed meanwhile: median {:.0} ms, 90% {:.0} ms, 99% {:.0} ms, longest {:.0} ms",
        synced.count(),
        synced.percent(50),
        synced.percent(90),
        synced.percent(99),
        synced.percent(100)
    );
    println!("{}", summary.trim_end().lines().last().unwrap_or_default());
    Ok(())
}

/// Writes random bytes as fast as the processor makes them; returns the rate as a line.
fn write_big(path: &Path, bytes: u64) -> Outcome<String> {
    let started = Instant::now();
    File::create(path).and_then(|file| Random::new("sync").write(bytes, file)).or_else(files::at("write", path))?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(format!("{bytes} bytes copied, {seconds:.4} s, {} MB/s", rate(bytes, seconds)))
}
