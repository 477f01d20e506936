//! A night of many disks, whose content is made when it is read, so that they need no room.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dedupfs_tools::parse_size;
use serde_json::{Value, json};

use super::{Pattern, SEGMENT_BYTES};
use crate::command::{Run, wait};
use crate::data::Random;
use crate::figures::{Figures, memory_bytes, peak_while};
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs};
use crate::{Outcome, command, fail, files, machine, nbdkit, print_row, table};

const PLUGIN: &str = include_str!("disks.c");
/// Content of disks is made in such blocks, and so much of each does not compress.
const BLOCK_BYTES: u64 = 4 << 10;
const NOISE_BYTES: u64 = 512;

/// Puts disks that were one template until parts of them changed, by `dedupfs batch` with a map of changes for each.
///
/// The pool has the template, and each disk as it was, which is like the template. Each unit that changed begins with content from elsewhere in the
/// template; the rest is new. An eighth of each 4 KiB does not compress. nbdkit makes the content while it is read, on the same processors. The
/// first and the last disk are compared with their versions. Beside them, the changed units of one disk more are put alone, as an image. Needs nbdkit
/// with the headers for plugins, nbdcopy and a C compiler.
#[derive(clap::Args)]
pub struct Disks {
    /// Disks
    #[arg(long, default_value = "40", value_parser = count)]
    disks: u64,
    /// Size of each
    #[arg(long, default_value = "40G", value_parser = parse_size)]
    size: u64,
    /// Part that changed: a percentage, with `s` as clusters of 64 KiB anywhere, with `r` as segments of 2 MiB in runs of 2.92 in the mean
    #[arg(long, default_value = "22r")]
    changed: Pattern,
    /// Percentage of each changed unit that the template has elsewhere, whole blocks of 4 KiB
    #[arg(long, default_value = "74.5", value_parser = percentage)]
    known: f64,
    /// Key `readers` of the plan
    #[arg(long, default_value = "2", value_parser = count)]
    readers: u64,
    /// Key `verify` of the plan
    #[arg(long, value_name = "PERCENT|full|none", default_value = "0.5%")]
    verify: String,
    #[command(flatten)]
    pool: PoolOptions,
}

fn percentage(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 100".to_owned())
}

/// Runs the command.
pub fn run(args: &Disks) -> Outcome {
    nbdkit::need_prerequisites(&["nbdcopy", "cmp"])?;
    if !args.size.is_multiple_of(SEGMENT_BYTES) {
        return fail("--size must be a multiple of 2M");
    }
    let night = Night::new(args);
    // The disk beside them is the last one.
    let written = args.size + (args.disks + 1) * night.new_bytes();
    let room = written / BLOCK_BYTES * NOISE_BYTES * 3 / 2 + (2 << 30);
    let mut bench = Bench::new(&["dedupfs", "dedupfs-stats"], &[], &args.pool, 1 << 30, room)?;
    println!("{}\n", machine::describe(&bench.work)?);
    let server = Server::start(args, &bench.ram)?;
    bench.pool.format()?;
    bench.pool.mount()?;
    let (pool, mut figures) = (&bench.pool, Figures::default());
    figures.run = 1;
    figures.record("put", TEMPLATE, args.size, pool.daemon, || {
        server.put(TEMPLATE, &pool.at("template/1"))?.run()?;
        pool.sync()
    })?;
    let nothing = server.write("nothing", "# nothing\n")?;
    for disk in night.names() {
        let mut put = server.put(&disk, &pool.at(&disk).join("1"))?;
        put.args(["--verify", "none", "--token", "1", "--changed"]).arg(&nothing);
        put.arg("--base").arg(pool.at("template/1")).run()?;
    }
    for disk in night.names().chain([ALONE.to_owned()]) {
        night.change(&server, &disk)?;
    }
    pool.sync()?;
    let (plan, before) = (night.plan(&server, pool)?, unique_bytes(pool)?);
    let memory = || pool.daemon.and_then(|pid| memory_bytes(pid, "VmRSS")).unwrap_or(0.0);
    let mut report = String::new();
    let (done, peak) = peak_while(&memory, || {
        figures.record("put", "night", night.logical_bytes(), pool.daemon, || {
            report = dedupfs("batch").arg("--json").arg(&plan).text()?;
            pool.sync()
        })
    });
    done?;
    let stored = unique_bytes(pool)?.saturating_sub(before);
    let report = Report::new(&report)?;
    let ends: BTreeSet<_> = [night.names().next(), night.names().next_back()].into_iter().flatten().collect();
    ends.iter().try_for_each(|disk| server.compare(disk, &pool.at(disk)))?;
    figures.record("put", ALONE, night.changed_bytes(), pool.daemon, || {
        server.put(&format!("{ALONE}.alone"), &pool.at(ALONE).join("1"))?.run()?;
        pool.sync()
    })?;
    print(&night, &figures, (&report, stored, peak));
    bench.pool.unmount()?;
    bench.pool.fsck()?;
    server.end()?;
    println!("\n{}", machine::describe_end(1)?);
    Ok(())
}

/// The disk that all others are like. Their versions' files have its name.
const TEMPLATE: &str = "template";
/// A disk whose changed units are put alone, beside the night.
const ALONE: &str = "beside";

/// The disks and their changes.
struct Night<'a> {
    args: &'a Disks,
    unit_bytes: u64,
    /// So much of a changed unit is known.
    known_bytes: u64,
    /// Changed units of each disk.
    changed_units: u64,
}

impl<'a> Night<'a> {
    fn new(args: &'a Disks) -> Self {
        let unit_bytes = args.changed.unit_bytes();
        let known_bytes = (unit_bytes as f64 * args.known / 100.0 / BLOCK_BYTES as f64).round() as u64 * BLOCK_BYTES;
        Self { args, unit_bytes, known_bytes, changed_units: args.changed.changed_units(args.size) }
    }

    fn names(&self) -> impl DoubleEndedIterator<Item = String> {
        (1..=self.args.disks).map(|number| format!("disk-{number:03}"))
    }

    fn logical_bytes(&self) -> u64 {
        self.args.disks * self.args.size
    }

    /// Bytes that changed of each disk.
    fn changed_bytes(&self) -> u64 {
        self.changed_units * self.unit_bytes
    }

    /// Those of them that the pool has nowhere.
    fn new_bytes(&self) -> u64 {
        self.changed_units * (self.unit_bytes - self.known_bytes)
    }

    /// Changes parts of a disk, and writes the map of them.
    fn change(&self, server: &Server, disk: &str) -> Outcome {
        let mut random = Random::new(disk);
        let ranges = self.args.changed.ranges(self.args.size, &mut random);
        let mut parts = vec![random.next(), self.unit_bytes, self.known_bytes];
        let mut map = String::new();
        for (from, len) in ranges {
            parts.extend([from / self.unit_bytes, random.below(self.args.size / self.unit_bytes)]);
            map += &format!("{from} {len}\n");
        }
        let bytes: Vec<u8> = parts.into_iter().flat_map(u64::to_ne_bytes).collect();
        server.write(&format!("{disk}.map"), map)?;
        server.write(&format!("parts/{disk}"), bytes)?;
        Ok(())
    }

    /// Writes the plan of a batch, and for each disk the program that tells the batch of it.
    fn plan(&self, server: &Server, pool: &Pool) -> Outcome<PathBuf> {
        let Disks { verify, readers, .. } = self.args;
        let mnt = pool.mnt.display().to_string();
        let mut plan = format!("pool = {mnt:?}\nverify = {verify:?}\n[[host]]\nname = \"all\"\nreaders = {readers}\n");
        for disk in self.names() {
            let (source, map) = (server.address(&disk), server.at(&format!("{disk}.map")));
            let answer = json!({"source": source, "map": map, "token_from": "1", "token": "2"});
            let program = format!("[ $1 != begin ] || echo '{answer}'\n");
            let program = server.write(&format!("{disk}.sh"), program)?.display().to_string();
            plan +=
                &format!("[[disk]]\nname = {disk:?}\nhost = \"all\"\nsource = \"exec:/bin/sh argument={program}\"\n");
        }
        server.write("plan.toml", plan)
    }
}

/// The process that serves the disks, and files beside it.
struct Server {
    directory: PathBuf,
    process: Child,
}

impl Server {
    fn start(args: &Disks, ram: &Path) -> Outcome<Self> {
        let directory = ram.join("disks");
        let parts = directory.join("parts");
        fs::create_dir_all(&parts).or_else(files::at("make", &parts))?;
        let plugin = nbdkit::build("disks", PLUGIN, &directory)?;
        let socket = directory.join("socket");
        let mut nbdkit = command!("nbdkit", "--exit-with-parent", "-f", "-U", &socket, plugin);
        nbdkit.arg(format!("size={}", args.size)).arg(format!("parts={}", parts.display()));
        let server = Self { directory, process: nbdkit.start()? };
        match (0..200).any(|_| {
            socket.exists() || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        }) {
            true => Ok(server),
            false => fail("nbdkit does not serve"),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Outcome<PathBuf> {
        let path = self.at(name);
        fs::write(&path, content).or_else(files::at("write", &path))?;
        Ok(path)
    }

    fn address(&self, disk: &str) -> String {
        format!("nbd+unix:///{disk}?socket={}", self.at("socket").display())
    }

    /// Returns a put of a disk.
    fn put(&self, disk: &str, to: &Path) -> Outcome<Command> {
        to.parent().map_or(Ok(()), files::make_dir)?;
        let mut put = dedupfs("put");
        put.arg("--image").arg(self.address(disk)).arg(to).quiet();
        Ok(put)
    }

    /// Compares a disk with its newest version, in the directory `versions`.
    fn compare(&self, disk: &str, versions: &Path) -> Outcome {
        let all =
            fs::read_dir(versions).and_then(|all| all.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>());
        // Behind the version `1`.
        let newest = all.or_else(files::at("list", versions))?.into_iter().filter(|path| !path.ends_with("1")).max();
        let Some(newest) = newest else { return fail(format!("{disk} has no version")) };
        let mut read = command!("nbdcopy", self.address(disk), "-").stdout(Stdio::piped()).start()?;
        let mut compare = command!("cmp", "-", newest.join(TEMPLATE));
        if let Some(content) = read.stdout.take() {
            compare.stdin(content);
        }
        compare.run()?;
        wait(read, "nbdcopy")
    }

    fn end(mut self) -> Outcome {
        let ended = self.process.kill().and_then(|()| self.process.wait());
        ended.map(drop).or_else(|error| fail(format!("cannot end nbdkit: {error}")))
    }
}

fn unique_bytes(pool: &Pool) -> Outcome<u64> {
    pool.stats()?.number("unique_chunk_bytes")
}

/// Sums of a batch.
struct Report {
    read_bytes: u64,
    verified_bytes: u64,
}

impl Report {
    fn new(text: &str) -> Outcome<Self> {
        let report: Value = serde_json::from_str(text.trim()).or_else(|error| fail(format!("{error} in {text}")))?;
        let disks = report["disks"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(why) = disks.iter().find_map(|disk| disk["full_because"].as_str()) {
            return fail(format!("a disk was read as a whole: {why}"));
        }
        let sum = |name: &str| disks.iter().filter_map(|disk| disk[name].as_u64()).sum();
        Ok(Self { read_bytes: sum("read_bytes"), verified_bytes: sum("verified_bytes") })
    }
}

fn print(night: &Night<'_>, figures: &Figures, (report, stored, peak): (&Report, u64, f64)) {
    let (args, disks) = (night.args, night.args.disks);
    println!(
        "- {disks} disks of {}, {} changed, {:.1}% of it known\n",
        table::human(args.size),
        args.changed.name(),
        100.0 * night.known_bytes as f64 / night.unit_bytes as f64
    );
    println!("{}", table::head(&["", "bytes", "seconds", "MB/s", "processors"]));
    let row = |name: &str, figure: &str, bytes: u64| {
        let rate = figures.median("put", figure).unwrap_or(0.0);
        let units = match figure {
            "night" => night.logical_bytes(),
            ALONE => night.changed_bytes(),
            _ => args.size,
        };
        let seconds = units as f64 / rate;
        let cpu = table::cell(figures.median("put cpu", figure), 2);
        print_row!(name, table::human(bytes), table::number(seconds, 2), table::rate(bytes, seconds), cpu);
    };
    row("the template", TEMPLATE, args.size);
    row("the night: logical", "night", night.logical_bytes());
    row("the night: changed", "night", disks * night.changed_bytes());
    row("the changes of one disk more, alone", ALONE, night.changed_bytes());
    println!();
    println!("{}", table::head(&["of the night", "bytes", "% of logical", "% of changed"]));
    for (name, bytes) in [
        ("changed", disks * night.changed_bytes()),
        ("new", disks * night.new_bytes()),
        ("stored", stored),
        ("read for changes", report.read_bytes),
        ("read by samples", report.verified_bytes),
    ] {
        let share = |of: u64| table::number(100.0 * bytes as f64 / of.max(1) as f64, 2);
        print_row!(name, table::human(bytes), share(night.logical_bytes()), share(disks * night.changed_bytes()));
    }
    println!("\n- largest resident memory of the daemon in the night: {}", table::human(peak as u64));
}
