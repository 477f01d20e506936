//! How well the versions of a pool lie for being restored, before and after reclaiming.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::figures::{median, timed};
use crate::options::{Caches, PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::sources::Sources;
use crate::synthetic::Synthetic;
use crate::{Outcome, command, files, machine, print_row, say, table, usage};

/// Measures restores of the first, middle and newest of many versions, before and after arranging, and after reclaiming.
///
/// The pool is copied before it is arranged, and again before it is reclaimed, so the three states are measured in turns and the noise of
/// the machine meets them alike. A rate is divided by that of the first version before arranging in the same run. Each restore is cold:
/// its pool is mounted anew, with nothing of it in the page cache. Besides the rate it tells what the engine read for it. Regions loaded
/// alone are those that a reader loaded by itself, as no other thread had begun to; lookups are chunks that a reader looked up in the
/// index by itself. Arranging is dedupfs-gc --arrange all --threshold 0. Before reclaiming, every second version is removed, but for
/// these three; it is dedupfs-gc --arrange all --threshold 100 --leave 0, so that everything moves that can. In the end the versions left
/// in the reclaimed pool are compared with what was put, and each pool is checked.
#[derive(clap::Args)]
pub struct Layout {
    /// Directory with one directory for each version [default: synthetic ones: half of the files change in four places each time]
    series: Option<PathBuf>,
    #[command(flatten)]
    synthetic: Synthetic,
    /// Restores of each version, of which the median counts
    #[arg(long, default_value = "9", value_parser = count)]
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

/// A state of the pool, with words for it.
type State = (&'static str, Pool);

const TOOLS: [&str; 2] = ["get", "cp"];

/// Runs the command.
pub fn run(args: &Layout) -> Outcome {
    if args.pool.mkfs.0.iter().any(|word| word.starts_with("--data")) {
        return usage("the pool is copied as one directory: leave out --data");
    }
    let mut sources = Sources::new(args.series.as_deref(), args.synthetic.clone())?;
    let (memory, disk) = (10 * sources.version_bytes(), 5 * sources.all_bytes());
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
        let mut states = self.states()?;
        self.restores(&mut states)?;
        let (_, reclaimed) = &mut states[2];
        reclaimed.mount()?;
        self.sources.compare(&reclaimed.mnt)?;
        reclaimed.unmount()?;
        states.iter().try_for_each(|(_, pool)| pool.fsck())
    }

    /// Makes the pool in its three states.
    fn states(&mut self) -> Outcome<[State; 3]> {
        let Self { bench: Bench { work, pool, .. }, sources, .. } = self;
        pool.mount()?;
        for (number, name) in sources.names.iter().enumerate() {
            dedupfs("put").arg(sources.make(number)?).arg(pool.at(name)).quiet().run()?;
        }
        pool.unmount()?;
        let put = pool.copy(work.join("put"))?;
        let mut arranged = pool.copy(work.join("arranged"))?;
        files::remove(&pool.path)?;
        arranged.mount()?;
        gc(&arranged, &["--threshold", "0"])?;
        arranged.unmount()?;
        let mut reclaimed = arranged.copy(work.join("reclaimed"))?;
        reclaimed.mount()?;
        sources.forget_some(&reclaimed)?;
        gc(&reclaimed, &["--threshold", "100", "--leave", "0"])?;
        reclaimed.unmount()?;
        Ok([("", put), (", arranged", arranged), (", reclaimed", reclaimed)])
    }

    fn restores(&self, states: &mut [State; 3]) -> Outcome {
        let mut runs = BTreeMap::<_, Vec<Restore>>::new();
        for number in 0..self.args.runs {
            say!("run {} of {}", number + 1, self.args.runs);
            for (by, tool) in TOOLS.into_iter().enumerate() {
                for turn in 0..states.len() {
                    // Another one comes first in each run.
                    let state = (number as usize + turn) % states.len();
                    let (_, pool) = &mut states[state];
                    for (version, (_, at)) in self.sources.chosen().into_iter().enumerate() {
                        let restored = self.restore(pool, tool, &self.sources.names[at])?;
                        runs.entry((by, state, version)).or_default().push(restored);
                    }
                }
            }
        }
        let columns = [
            "restore of",
            "by",
            "MB/s",
            "of the first put",
            "data, MB read",
            "recipes, MB read",
            "regions",
            "loaded alone",
            "lookups",
        ];
        println!("{}", table::head(&columns));
        for (&(by, state, version), restores) in &runs {
            let median_of =
                |of: fn(&Restore) -> f64| median(&restores.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0);
            let beside = restores.iter().zip(&runs[&(by, 0, 0)]);
            let shares: Vec<_> = beside.map(|(restore, first)| restore.rate / first.rate).collect();
            print_row!(
                format!("{}{}", self.sources.chosen()[version].0, states[state].0),
                TOOLS[by],
                table::number(median_of(|run| run.rate), 0),
                table::number(median(&shares).unwrap_or(0.0), 2),
                table::number(median_of(|run| run.data_mb), 1),
                table::number(median_of(|run| run.recipes_mb), 2),
                median_of(|run| run.regions),
                median_of(|run| run.loaded_alone),
                median_of(|run| run.lookups)
            );
        }
        println!("\n{}", machine::describe_end(self.args.runs)?);
        Ok(())
    }

    /// Restores a version from a pool that is mounted for it, by `dedupfs get` or through the mount by cp.
    fn restore(&self, pool: &mut Pool, by: &str, name: &str) -> Outcome<Restore> {
        let ram = &self.bench.ram;
        files::cold(&pool.path, self.args.caches.drop_caches)?;
        pool.mount()?;
        let from = pool.at(name);
        let bytes = files::content_bytes(&from);
        files::empty_out(ram, bytes)?;
        pool.remount_cold(self.args.caches.drop_caches)?;
        let before = figures(pool)?;
        let out = ram.join("out").join("tree");
        let seconds = timed(|| copy_out(by, &from, &out))?;
        let after = figures(pool)?;
        files::remove(&ram.join("out"))?;
        pool.unmount()?;
        let of = |at: usize| (after[at] - before[at]) as f64;
        Ok(Restore {
            rate: bytes as f64 / 1e6 / seconds,
            data_mb: of(0) / 1e6,
            recipes_mb: of(1) / 1e6,
            regions: of(2) + of(3),
            loaded_alone: of(2),
            lookups: of(4),
        })
    }
}

/// Arranges the versions of a mounted pool, and reclaims with these options.
fn gc(pool: &Pool, options: &[&str]) -> Outcome {
    let seconds = timed(|| command!(program("dedupfs-gc"), "--arrange", "all", &pool.mnt).args(options).quiet().run())?;
    say!("dedupfs-gc took {seconds:.2} s");
    Ok(())
}

/// The figures of a restore: MB/s of files, MB that the engine read, regions of content that it read, those that a reader loaded
/// by itself, and chunks and nodes that a reader looked up.
struct Restore {
    rate: f64,
    data_mb: f64,
    recipes_mb: f64,
    regions: f64,
    loaded_alone: f64,
    lookups: f64,
}

/// Copies a version to a new directory, by `dedupfs get` or by cp.
pub fn copy_out(by: &str, from: &Path, out: &Path) -> Outcome {
    let mut command = if by == "get" { dedupfs("get") } else { command!("cp", "-a") };
    command.args([from, out]).quiet().run()
}

/// Returns bytes read from containers of data and of recipes, regions loaded by readers alone and read ahead, and lookups.
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
