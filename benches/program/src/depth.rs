//! The number of chunks and of files, and what work costs that is not for content.

use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::data::{Random, random_file, thin_file};
use crate::depth_tables;
use crate::figures::{Figures, cpu_seconds, timed, timed_with_peak};
use crate::options::{Caches, PoolOptions, ascending, count, size_4k};
use crate::pool::{Bench, Pool, Stats, dedupfs};
use crate::table::{cell, human};
use crate::{Outcome, fail, files, machine, say, synced};

/// Files of one directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// Bytes of a tree that is stored again.
const TREE_BYTES: u64 = 64 << 20;
/// A scrub that lasts longer is stopped.
pub const SCRUB_SECS: u64 = 30;

/// Measures how work grows with the number of chunks and files.
///
/// A pool of random data in small chunks grows from size to size. Each run mounts it, asks for statistics, stores new data and the same
/// again, reclaims while there is nothing to reclaim and after 1% of the files was removed, syncs small files beside such work, unmounts and
/// checks it, and makes a trial recovery. The next run writes as much anew first. Pools of the default sizes have 1 to 8 million chunks.
/// With "--thin --file-size 4K" there are as many files as chunks.
#[derive(clap::Args)]
pub struct Depth {
    /// Sizes of the pool, ascending: so much random data is in it; a quarter more is needed in --dir
    #[arg(long, default_value = "4G 8G 16G 32G")]
    sizes: String,
    /// Mean size of a chunk; dedupfs mkfs takes no less than 4K
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    chunk_size: String,
    /// Size of a file
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size_4k)]
    file_size: u64,
    /// Data that is stored anew, and stored again, to be timed
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size_4k)]
    probe: u64,
    /// Write thin data: random bytes between zeros. Its chunks are all different, and a 16th of its size in --dir is enough
    #[arg(long)]
    thin: bool,
    /// Medians are of so many runs; each writes other data
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

/// The files in the pool. Each is named by its number, which is the seed of its data.
struct Content {
    is_thin: bool,
    file_bytes: u64,
    files: Vec<u64>,
    /// Files that were ever written.
    written: u64,
    /// Bytes of the files.
    held_bytes: u64,
}

impl Content {
    fn path(&self, pool: &Pool, number: u64) -> PathBuf {
        pool.at(&format!("dir-{}", number / FILES_PER_DIRECTORY)).join(format!("file-{number}"))
    }

    fn write(&self, number: u64, path: &Path) -> Outcome {
        let write = if self.is_thin { thin_file } else { random_file };
        write(&format!("depth file-{number}"), self.file_bytes, path)
    }

    /// Writes new files until so many bytes are there.
    fn fill(&mut self, pool: &Pool, bytes: u64) -> Outcome {
        while self.held_bytes < bytes {
            let path = self.path(pool, self.written);
            if self.written.is_multiple_of(FILES_PER_DIRECTORY) {
                files::make_dir(&pool.at(&format!("dir-{}", self.written / FILES_PER_DIRECTORY)))?;
            }
            self.write(self.written, &path)?;
            self.files.push(self.written);
            self.written += 1;
            self.held_bytes += self.file_bytes;
        }
        pool.sync()
    }

    /// Writes so many bytes of files once more, as trees of neighbouring files from random places: a backup meets small files again in the
    /// order in which they were stored.
    fn write_again(&self, pool: &Pool, bytes: u64) -> Outcome {
        files::make_dir(&pool.at("again"))?;
        let in_a_tree = (TREE_BYTES / self.file_bytes).max(1);
        let count = (bytes / self.file_bytes).max(1);
        let mut random = Random::new(&format!("depth again {}", self.written));
        for tree in 0..count.div_ceil(in_a_tree) {
            let directory = pool.at(&format!("again/{tree}"));
            files::make_dir(&directory)?;
            let first = random.below(self.files.len() as u64) as usize;
            let length = in_a_tree.min(count - tree * in_a_tree) as usize;
            for number in self.files.iter().cycle().skip(first).take(length) {
                self.write(*number, &directory.join(format!("file-{number}")))?;
            }
        }
        pool.sync()
    }

    /// Removes 1% of the files, one at least, which lie anywhere.
    fn remove_some(&mut self, pool: &Pool) -> Outcome {
        let mut random = Random::new(&format!("depth remove {}", self.written));
        (0..(self.files.len() / 100).max(1)).try_for_each(|_| {
            let at = random.below(self.files.len() as u64) as usize;
            self.held_bytes -= self.file_bytes;
            let number = self.files.swap_remove(at);
            files::remove(&self.path(pool, number))
        })?;
        // In the order in which they were stored, for trees.
        self.files.sort_unstable();
        Ok(())
    }
}

/// Does some work, and notes how long synced writes take meanwhile.
fn beside(figures: &mut Figures, name: &str, size: u64, pool: &Pool, work: impl FnOnce() -> Outcome) -> Outcome {
    let ((), synced) = synced::beside(&pool.at("synced"), work)?;
    let figure = |of: &str| format!("{name} synced {of} {size}");
    figures.note(&figure("count"), "dedupfs", synced.count() as f64);
    for percent in [50, 99, 100] {
        figures.note(&figure(&percent.to_string()), "dedupfs", synced.percent(percent));
    }
    files::remove(&pool.at("synced"))
}

/// Scrubs for a while.
fn scrub(pool: &Pool) -> Outcome {
    let mut scrub = dedupfs("scrub").args(["--restart"]).arg(&pool.mnt).start()?;
    for _ in 0..SCRUB_SECS * 10 {
        if scrub.try_wait().is_ok_and(|ended| ended.is_some()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // One that has ended needs no stop.
    let _ = dedupfs("scrub").arg("--stop").arg(&pool.mnt).run();
    scrub.wait().map(drop).or_else(|error| fail(format!("cannot wait for dedupfs scrub: {error}")))
}

/// Checks the mounted pool. A finding ends the bench.
fn check(pool: &Pool) -> Outcome {
    dedupfs("fsck").arg(&pool.mnt).run()
}

/// Does some work, and notes its seconds as `name size`, the bytes that the daemon read meanwhile as `name read size`, and the part of these
/// that was for guides as `name guides size`.
fn record(figures: &mut Figures, name: &str, size: u64, pool: &Pool, work: impl FnOnce() -> Outcome) -> Outcome {
    let read = || Some((pool.read_bytes()?, pool.read_bytes_of(UPKEEP_THREAD)?));
    let before = read();
    let seconds = timed(work)?;
    let read = read().zip(before).map(|(after, before)| (after.0 - before.0, after.1 - before.1));
    figures.note(&format!("{name} {size}"), "dedupfs", seconds);
    if let Some((all, guides)) = read {
        figures.note(&format!("{name} read {size}"), "dedupfs", all - guides);
        figures.note(&format!("{name} guides {size}"), "dedupfs", guides);
    }
    let mega = |bytes: Option<f64>| cell(bytes.map(|bytes| bytes / 1e6), 3);
    let (all, guides) = (mega(read.map(|read| read.0)), mega(read.map(|read| read.1)));
    say!("run {}: {name}: {seconds:.4} s, {all} MB read, of which {guides} for guides", figures.run);
    Ok(())
}

/// The daemon's thread that makes guides.
const UPKEEP_THREAD: &str = "index-upkeep";

/// Notes the mean milliseconds of work that has a name in the profile, and how often it was done for each GiB written.
fn note_profile(figures: &mut Figures, stats: &Stats, size: u64, written_bytes: u64) {
    let written_gib = written_bytes.max(1) as f64 / f64::from(1 << 30);
    for name in ["checkpoints", "export"] {
        if let Some((times, total_ms)) = stats.profile(name).filter(|(times, _)| *times > 0.0) {
            figures.note(&format!("{name} {size}"), "dedupfs", total_ms / times);
            figures.note(&format!("{name} per GiB {size}"), "dedupfs", times / written_gib);
        }
    }
}

/// Stores data, and notes the seconds as `name size`, and the bytes of the index's buckets that were read as `name read size`.
fn store(figures: &mut Figures, name: &str, size: u64, pool: &Pool, work: impl FnOnce() -> Outcome) -> Outcome {
    let read = || -> Outcome<u64> {
        let stats = pool.stats()?;
        Ok(stats.number("chunk_index.bucket_read_bytes")? + stats.number("recipe_index.bucket_read_bytes")?)
    };
    let before = read()?;
    let seconds = timed(work)?;
    let bytes = (read()? - before) as f64;
    figures.note(&format!("{name} {size}"), "dedupfs", seconds);
    figures.note(&format!("{name} read {size}"), "dedupfs", bytes);
    say!("run {}: {name}: {seconds:.4} s, {:.3} MB of the index read", figures.run, bytes / 1e6);
    Ok(())
}

/// Fills the pool, which is not mounted, to a size, and measures everything once.
fn measure(figures: &mut Figures, pool: &mut Pool, content: &mut Content, size: u64, args: &Depth) -> Outcome {
    pool.mount()?;
    let before = content.written;
    beside(figures, "filling", size, pool, || content.fill(pool, size))?;
    note_profile(figures, &pool.stats()?, size, (content.written - before) * args.file_size);
    pool.unmount()?;
    files::cold(&pool.path, args.caches.drop_caches)?;
    let seconds = timed(|| pool.mount())?;
    figures.note(&format!("mount {size}"), "dedupfs", seconds);
    say!("run {}: mount: {seconds:.4} s", figures.run);
    record(figures, "stats", size, pool, || pool.stats().map(drop))?;
    let stats = pool.stats()?;
    figures.note(&format!("files {size}"), "dedupfs", content.files.len() as f64);
    for (name, field) in [("chunks", "unique_chunks"), ("index", "index_bytes")] {
        figures.note(&format!("{name} {size}"), "dedupfs", stats.number(field)? as f64);
    }
    store(figures, "again", size, pool, || content.write_again(pool, args.probe))?;
    files::remove(&pool.at("again"))?;
    // Counts what was removed, which reads the index, too.
    pool.reclaim()?;
    let held_bytes = content.held_bytes;
    store(figures, "new", size, pool, || content.fill(pool, held_bytes + args.probe))?;
    pool.reclaim()?;
    record(figures, "idle gc", size, pool, || pool.reclaim())?;
    content.remove_some(pool)?;
    record(figures, "gc", size, pool, || pool.reclaim())?;
    content.remove_some(pool)?;
    beside(figures, "gc", size, pool, || pool.reclaim())?;
    beside(figures, "check", size, pool, || check(pool))?;
    beside(figures, "scrub", size, pool, || scrub(pool))?;
    figures.note(&format!("memory {size}"), "dedupfs", pool.memory_bytes("VmRSS"));
    pool.unmount()?;
    for (name, options) in [("fsck", &[][..]), ("trial", &["--trial-recovery"])] {
        files::cold(&pool.path, args.caches.drop_caches)?;
        let before = cpu_seconds(None);
        let (seconds, peak) = timed_with_peak(dedupfs("fsck").args(options).arg(&pool.path))?;
        let cpu = cpu_seconds(None) - before;
        figures.note(&format!("{name} {size}"), "dedupfs", seconds);
        figures.note(&format!("{name} cpu {size}"), "dedupfs", cpu);
        figures.note(&format!("{name} memory {size}"), "dedupfs", peak);
        say!("run {}: {name}: {seconds:.4} s, {cpu:.2} s of the processors", figures.run);
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: &Depth) -> Outcome {
    let sizes = ascending(&args.sizes)?;
    let largest = sizes.last().copied().unwrap_or_default() + args.probe;
    let mut options = args.pool.clone();
    options.mkfs.0.extend(["--chunk-size", &args.chunk_size].map(str::to_owned));
    // Of a chunk 120 bytes in the index, of a file 700 in the namespace, its export and the recipes.
    let with_names = largest / args.file_size * 1500 + if args.thin { largest / 16 } else { largest + largest / 4 };
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, mut pool, .. } = Bench::new(&programs, &[], &options, 0, with_names + (1 << 30))?;
    let machine = machine::describe(&work)?;
    let mut figures = Figures::default();
    let (files, file_bytes) = (Vec::new(), args.file_size);
    let mut content = Content { is_thin: args.thin, file_bytes, files, written: 0, held_bytes: 0 };
    pool.format()?;
    for size in &sizes {
        for run in 1..=args.runs {
            say!("filling the pool to {}", human(*size));
            figures.run = run;
            measure(&mut figures, &mut pool, &mut content, *size, args)?;
        }
    }
    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    println!(
        "- {} data in files of {}, in chunks of {} in the mean; the pool is mounted and checked with an empty page cache",
        if args.thin { "thin" } else { "random" },
        human(args.file_size),
        args.chunk_size
    );
    depth_tables::print(&figures, &sizes, args.probe);
    Ok(())
}
