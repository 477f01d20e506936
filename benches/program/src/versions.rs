//! Versions of one tree: time and size of each operation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::command::Run;
use crate::figures::timed;
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::{Outcome, command, data, fail, files, machine, print_row, say, table};

/// Measures versions of a tree of small files, a hundred in a directory.
///
/// The first put beside a live one; puts of the unchanged tree and of one with changes; snapshots of a live copy; the removal; what a
/// removal would free; walks. The bytes of a step are those of names, nodes and index, which lie on the meta root. Waits a minute before
/// the second put: files that changed within that time are read again.
#[derive(clap::Args)]
pub struct Versions {
    /// Files of 4 KiB; they lie in memory
    #[arg(long, default_value = "100000", value_parser = count)]
    files: u64,
    /// Medians are of so many further runs of puts, snapshots and walks
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Files in a directory of the tree.
const PER_DIRECTORY: u64 = 100;
/// Longer than the margin within which a changed file is read again.
const RACY: Duration = Duration::from_secs(62);

struct Measurement<'a> {
    args: &'a Versions,
    source: PathBuf,
    pool: Pool,
    version: u64,
}

/// Runs the command.
pub fn run(args: &Versions) -> Outcome {
    let bytes = args.files * data::SMALL_BYTES;
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, ram, pool } =
        Bench::new(&programs, &["find", "sync"], &args.pool, 2 * bytes, 3 * bytes + args.files * 4096 + (1 << 30))?;
    let source = ram.join("source");
    say!("making {} files", args.files);
    data::small_files(&source, args.files)?;
    println!("{}", machine::describe(&work)?);
    println!("- {} files of 4 KiB, {PER_DIRECTORY} in a directory, in memory\n", args.files);
    println!("{}", table::head(&["", "seconds", "files/s", "bytes of names, nodes, index"]));
    let mut this = Measurement { args, source, pool, version: 0 };
    this.all()
}

impl Measurement<'_> {
    fn all(&mut self) -> Outcome {
        let walk = format!("{}/", self.source.display());
        let find = self.median(|_| timed(|| find(Path::new(&walk))))?;
        self.row("find with all attributes, on the source", find, None);

        self.pool.format()?;
        self.pool.mount()?;
        let live = self.pool.at("live");
        let seconds = timed(|| dedupfs("put").arg("--live").args([&self.source, &live]).quiet().run())?;
        let bytes = self.meta_bytes()?;
        self.row("put --live, the first", seconds, Some(bytes));
        self.pool.unmount()?;
        files::remove(&self.pool.path)?;

        self.pool.format()?;
        self.pool.mount()?;
        let before = self.meta_bytes()?;
        let seconds = timed(|| self.put(&[]))?;
        let first = self.meta_bytes()?;
        self.row("put, the first version", seconds, Some(first - before));
        std::thread::sleep(RACY);
        // Its notes say which files can be taken over.
        self.put(&[])?;
        let before = self.meta_bytes()?;
        let seconds = self.median(|this| timed(|| this.put(&[])))?;
        let bytes = (self.meta_bytes()? - before) / self.args.runs;
        self.row("put, nothing changed", seconds, Some(bytes));
        let seconds = self.median(|this| timed(|| this.put(&["--reread"])))?;
        self.row("put --reread, nothing changed", seconds, None);

        let percent = self.args.files / 100;
        let before = self.meta_bytes()?;
        self.change(percent, self.args.files / percent.max(1))?;
        let seconds = timed(|| self.put(&[]))?;
        let bytes = self.meta_bytes()? - before;
        self.row("put, 1% of the files changed, evenly", seconds, Some(bytes));
        let before = self.meta_bytes()?;
        self.change(percent, 1)?;
        let seconds = timed(|| self.put(&[]))?;
        let bytes = self.meta_bytes()? - before;
        self.row("put, 1% of the files changed, in 1% of the directories", seconds, Some(bytes));

        self.snapshots()?;
        self.walks()?;
        self.removals()?;
        self.pool.unmount()?;
        let seconds = timed(|| self.pool.fsck())?;
        self.row("fsck", seconds, None);
        Ok(())
    }

    fn snapshots(&mut self) -> Outcome {
        let live = self.pool.at("live");
        dedupfs("put").arg("--live").args([&self.source, &live]).quiet().run()?;
        self.pool.sync()?;
        let before = self.meta_bytes()?;
        let mut number = 0;
        let seconds = self.median(|this| {
            number += 1;
            let to = this.pool.at(&format!("snapshot-{number}"));
            timed(|| dedupfs("snapshot").args([&live, &to]).quiet().run())
        })?;
        let bytes = (self.meta_bytes()? - before) / self.args.runs;
        self.row("snapshot of a live tree", seconds, Some(bytes));
        Ok(())
    }

    fn walks(&mut self) -> Outcome {
        for (title, name) in [("live tree", "live"), ("newest version", "last"), ("oldest version", "first")] {
            let path = match name {
                "last" => self.pool.at(&format!("v{}", self.version)),
                "first" => self.pool.at("v1"),
                name => self.pool.at(name),
            };
            let cold = self.median(|this| {
                this.pool.remount_cold(false)?;
                timed(|| find(&path))
            })?;
            self.row(&format!("find with all attributes, {title}, mounted anew"), cold, None);
            let warm = self.median(|_| timed(|| find(&path)))?;
            self.row("the same again", warm, None);
        }
        Ok(())
    }

    fn removals(&mut self) -> Outcome {
        let list = timed(|| dedupfs("list").arg(&self.pool.mnt).quiet().run())?;
        self.row("list", list, None);
        let [before, after] = [1, 0].map(|back| self.pool.at(&format!("v{}", self.version - back)));
        let diff = timed(|| dedupfs("diff").args([&before, &after]).quiet().run())?;
        self.row("diff, the newest two versions", diff, None);
        let first = files::entries(&after)?.into_iter().next().unwrap_or_default();
        let path = first.file_name().unwrap_or_default();
        let history = timed(|| dedupfs("history").arg(&self.pool.mnt).arg(path).quiet().run())?;
        self.row("history of one directory", history, None);
        let oldest = self.pool.at("v1");
        let would = timed(|| command!(program("dedupfs-stats"), "--would-free", &oldest).quiet().run())?;
        self.row("dedupfs-stats --would-free, the oldest version", would, None);
        let seconds = timed(|| dedupfs("forget").arg(&oldest).quiet().run())?;
        self.row("forget, the oldest version", seconds, None);
        let names = files::entries(&self.pool.mnt)?;
        let versions = names.iter().filter(|path| !path.ends_with("live"));
        dedupfs("forget").args(versions).quiet().run()?;
        command!("rm", "-r", self.pool.at("live")).run()?;
        let seconds = timed(|| self.pool.reclaim())?;
        self.row("dedupfs-gc when everything is removed", seconds, None);
        Ok(())
    }

    fn put(&mut self, options: &[&str]) -> Outcome {
        self.version += 1;
        let to = self.pool.at(&format!("v{}", self.version));
        let text = dedupfs("put").arg("--json").args(options).args([&self.source, &to]).text()?;
        let report: Value = serde_json::from_str(&text).or_else(|error| fail(format!("cannot read it: {error}")))?;
        let of = |name: &str| report.pointer(&format!("/version/{name}")).and_then(Value::as_u64).unwrap_or(0);
        say!("v{}: {} entries, {} taken over", self.version, of("entries"), of("taken_over"));
        Ok(())
    }

    /// Changes some files of the source, each `step` behind the one before.
    fn change(&self, number: u64, step: u64) -> Outcome {
        let mut random = data::Random::new(&format!("change {step} {}", self.version));
        for place in 0..number {
            let at = (place * step).min(self.args.files - 1);
            let path = self.source.join(format!("d{:05}/f{at:07}", at / PER_DIRECTORY));
            std::fs::write(&path, random.next().to_string()).or_else(files::at("write", &path))?;
        }
        Ok(())
    }

    fn median(&mut self, mut work: impl FnMut(&mut Self) -> Outcome<f64>) -> Outcome<f64> {
        let mut seconds = Vec::new();
        for _ in 0..self.args.runs {
            seconds.push(work(self)?);
        }
        seconds.sort_unstable_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().map_or_else(|| fail("no run"), Ok)
    }

    /// Bytes of encoded nodes, of the namespace and of the index, with everything durable.
    fn meta_bytes(&self) -> Outcome<u64> {
        self.pool.sync()?;
        let stats = self.pool.stats()?;
        let parts = ["recipe_container_bytes", "namespace_bytes", "index_bytes"];
        parts.iter().try_fold(0, |sum, part| Ok(sum + stats.number(part)?))
    }

    fn row(&self, title: &str, seconds: f64, bytes: Option<u64>) {
        let rate = table::number(self.args.files as f64 / seconds.max(1e-6), 0);
        print_row!(
            title,
            format!("{seconds:.4}"),
            rate,
            bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
        );
    }
}

/// Lists a tree with all attributes of each entry.
fn find(path: &Path) -> Outcome {
    command!("find", path, "-printf", "%p %y %m %U %G %s %T@ %C@ %i %n %l\n").quiet().run()
}
