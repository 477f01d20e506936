//! How well the versions of a pool lie for being restored, before and after reclaiming.

use std::path::PathBuf;

use crate::command::Run;
use crate::figures::{median, timed};
use crate::options::{Caches, PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs, program};
use crate::synthetic::Synthetic;
use crate::{Outcome, command, files, machine, print_row, say, table, usage};

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
    /// Name and source of each version; a synthetic source is not kept.
    versions: Vec<(String, Option<PathBuf>)>,
}

/// Runs the command.
pub fn run(args: &Layout) -> Outcome {
    let (directory, synthetic) = (args.series.as_deref(), &args.synthetic);
    let versions: Vec<_> = match directory {
        None => (1..=synthetic.versions).map(|number| (format!("v{number}"), None)).collect(),
        Some(at) => files::directories(at)?.into_iter().map(|name| (name.clone(), Some(at.join(name)))).collect(),
    };
    if versions.len() < 3 {
        return usage("fewer than 3 versions have no first, middle and newest one");
    }
    let (one, all) = match directory {
        None => (synthetic.files * synthetic.size, synthetic.files * synthetic.size * (10 + synthetic.versions) / 10),
        Some(at) => (files::content_bytes(at) / versions.len() as u64, files::content_bytes(at)),
    };
    let bench = Bench::new(
        &["dedupfs", "dedupfs-stats", "dedupfs-gc"],
        &["cp", "diff"],
        &args.pool.arranged_by_hand(),
        10 * one,
        2 * all,
    )?;
    println!("{}", machine::describe(&bench.work)?);
    let of = if directory.is_some() { "a real series" } else { "synthetic files" };
    println!("- {} versions of {of}, {} each; medians of {}\n", versions.len(), table::human(one), args.runs);
    Measurement { args, bench, versions }.all()
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
        self.forget()?;
        self.reclaim(&["--threshold", "100", "--leave", "0"])?;
        self.restores(", reclaimed")?;
        self.compare()?;
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

    /// Removes every second version but for those that are restored.
    fn forget(&mut self) -> Outcome {
        let newest = self.versions.len() - 1;
        let is_removed = |number: usize| number % 2 == 1 && number != newest / 2 && number != newest;
        let removed = (0..=newest).filter(|number| is_removed(*number)).map(|number| &self.versions[number].0);
        let removed: Vec<_> = removed.map(|name| self.bench.pool.at(name)).collect();
        if removed.is_empty() {
            return Ok(());
        }
        dedupfs("forget").args(removed).quiet().run()
    }

    fn put_all(&self) -> Outcome {
        let synthetic = self.bench.ram.join("source");
        for number in 0..self.versions.len() {
            let (name, source) = &self.versions[number];
            if source.is_none() {
                self.args.synthetic.change(&synthetic, number as u64)?;
            }
            let source = source.as_deref().unwrap_or(&synthetic);
            dedupfs("put").arg(source).arg(self.bench.pool.at(name)).quiet().run()?;
        }
        Ok(())
    }

    fn restores(&mut self, when: &str) -> Outcome {
        let newest = self.versions.len() - 1;
        for by in ["get", "cp"] {
            let mut first = None;
            for (title, number) in [("first", 0), ("middle", newest / 2), ("newest", newest)] {
                let name = self.versions[number].0.clone();
                let mut runs = Vec::new();
                for _ in 0..self.args.runs {
                    runs.push(restore(&mut self.bench, self.args.caches.drop_caches, by, &name)?);
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

    /// Compares versions with their sources: of synthetic ones the newest.
    fn compare(&self) -> Outcome {
        for (number, (name, source)) in self.versions.iter().enumerate() {
            if !self.bench.pool.at(name).exists() {
                continue;
            }
            match source {
                Some(source) => files::same(source, &self.bench.pool.at(name))?,
                None if number + 1 == self.versions.len() => {
                    files::same(&self.bench.ram.join("source"), &self.bench.pool.at(name))?;
                }
                None => {}
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
    let seconds = timed(|| match by {
        "get" => dedupfs("get").arg(&from).arg(&out).quiet().run(),
        _ => command!("cp", "-a", &from, &out).quiet().run(),
    })?;
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

fn figures(pool: &Pool) -> Outcome<[u64; 5]> {
    let stats = pool.stats()?;
    Ok([
        stats.number("data_containers.read_bytes")?,
        stats.number("recipe_containers.read_bytes")?,
        stats.number("data_containers.region_reads")?,
        stats.number("data_containers.prefetched_regions")?,
        stats.number("data_containers.lookups")? + stats.number("recipe_containers.lookups")?,
    ])
}
