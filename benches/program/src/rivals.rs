//! Backup tools side by side.

use std::path::PathBuf;
use std::process::Command;

use crate::command::Run;
use crate::figures::{Figures, memory_bytes, timed_with_peak};
use crate::options::{Caches, PoolOptions, count, size_1m};
use crate::pool::{self, Bench};
use crate::rivals_tools::{self as tools, KNOWN, Tool};
use crate::table::{human, number};
use crate::{Outcome, cleanup, command, fail, files, machine, say, table, usage};

/// Compares backup tools.
///
/// Measures the first backup of a series of versions, the second one when versions have been added, the full restore; and the same of one
/// large file through a pipe, whose second generation has changed. Prints rates, processors' time, memory and sizes.
///
/// All compress with zstd, borg and rustic at level 1, kopia as fast as it can, restic as it does by default; s3ql has no zstd, and
/// compresses with zlib at level 1. Those that can do without encryption do (borg, s3ql, dedupfs). dedupfs is mounted already; its times are
/// of dedupfs put and get for the series, of cat and `dedupfs sync` for the pipe. s3ql is a filesystem that is mounted, too: its times are
/// of cp -a or cat and of writing its cache out, into a directory beside it.
#[derive(clap::Args)]
pub struct Rivals {
    /// Versions of one tree, a directory each: the older half is backed up first, then all of them; they are copied into memory
    #[arg(long, value_name = "DIR")]
    series: Option<PathBuf>,
    /// Size of the large file, two generations of it (the example aged_stream); three times SIZE is needed in memory
    #[arg(long, default_value = "2G", value_parser = size_1m)]
    size: u64,
    /// Medians are of so many runs; every run starts with new, empty pools and repositories
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    /// Some of dedupfs,cp,cp2,restic,rustic,kopia,borg,s3ql [default: those that are installed]; cp is the series copied through the mount
    /// by cp -a, cp2 by two of them at once, a version each
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = KNOWN)]
    tools: Vec<String>,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// Returns the tools that take part. Those that are not installed are named, or are a failure if they were asked for.
fn participants(args: &Rivals) -> Outcome<Vec<&'static str>> {
    let mut found = Vec::new();
    for name in KNOWN {
        let is_asked = args.tools.iter().any(|tool| tool == name);
        let needs_series = matches!(name, "cp" | "cp2") && args.series.is_none();
        if is_asked && needs_series {
            return usage(format!("{name} needs --series"));
        } else if is_asked && !tools::is_installed(name) {
            return fail(format!("{name} is missing: please install it, or leave it out of --tools"));
        } else if is_asked || args.tools.is_empty() && !needs_series && tools::is_installed(name) {
            found.push(name);
        } else if args.tools.is_empty() {
            eprintln!("NOT RUN: {name}, which {}", if needs_series { "needs --series" } else { "is not installed" });
        }
    }
    Ok(found)
}

struct Comparison<'a> {
    args: &'a Rivals,
    bench: Bench,
    figures: Figures,
    /// The process of s3ql, while it is mounted.
    s3ql: Option<u32>,
    half_bytes: u64,
    all_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Rivals) -> Outcome {
    let names = args.series.as_deref().map_or(Ok(Vec::new()), files::directories)?;
    if args.series.is_some() && names.len() < 2 {
        return usage("--series needs two directories or more");
    }
    let participants = participants(args)?;
    let series_bytes = args.series.as_deref().map_or(0, files::content_bytes);
    let commands = ["cat", "cp", "diff", "cmp", "xargs"];
    let (memory, disk) = (4 * args.size + 3 * series_bytes + (1 << 30), 2 * args.size + series_bytes + (512 << 20));
    let bench = Bench::new(&["dedupfs", "dedupfs-stats", "aged_stream"], &commands, &args.pool, memory, disk)?;
    let machine = machine::describe(&bench.work)?;
    let ram = bench.ram.clone();
    say!("making two generations of a file of {}", human(args.size));
    for (generation, name) in [("1", "first"), ("2", "second")] {
        let size = args.size.to_string();
        let options = ["--generation", generation, "--size", &size];
        command!(pool::program("aged_stream")).args(options).writes(&ram.join(name))?.run()?;
    }
    let half = names.len().div_ceil(2);
    if let Some(series) = &args.series {
        // Hard links: the half costs no memory.
        for (directory, names) in [("all", &names[..]), ("half", &names[..half])] {
            files::make_dir(&ram.join(directory))?;
            for name in names {
                let from = if directory == "all" { series.join(name) } else { ram.join("all").join(name) };
                let how = if directory == "all" { "-a" } else { "-al" };
                command!("cp", how, from, ram.join(directory)).run()?;
            }
            let list = ram.join(format!("{directory}.names"));
            std::fs::write(&list, names.join("\0")).or_else(files::at("write", &list))?;
        }
    }
    let (half_bytes, all_bytes) = (files::content_bytes(&ram.join("half")), files::content_bytes(&ram.join("all")));
    let figures = Figures::default();
    let mut comparison = Comparison { args, bench, figures, s3ql: None, half_bytes, all_bytes };
    for run in 1..=args.runs {
        comparison.figures.run = run;
        participants.iter().try_for_each(|name| comparison.measure(name))?;
    }
    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    if args.series.is_some() {
        println!(
            "- a series of {} versions, {}: the first backup is of {half} versions, {}, the second of all",
            names.len(),
            human(all_bytes),
            human(half_bytes)
        );
    }
    println!("- a file of {} by a pipe; of its second generation nine tenths are redundant", human(args.size));
    println!(
        "- sources and restored files in memory, which is touched before; second backups and restores are cold; in brackets: how many times \
         better dedupfs is\n"
    );
    comparison.print(&participants)
}

impl Comparison<'_> {
    /// Measures one tool.
    fn measure(&mut self, name: &'static str) -> Outcome {
        let tool = Tool {
            name,
            repository: self.bench.pool.path.clone(),
            cache: self.bench.work.join("cache"),
            mnt: self.bench.pool.mnt.clone(),
            ram: self.bench.ram.clone(),
            versions: Default::default(),
        };
        let trees = ("tree", ["half", "all"], [self.half_bytes, self.all_bytes]);
        let pipes = ("pipe", ["first", "second"], [self.args.size; 2]);
        let has = [(trees, self.args.series.is_some()), (pipes, !matches!(name, "cp" | "cp2"))];
        for ((kind, [first, second], [first_bytes, second_bytes]), _) in has.iter().filter(|has| has.1) {
            if tools::is_own(name) {
                self.bench.pool.format()?;
            } else {
                files::make_dir(&tool.cache)?;
                tool.commands("init", "")?.iter_mut().try_for_each(Command::run)?;
            }
            self.mount(&tool)?;
            self.record(&tool, &format!("{kind} first"), *first_bytes, kind, first)?;
            self.cold(&tool)?;
            self.record(&tool, &format!("{kind} second"), *second_bytes, kind, second)?;
            self.cold(&tool)?;
            files::empty_out(&tool.ram, self.args.size.max(self.all_bytes))?;
            self.record(&tool, &format!("{kind} restore"), *second_bytes, &format!("{kind}-out"), second)?;
            let out = tool.ram.join(if *kind == "pipe" { "out/pipe" } else { "out" });
            files::same(&tool.ram.join(second), &out).or_else(|failure| fail(format!("{name}: {failure}")))?;
            self.unmount(&tool)?;
            self.figures.note(&format!("{kind} size"), name, files::disk_bytes(&tool.repository) as f64);
            tool.remove()?;
        }
        Ok(())
    }

    fn mount(&mut self, tool: &Tool<'_>) -> Outcome {
        if tools::is_own(tool.name) {
            files::cold(&self.bench.work, self.args.caches.drop_caches)?;
            return self.bench.pool.mount();
        }
        for mut command in tool.commands("mount", "")? {
            cleanup::will_mount(&tool.mnt);
            command.run()?;
            let pattern = format!("mount.s3ql.*local://{}", tool.repository.display());
            self.s3ql = command!("pgrep", "-fo", pattern).text()?.trim().parse().ok();
        }
        Ok(())
    }

    fn unmount(&mut self, tool: &Tool<'_>) -> Outcome {
        if let Some(peak) = self.daemon().and_then(|pid| memory_bytes(pid, "VmHWM")) {
            self.figures.note("memory", tool.name, peak);
        }
        if self.s3ql.take().is_some() {
            command!("umount.s3ql", &tool.mnt).run()?;
            cleanup::forget_mount(&tool.mnt);
        }
        if self.bench.pool.daemon.is_some() { self.bench.pool.unmount() } else { Ok(()) }
    }

    fn cold(&mut self, tool: &Tool<'_>) -> Outcome {
        self.unmount(tool)?;
        files::cold(&self.bench.work, self.args.caches.drop_caches)?;
        if tools::is_mounted(tool.name) { self.mount(tool) } else { Ok(()) }
    }

    fn daemon(&self) -> Option<u32> {
        self.bench.pool.daemon.or(self.s3ql)
    }

    /// Records a step, and without a daemon the most memory that a process of it had.
    fn record(&mut self, tool: &Tool<'_>, name: &str, bytes: u64, step: &str, source: &str) -> Outcome {
        let (daemon, mut peak) = (self.daemon(), 0.0);
        self.figures.record(name, tool.name, bytes, daemon, || {
            for (at, mut command) in tool.commands(step, source)?.into_iter().enumerate() {
                match step {
                    "pipe" if at == 0 => drop(command.reads(&tool.ram.join(source))?),
                    "pipe-out" => drop(command.writes(&tool.ram.join("out/pipe"))?),
                    _ => {}
                }
                if daemon.is_some() { command.run()? } else { peak = timed_with_peak(&mut command)?.1.max(peak) }
            }
            Ok(())
        })?;
        if daemon.is_none() {
            self.figures.note("memory", tool.name, peak);
        }
        Ok(())
    }

    fn print(&self, participants: &[&str]) -> Outcome {
        let mut heads = vec![String::new()];
        for name in participants {
            heads.push(tools::version(name)?);
        }
        println!("{}", table::head(&heads));
        // In brackets how many times dedupfs is better.
        let row = |title: &str, name: &str, unit: f64, decimals: usize, is_less_better: bool| {
            let own = self.figures.median(name, "dedupfs");
            let cells = participants.iter().map(|tool| match (self.figures.median(name, tool), own) {
                (None, _) => "-".to_owned(),
                (Some(value), Some(own)) if !tools::is_own(tool) => {
                    let better = own / value.max(1e-6);
                    let better = if is_less_better { 1.0 / better } else { better };
                    format!("{} ({better:.2})", number(value / unit, decimals))
                }
                (Some(value), _) => number(value / unit, decimals),
            });
            println!("{}", table::row(&std::iter::once(title.to_owned()).chain(cells).collect::<Vec<_>>()));
        };
        let (half, all, size) =
            (self.half_bytes as f64 / 1e9, self.all_bytes as f64 / 1e9, self.args.size as f64 / 1e9);
        let kinds = [("series", "tree", "full restore", half, all), ("pipe", "pipe", "restore", size, size)];
        for (title, name, restore, first, second) in kinds {
            if first == 0.0 {
                continue;
            }
            for (part, step) in [("first backup", "first"), ("second backup", "second"), (restore, "restore")] {
                row(&format!("{title}: {part}, MB/s"), &format!("{name} {step}"), 1e6, 0, false);
            }
            for (step, gb) in [("first", first), ("second", second), ("restore", second)] {
                row(&format!("{title}: CPU s/GB of the {step}"), &format!("{name} {step} cpu"), gb, 2, true);
            }
            row(&format!("{title}: on disk, MB"), &format!("{name} size"), 1e6, 1, true);
        }
        row("memory, MiB", "memory", 1_048_576.0, 0, true);
        Ok(())
    }
}
