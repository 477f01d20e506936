//! How long small synced writes take while the index is busy.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::data::Random;
use crate::options::{PoolOptions, Words};
use crate::pool::{self, Bench};
use crate::table::rate;
use crate::{Outcome, command, fail, files, machine};

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
    let (mut times_ms, mut summary) = (Vec::new(), String::new());
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| match args.busy {
            Busy::Write => write_big(&big, args.size),
            Busy::Free => command!(pool::program("dedupfs-gc"), &pool.mnt).text(),
        });
        while !beside.is_finished() {
            let started = Instant::now();
            let path = pool.at(&(times_ms.len() + 1).to_string());
            write_synced(&path, times_ms.len() + 1).or_else(files::at("write", &path))?;
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(50));
        }
        summary = beside.join().unwrap_or_else(|_| fail("the work beside panicked"))?;
        Ok(())
    })?;
    let tankers = pool.stats()?.number("chunk_index.sealed_tankers")?;
    pool.unmount()?;
    times_ms.sort_by(f64::total_cmp);
    // The smallest one that this part of all is not above.
    let part = |percent: usize| times_ms[(times_ms.len() * percent / 100).saturating_sub(1)];
    println!(
        "{} synced files of some bytes, {tankers} tankers sealed meanwhile: median {:.0} ms, 90% {:.0} ms, 99% {:.0} ms, longest {:.0} ms",
        times_ms.len(),
        times_ms[times_ms.len().div_ceil(2) - 1],
        part(90),
        part(99),
        part(100)
    );
    println!("{}", summary.trim_end().lines().last().unwrap_or_default());
    Ok(())
}

fn write_synced(path: &Path, number: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    write!(file, "synced {number}")?;
    file.sync_all()
}

/// Writes random bytes as fast as the processor makes them; returns the rate as a line.
fn write_big(path: &Path, bytes: u64) -> Outcome<String> {
    let started = Instant::now();
    File::create(path).and_then(|file| Random::new("sync").write(bytes, file)).or_else(files::at("write", path))?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(format!("{bytes} bytes copied, {seconds:.4} s, {} MB/s", rate(bytes, seconds)))
}
