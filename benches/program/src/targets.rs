//! The filesystem against its goals.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::command::{Run, wait};
use crate::figures::Figures;
use crate::options::{Caches, PoolOptions, count, size_1m};
use crate::pool::{self, Bench, Pool, dedupfs};
use crate::table::{cell, human, number};
use crate::{Outcome, cleanup, command, data, fail, files, machine, print_row, say, table, usage};

/// Holds backup and restore through the mount against goals.
///
/// Beside them stand the same commands on the backing filesystem and on a FUSE filesystem that stores nothing, and the rates at which the
/// processors compress and decompress. Prints rates, ratios and goals, those that are missed included.
#[derive(clap::Args)]
pub struct Targets {
    /// Size of each of the two data sets, random and real; both lie in memory, four times SIZE is needed there and on disk
    #[arg(long, default_value = "1G", value_parser = size_1m)]
    size: u64,
    /// Small files of 4 KiB
    #[arg(long, default_value = "20000", value_parser = count)]
    files: u64,
    /// Medians are of so many runs; every run starts with a new, empty pool
    #[arg(long, default_value = "5", value_parser = count)]
    runs: u64,
    /// Versions of one tree, a directory each: the newest is restored beside the first
    #[arg(long, value_name = "DIR")]
    series: Option<PathBuf>,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// The filesystem that a run measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Dedupfs,
    Native,
    Null,
}

impl Target {
    const ALL: [Self; 3] = [Self::Dedupfs, Self::Native, Self::Null];

    fn name(self) -> &'static str {
        ["dedupfs", "native", "null"][self as usize]
    }
}

const GET: &str = "the same by dedupfs get";

/// Rows of goals: title, workload, the target and its workload that it is held against (or a limit of the processors), goal. Those of the
/// series stand before the small files.
const GOALS: [(&str, &str, &str, &str, f64); 15] = [
    ("stored already, against cp and fsync on the backing filesystem", "repeated", "native", "repeated", 1.5),
    ("stored already, against FUSE that stores nothing", "repeated", "null", "repeated", 0.5),
    ("stored already, a new mount, against the backing filesystem", "later", "native", "later", 1.5),
    ("new random data, against the backing filesystem", "random", "native", "random", 0.8),
    ("new real data, against zstd:1 alone on all cores", "real", "limit", "compress_all", 0.6),
    ("restore random data, cold, against the backing filesystem", "restore random", "native", "restore random", 0.8),
    (GET, "get random", "native", "restore random", 0.8),
    (
        "restore real data, cold, against decompressing alone on all cores",
        "restore real",
        "limit",
        "decompress_all",
        0.7,
    ),
    (GET, "get real", "limit", "decompress_all", 0.7),
    ("unpack small files, against FUSE that stores nothing", "small", "null", "small", 0.5),
    ("dedupfs put of the small files, against tar on the backing filesystem", "put small", "native", "small", 0.5),
    ("rsync of the unchanged small files, against the backing filesystem", "unchanged", "native", "unchanged", 0.7),
    ("the same after a new mount, cold", "unchanged, cold", "native", "unchanged, cold", 0.7),
    ("restore small files, cold, against the backing filesystem", "restore small", "native", "restore small", 0.5),
    (GET, "get small", "native", "restore small", 0.5),
];

/// Rows of rates: title and workload.
const RATES: [(&str, &str); 10] = [
    ("new random data, MB/s", "random"),
    ("new real data, MB/s", "real"),
    ("the same again, MB/s", "repeated"),
    ("and after a new mount, cold, MB/s", "later"),
    ("small files by tar, files/s", "small"),
    ("rsync, nothing changed, files/s", "unchanged"),
    ("the same after a new mount, cold, files/s", "unchanged, cold"),
    ("restore random data, MB/s", "restore random"),
    ("restore real data, MB/s", "restore real"),
    ("restore small files, files/s", "restore small"),
];

struct Measurement<'a> {
    args: &'a Targets,
    ram: PathBuf,
    pool: Pool,
    null: Option<Child>,
    figures: Figures,
    real_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Targets) -> Outcome {
    let names = args.series.as_deref().map_or(Ok(Vec::new()), files::directories)?;
    if args.series.is_some() && names.len() < 2 {
        return usage("--series needs two directories or more");
    }
    let commands = ["tar", "cp", "diff", "sync", "rsync", "fusermount3"];
    let (files, size) = (args.files * data::SMALL_BYTES, 4 * args.size);
    let programs = ["dedupfs", "dedupfs-stats", "null_mount", "limits"];
    let Bench { work, ram, pool } =
        Bench::new(&programs, &commands, &args.pool, size + 5 * files + (1 << 30), size + 4 * files + (256 << 20))?;
    let machine = machine::describe(&work)?;
    let real_bytes = data::make_sources(&ram, args.size, args.files)?;
    say!("the rates of the processors with the real data");
    let limits = command!(pool::program("limits"), ram.join("real")).text()?;

    let mut all = Measurement { args, ram, pool, null: None, figures: Figures::default(), real_bytes };
    for run in 1..=args.runs {
        all.figures.run = run;
        Target::ALL.into_iter().try_for_each(|target| all.measure(target))?;
    }
    if let Some(series) = &args.series {
        all.measure_series(series, &names)?;
    }
    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    all.print(&names, &limits)
}

impl Measurement<'_> {
    fn start(&mut self, target: Target) -> Outcome {
        match target {
            Target::Dedupfs => self.pool.mount(),
            Target::Native => Ok(()),
            Target::Null => {
                cleanup::will_mount(&self.pool.mnt);
                self.null = Some(command!(pool::program("null_mount"), &self.pool.mnt).start()?);
                for _ in 0..200 {
                    if cleanup::is_mounted(&self.pool.mnt) {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                fail("null_mount does not mount")
            }
        }
    }

    fn end(&mut self, target: Target) -> Outcome {
        match target {
            Target::Dedupfs => {
                self.figures.note("memory", "dedupfs", self.pool.memory_bytes("VmHWM"));
                self.pool.unmount()
            }
            Target::Native => Ok(()),
            Target::Null => {
                command!("fusermount3", "-u", &self.pool.mnt).run()?;
                self.null.take().map_or(Ok(()), |child| wait(child, "null_mount"))?;
                cleanup::forget_mount(&self.pool.mnt);
                Ok(())
            }
        }
    }

    /// Drops the caches of the files under the mount, and the memory of the mount itself.
    fn again(&mut self, target: Target) -> Outcome {
        if target == Target::Null {
            return Ok(());
        }
        self.end(target)?;
        let path = if target == Target::Dedupfs { &self.pool.path } else { &self.pool.mnt };
        files::cold(path, self.args.caches.drop_caches)?;
        self.start(target)
    }

    /// Records work on so many bytes or files.
    fn record(&mut self, name: &str, target: Target, units: u64, work: impl FnOnce() -> Outcome) -> Outcome {
        let daemon = self.pool.daemon.or_else(|| self.null.as_ref().map(Child::id));
        self.figures.record(name, target.name(), units, daemon, work)
    }

    fn backup(&mut self, name: &str, target: Target, source: &str) -> Outcome {
        files::touch_memory(&self.ram, self.args.size)?;
        let (from, to) = (self.ram.join(source), self.pool.at(name));
        self.record(name, target, self.units(source), || files::copy_in(&from, &to))
    }

    /// Restores into memory by a command that takes source and target, and compares with `original`.
    fn restore(&mut self, by: &str, name: &str, target: Target, units: u64, original: &Path) -> Outcome {
        files::empty_out(&self.ram, files::content_bytes(original))?;
        let (from, out) = (self.pool.at(name), self.ram.join("out"));
        self.record(&format!("{by} {name}"), target, units, || match by {
            "get" => dedupfs("get").arg(&from).arg(out.join(name)).run(),
            _ => command!("cp", "-r", &from, &out).run(),
        })?;
        if target == Target::Null { Ok(()) } else { files::same(original, &out.join(name)) }
    }

    /// Returns the bytes, or the number of small files, of a source.
    fn units(&self, source: &str) -> u64 {
        match source {
            "small" => self.args.files,
            "random" => self.args.size,
            _ => self.real_bytes,
        }
    }

    fn measure(&mut self, target: Target) -> Outcome {
        if target == Target::Dedupfs {
            self.pool.format()?;
        }
        self.start(target)?;
        self.backup("random", target, "random")?;
        self.backup("real", target, "real")?;
        self.backup("repeated", target, "real")?;
        self.again(target)?;
        self.backup("later", target, "real")?;
        let (mnt, tar, small) = (self.pool.mnt.clone(), self.ram.join("small.tar"), self.ram.join("small"));
        self.record("small", target, self.args.files, || {
            command!("tar", "-C", &mnt, "-xf", &tar).run()?;
            // syncfs and `dedupfs sync` make many small files durable at once.
            if target == Target::Dedupfs { dedupfs("sync").arg(&mnt).run() } else { command!("sync", "-f", &mnt).run() }
        })?;
        if target != Target::Null {
            let [from, to] = [&small, &mnt.join("small")].map(|path| format!("{}/", path.display()));
            let rsync = || command!("rsync", "-a", &from, &to).run();
            self.record("unchanged", target, self.args.files, rsync)?;
            self.again(target)?;
            self.record("unchanged, cold", target, self.args.files, rsync)?;
            self.again(target)?;
        }
        for name in ["random", "real", "small"] {
            self.restore("restore", name, target, self.units(name), &self.ram.join(name))?;
        }
        if target == Target::Dedupfs {
            // The same restores by `dedupfs get`, and small files by `dedupfs put`.
            self.again(target)?;
            for name in ["random", "real", "small"] {
                self.restore("get", name, target, self.units(name), &self.ram.join(name))?;
            }
            let put = mnt.join("put");
            self.record("put small", target, self.args.files, || dedupfs("put").args([&small, &put]).run())?;
        }
        files::remove(&self.ram.join("out"))?;
        self.end(target)?;
        match target {
            Target::Dedupfs => files::remove(&self.pool.path),
            Target::Native => files::entries(&mnt)?.iter().try_for_each(|path| files::remove(path)),
            Target::Null => Ok(()),
        }
    }

    /// Reads the newest and the first version of the series cold, in turns.
    fn measure_series(&mut self, series: &Path, names: &[String]) -> Outcome {
        self.pool.format()?;
        self.start(Target::Dedupfs)?;
        for name in names {
            command!("cp", "-a", series.join(name), self.pool.at(name)).run()?;
        }
        self.pool.sync()?;
        for run in 1..=self.args.runs {
            self.figures.run = run;
            for name in [&names[0], &names[names.len() - 1]] {
                let original = series.join(name);
                let bytes = files::content_bytes(&original);
                for by in ["restore", "get"] {
                    self.again(Target::Dedupfs)?;
                    self.restore(by, name, Target::Dedupfs, bytes, &original)?;
                }
            }
        }
        self.end(Target::Dedupfs)?;
        files::remove(&self.pool.path)
    }

    fn print(&self, names: &[String], limits: &str) -> Outcome {
        let (random, real, small) = (self.args.size, self.real_bytes, self.args.files * data::SMALL_BYTES);
        println!(
            "- sources and restored files in memory, which is touched before; all that was written is synced within the time; restores are \
             cold"
        );
        println!(
            "- {} of random and {} of real data (libraries and sources) by cp, {} files of 4 KiB by tar",
            human(random),
            human(real),
            self.args.files
        );
        println!(
            "- most memory of the daemon: {}",
            human(self.figures.most("memory", "dedupfs").unwrap_or(0.0) as u64)
        );
        println!("\n{}", table::head(&["", "dedupfs", "held against", "ratio", "goal", "CPU s/GB"]));

        let of = |name: &str, target: &str| self.figures.median(name, target).unwrap_or(f64::NAN);
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            line.and_then(|rate| rate.parse::<f64>().ok()).map_or(f64::NAN, |rate| rate * 1e6)
        };
        let row = |title: &str, name: &str, reference: f64, goal: f64, bytes: u64, unit: &str| {
            let (own, divisor) = (of(name, "dedupfs"), if unit == "MB/s" { 1e6 } else { 1.0 });
            let missed = if own / reference < goal { ", **missed**" } else { "" };
            let cpu = of(&format!("{name} cpu"), "dedupfs") / (bytes as f64 / 1e9);
            let [own_rate, held] = [own / divisor, reference / divisor].map(|rate| number(rate, 0));
            let ratio = number(own / reference, 2);
            print_row!(title, format!("{own_rate} {unit}"), held, ratio, format!("{goal}{missed}"), number(cpu, 2));
        };
        for (title, name, against, beside, goal) in GOALS {
            let reference = if against == "limit" { limit(beside) } else { of(beside, against) };
            let (bytes, unit) = match name.rsplit(' ').next() {
                Some("random") => (random, "MB/s"),
                Some("real" | "repeated" | "later") => (real, "MB/s"),
                _ => (small, "files/s"),
            };
            if name == "small"
                && let (Some(series), [first, .., newest]) = (&self.args.series, names)
            {
                let bytes = files::content_bytes(&series.join(newest));
                let title = format!("restore the newest of {} versions, against the first", names.len());
                for (title, by) in [(title.as_str(), "restore"), (GET, "get")] {
                    row(title, &format!("{by} {newest}"), of(&format!("{by} {first}"), "dedupfs"), 0.9, bytes, "MB/s");
                }
            }
            row(title, name, reference, goal, bytes, unit);
        }

        println!("\n{}", table::head(&["rates", "dedupfs", "backing filesystem", "FUSE that stores nothing"]));
        for (title, name) in RATES {
            let divisor = if title.ends_with("MB/s") { 1e6 } else { 1.0 };
            let rates =
                Target::ALL.map(|target| cell(self.figures.median(name, target.name()).map(|rate| rate / divisor), 0));
            print_row!(title, rates[0], rates[1], rates[2]);
        }
        println!("\n{}", table::head(&["stage alone, on the real data", "MB/s"]));
        for (stage, rate) in limits.lines().filter_map(|line| line.split_once('\t')) {
            print_row!(stage, rate);
        }
        Ok(())
    }
}
