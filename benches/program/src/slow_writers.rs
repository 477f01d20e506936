//! Restores of files that many slow processes wrote at the same time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::command::{Run, wait};
use crate::data::Random;
use crate::figures::{Figures, peak_while, timed};
use crate::options::{Caches, PoolOptions, count, list, size_1m};
use crate::pool::{Bench, Pool};
use crate::table::{cell, human};
use crate::{Outcome, command, fail, files, machine, print_row, say, table, usage};

/// Measures how files lie that many slow processes write at the same time, each its own, and the cost of that.
///
/// In each round every writer adds a piece of random bytes to its file. Then the pool is unmounted, and some of the files are restored, each
/// alone from a pool that is mounted anew. Containers are those of which a restore reads the table, against those that the bytes of the file
/// fill. Bytes read are those of data containers. Files are compared with their source.
#[derive(clap::Args)]
pub struct SlowWriters {
    /// Numbers of writers; for each there is a new pool
    #[arg(long, default_value = "1 16 64 256")]
    writers: String,
    /// Size of each file
    #[arg(long, default_value = "16M", value_parser = size_1m)]
    size: u64,
    /// Bytes that a writer adds in a round
    #[arg(long, default_value = "128K", value_parser = dedupfs_tools::parse_size)]
    piece: u64,
    /// Milliseconds between two rounds; above 5000 each writer is idle meanwhile
    #[arg(long, value_name = "MS", default_value = "100")]
    pause: u64,
    /// Files restored at most, spread over all
    #[arg(long, default_value = "16", value_parser = count)]
    restores: u64,
    /// Medians are of so many pools
    #[arg(long, default_value = "1", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// A process that copies its input to a file in the mount.
struct Writer {
    child: Child,
    content: Random,
}

/// Returns the content of a file.
fn content(writer: u64) -> Random {
    Random::new(&format!("slow writer {writer}"))
}

impl Writer {
    fn start(pool: &Pool, number: u64) -> Outcome<Self> {
        let child = command!("cat").stdin(Stdio::piped()).writes(&pool.at(&name(number)))?.start()?;
        Ok(Self { child, content: content(number) })
    }

    fn add(&mut self, bytes: u64) -> Outcome {
        let mut piece = Vec::new();
        let read = self.content.by_ref().take(bytes).read_to_end(&mut piece);
        let Some(input) = self.child.stdin.as_mut() else { return fail("cat has no input") };
        read.and_then(|_| input.write_all(&piece)).or_else(|error| fail(format!("cannot write to cat: {error}")))
    }

    fn end(mut self) -> Outcome {
        drop(self.child.stdin.take());
        wait(self.child, "cat")
    }
}

fn name(number: u64) -> String {
    format!("file-{number}")
}

/// Lets all writers write their files, a piece in each round.
fn write_all(args: &SlowWriters, pool: &Pool, writers: u64) -> Outcome {
    let mut all = (0..writers).map(|number| Writer::start(pool, number)).collect::<Outcome<Vec<_>>>()?;
    let mut written = 0;
    while written < args.size {
        let piece = args.piece.min(args.size - written);
        all.iter_mut().try_for_each(|writer| writer.add(piece))?;
        written += piece;
        std::thread::sleep(Duration::from_millis(args.pause));
    }
    all.into_iter().try_for_each(Writer::end)
}

/// Compares a file with its source, in pieces.
fn read_back(pool: &Pool, number: u64, bytes: u64) -> Outcome {
    let path = pool.at(&name(number));
    let read = || -> io::Result<bool> {
        let (mut file, mut expected) = (File::open(&path)?, content(number));
        let (mut piece, mut wanted, mut left) = (vec![0; 1 << 20], vec![0; 1 << 20], bytes);
        while left > 0 {
            let now = left.min(1 << 20) as usize;
            file.read_exact(&mut piece[..now])?;
            expected.read_exact(&mut wanted[..now])?;
            if piece[..now] != wanted[..now] {
                return Ok(false);
            }
            left -= now as u64;
        }
        Ok(file.read(&mut piece)? == 0)
    };
    if read().or_else(files::at("read", &path))? { Ok(()) } else { fail(format!("{} is not the same", path.display())) }
}

fn measure(args: &SlowWriters, figures: &mut Figures, pool: &mut Pool, writers: u64) -> Outcome {
    let target = writers.to_string();
    pool.format()?;
    pool.mount()?;
    let daemon = &*pool;
    let (seconds, peak) = peak_while(&|| daemon.memory_bytes("VmRSS"), || timed(|| write_all(args, daemon, writers)));
    let (all_bytes, seconds) = (writers * args.size, seconds?);
    figures.note("write", &target, all_bytes as f64 / 1e6 / seconds);
    figures.note("memory", &target, peak);
    figures.note("sync", &target, timed(|| pool.sync())?);
    let stats = pool.stats()?;
    figures.note("syncs", &target, stats.number("data_containers.syncs")? as f64);
    figures.note("unmount", &target, timed(|| pool.unmount())?);
    figures.note("stored", &target, stored_bytes(pool)? / all_bytes as f64);
    let restored = writers.min(args.restores);
    for number in (0..restored).map(|restore| restore * writers / restored) {
        files::cold(&pool.path, args.caches.drop_caches)?;
        pool.mount()?;
        let before = read_so_far(pool)?;
        let path = pool.at(&name(number));
        let copy = || File::open(&path).and_then(|mut file| io::copy(&mut file, &mut io::sink())).map(drop);
        let seconds = timed(|| copy().or_else(files::at("read", &path)))?;
        let after = read_so_far(pool)?;
        let of = |at: usize| (after[at] - before[at]) as f64;
        figures.note("containers", &target, of(0));
        figures.note("regions", &target, of(1));
        figures.note("read", &target, of(2) / args.size as f64);
        figures.note("restore", &target, args.size as f64 / 1e6 / seconds);
        read_back(pool, number, args.size)?;
        pool.unmount()?;
    }
    files::remove(&pool.path)
}

/// Bytes used in data containers of a pool that is not mounted.
fn stored_bytes(pool: &Pool) -> Outcome<f64> {
    Ok(pool.stats()?.number("data_containers.used_bytes")? as f64)
}

/// Returns tables, regions and bytes of data containers that were read since the mount.
fn read_so_far(pool: &Pool) -> Outcome<[u64; 3]> {
    let stats = pool.stats()?;
    let number = |name: &str| stats.number(&format!("data_containers.{name}"));
    Ok([number("table_reads")?, number("region_reads")? + number("prefetched_regions")?, number("read_bytes")?])
}

/// Runs the command.
pub fn run(args: &SlowWriters) -> Outcome {
    let numbers = list(&args.writers, count)?;
    let Some(most) = numbers.iter().max() else { return usage("--writers needs a number") };
    if args.piece == 0 {
        return usage("--piece must be 1 byte or more");
    }
    let disk = most * args.size + most * args.size / 4 + (1 << 30);
    let Bench { work, mut pool, .. } = Bench::new(&["dedupfs", "dedupfs-stats"], &["cat"], &args.pool, 0, disk)?;
    let (machine, mut figures) = (machine::describe(&work)?, Figures::default());
    for run in 1..=args.runs {
        figures.run = run;
        for writers in &numbers {
            say!("run {run}: {writers} writers");
            measure(args, &mut figures, &mut pool, *writers)?;
        }
    }

    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    println!(
        "- files of {} random bytes, in pieces of {}, a pause of {} ms behind each round; {} restored at most, medians of these",
        human(args.size),
        human(args.piece),
        args.pause,
        args.restores
    );
    // The bytes of the file, and its share of frames and tables.
    println!("- containers hold 4 MiB: a file fills {:.1}\n", args.size as f64 / f64::from(4 << 20));
    let columns = [
        "writers",
        "containers of a restore",
        "at most",
        "regions",
        "bytes read for each restored",
        "restore, MB/s",
        "writing, MB/s",
        "memory of the daemon meanwhile, MiB",
        "sync behind it, s",
        "syncs of containers",
        "unmount, s",
        "bytes stored for each written",
    ];
    println!("{}", table::head(&columns));
    for writers in numbers.iter().map(u64::to_string) {
        let median = |name: &str, decimals| cell(figures.median(name, &writers), decimals);
        print_row!(
            writers,
            median("containers", 0),
            cell(figures.most("containers", &writers), 0),
            median("regions", 0),
            median("read", 2),
            median("restore", 0),
            median("write", 0),
            cell(figures.median("memory", &writers).map(|bytes| bytes / 1_048_576.0), 0),
            median("sync", 3),
            median("syncs", 0),
            median("unmount", 2),
            median("stored", 3)
        );
    }
    Ok(())
}
