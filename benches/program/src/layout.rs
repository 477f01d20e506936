//! How well the versions of a pool lie for being restored, before and after reclaiming.

use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::figures::{median, timed};
use crate::options::{Caches, PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::sources::Sources;
use crate::synthetic::Synthetic;
use crate::{Outcome, command, files, machine, print_row, say, table};

/// Measures restores of the first, middle and newest of many versions, before and after arranging, and after reclaiming.
///
/// Each restore is cold: the pool is mounted anew, with nothing of it in the page cache. Besides the rate it tells what the engine read for
/// it. Regions waited for are those that a reader needed before they were read ahead; lookups are chunks that a reader looked up in the
/// index by itself. Arranging is dedupfs-gc --arrange all. Before reclaiming, every second version is removed, but for these three;
/// it is dedupfs-gc --arrange all --threshold 100 --leave 0, so that everything moves that can. In the end the versions left are compared
/// with what was put.
#[derive(clap::Args)]
pub struct Layout {
    /// Directory with one directory for each version [default: synthetic ones: half of the files change in four places each time]
    series: Option<PathBuf>,
    #[command(flatten)]
    synthetic: Synthetic,
    /// Restores of each version, of which the median counts
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    caches: Caches,
}

struct Measurement<'a> {
    args: &'a Layout,
    bench: Bench,
    sources: Sources,
}

/// Runs the command.
pub fn run(args: &Layout) -> Outcome {
    let mut sources = Sources::new(args.series.as_deref(), args.synthetic.clone())?;
    let (memory, disk) = (10 * sources.version_bytes(), 2 * sources.all_bytes());
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let bench = Bench::new(&programs, &["cp", "diff"], &args.pool.arranged_by_hand(), memory, disk)?;
    sources.make_in(&bench.ram);
    println!("{}", machine::describe(&bench.work)?);
    println!("{}; medians of {}\n", sources.describe(), args.runs);
    Measurement { args, bench, sources }.all()
}

impl Measurement<'_> {
    fn all(mut self) -> Outcome {
        self.bench.pool.format()?;
        self.bench.pool.mount()?;
        self.put_all()?;
        println!(
            "{}",
            table::head(&[
                "restore of",
                "by",
                "MB/s",
                "of the first",
                "data, MB read",
                "recipes, MB read",
                "regions",
                "waited for",
                "lookups"
            ])
        );
        self.restores("")?;
        self.reclaim(&["--threshold", "0"])?;
        self.restores(", arranged")?;
        self.sources.forget_some(&self.bench.pool)?;
        self.reclaim(&["--threshold", "100", "--leave", "0"])?;
        self.restores(", reclaimed")?;
        self.sources.compare(&self.bench.pool.mnt)?;
        self.bench.pool.unmount()?;
        self.bench.pool.fsck()
    }

    fn reclaim(&self, options: &[&str]) -> Outcome {
        let gc =
            || command!(program("dedupfs-gc"), "--arrange", "all", &self.bench.pool.mnt).args(options).quiet().run();
        let seconds = timed(gc)?;
        say!("dedupfs-gc took {seconds:.2} s");
        Ok(())
    }

    fn put_all(&self) -> Outcome {
        for (number, name) in self.sources.names.iter().enumerate() {
            dedupfs("put").arg(self.sources.make(number)?).arg(self.bench.pool.at(name)).quiet().run()?;
        }
        Ok(())
    }

    fn restores(&mut self, when: &str) -> Outcome {
        for by in ["get", "cp"] {
            let mut first = None;
            for (title, number) in self.sources.chosen() {
                let name = &self.sources.names[number];
                let mut runs = Vec::new();
                for _ in 0..self.args.runs {
                    runs.push(restore(&mut self.bench, self.args.caches.drop_caches, by, name)?);
                }
                let median_of =
                    |of: fn(&Restore) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0);
                let rate = median_of(|run| run.rate);
                let share = rate / *first.get_or_insert(rate);
                print_row!(
                    format!("{title}{when}"),
                    by,
                    table::number(rate, 0),
                    table::number(share, 2),
                    table::number(median_of(|run| run.data_mb), 1),
                    table::number(median_of(|run| run.recipes_mb), 2),
                    median_of(|run| run.regions),
                    median_of(|run| run.waited_for),
                    median_of(|run| run.lookups)
                );
            }
        }
        Ok(())
    }
}

/// The figures of a restore: MB/s of files, MB that the engine read, regions of content that it read, those that a reader waited
/// for, and chunks and nodes that a reader looked up.
struct Restore {
    rate: f64,
    data_mb: f64,
    recipes_mb: f64,
    regions: f64,
    waited_for: f64,
    lookups: f64,
}

/// Restores a version from a pool that is mounted anew, by `dedupfs get` or through the mount by cp.
fn restore(bench: &mut Bench, drop_caches: bool, by: &str, name: &str) -> Outcome<Restore> {
    let Bench { ram, pool, .. } = bench;
    let from = pool.at(name);
    let bytes = files::content_bytes(&from);
    files::empty_out(ram, bytes)?;
    pool.remount_cold(drop_caches)?;
    let before = figures(pool)?;
    let out = ram.join("out").join("tree");
    let seconds = timed(|| copy_out(by, &from, &out))?;
    let after = figures(pool)?;
    files::remove(&ram.join("out"))?;
    let of = |at: usize| (after[at] - before[at]) as f64;
    Ok(Restore {
        rate: bytes as f64 / 1e6 / seconds,
        data_mb: of(0) / 1e6,
        recipes_mb: of(1) / 1e6,
        regions: of(2) + of(3),
        waited_for: of(2),
        lookups: of(4),
    })
}

/// Copies a version to a new directory, by `dedupfs get` or by cp.
pub fn copy_out(by: &str, from: &Path, out: &Path) -> Outcome {
    let mut command = if by == "get" { dedupfs("get") } else { command!("cp", "-a") };
    command.args([from, out]).quiet().run()
}

/// Returns bytes read from containers of data and of recipes, regions waited for and read ahead, and lookups.
pub fn figures(pool: &Pool) -> Outcome<[u64; 5]> {
    let stats = pool.stats()?;
    Ok([
        stats.number("data_containers.read_bytes")?,
        stats.number("recipe_containers.read_bytes")?,
        stats.number("data_containers.region_reads")?,
        stats.number("data_containers.prefetched_regions")?,
        stats.number("data_containers.lookups")? + stats.number("recipe_containers.lookups")?,
    ])
}
