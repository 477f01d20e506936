//! What operations cost on a disk that seeks.

pub mod disk;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use dedupfs_tools::parse_size;
use disk::{Cost, Disk};

use crate::command::Run;
use crate::figures::median;
use crate::options::{PoolOptions, count, size_1m};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::sources::Sources;
use crate::synthetic::Synthetic;
use crate::versions::rival::Rival;
use crate::{Outcome, command, files, layout, machine, print_row, rivals_tools, say, table};

const RIVALS: [&str; 2] = ["restic", "borg"];

/// Measures what operations cost on an emulated disk that seeks (root): seconds, seeks and bytes.
///
/// The disk lies in memory, and takes the time that one arm would take: 0.8 to 16 ms for a seek, half a turn of 7,200 a minute, 180 MB/s. It
/// has an ext4. The content of a pool lies on it, the meta root on the filesystem of --dir, or on the disk, too. All reads are cold. Restores
/// go into memory. What is written is synced within the time. Then come cp from a fresh ext4 on such a disk, and restores by other tools,
/// whose cache lies in --dir. Needs nbdkit with the headers for plugins, nbdfuse and a C compiler.
#[derive(clap::Args)]
pub struct Seeking {
    /// Directory with one directory for each version [default: synthetic ones: half of the files change in four places each time]
    series: Option<PathBuf>,
    /// Synthetic versions
    #[arg(long, default_value = "12", value_parser = count)]
    versions: u64,
    /// Files of a synthetic version
    #[arg(long, default_value = "100", value_parser = count)]
    files: u64,
    /// Size of each, random bytes
    #[arg(long, default_value = "1M", value_parser = size_1m)]
    size: u64,
    /// Length of the disk: the longest seek goes over all of it
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    disk: u64,
    /// Restores of each version, of which the median counts
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    /// Some of restic,borg, beside dedupfs [default: those that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = RIVALS)]
    tools: Vec<String>,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Runs the command.
pub fn run(args: &Seeking) -> Outcome {
    disk::need_prerequisites()?;
    let synthetic = Synthetic { versions: args.versions, files: args.files, size: args.size };
    let mut sources = Sources::new(args.series.as_deref(), synthetic)?;
    let (memory, disk) = (5 * sources.version_bytes() + 4 * sources.all_bytes(), 2 * sources.all_bytes());
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, ram, .. } = Bench::new(&programs, &["cp", "diff"], &args.pool.arranged_by_hand(), memory, disk)?;
    sources.make_in(&ram);
    println!("{}", machine::describe(&work)?);
    println!("{}; a disk of {}", sources.describe(), table::human(args.disk));
    let this = Measurement { args, work, ram, sources };
    this.pool("meta root elsewhere", false)?;
    this.pool("meta root on the disk", true)?;
    this.others()?;
    println!("\n{}", machine::describe_end(args.runs)?);
    Ok(())
}

struct Measurement<'a> {
    args: &'a Seeking,
    work: PathBuf,
    ram: PathBuf,
    sources: Sources,
}

/// Rows of a table, in the order in which they were first noted.
#[derive(Default)]
struct Rows(Vec<Row>);

/// A title with the costs of its runs, and bytes that the engine read in each.
type Row = (String, Vec<(Cost, Option<u64>)>);

impl Rows {
    fn note(&mut self, title: &str, cost: Cost, engine_bytes: Option<u64>) {
        say!("{title}: {:.3} s, {} seeks, {} bytes read", cost.seconds, cost.seeks, cost.read_bytes);
        match self.0.iter_mut().find(|(known, _)| known == title) {
            Some((_, costs)) => costs.push((cost, engine_bytes)),
            None => self.0.push((title.to_owned(), vec![(cost, engine_bytes)])),
        }
    }

    fn print(&self, head: &str) {
        let heads = ["seconds", "of the arm", "seeks", "MB read", "by the engine", "MB written", "seeks for each GB"];
        println!("\n{}", table::head(&[&[head], &heads[..]].concat()));
        for (title, costs) in &self.0 {
            let of = |of: fn(&Cost) -> f64| {
                median(&costs.iter().map(|(cost, _)| of(cost)).collect::<Vec<_>>()).unwrap_or(0.0)
            };
            let engine: Vec<f64> = costs.iter().filter_map(|(_, bytes)| Some((*bytes)? as f64 / 1e6)).collect();
            let (seeks, read, written) =
                (of(|cost| cost.seeks), of(|cost| cost.read_bytes), of(|cost| cost.written_bytes));
            print_row!(
                title,
                table::number(of(|cost| cost.seconds), 2),
                table::number(of(|cost| cost.arm_seconds), 2),
                table::number(seeks, 0),
                table::number(read / 1e6, 1),
                table::cell(median(&engine), 1),
                table::number(written / 1e6, 1),
                table::cell((read + written > 1e6).then_some(seeks / (read + written) * 1e9), 0)
            );
        }
    }
}

impl Measurement<'_> {
    /// Measures a pool with its content on a disk.
    fn pool(&self, head: &str, is_meta_on_disk: bool) -> Outcome {
        say!("{head}");
        let disk = Disk::new(&self.ram, self.args.disk)?;
        let mut mkfs = self.args.pool.mkfs.0.clone();
        let path = if is_meta_on_disk {
            disk.root.join("pool")
        } else {
            mkfs.extend(["--data".to_owned(), disk.root.join("data").display().to_string()]);
            self.work.join("pool")
        };
        let mnt = self.work.join("mnt").join(if is_meta_on_disk { "disk" } else { "elsewhere" });
        let mut pool = Pool::new(path, mnt, &mkfs, &self.args.pool.arranged_by_hand().mount.0)?;
        let mut rows = Rows::default();
        pool.format()?;
        pool.mount()?;
        for (number, name) in self.sources.names.iter().enumerate() {
            let source = self.sources.make(number)?;
            let cost = disk.measure(|| dedupfs("put").arg(source).arg(pool.at(name)).quiet().run())?;
            rows.note(if number == 0 { "put of the first version" } else { "put of a further version" }, cost, None);
        }
        rows.note("unmount behind them", disk.measure(|| pool.unmount())?, None);
        self.mount_cold(&disk, &mut pool, &mut rows)?;
        self.restores(&disk, &mut pool, &mut rows, "")?;
        self.reclaim(
            &disk,
            &mut pool,
            &mut rows,
            "dedupfs-gc --arrange all",
            &["--arrange", "all", "--threshold", "0"],
        )?;
        self.restores(&disk, &mut pool, &mut rows, ", arranged")?;
        self.sources.forget_some(&pool)?;
        self.reclaim(&disk, &mut pool, &mut rows, "dedupfs-gc behind removals", &[])?;
        self.remount_cold(&disk, &mut pool, &mut rows)?;
        rows.note("scrub", disk.measure(|| dedupfs("scrub").arg("--restart").arg(&pool.mnt).quiet().run())?, None);
        self.sources.compare(&pool.mnt)?;
        pool.unmount()?;
        files::cold(&pool.path, true)?;
        rows.note("fsck", disk.measure(|| pool.fsck())?, None);
        rows.print(head);
        disk.end()?;
        files::remove(&pool.path)
    }

    fn mount_cold(&self, disk: &Disk, pool: &mut Pool, rows: &mut Rows) -> Outcome {
        files::cold(&pool.path, true)?;
        rows.note("mount", disk.measure(|| pool.mount())?, None);
        Ok(())
    }

    fn remount_cold(&self, disk: &Disk, pool: &mut Pool, rows: &mut Rows) -> Outcome {
        pool.unmount()?;
        self.mount_cold(disk, pool, rows)
    }

    fn reclaim(&self, disk: &Disk, pool: &mut Pool, rows: &mut Rows, title: &str, options: &[&str]) -> Outcome {
        self.remount_cold(disk, pool, rows)?;
        let gc = || command!(program("dedupfs-gc")).args(options).arg(&pool.mnt).quiet().run();
        rows.note(title, disk.measure(gc)?, None);
        Ok(())
    }

    fn restores(&self, disk: &Disk, pool: &mut Pool, rows: &mut Rows, when: &str) -> Outcome {
        for by in ["get", "cp"] {
            for (title, number) in self.sources.chosen() {
                for _ in 0..self.args.runs {
                    self.remount_cold(disk, pool, rows)?;
                    let before = layout::figures(pool)?;
                    let from = pool.at(&self.sources.names[number]);
                    let cost = self.restore(disk, |out| layout::copy_out(by, &from, out))?;
                    let after = layout::figures(pool)?;
                    let engine_bytes = after[0] + after[1] - before[0] - before[1];
                    rows.note(&format!("{by} of the {title}{when}"), cost, Some(engine_bytes));
                }
            }
        }
        Ok(())
    }

    /// Restores into memory by a command that takes the new directory.
    fn restore(&self, disk: &Disk, by: impl FnOnce(&Path) -> Outcome) -> Outcome<Cost> {
        files::empty_out(&self.ram, self.sources.version_bytes())?;
        let out = self.ram.join("out");
        let cost = disk.measure(|| by(&out.join("tree")))?;
        files::remove(&out)?;
        Ok(cost)
    }

    /// Restores of what is no pool.
    fn others(&self) -> Outcome {
        let mut rows = Rows::default();
        let mut newest = self.sources.make(0)?;
        for number in 1..self.sources.names.len() {
            newest = self.sources.make(number)?;
        }
        let disk = Disk::new(&self.ram, self.args.disk)?;
        let copy = disk.root.join("copy");
        rows.note("cp -a of the newest to ext4", disk.measure(|| layout::copy_out("cp", &newest, &copy))?, None);
        for _ in 0..self.args.runs {
            files::cold(&disk.root, true)?;
            let cost = self.restore(&disk, |out| layout::copy_out("cp", &copy, out))?;
            rows.note("cp -a of the newest from ext4", cost, None);
        }
        disk.end()?;
        for name in RIVALS {
            let is_asked = self.args.tools.is_empty() || self.args.tools.iter().any(|tool| tool == name);
            match rivals_tools::is_installed(name) {
                true if is_asked => self.rival(name, &mut rows)?,
                false if is_asked => eprintln!("NOT RUN: {name}, which is not installed"),
                _ => {}
            }
        }
        rows.print("others");
        Ok(())
    }

    fn rival(&self, name: &str, rows: &mut Rows) -> Outcome {
        let disk = Disk::new(&self.ram, self.args.disk)?;
        let mut rival = Rival::new(name, &disk.root, &self.work, &self.ram)?;
        for (number, version) in self.sources.names.iter().enumerate() {
            let (source, link) = (self.sources.make(number)?, self.ram.join(version));
            // The tools name a backup by the name of its directory.
            let _ = files::remove(&link);
            symlink(&source, &link).or_else(files::at("make", &link))?;
            let title = if number == 0 { "the first" } else { "a further" };
            let cost = disk.measure(|| rival.backup(version).map(drop))?;
            rows.note(&format!("{name}: backup of {title} version"), cost, None);
        }
        for (title, number) in self.sources.chosen() {
            for _ in 0..self.args.runs {
                files::cold(&disk.root, true)?;
                let cost = self.restore(&disk, |_| rival.restore(&self.sources.names[number]))?;
                rows.note(&format!("{name}: restore of the {title}"), cost, None);
            }
        }
        disk.end()
    }
}
