//! Writers beside each other, and work that only one of them can do at a time.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use dedupfs_tools::parse_size;
use serde_json::Value;

use crate::data::{Random, fill_thin};
use crate::figures::{Figures, timed};
use crate::options::{PoolOptions, count, list, size_1m};
use crate::pool::{Bench, Pool};
use crate::seeking::disk::{self, Disk};
use crate::table::cell;
use crate::{Outcome, fail, files, machine, print_row, say, synced, table};

/// Content of one kind that stays together.
const BLOCK_BYTES: u64 = 64 << 10;

/// Measures writers beside each other and beside synced writes, with an index on a disk that seeks (root).
///
/// The meta root lies on an emulated disk, the content on the filesystem of --dir, and caches are cold. Half of what is written is known to the pool, in an
/// order that it has not seen: looking it up reads. Small files are synced beside it. Then the work of each component for new data is
/// measured with the meta root on the filesystem of --dir, and from it the rate that other numbers of cores would have at most. Needs nbdkit
/// with the headers for plugins, nbdfuse and a C compiler.
#[derive(clap::Args)]
pub struct Serial {
    /// Content of the pool
    #[arg(long, default_value = "8G", value_parser = parse_size)]
    unique: u64,
    /// Numbers of writers
    #[arg(long, default_value = "1 2 4 8")]
    writers: String,
    /// Bytes that they write together
    #[arg(long, default_value = "64M", value_parser = size_1m)]
    size: u64,
    /// Bytes that are written for the work of each component
    #[arg(long, default_value = "4G", value_parser = size_1m)]
    work: u64,
    /// Length of the disk
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    disk: u64,
    /// Medians are of so many runs
    #[arg(long, default_value = "1", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Writes blocks of thin data, each named by its seed.
fn write_blocks(path: &Path, seeds: impl Iterator<Item = String>) -> Outcome {
    let write = || -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut block = vec![0; BLOCK_BYTES as usize];
        for seed in seeds {
            fill_thin(&mut Random::new(&seed), &mut block)?;
            file.write_all(&block)?;
        }
        file.into_inner()?.sync_all()
    };
    write().or_else(files::at("write", path))
}

/// The seeds of a file: each other block is one that the pool knows, from anywhere.
fn half_known(name: &str, bytes: u64, known: u64) -> impl Iterator<Item = String> {
    let mut random = Random::new(name);
    let name = name.to_owned();
    (0..bytes / BLOCK_BYTES).map(move |number| {
        if number % 2 == 0 { format!("known {}", random.below(known)) } else { format!("{name} new {number}") }
    })
}

/// Lets some writers write at the same time.
fn write_beside(pool: &Pool, name: &str, writers: u64, bytes: u64, known: u64) -> Outcome {
    std::thread::scope(|scope| {
        let write = |writer: u64| {
            let name = format!("{name} writer {writer}");
            write_blocks(&pool.at(&name), half_known(&name, bytes / writers, known))
        };
        let running: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
        running.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| fail("a writer panicked")))
    })
}

/// Milliseconds of a wait or a component in the profile of the daemon.
fn profile_ms(profile: &Value, list: &str, name: &str) -> f64 {
    let listed = profile.pointer(&format!("/profile/{list}")).and_then(Value::as_array);
    let found = listed.and_then(|listed| listed.iter().find(|one| one["name"] == name));
    found.and_then(|one| one["total_ms"].as_f64()).unwrap_or(0.0)
}

const WAITS: [&str; 4] = ["store lock", "sections", "commit", "backlog"];

fn measure(args: &Serial, figures: &mut Figures, pool: &mut Pool, writers: u64) -> Outcome {
    let target = writers.to_string();
    pool.remount_cold(true)?;
    let name = format!("run {} of {writers}", figures.run);
    let mut seconds = 0.0;
    let ((), synced) = synced::beside(&pool.at("synced"), || {
        seconds = timed(|| write_beside(pool, &name, writers, args.size, args.unique / BLOCK_BYTES))?;
        Ok(())
    })?;
    let profile = pool.stats()?.0;
    figures.note("rate", &target, args.size as f64 / 1e6 / seconds);
    for percent in [50, 99, 100] {
        figures.note(&format!("synced {percent}"), &target, synced.percent(percent));
    }
    for wait in WAITS {
        figures.note(wait, &target, profile_ms(&profile, "waits", wait));
    }
    say!(
        "run {}: {writers} writers: {seconds:.2} s, {} syncs, at most {:.0} ms",
        figures.run,
        synced.count(),
        synced.percent(100)
    );
    files::remove(&pool.at("synced"))
}

/// Runs the command.
pub fn run(args: &Serial) -> Outcome {
    disk::need_prerequisites()?;
    let numbers = list(&args.writers, count)?;
    let programs = ["dedupfs", "dedupfs-stats"];
    let Bench { work, ram, .. } =
        Bench::new(&programs, &[], &args.pool, args.disk / 2, (args.unique + args.work) / 8 + (2 << 30))?;
    println!("{}\n- {} of content", machine::describe(&work)?, table::human(args.unique));
    let mut mkfs = args.pool.mkfs.0.clone();
    mkfs.extend(["--chunk-size", "4K"].map(str::to_owned));
    let mut mount = vec!["--memory".to_owned(), "128M".to_owned()];
    mount.extend(args.pool.mount.0.iter().cloned());
    let disk = Disk::new(&ram, args.disk)?;
    let on_disk = [mkfs.clone(), vec!["--data".to_owned(), work.join("data").display().to_string()]].concat();
    let mut pool = Pool::new(disk.root.join("pool"), work.join("mnt/disk"), &on_disk, &mount)?;
    pool.format()?;
    pool.mount()?;
    say!("filling the pool");
    let known = args.unique / BLOCK_BYTES;
    for first in (0..known).step_by(1024) {
        let seeds = (first..known.min(first + 1024)).map(|number| format!("known {number}"));
        write_blocks(&pool.at(&format!("known-{first}")), seeds)?;
    }
    let mut figures = Figures::default();
    for run in 1..=args.runs {
        figures.run = run;
        numbers.iter().try_for_each(|writers| measure(args, &mut figures, &mut pool, *writers))?;
    }
    pool.unmount()?;
    disk.end()?;
    println!("- medians of {} runs; milliseconds; waits are sums over all threads\n", args.runs);
    println!(
        "{}",
        table::head(&[
            "writers",
            "MB/s",
            "sync, median",
            "99%",
            "longest",
            "waits for the store lock",
            "for sections",
            "for commits",
            "for counting"
        ])
    );
    for target in numbers.iter().map(u64::to_string) {
        let of = |name: &str, decimals| cell(figures.median(name, &target), decimals);
        print_row!(
            target,
            of("rate", 1),
            of("synced 50", 0),
            of("synced 99", 0),
            of("synced 100", 0),
            of(WAITS[0], 0),
            of(WAITS[1], 0),
            of(WAITS[2], 0),
            of(WAITS[3], 0)
        );
    }
    let mut pool = Pool::new(work.join("plain"), work.join("mnt/plain"), &mkfs, &args.pool.mount.0)?;
    pool.format()?;
    pool.mount()?;
    cores(args, &pool)?;
    pool.unmount()?;
    println!("\n{}", machine::describe_end(args.runs)?);
    Ok(())
}

/// Work that one thread does at a time: its name, and the components of the profile that are a part of it.
const STAGES: [(&str, &[&str]); 4] = [
    ("under the store lock", &["appending"]),
    ("commits", &["rounds", "freezing", "namespace commit"]),
    ("counting", &["counting"]),
    ("checkpoints", &["checkpoints", "sealing"]),
];

/// Measures the work of each component for new data, and prints the rate that so many cores allow: all work is divided among them, and each
/// stage that one thread does at a time takes its own time at least.
fn cores(args: &Serial, pool: &Pool) -> Outcome {
    write_blocks(&pool.at("new"), (0..args.work / BLOCK_BYTES).map(|number| format!("work {number}")))?;
    pool.sync()?;
    let profile = pool.stats()?.0;
    let gigabytes = args.work as f64 / 1e9;
    let all = profile.pointer("/profile/busy_ms").and_then(Value::as_f64).unwrap_or(0.0) / gigabytes;
    let stages = STAGES.map(|(name, components)| {
        let ms: f64 = components.iter().map(|component| profile_ms(&profile, "components", component)).sum();
        (name, ms / gigabytes)
    });
    println!("\nWork for each GB of new data, in chunks of 4 KiB: {all:.0} ms in all; done by one thread at a time:\n");
    println!("{}", table::head(&["stage", "ms", "GB/s at most"]));
    for (name, ms) in stages {
        print_row!(name, table::number(ms, 1), cell((ms > 0.0).then(|| 1e3 / ms), 1));
    }
    let slowest = stages.into_iter().max_by(|one, next| one.1.total_cmp(&next.1)).unwrap_or_default();
    println!("\n{}", table::head(&["cores", "GB/s at most", "bound by"]));
    for number in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0] {
        let (shared, alone) = (number * 1e3 / all, 1e3 / slowest.1);
        let bound = if shared < alone { "all work" } else { slowest.0 };
        print_row!(table::number(number, 0), table::number(shared.min(alone), 2), bound);
    }
    Ok(())
}
