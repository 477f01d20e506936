//! How versions of a pool restore as it ages, with and without arranging.

mod compare;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use dedupfs_tools::parse_size;
use serde_json::Value;

use crate::command::Run;
use crate::figures::{median, timed};
use crate::options::{Caches, PoolOptions, Words, count, size_1m};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::seeking::disk;
use crate::table::{human, number};
use crate::{Outcome, command, data, fail, files, machine, print_row, say, table, usage};

/// Measures restores of versions in a pool that ages, with and without arranging, beside a pool with that version alone.
///
/// Versions of a tree are put one after the other. Behind each, a version is removed if more than --keep are there, the oldest or a random
/// one, and dedupfs-gc runs: every other time beside the next put. Read amplification is what the engine reads of content for a restore, against the same for a pool that has
/// nothing but this version. Rates are shares of that pool's, measured right before. Each restore is cold.
///
/// Bytes moved are those that dedupfs-gc copies, uncompressed, for each byte stored by puts; bytes copied for each one freed leave out those
/// that were moved for order. In the end the versions kept are compared with their sources, and dedupfs fsck checks the pool.
///
/// With --compare the content of the pool is then compared with that of a new pool with the versions kept, and restores of each of these
/// are measured beside cp from a fresh copy, and beside --tools, which get the versions kept alone. With --disk all of this comes once more
/// from an emulated disk that seeks (see dedupfs-bench seeking --help), to which the pool is copied.
#[derive(clap::Args)]
pub struct Aging {
    /// Directory with one directory for each version [default: synthetic trees of the example aged_tree]
    series: Option<PathBuf>,
    /// Versions that are put [default: 60, or as many as SERIES has]
    #[arg(long, value_name = "NUMBER", value_parser = count)]
    versions: Option<u64>,
    /// Versions that are kept
    #[arg(long, value_name = "NUMBER", default_value = "15", value_parser = count)]
    keep: u64,
    /// Size of a synthetic version
    #[arg(long, default_value = "2G", value_parser = size_1m)]
    size: u64,
    /// Options for aged_tree, such as "--hot 0.1"
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "--files 4000 --modified 0.5 --changed 0.1",
        allow_hyphen_values = true
    )]
    tree: Words,
    /// The version that is removed: the oldest, or one drawn from those that are not the newest
    #[arg(long, default_value = "oldest", value_parser = ["oldest", "random"])]
    remove: String,
    /// Some of off,budget,all, in turn: values of dedupfs-gc --arrange
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "off,budget", value_parser = ["off", "budget", "all"])]
    arrange: Vec<String>,
    /// Restores of the newest version are measured at every Nth one
    #[arg(long, value_name = "N", default_value = "10", value_parser = count)]
    restore_every: u64,
    /// Restores of each kind, of which the median counts
    #[arg(long, default_value = "1", value_parser = count)]
    runs: u64,
    /// Compare the versions kept with other ways to keep them
    #[arg(long)]
    compare: bool,
    /// Some of restic,borg, beside dedupfs [default: none]
    #[arg(long, requires = "compare", value_name = "LIST", value_delimiter = ',', value_parser = ["restic", "borg"])]
    tools: Vec<String>,
    /// Length of an emulated disk that seeks. The comparison is repeated on it (root)
    #[arg(long, requires = "compare", value_parser = parse_size)]
    disk: Option<u64>,
    /// Versions kept that are restored from that disk: the newest and older ones, evenly spread. 0: all of them
    #[arg(long, requires = "disk", value_name = "COUNT", default_value = "0")]
    from_disk: usize,
    /// File that gets every row, too: the data of benches/plots/plots.sh
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// Sums over a run, in bytes of chunks, uncompressed.
#[derive(Default)]
struct Sums {
    stored: u64,
    moved: u64,
    arranged: u64,
    freed: u64,
}

impl Sums {
    fn note(&mut self, [moved, arranged]: [u64; 2]) {
        self.moved += moved;
        self.arranged += arranged;
    }

    /// Bytes copied for each byte freed, without those that were moved for order; 0 if nothing was freed.
    fn freed_share(&self) -> f64 {
        let copied = self.moved.saturating_sub(self.arranged);
        if self.freed == 0 { 0.0 } else { copied as f64 / self.freed as f64 }
    }
}

struct Measurement<'a> {
    args: &'a Aging,
    bench: Bench,
    /// Has one version at a time.
    alone: Pool,
    names: Vec<String>,
    versions: u64,
    /// Bytes of one version: of a real series the mean.
    version_bytes: u64,
    tsv: String,
}

/// Runs the command.
pub fn run(args: &Aging) -> Outcome {
    let names = args.series.as_deref().map_or(Ok(Vec::new()), files::directories)?;
    let versions = args.versions.unwrap_or(if args.series.is_some() { names.len() as u64 } else { 60 });
    if args.series.is_some() && versions > names.len() as u64 || versions <= args.keep {
        return usage("--versions is to be more than --keep, and no more than SERIES has");
    }
    let one = match &args.series {
        Some(at) => files::content_bytes(at) / names.len() as u64,
        None => args.size,
    };
    if args.disk.is_some() {
        disk::need_prerequisites()?;
    }
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc", "aged_tree"];
    let count = if args.series.is_some() { 3 } else { 4 };
    let pool = one + one * args.keep.max(10) / 5;
    let memory = 3 * one + (1 << 30) + args.disk.map_or(0, |bytes| bytes.min(pool + one));
    let options = args.pool.arranged_by_hand();
    let bench = Bench::new(&programs[..count], &["cp", "diff"], &options, memory, one + 2 * pool + (1 << 30))?;
    let alone = Pool::new(bench.work.join("alone"), bench.work.join("alone-mnt"), &options.mkfs.0, &options.mount.0)?;
    println!("{}", machine::describe(&bench.work)?);
    let of = if args.series.is_some() { "a real series".to_owned() } else { format!("aged_tree {}", args.tree) };
    println!(
        "- {versions} versions of {of}, {} each; {} are kept, the {} goes; medians of {}\n",
        human(one),
        args.keep,
        args.remove,
        args.runs
    );
    let mut all = Measurement { args, bench, alone, names, versions, version_bytes: one, tsv: TSV_HEAD.to_owned() };
    args.arrange.iter().try_for_each(|arrange| all.policy(arrange))
}

const TSV_HEAD: &str = "arrange\tversion\tof\tby\tmb_per_s\tshare\tamplification\tmoved_per_new\tcopied_per_freed\n";

fn name_of(number: u64) -> String {
    format!("v{number:06}")
}

impl Measurement<'_> {
    fn policy(&mut self, arrange: &str) -> Outcome {
        println!("\n**`--arrange {arrange}`**\n");
        println!(
            "{}",
            table::head(&[
                "version",
                "by",
                "MB/s",
                "of a pool with it alone",
                "read amplification",
                "regions",
                "moved for each new byte",
                "copied for each byte freed"
            ])
        );
        self.bench.pool.format()?;
        self.bench.pool.mount()?;
        let (mut kept, mut sums, mut random) = (Vec::new(), Sums::default(), data::Random::new("aging"));
        let (mut puts, mut is_beside) = ([Vec::new(), Vec::new()], false);
        for number in 1..=self.versions {
            let (put, reclaimed) = std::thread::scope(|scope| {
                let reclaim = is_beside.then(|| scope.spawn(|| self.reclaim(arrange)));
                let put = self.put(number);
                (put, reclaim.map(|reclaim| reclaim.join().expect("does not panic")))
            });
            let (stored, seconds) = put?;
            sums.stored += stored;
            if let Some(reclaimed) = reclaimed {
                sums.note(reclaimed?);
            }
            if kept.len() as u64 >= self.args.keep {
                puts[usize::from(is_beside)].push(seconds);
            }
            kept.push(number);
            if kept.len() as u64 > self.args.keep {
                let at = if self.args.remove == "oldest" { 0 } else { random.below(kept.len() as u64 - 1) as usize };
                dedupfs("forget").arg(self.bench.pool.at(&name_of(kept.remove(at)))).quiet().run()?;
            }
            // Every other run is beside the next put.
            is_beside = number % 2 == 1 && number < self.versions && !number.is_multiple_of(self.args.restore_every);
            if !is_beside {
                sums.note(self.reclaim(arrange)?);
                let left = self.bench.pool.stats()?.number("data_containers.stored_bytes")?;
                sums.freed = sums.stored.saturating_sub(left);
            }
            say!("{arrange}: {number} of {}", self.versions);
            if number.is_multiple_of(self.args.restore_every) && number < self.versions {
                self.restores(arrange, number, "newest", &sums)?;
            }
        }
        for number in kept.iter().rev() {
            self.restores(arrange, *number, if *number == self.versions { "newest" } else { "kept" }, &sums)?;
        }
        for number in &kept {
            let source = self.source(*number)?;
            files::same(&source, &self.bench.pool.at(&name_of(*number)))?;
        }
        self.bench.pool.unmount()?;
        self.bench.pool.fsck()?;
        println!(
            "\n{} stored by puts, {} moved, {} of that for order; {} freed",
            human(sums.stored),
            human(sums.moved),
            human(sums.arranged),
            human(sums.freed)
        );
        let [behind, beside] = puts.map(|seconds| median(&seconds).unwrap_or(0.0));
        println!(
            "\nA put takes {} s behind dedupfs-gc and {} s beside it, medians: {} of the rate.",
            table::number(behind, 2),
            table::number(beside, 2),
            table::number(behind / beside, 2)
        );
        if self.args.compare {
            self.compare(&kept)?;
        }
        files::remove(&self.bench.pool.path)
    }

    /// Returns the tree of a version; a synthetic one is made.
    fn source(&self, number: u64) -> Outcome<PathBuf> {
        if let Some(series) = &self.args.series {
            return Ok(series.join(&self.names[number as usize - 1]));
        }
        let source = self.bench.ram.join("source");
        if source.exists() {
            files::remove(&source)?;
        }
        command!(program("aged_tree"), "--size", self.args.size.to_string(), "--generation", number.to_string())
            .args(&self.args.tree.0)
            .arg(&source)
            .run()?;
        Ok(source)
    }

    /// Puts a version. Returns the bytes of chunks that it stored, and the seconds.
    fn put(&self, number: u64) -> Outcome<(u64, f64)> {
        let (source, pool) = (self.source(number)?, &self.bench.pool);
        let before = pool.stats()?.number("session.bytes_stored")?;
        let seconds = timed(|| dedupfs("put").arg(&source).arg(pool.at(&name_of(number))).quiet().run())?;
        Ok((pool.stats()?.number("session.bytes_stored")? - before, seconds))
    }

    /// Reclaims. Returns the bytes that were moved, and those of them that were moved for order.
    fn reclaim(&self, arrange: &str) -> Outcome<[u64; 2]> {
        let text = command!(program("dedupfs-gc"), "--json", "--arrange", arrange, &self.bench.pool.mnt).text()?;
        let report: Option<Value> = text.trim_end().lines().last().and_then(|line| serde_json::from_str(line).ok());
        let Some(report) = report else { return fail("dedupfs-gc --json printed no report") };
        Ok(["moved_bytes", "arranged_bytes"].map(|name| report[name].as_u64().unwrap_or(0)))
    }

    fn restores(&mut self, arrange: &str, number: u64, of: &str, sums: &Sums) -> Outcome {
        self.alone.format()?;
        self.alone.mount()?;
        dedupfs("put").arg(self.source(number)?).arg(self.alone.at(&name_of(number))).quiet().run()?;
        for by in ["get", "cp"] {
            let (ram, drop_caches, runs) = (self.bench.ram.clone(), self.args.caches.drop_caches, self.args.runs);
            let best = restore(&ram, &mut self.alone, (by, number), (drop_caches, runs))?;
            let found = restore(&ram, &mut self.bench.pool, (by, number), (drop_caches, runs))?;
            let moved = sums.moved as f64 / sums.stored.max(1) as f64;
            let copied = sums.freed_share();
            let (share, amplification) = (found.rate / best.rate, found.read_bytes / best.read_bytes);
            print_row!(
                format!("{of}, {number}"),
                by,
                table::number(found.rate, 0),
                table::number(share, 2),
                table::number(amplification, 2),
                table::number(found.regions, 0),
                table::number(moved, 2),
                table::number(copied, 2)
            );
            let _infallible = writeln!(
                self.tsv,
                "{arrange}\t{number}\t{of}\t{by}\t{}\t{}\t{}\t{}\t{}",
                number_of(found.rate),
                number_of(share),
                number_of(amplification),
                number_of(moved),
                number_of(copied)
            );
        }
        self.alone.unmount()?;
        files::remove(&self.alone.path)?;
        match &self.args.tsv {
            Some(path) => std::fs::write(path, &self.tsv).or_else(files::at("write", path)),
            None => Ok(()),
        }
    }
}

fn number_of(value: f64) -> String {
    number(value, 3)
}

struct Restore {
    rate: f64,
    read_bytes: f64,
    regions: f64,
}

/// Restores a version cold, so many times; returns medians.
fn restore(
    ram: &Path,
    pool: &mut Pool,
    (by, version): (&str, u64),
    (drop_caches, runs): (bool, u64),
) -> Outcome<Restore> {
    let from = pool.at(&name_of(version));
    let (bytes, out) = (files::content_bytes(&from), ram.join("out"));
    let (mut rates, mut read, mut regions) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        pool.remount_cold(drop_caches)?;
        let before = figures(pool)?;
        let seconds = timed(|| match by {
            "get" => dedupfs("get").arg(&from).arg(&out).quiet().run(),
            _ => command!("cp", "-a", &from, &out).quiet().run(),
        })?;
        let after = figures(pool)?;
        files::remove(&out)?;
        rates.push(bytes as f64 / 1e6 / seconds);
        read.push((after.0 - before.0) as f64);
        regions.push((after.1 - before.1) as f64);
    }
    let of = |values: &[f64]| median(values).unwrap_or(0.0);
    Ok(Restore { rate: of(&rates), read_bytes: of(&read), regions: of(&regions) })
}

/// Bytes of content that the engine has read, and regions.
fn figures(pool: &Pool) -> Outcome<(u64, u64)> {
    let stats = pool.stats()?;
    let regions = stats.number("data_containers.region_reads")? + stats.number("data_containers.prefetched_regions")?;
    Ok((stats.number("data_containers.read_bytes")?, regions))
}
