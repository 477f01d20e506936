//! Very many versions of a tree of very many files in one pool.

use std::path::PathBuf;

use super::{PER_DIRECTORY, RACY, Tree, find, own};
use crate::command::Run;
use crate::figures::{median, timed};
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs};
use crate::{Outcome, data, files, machine, print_row, say, table};

/// Measures very many versions of a tree in one pool, 1% of whose files change between two of them.
///
/// The changed files lie evenly in all directories. Without --mount the pool is mounted with "--memory 512M". Waits a minute before the
/// second put, which reads files again that changed within that time.
#[derive(clap::Args)]
pub struct AgedVersions {
    /// Files of 4 KiB, a hundred in a directory; they lie in memory
    #[arg(long, default_value = "1000000", value_parser = count)]
    files: u64,
    /// Versions
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(4..10_000))]
    versions: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

struct Aged<'a> {
    args: &'a AgedVersions,
    tree: Tree,
    pool: Pool,
}

/// Runs the command.
pub fn run(args: &AgedVersions) -> Outcome {
    let mut options = args.pool.clone();
    if options.mount.0.is_empty() {
        options.mount.0 = vec!["--memory".to_owned(), "512M".to_owned()];
    }
    let bytes = args.files * data::SMALL_BYTES;
    let disk = 2 * bytes + args.files * 1024 + args.versions * args.files * 32 + (1 << 30);
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, ram, .. } = Bench::new(&programs, &["find"], &options, 2 * bytes, disk)?;
    // The content on a root of its own, so that the meta root can be measured.
    let data = ["--data".to_owned(), work.join("data").display().to_string()];
    let mkfs = [&options.mkfs.0[..], &data].concat();
    let pool = Pool::new(work.join("meta"), work.join("aged"), &mkfs, &options.mount.0)?;
    println!("{}", machine::describe(&work)?);
    println!(
        "- {} files of 4 KiB, {PER_DIRECTORY} in a directory, in memory; {} versions, {}\n",
        args.files, args.versions, options.mount
    );
    let tree = Tree::new(ram.join("source"), args.files)?;
    println!("{}", table::head(&["", "seconds", "files/s", "peak memory of the daemon, MiB"]));
    Aged { args, tree, pool }.all()
}

impl Aged<'_> {
    fn all(&mut self) -> Outcome {
        self.pool.format()?;
        self.pool.mount()?;
        let first = timed(|| self.put(1))?;
        self.row("put, the first version", first);
        let first_bytes = own::meta_bytes(&self.pool)?;
        std::thread::sleep(RACY);
        self.puts(2..=self.args.versions)?;
        let bytes = own::meta_bytes(&self.pool)?;
        self.walks()?;
        let root_bytes = files::disk_bytes(&self.pool.path);
        self.snapshots()?;
        self.removals()?;
        println!(
            "\nNames, nodes and index: {first_bytes} bytes with the first version, {bytes} with all, {} for each further one. The meta root \
             took {root_bytes} bytes on disk.",
            (bytes - first_bytes) / (self.args.versions - 1)
        );
        Ok(())
    }

    fn puts(&mut self, versions: std::ops::RangeInclusive<u64>) -> Outcome {
        let percent = (self.args.files / 100).max(1);
        let mut seconds = Vec::new();
        for version in versions {
            self.tree.change(percent, self.args.files / percent, version)?;
            seconds.push(timed(|| self.put(version))?);
        }
        // The second one reads everything that was new to the first.
        seconds.remove(0);
        let of = |order: fn(f64, f64) -> f64| seconds.iter().copied().reduce(order).unwrap_or(0.0);
        let (least, most) = (of(f64::min), of(f64::max));
        self.row("put, 1% of the files changed, median", median(&seconds).unwrap_or(0.0));
        self.row("the same, the fastest", least);
        self.row("the same, the slowest", most);
        Ok(())
    }

    fn walks(&mut self) -> Outcome {
        self.pool.unmount()?;
        files::evict(&self.pool.path);
        let mount = timed(|| self.pool.mount())?;
        self.row("mount, cold", mount);
        for (title, version) in [("oldest", 1), ("newest", self.args.versions)] {
            let path = self.version(version);
            self.pool.remount_cold(false)?;
            let would = timed(|| own::would_free(&path))?;
            self.row(&format!("what removing the {title} version would free, mounted anew"), would);
            self.pool.remount_cold(false)?;
            let walk = timed(|| find(&path))?;
            self.row(&format!("find with all attributes, the {title} version, mounted anew"), walk);
        }
        let list = timed(|| dedupfs("list").arg(&self.pool.mnt).quiet().run())?;
        self.row("list", list);
        let newest = [self.args.versions - 1, self.args.versions].map(|version| self.version(version));
        let diff = timed(|| dedupfs("diff").args(newest).quiet().run())?;
        self.row("diff of the newest two", diff);
        Ok(())
    }

    fn snapshots(&mut self) -> Outcome {
        let live = timed(|| dedupfs("thaw").args([self.version(1), self.pool.at("live")]).quiet().run())?;
        self.row("thaw of the oldest version", live);
        self.pool.sync()?;
        let first = timed(|| own::snapshot(&self.pool, "snapshot-1"))?;
        self.row("snapshot of the live tree", first);
        own::change_live(&self.pool, 1, self.args.files)?;
        let second = timed(|| own::snapshot(&self.pool, "snapshot-2"))?;
        self.row("snapshot, 100 files changed", second);
        self.pool.remount_cold(false)?;
        let walk = timed(|| find(&self.pool.at("live")))?;
        self.row("find with all attributes, the live tree, mounted anew", walk);
        Ok(())
    }

    fn removals(&mut self) -> Outcome {
        // The times of access of the walk before are no part of it.
        self.pool.sync()?;
        let one = timed(|| self.forget(1..=1))?;
        self.row("removal of a version", one);
        let reclaim = timed(|| self.pool.reclaim())?;
        self.row("reclaiming behind it", reclaim);
        let half = self.args.versions / 2;
        let many = timed(|| self.forget(2..=half))?;
        self.row(&format!("removal of {} versions", half - 1), many);
        let reclaim = timed(|| self.pool.reclaim())?;
        self.row("reclaiming behind them", reclaim);
        self.pool.unmount()?;
        let fsck = timed(|| self.pool.fsck())?;
        self.row("fsck", fsck);
        self.pool.mount()?;
        let oldest = self.version(half + 1);
        let walk = timed(|| find(&oldest))?;
        self.row("find with all attributes, the oldest version left, mounted anew", walk);
        self.pool.unmount()
    }

    fn put(&self, version: u64) -> Outcome {
        own::put(&self.pool, &self.tree.path, &format!("v{version}"), &[])
    }

    fn version(&self, version: u64) -> PathBuf {
        self.pool.at(&format!("v{version}"))
    }

    fn forget(&self, versions: std::ops::RangeInclusive<u64>) -> Outcome {
        dedupfs("forget").args(versions.map(|version| self.version(version))).quiet().run()
    }

    fn row(&self, title: &str, seconds: f64) {
        say!("{title}: {seconds:.4} s");
        let rate = table::number(self.args.files as f64 / seconds.max(1e-6), 0);
        let memory = table::number(self.pool.memory_bytes("VmHWM") / 1_048_576.0, 0);
        print_row!(title, format!("{seconds:.4}"), rate, memory);
    }
}
