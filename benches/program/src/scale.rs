//! The size of a pool and the number of writers.

use std::path::Path;

use crate::command::Run;
use crate::data::random_file;
use crate::figures::{Figures, timed};
use crate::options::{Caches, PoolOptions, ascending, count, list, size_1m};
use crate::pool::Bench;
use crate::table::{cell, human};
use crate::{Outcome, command, fail, files, machine, print_row, say, table};

/// Measures how the size of a pool and the number of writers change rates.
///
/// At each size a file of new random data is backed up, backed up again, and restored after a new mount; at the largest size as many files
/// as there are writers are written at the same time.
#[derive(clap::Args)]
pub struct Scale {
    /// Sizes of the pool, ascending: so much random data is in it before the file is written
    #[arg(long, default_value = "1G 10G 40G")]
    sizes: String,
    /// Size of the file, which lies in memory, and of all writers' files together; three times SIZE is needed there
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size_1m)]
    probe: u64,
    /// Writers at the same time; empty: none
    #[arg(long, default_value = "1 2 4 8")]
    writers: String,
    /// Medians are of so many runs; each writes other data
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

fn write_file(from: &Path, to: &Path) -> Outcome {
    command!("cp", from, to).run()?;
    command!("sync", to).run()
}

/// Runs the command.
pub fn run(args: &Scale) -> Outcome {
    let (sizes, writers) = (ascending(&args.sizes)?, list(&args.writers, count)?);
    let largest = sizes.last().copied().unwrap_or_default();
    let probes = (sizes.len() + writers.len() + 2) as u64 * args.runs;
    let (memory, disk) = (3 * args.probe + (1 << 30), largest + probes * args.probe + (1 << 30));
    let commands = ["cp", "cmp", "sync"];
    let Bench { work, ram, mut pool } = Bench::new(&["dedupfs", "dedupfs-stats"], &commands, &args.pool, memory, disk)?;
    let machine = machine::describe(&work)?;
    let mut figures = Figures::default();
    let (probe, out) = (ram.join("probe"), ram.join("out"));

    pool.format()?;
    pool.mount()?;
    let mut held = 0;
    for size in &sizes {
        say!("filling the pool to {}", human(*size));
        while held < *size {
            let now = (size - held).min(256 << 20);
            random_file(&format!("fill {held}"), now, &pool.at(&format!("fill-{held}")))?;
            held += now;
        }
        pool.sync()?;
        pool.unmount()?;
        files::cold(&pool.path, args.caches.drop_caches)?;
        let seconds = timed(|| pool.mount())?;
        figures.note(&format!("mount {size}"), "dedupfs", seconds);
        for run in 1..=args.runs {
            figures.run = run;
            random_file(&format!("probe {size} {run}"), args.probe, &probe)?;
            let [first, again] = ["probe", "again"].map(|name| pool.at(&format!("{name}-{run}")));
            let mut record = |name: &str, daemon, from: &Path, to: &Path| {
                let is_backup = to != out;
                figures.record(&format!("{name} {size}"), "dedupfs", args.probe, daemon, || {
                    if is_backup { write_file(from, to) } else { command!("cp", from, to).run() }
                })
            };
            record("new", pool.daemon, &probe, &first)?;
            record("repeated", pool.daemon, &probe, &again)?;
            let peak = pool.memory_bytes("VmHWM");
            pool.remount_cold(args.caches.drop_caches)?;
            files::touch_memory(&ram, args.probe)?;
            record("restore", pool.daemon, &first, &out)?;
            figures.note(&format!("memory {size}"), "dedupfs", peak);
            files::same(&probe, &out)?;
            [&out, &first, &again].into_iter().try_for_each(|path| files::remove(path))?;
        }
    }
    for count in &writers {
        for run in 1..=args.runs {
            figures.run = run;
            let each = args.probe / count;
            let parts: Vec<_> = (1..=*count).map(|at| (at, ram.join(format!("part-{at}")))).collect();
            for (at, part) in &parts {
                random_file(&format!("writer {count} {run} {at}"), each, part)?;
            }
            for (name, prefix) in [("writers", "writer"), ("writers again", "again")] {
                let target = |at: &u64| pool.at(&format!("{prefix}-{count}-{run}-{at}"));
                figures.record(&format!("{name} {count}"), "dedupfs", each * count, pool.daemon, || {
                    std::thread::scope(|scope| {
                        let write = |(at, part)| scope.spawn(move || write_file(part, &target(at)));
                        let threads: Vec<_> = parts.iter().map(|(at, part)| write((at, part))).collect();
                        threads.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| fail("a writer panicked")))
                    })
                })?;
            }
            parts.iter().try_for_each(|(_, part)| files::remove(part))?;
        }
    }
    pool.unmount()?;

    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    println!(
        "- a file of {} of random data, in memory; what was written is synced within the time; restores are cold",
        human(args.probe)
    );
    let median = |name: &str, of: &u64, unit: f64, decimals| {
        cell(figures.median(&format!("{name} {of}"), "dedupfs").map(|value| value / unit), decimals)
    };
    let columns = ["new, MB/s", "again, MB/s", "restored, MB/s", "memory at most, MiB", "mounted in, s"];
    println!("\n{}", table::head(&[&["random data in the pool"], &columns[..]].concat()));
    for size in &sizes {
        let memory = figures.most(&format!("memory {size}"), "dedupfs").map(|bytes| bytes / 1_048_576.0);
        let [new, again, restored] = ["new", "repeated", "restore"].map(|name| median(name, size, 1e6, 0));
        print_row!(human(*size), new, again, restored, cell(memory, 0), median("mount", size, 1.0, 2));
    }
    if !writers.is_empty() {
        println!("\n{}", table::head(&["writers at the same time", "new, MB/s in all", "again, MB/s in all"]));
        for count in &writers {
            print_row!(count, median("writers", count, 1e6, 0), median("writers again", count, 1e6, 0));
        }
    }
    Ok(())
}
