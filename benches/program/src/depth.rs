//! The number of chunks, and what work costs that is not for content.

use std::path::PathBuf;

use crate::command::Run;
use crate::data::{Random, random_file, thin_file};
use crate::figures::{Figures, timed, timed_with_peak};
use crate::options::{Caches, PoolOptions, ascending, count};
use crate::pool::{Bench, Pool, dedupfs};
use crate::table::{cell, human};
use crate::{Outcome, fail, files, machine, print_row, say, synced, table};

/// Bytes of a file. Fewer are removed and written anew by each run if files are small.
const FILE_BYTES: u64 = 64 << 20;

/// Measures how mounting, statistics, reclaiming and checking grow with the number of chunks.
///
/// A pool of random data in small chunks grows from size to size. Each run mounts it, asks for statistics, reclaims while there is nothing to
/// reclaim and after 1% of the files was removed, syncs small files beside such work, unmounts and checks it. The next run writes as much
/// anew first. Pools of the default sizes have 1 to 8 million chunks.
#[derive(clap::Args)]
pub struct Depth {
    /// Sizes of the pool, ascending: so much random data is in it; a quarter more is needed in --dir
    #[arg(long, default_value = "4G 8G 16G 32G")]
    sizes: String,
    /// Mean size of a chunk; dedupfs mkfs takes no less than 4K
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    chunk_size: String,
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

/// The files in the pool.
#[derive(Default)]
struct Content {
    is_thin: bool,
    files: Vec<(PathBuf, u64)>,
    /// Files that were ever written.
    written: u64,
}

impl Content {
    /// Writes new files until so many bytes are there.
    fn fill(&mut self, pool: &Pool, size: u64) -> Outcome {
        let mut held: u64 = self.files.iter().map(|(_, bytes)| bytes).sum();
        while held < size {
            let (name, now) = (format!("file-{}", self.written), (size - held).min(FILE_BYTES));
            let write = if self.is_thin { thin_file } else { random_file };
            write(&format!("depth {name}"), now, &pool.at(&name))?;
            self.files.push((pool.at(&name), now));
            self.written += 1;
            held += now;
        }
        pool.sync()
    }

    /// Removes 1% of the files, one at least, which lie anywhere.
    fn remove_some(&mut self) -> Outcome {
        let mut random = Random::new(&format!("depth remove {}", self.written));
        (0..(self.files.len() / 100).max(1)).try_for_each(|_| {
            let at = random.below(self.files.len() as u64) as usize;
            files::remove(&self.files.swap_remove(at).0)
        })
    }
}

/// Work that synced writes are measured beside.
const WORK: [&str; 4] = ["filling", "gc", "check", "scrub"];
/// A scrub that lasts longer is stopped.
const SCRUB_SECS: u64 = 30;

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

/// Checks the mounted pool. What is written meanwhile can show as findings.
fn check(pool: &Pool) -> Outcome {
    dedupfs("fsck").arg(&pool.mnt).status().map(drop).or_else(|error| fail(format!("cannot run dedupfs fsck: {error}")))
}

/// Does some work, and notes its seconds as `name size` and the bytes that the daemon read meanwhile as `name read size`.
fn record(figures: &mut Figures, name: &str, size: u64, pool: &Pool, work: impl FnOnce() -> Outcome) -> Outcome {
    let before = pool.read_bytes();
    let seconds = timed(work)?;
    let read = pool.read_bytes().zip(before).map(|(after, before)| after - before);
    figures.note(&format!("{name} {size}"), "dedupfs", seconds);
    if let Some(read) = read {
        figures.note(&format!("{name} read {size}"), "dedupfs", read);
    }
    say!("run {}: {name}: {seconds:.4} s, {} kB read", figures.run, cell(read.map(|bytes| bytes / 1e3), 1));
    Ok(())
}

/// Fills the pool, which is not mounted, to a size, and measures everything once.
fn measure(figures: &mut Figures, pool: &mut Pool, content: &mut Content, size: u64, drop_caches: bool) -> Outcome {
    pool.mount()?;
    beside(figures, "filling", size, pool, || content.fill(pool, size))?;
    pool.unmount()?;
    files::cold(&pool.path, drop_caches)?;
    let seconds = timed(|| pool.mount())?;
    figures.note(&format!("mount {size}"), "dedupfs", seconds);
    record(figures, "stats", size, pool, || pool.stats().map(drop))?;
    let stats = pool.stats()?;
    for (name, field) in [("chunks", "unique_chunks"), ("index", "index_bytes")] {
        figures.note(&format!("{name} {size}"), "dedupfs", stats.number(field)? as f64);
    }
    record(figures, "idle gc", size, pool, || pool.reclaim())?;
    content.remove_some()?;
    record(figures, "gc", size, pool, || pool.reclaim())?;
    content.remove_some()?;
    beside(figures, "gc", size, pool, || pool.reclaim())?;
    beside(figures, "check", size, pool, || check(pool))?;
    beside(figures, "scrub", size, pool, || scrub(pool))?;
    figures.note(&format!("memory {size}"), "dedupfs", pool.memory_bytes("VmRSS"));
    pool.unmount()?;
    files::cold(&pool.path, drop_caches)?;
    let (fsck, peak) = timed_with_peak(dedupfs("fsck").arg(&pool.path))?;
    figures.note(&format!("fsck {size}"), "dedupfs", fsck);
    figures.note(&format!("fsck memory {size}"), "dedupfs", peak);
    say!("run {}: mount: {seconds:.4} s; fsck: {fsck:.4} s", figures.run);
    Ok(())
}

/// Runs the command.
pub fn run(args: &Depth) -> Outcome {
    let sizes = ascending(&args.sizes)?;
    let largest = sizes.last().copied().unwrap_or_default();
    let mut options = args.pool.clone();
    options.mkfs.0.extend(["--chunk-size", &args.chunk_size].map(str::to_owned));
    let disk = if args.thin { largest / 16 } else { largest + largest / 4 } + (1 << 30);
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, mut pool, .. } = Bench::new(&programs, &[], &options, 0, disk)?;
    let machine = machine::describe(&work)?;
    let (mut figures, mut content) = (Figures::default(), Content { is_thin: args.thin, ..Content::default() });
    pool.format()?;
    for size in &sizes {
        for run in 1..=args.runs {
            say!("filling the pool to {}", human(*size));
            figures.run = run;
            measure(&mut figures, &mut pool, &mut content, *size, args.caches.drop_caches)?;
        }
    }

    println!("{machine}\n{}", machine::describe_end(args.runs)?);
    println!(
        "- {} data in files of {}, in chunks of {} in the mean; the pool is mounted and checked with an empty page cache",
        if args.thin { "thin" } else { "random" },
        human(FILE_BYTES),
        args.chunk_size
    );
    println!(
        "- removed is 1% of the files, one at least; kB are what the daemon read meanwhile, from the page cache too"
    );
    println!("- memory of the daemon after reclaiming; that of fsck is looked up ten times a second");
    let columns = [
        "data in the pool",
        "chunks",
        "index, MiB",
        "mounted in, s",
        "statistics, s",
        "kB read",
        "gc of nothing, s",
        "kB read",
        "gc of 1%, s",
        "kB read",
        "memory of the daemon, MiB",
        "fsck, s",
        "memory of fsck at most, MiB",
    ];
    println!("\n{}", table::head(&columns));
    for size in &sizes {
        let median = |name: &str, unit: f64, decimals| {
            cell(figures.median(&format!("{name} {size}"), "dedupfs").map(|value| value / unit), decimals)
        };
        let peak = figures.most(&format!("fsck memory {size}"), "dedupfs").map(|bytes| bytes / 1_048_576.0);
        print_row!(
            human(*size),
            median("chunks", 1.0, 0),
            median("index", 1_048_576.0, 1),
            median("mount", 1.0, 3),
            median("stats", 1.0, 4),
            median("stats read", 1e3, 1),
            median("idle gc", 1.0, 4),
            median("idle gc read", 1e3, 1),
            median("gc", 1.0, 3),
            median("gc read", 1e3, 1),
            median("memory", 1_048_576.0, 0),
            median("fsck", 1.0, 2),
            cell(peak, 0)
        );
    }
    println!(
        "\nMilliseconds that the sync of a small file takes, one each 50 ms, beside other work (a scrub of {SCRUB_SECS} s at most):\n"
    );
    println!("{}", table::head(&["data in the pool", "work", "syncs", "median", "99%", "longest"]));
    for (size, work) in sizes.iter().flat_map(|size| WORK.map(|work| (size, work))) {
        let figure = |of: &str| format!("{work} synced {of} {size}");
        let median = |of: &str| cell(figures.median(&figure(of), "dedupfs"), 1);
        let longest = cell(figures.most(&figure("100"), "dedupfs"), 1);
        print_row!(
            human(*size),
            work,
            cell(figures.median(&figure("count"), "dedupfs"), 0),
            median("50"),
            median("99"),
            longest
        );
    }
    Ok(())
}
