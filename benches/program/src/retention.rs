//! Reclaiming under retention.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::command::{Run, wait};
use crate::figures::{median, peak_while, timed};
use crate::options::{Caches, PoolOptions, Words, count, size_1m};
use crate::pool::{self, Bench, Pool, Stats};
use crate::retention_tables as tables;
use crate::table::{human, number};
use crate::{Outcome, command, fail, files, machine, say, usage};

/// Measures reclaiming under retention.
///
/// Versions of one tree are backed up one after the other, the oldest is deleted whenever more than so many are kept, and dedupfs-gc gives
/// its space back while the next version is being written. Tells the size of the pool on disk against that of a fresh pool with the same
/// versions, the bytes copied for those freed, the slowdown of a backup by gc beside it, and the rates at which the newest and the oldest
/// version are restored as the pool ages; for several policies.
///
/// A step: the next version is copied into the mount (cp -a) and synced, in a time that is measured, from memory. The gc after the deletion
/// of the step before runs beside that, or, in every other step, before it; both have ended when the pool is measured. Then the oldest
/// version is deleted, if more than --keep are there. So the versions in the mount are compared with a fresh pool of just these, which was
/// written oldest first. Between steps with a fresh pool its size is estimated: that of the last one, changed as the bytes of the chunks in
/// use have changed. The highest size is sampled while the step runs. Bytes moved and bytes freed are of chunks, uncompressed; moved bytes
/// do not count as freed.
///
/// Restores are cold: after a new mount, with nothing of the pool in the page cache, everything is read by cat. In the end the versions kept
/// are compared with their sources, and dedupfs fsck checks the pool.
#[derive(clap::Args)]
pub struct Retention {
    /// Directory with one directory for each version [default: synthetic trees of the example aged_tree]
    series: Option<PathBuf>,
    /// Versions that are backed up [default: 100, or as many as SERIES has]
    #[arg(long, value_name = "NUMBER", value_parser = count)]
    versions: Option<u64>,
    /// Versions that are kept
    #[arg(long, value_name = "NUMBER", default_value = "20", value_parser = count)]
    keep: u64,
    /// Size of a synthetic version
    #[arg(long, default_value = "256M", value_parser = size_1m)]
    size: u64,
    /// Options for aged_tree, such as "--seed 2 --modified 0.2"
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    tree: Words,
    /// Some of default,perfect,half,marker, in turn [default: all]. default: dedupfs-gc as it is; perfect: --threshold 100 --leave 0,
    /// everything dead is freed; half: --threshold 50; marker: --threshold 0, only containers that are wholly dead
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = POLICIES.map(|policy| policy.0))]
    policies: Vec<String>,
    /// One more policy: dedupfs-gc with these options; without --policies the only one. Can be repeated
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    gc: Vec<String>,
    /// A fresh pool is made at every Nth step, at the first one with gc and at the last
    #[arg(long, value_name = "N", default_value = "10", value_parser = count)]
    fresh_every: u64,
    /// Restores are measured at every Nth step and at the last one
    #[arg(long, value_name = "N", default_value = "10", value_parser = count)]
    restore_every: u64,
    /// Restores of each version then, of which the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    restore_repeat: u64,
    /// File that gets every step, too: the data of benches/plots/plots.sh
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// One step, by the names of `COLUMNS` of the tables.
pub type Row = HashMap<String, String>;

/// Names of policies, and their options of dedupfs-gc.
const POLICIES: [(&str, &str); 4] = [
    ("default", ""),
    ("perfect", "--threshold 100 --leave 0"),
    ("half", "--threshold 50"),
    ("marker", "--threshold 0"),
];

/// Returns names and options of the policies that are asked for.
fn policies(args: &Retention) -> Vec<(String, String)> {
    let is_all = args.policies.is_empty() && args.gc.is_empty();
    let known = POLICIES.iter().filter(|(name, _)| is_all || args.policies.iter().any(|asked| asked == name));
    // A name without spaces: threshold=60,leave=2.
    let named = |options: &String| options.trim_start_matches("--").replace(" --", ",").replace(' ', "=");
    let own = args.gc.iter().map(|options| (named(options), options.clone()));
    known.map(|(name, options)| ((*name).to_owned(), (*options).to_owned())).chain(own).collect()
}

struct Measurement<'a> {
    args: &'a Retention,
    bench: Bench,
    fresh_pool: Pool,
    names: Vec<String>,
    versions: u64,
    /// Columns of fresh pools with the versions of a step, the same for all policies.
    fresh: HashMap<u64, Row>,
    rows: Vec<Row>,
}

/// The state of a policy between steps.
struct Policy<'a> {
    name: &'a str,
    gc: Vec<String>,
    /// First version in the mount.
    oldest: u64,
    /// Whether gc has something to do.
    is_deleted: bool,
    /// Physical bytes of the last fresh pool, and the bytes of chunks in use then.
    anchor: Option<(f64, u64)>,
}

/// Runs the command.
pub fn run(args: &Retention) -> Outcome {
    let policies = policies(args);
    let names = args.series.as_deref().map_or(Ok(Vec::new()), files::directories)?;
    let there = names.len() as u64;
    let all_bytes = args.series.as_deref().map_or(0, files::content_bytes);
    let (versions, version_bytes, unique_bytes) = if args.series.is_some() {
        if there == 0 || args.versions.is_some_and(|versions| versions > there) {
            return usage(format!("SERIES has only {there} versions"));
        }
        // Half of it repeats, if nothing is known of it.
        (args.versions.unwrap_or(there), 2 * all_bytes / there, all_bytes / 2)
    } else {
        let versions = args.versions.unwrap_or(100);
        // A version brings some percent that are new.
        (versions, 2 * args.size, args.size * (10 + versions) / 10)
    };
    if versions <= args.keep {
        return usage("nothing is ever deleted: --versions must be more than --keep");
    }
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc", "aged_tree"];
    let (commands, disk) = (["cat", "cp", "diff", "xargs"], unique_bytes + args.keep * version_bytes / 4 + (256 << 20));
    let count = if args.series.is_some() { 3 } else { 4 };
    let bench = Bench::new(&programs[..count], &commands, &args.pool, 2 * version_bytes + (1 << 30), disk)?;
    let (path, mnt) = (bench.work.join("fresh"), bench.work.join("fresh-mnt"));
    let fresh_pool = Pool::new(path, mnt, &args.pool.mkfs.0, &args.pool.mount.0)?;

    println!("{}", machine::describe(&bench.work)?);
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    if args.series.is_some() {
        println!("- {versions} versions of a real series, {} in all; {} are kept", human(all_bytes), args.keep);
    } else {
        let (size, tree) = (human(args.size), or(args.tree.to_string(), "as it is"));
        println!("- {versions} synthetic versions of about {size} (aged_tree {tree}); {} are kept", args.keep);
    }
    let (mkfs, mount) = (args.pool.mkfs.to_string(), args.pool.mount.to_string());
    println!("- pool: {}; mount: {}", or(mkfs, "as by default"), or(mount, "as by default"));
    let (fresh, rows) = (HashMap::new(), Vec::new());
    let mut all = Measurement { args, bench, fresh_pool, names, versions, fresh, rows };
    for (name, options) in &policies {
        let started = Instant::now();
        let gc = options.split_whitespace().map(str::to_owned).collect();
        all.run_policy(Policy { name, gc, oldest: 1, is_deleted: false, anchor: None })?;
        let space = if options.is_empty() { "" } else { " " };
        println!("\n**{name}**: `dedupfs-gc{space}{options}`, {} s", started.elapsed().as_secs());
        tables::print_steps(&all.rows, name, args.restore_every, versions);
    }
    tables::print_summary(&all.rows, &policies);
    Ok(())
}

fn version_name(number: u64) -> String {
    format!("v{number:06}")
}

/// Returns the physical bytes and their parts as columns with a prefix.
fn sizes(stats: &Stats, prefix: &str) -> Outcome<Row> {
    tables::PARTS.split(' ').map(|name| Ok((format!("{prefix}{name}"), stats.number(name)?.to_string()))).collect()
}

impl Measurement<'_> {
    /// Puts the content of a version into a directory that is not there yet.
    fn put_version(&self, number: u64, directory: &Path) -> Outcome {
        match &self.args.series {
            Some(series) => command!("cp", "-a", series.join(&self.names[number as usize - 1]), directory).run(),
            None => command!(pool::program("aged_tree"), "--size", self.args.size.to_string())
                .args(&self.args.tree.0)
                .args(["--generation", &number.to_string()])
                .arg(directory)
                .run(),
        }
    }

    fn is_due(&self, step: u64, every: u64) -> bool {
        step.is_multiple_of(every) || step == self.versions
    }

    fn run_policy(&mut self, mut policy: Policy<'_>) -> Outcome {
        self.bench.pool.format()?;
        self.bench.pool.mount()?;
        for step in 1..=self.versions {
            let row = self.step(step, &mut policy)?;
            self.rows.push(row);
            if let Some(path) = &self.args.tsv {
                std::fs::write(path, tables::tsv(&self.rows)).or_else(files::at("write", path))?;
            }
        }
        say!("{}: comparing and checking", policy.name);
        let source = self.bench.ram.join("source");
        for number in policy.oldest..=self.versions {
            self.put_version(number, &source)?;
            files::same(&source, &self.bench.pool.at(&version_name(number)))?;
            files::remove(&source)?;
        }
        self.bench.pool.unmount()?;
        self.bench.pool.fsck()?;
        files::remove(&self.bench.pool.path)
    }

    /// Makes a fresh pool with the versions from `oldest` to that of the step, unless it is known.
    fn make_fresh(&mut self, step: u64, oldest: u64) -> Outcome {
        if self.fresh.contains_key(&step) {
            return Ok(());
        }
        self.fresh_pool.format()?;
        self.fresh_pool.mount()?;
        let source = self.bench.ram.join("fresh");
        for number in oldest..=step {
            self.put_version(number, &source)?;
            command!("cp", "-a", &source, self.fresh_pool.at(&version_name(number))).run()?;
            files::remove(&source)?;
        }
        // An unmount writes index and export. The pool in use has both.
        self.fresh_pool.unmount()?;
        self.fresh_pool.mount()?;
        let mut row = sizes(&self.fresh_pool.stats()?, "live_")?;
        row.insert("live_du_bytes".into(), files::disk_bytes(&self.fresh_pool.path).to_string());
        let rate = restore_rate(self.args, &mut self.fresh_pool, step)?;
        row.insert("restore_fresh_mb_per_s".into(), number(rate, 1));
        self.fresh.insert(step, row);
        self.fresh_pool.unmount()?;
        files::remove(&self.fresh_pool.path)
    }

    /// Makes one step of a policy.
    fn step(&mut self, step: u64, policy: &mut Policy<'_>) -> Outcome<Row> {
        let args = self.args;
        let source = self.bench.ram.join("source");
        self.put_version(step, &source)?;
        let bytes = files::content_bytes(&source);
        let before = self.bench.pool.stats()?;
        // In turns; with every restore the turns change, so that the state after restores does not always strike the same.
        let when = match policy.is_deleted {
            false => "none",
            true if (step + step / args.restore_every).is_multiple_of(2) => "beside",
            true => "before",
        };
        let target = self.bench.pool.at(&version_name(step));
        let pool = &self.bench.pool;
        let size = || files::disk_bytes(&pool.path) as f64;
        let (done, peak_bytes) = peak_while(&size, || backup(pool, &source, &target, when, &policy.gc));
        let (seconds, reclaimed) = done?;
        self.bench.pool.sync()?;
        files::remove(&source)?;

        let stats = self.bench.pool.stats()?;
        let (physical, used) = (stats.number("physical_bytes")?, stats.number("unique_chunk_bytes")?);
        let disk = files::disk_bytes(&self.bench.pool.path);
        let (live, live_by) = if when == "none" {
            // Nothing was deleted yet: this is as a fresh pool is.
            (physical as f64, "same")
        } else if policy.anchor.is_none() || self.is_due(step, args.fresh_every) {
            say!("{}: a fresh pool with versions {} to {step}", policy.name, policy.oldest);
            self.make_fresh(step, policy.oldest)?;
            let live = self.fresh[&step]["live_physical_bytes"].parse().unwrap_or(f64::NAN);
            policy.anchor = Some((live, used));
            (live, "fresh")
        } else {
            let (live, used_then) = policy.anchor.unwrap_or((f64::NAN, 1));
            (live * used as f64 / used_then as f64, "estimate")
        };
        let mut row = sizes(&stats, "")?;
        row.extend(self.fresh.get(&step).cloned().unwrap_or_default());
        let mut put = |column: &str, value: String| drop(row.insert(column.to_owned(), value));
        if self.is_due(step, args.restore_every) {
            let newest = restore_rate(args, &mut self.bench.pool, step)?;
            put("restore_newest_mb_per_s", number(newest, 1));
            put("restore_oldest_mb_per_s", number(restore_rate(args, &mut self.bench.pool, policy.oldest)?, 1));
        }
        if let Some((gc_seconds, report)) = &reclaimed {
            for name in ["moved_bytes", "read_bytes", "written_bytes", "garbage_left_bytes", "containers_freed"] {
                let column = if matches!(name, "read_bytes" | "written_bytes") { "gc_" } else { "" };
                put(
                    &format!("{column}{name}"),
                    report[name].as_u64().map_or_else(String::new, |value| value.to_string()),
                );
            }
            let gone = |stored: &Stats, session: &Stats| {
                Ok(stored.number("data_containers.stored_bytes")? + session.number("session.bytes_stored")?)
            };
            put("freed_bytes", (gone(&before, &stats)? as i64 - gone(&stats, &before)? as i64).to_string());
            put("gc_seconds", number(*gc_seconds, 3));
            if when == "beside" {
                put("beside_percent", number(100.0 * gc_seconds.min(seconds) / seconds, 0));
            }
        }
        put("policy", policy.name.to_owned());
        put("step", step.to_string());
        put("gc_when", when.to_owned());
        put("versions", (step - policy.oldest + 1).to_string());
        put("logical_bytes", stats.number("logical_bytes")?.to_string());
        put("du_bytes", disk.to_string());
        put("highest_du_bytes", number(peak_bytes.max(disk as f64), 0));
        put("live_bytes", number(live, 0));
        put("live_by", live_by.to_owned());
        put("ratio", number(physical as f64 / live, 4));
        put("write_mb_per_s", number(bytes as f64 / 1e6 / seconds, 1));
        say!("{} of {}", tables::progress(&row), self.versions);

        policy.is_deleted = step - policy.oldest + 1 > args.keep;
        if policy.is_deleted {
            command!("rm", "-r", self.bench.pool.at(&version_name(policy.oldest))).run()?;
            self.bench.pool.sync()?;
            policy.oldest += 1;
        }
        Ok(row)
    }
}

/// The time of a backup, and the time and the report of the gc with it.
type Backup = (f64, Option<(f64, Value)>);

/// Copies a version into the mount and syncs it, with gc before, beside or none.
fn backup(pool: &Pool, source: &Path, target: &Path, when: &str, options: &[String]) -> Outcome<Backup> {
    let gc = || {
        let started = Instant::now();
        let text = command!(pool::program("dedupfs-gc"), "--json").args(options).arg(&pool.mnt).text()?;
        let seconds = started.elapsed().as_secs_f64();
        // The last line is the report; those before it tell progress.
        let report = text.trim_end().lines().last().and_then(|line| serde_json::from_str(line).ok());
        report.map_or_else(|| fail("dedupfs-gc --json printed no report"), |report| Ok((seconds, report)))
    };
    let mut reclaimed = if when == "before" { Some(gc()?) } else { None };
    std::thread::scope(|scope| {
        let beside = (when == "beside").then(|| scope.spawn(gc));
        let seconds = timed(|| command!("cp", "-a", source, target).run().and_then(|()| pool.sync()));
        if let Some(beside) = beside {
            reclaimed = Some(beside.join().unwrap_or_else(|_| fail("the gc beside the backup panicked"))?);
        }
        Ok((seconds?, reclaimed))
    })
}

/// Returns MB/s of cold restores of a version, the median of some. The pool is mounted anew for each.
fn restore_rate(args: &Retention, pool: &mut Pool, version: u64) -> Outcome<f64> {
    let directory = pool.at(&version_name(version));
    let (bytes, mut rates) = (files::content_bytes(&directory), Vec::new());
    for _ in 0..args.restore_repeat {
        pool.remount_cold(args.caches.drop_caches)?;
        let seconds = timed(|| {
            let mut list = command!("find", &directory, "-type", "f", "-print0").stdout(Stdio::piped()).start()?;
            let names = list.stdout.take().map_or_else(Stdio::null, Stdio::from);
            command!("xargs", "-0", "-r", "cat").stdin(names).quiet().run()?;
            wait(list, "find")
        })?;
        rates.push(bytes as f64 / 1e6 / seconds);
    }
    Ok(median(&rates).unwrap_or(0.0))
}
