//! Requests that the kernel sends for small files, by kind, and the rates of the same commands.
//!
//! 1. `cp -a`, `tar` and `rsync -a` copy small files into the mount, and out of it, from a mount for writing and from one for reading.
//! 2. In the first round the kernel traces its requests, each with its kind ([`trace`]). Rounds that are timed are not traced.
//! 3. Before files are copied out, the pool is mounted anew: the kernel knows no name and has no page.

mod trace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::figures::Figures;
use crate::options::{self, PoolOptions};
use crate::pool::{Bench, Pool};
use crate::{Outcome, cleanup, command, data, files, machine, print_row, table};
use trace::Trace;

/// Counts the requests that the kernel sends for each small file, and measures the rate.
///
/// `cp -a`, `tar` and `rsync -a` copy files of 4 KiB into the mount and out of it. Needs root and the kernel's trace points:
/// mount -t tracefs tracefs /sys/kernel/tracing
#[derive(clap::Args)]
pub struct Requests {
    /// Files of 4 KiB
    #[arg(long, default_value = "10000", value_parser = options::count)]
    files: u64,
    /// Timed rounds behind the traced one
    #[arg(long, default_value = "3", value_parser = options::count)]
    runs: u64,
    /// Options for the mount for reading
    #[arg(long, value_name = "OPTIONS", default_value = "-o ro", allow_hyphen_values = true)]
    reading: options::Words,
    #[command(flatten)]
    pool: PoolOptions,
}

const CLIENTS: [&str; 3] = ["cp -a", "tar", "rsync -a"];
/// Columns: the ways that files go.
const WAYS: [&str; 3] = ["in", "out", "out, mounted for reading"];

/// Requests of each kind.
type Counts = BTreeMap<String, u64>;

/// A measurement under way.
struct Measurement<'a> {
    args: &'a Requests,
    ram: PathBuf,
    pool: Pool,
    figures: Figures,
    counts: BTreeMap<(usize, usize), Counts>,
}

/// Runs the command.
pub fn run(args: &Requests) -> Outcome {
    trace::check()?;
    let disk = args.files * (args.runs + 1) * 3 * 8192 + (64 << 20);
    let commands = ["cp", "tar", "rsync"];
    let Bench { work, ram, pool } = Bench::new(&["dedupfs"], &commands, &args.pool, args.files * 24_576, disk)?;
    println!("{}", machine::describe(&work)?);
    data::small_files(&ram.join("small"), args.files)?;
    command!("tar", "-C", ram, "-cf", ram.join("small.tar"), "small").run()?;
    pool.format()?;
    let (figures, counts) = Default::default();
    let mut measurement = Measurement { args, ram, pool, figures, counts };
    for run in 0..=args.runs {
        measurement.figures.run = run;
        measurement.round()?;
    }
    println!("{}", machine::describe_end(args.runs)?);
    println!("- {} files of 4 KiB, a hundred in a directory\n", args.files);
    measurement.print();
    Ok(())
}

impl Measurement<'_> {
    /// Copies the files in and out with each client.
    fn round(&mut self) -> Outcome {
        let run = self.figures.run;
        let copy = |pool: &Pool, client: usize| pool.at(&format!("{client}-{run}"));
        self.pool.mount()?;
        for client in 0..CLIENTS.len() {
            let to = copy(&self.pool, client);
            files::make_dir(&to)?;
            self.measure(client, 0, &to)?;
        }
        let reading = self.args.reading.0.clone();
        for (way, options) in [(1, None), (2, Some(&reading))] {
            for client in 0..CLIENTS.len() {
                self.pool.unmount()?;
                match options {
                    None => self.pool.mount()?,
                    Some(options) => self.pool.mount_with(options)?,
                }
                let from = copy(&self.pool, client).join("small");
                self.measure(client, way, &from)?;
                files::remove(&self.ram.join("out.tar"))?;
                files::remove(&self.ram.join("out"))?;
            }
        }
        self.pool.unmount()
    }

    /// Measures one copy into or from `place`: counts requests in the first round, and notes the rate of the others.
    fn measure(&mut self, client: usize, way: usize, place: &Path) -> Outcome {
        let work = |ram: &Path| copy(ram, client, way, place);
        let (files, daemon) = (self.args.files, self.pool.daemon);
        if self.figures.run > 0 {
            let ram = self.ram.clone();
            return self.figures.record(CLIENTS[client], WAYS[way], files, daemon, || work(&ram));
        }
        let trace = Trace::begin(&self.pool.mnt)?;
        work(&self.ram)?;
        self.counts.insert((client, way), trace.end()?);
        Ok(())
    }

    fn print(&self) {
        println!("{}", table::head(&["client", "way", "files a second", "requests a file", "of these"]));
        for ((client, way), counts) in &self.counts {
            let rate = self.figures.median(CLIENTS[*client], WAYS[*way]);
            let each = |count: u64| count as f64 / self.args.files as f64;
            let mut kinds: Vec<(&String, f64)> = counts.iter().map(|(kind, count)| (kind, each(*count))).collect();
            kinds.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            // A request for each directory is one for a hundred files.
            let shown = kinds.iter().filter(|(_, each)| *each >= 0.005).map(|(kind, each)| format!("{kind} {each:.2}"));
            let all = table::number(kinds.iter().map(|(_, each)| each).sum(), 2);
            print_row!(CLIENTS[*client], WAYS[*way], table::cell(rate, 0), all, shown.collect::<Vec<_>>().join(", "));
        }
    }
}

/// Copies all files with a client: into the directory `place` of the mount, or out of it.
fn copy(ram: &Path, client: usize, way: usize, place: &Path) -> Outcome {
    cleanup::check().or_else(files::at("use", place))?;
    let (small, out, archive) = (ram.join("small"), ram.join("out"), ram.join("out.tar"));
    match (client, way) {
        (0, 0) => command!("cp", "-a", small, place).run(),
        (0, _) => command!("cp", "-a", place, out).run(),
        (1, 0) => command!("tar", "-C", place, "-xf", ram.join("small.tar")).run(),
        (1, _) => command!("tar", "-C", place, "-cf", archive, ".").run(),
        (_, 0) => command!("rsync", "-a", small, place).run(),
        (_, _) => command!("rsync", "-a", place, out).run(),
    }
}
