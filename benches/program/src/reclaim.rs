//! Whether a pool gives everything back that was deleted.

use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::figures::timed;
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool};
use crate::{Outcome, command, data, fail, files, machine, print_row, say, table};

/// Measures a pool before and after everything in it is deleted and reclaimed.
///
/// It must be back within 2% of its empty size (reclaimed too), by du and by dedupfs-stats, mounted and not.
#[derive(clap::Args)]
pub struct Reclaim {
    /// Size of the random and of the real data that fill it; about twice SIZE is needed in memory and on disk
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: u64,
    /// Small files that fill it besides
    #[arg(long, default_value = "5000", value_parser = count)]
    files: u64,
    /// Rounds of filling and deleting, in one pool
    #[arg(long, default_value = "2", value_parser = count)]
    rounds: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Sizes of a pool: by dedupfs-stats and by du.
type Sizes = (u64, u64);

/// Prints a row of sizes.
fn measure(pool: &Pool, title: &str) -> Outcome<Sizes> {
    let (stats, disk) = (pool.stats()?, files::disk_bytes(&pool.path));
    let physical = stats.number("physical_bytes")?;
    let parts = ["data_container_bytes", "recipe_container_bytes", "namespace_bytes", "index_bytes"];
    let [content, recipes, namespace, index] = parts.map(|name| stats.number(name));
    print_row!(title, physical, disk, content?, recipes?, namespace?, index?);
    Ok((physical, disk))
}

/// Returns how many of the sizes are more than 2% over those of the empty pool.
fn exceeding(empty: Sizes, now: Sizes, name: &str) -> usize {
    let pairs = [(empty.0, now.0, "dedupfs-stats"), (empty.1, now.1, "du")];
    let over = pairs.iter().filter(|(empty, now, _)| now * 100 > empty * 102);
    over.inspect(|(empty, now, by)| {
        let percent = 100.0 * (*now as f64 / *empty as f64 - 1.0);
        say!("{name}, {by}: {now} bytes, {percent:.1}% over the empty pool's {empty}");
    })
    .count()
}

/// Runs the command.
pub fn run(args: &Reclaim) -> Outcome {
    let bytes = 2 * args.size + args.files * data::SMALL_BYTES;
    let programs = ["dedupfs", "dedupfs-stats", "dedupfs-gc"];
    let Bench { work, ram, mut pool } =
        Bench::new(&programs, &["cp", "diff"], &args.pool, bytes + (512 << 20), bytes + (256 << 20))?;
    let source = ram.join("source");
    files::make_dir(&source)?;
    data::random_file("reclaim", args.size, &source.join("random"))?;
    let real = source.join("real");
    data::real_data(&real, args.size)?;
    data::small_files(&source.join("small"), args.files)?;

    println!("{}", machine::describe(&work)?);
    println!("\n{}", table::head(&["", "by dedupfs-stats", "by du", "content", "recipes", "namespace", "index"]));
    pool.format()?;
    measure(&pool, "as formatted")?;
    pool.mount()?;
    measure(&pool, "empty, mounted")?;
    pool.reclaim()?;
    let empty = measure(&pool, "empty, mounted, reclaimed")?;
    pool.unmount()?;
    // Pages that the commit before the last one replaced are still there: an empty pool's size changes a little with every mount. The most
    // that it comes to by itself is its bound.
    let mut closed = (0, 0);
    for time in 1..=5 {
        let now = measure(&pool, &format!("empty, not mounted, {time}"))?;
        closed = (now.0.max(closed.0), now.1.max(closed.1));
        pool.mount()?;
        pool.reclaim()?;
        pool.unmount()?;
    }
    let mut failures = 0;
    for round in 1..=args.rounds {
        pool.mount()?;
        let (first, second) = (pool.at("first"), pool.at("second"));
        command!("cp", "-r", &source, &first).run()?;
        command!("cp", "-r", &real, &second).run()?;
        pool.sync()?;
        measure(&pool, &format!("round {round}, filled"))?;
        files::same(&source, &first)?;
        // A half-deleted pool keeps the rest.
        files::remove(&first)?;
        let seconds = timed(|| pool.reclaim())?;
        files::same(&real, &second)?;
        measure(&pool, &format!("round {round}, half deleted, reclaimed in {seconds:.4} s"))?;
        files::remove(&second)?;
        let seconds = timed(|| pool.reclaim())?;
        let now = measure(&pool, &format!("round {round}, all deleted, reclaimed in {seconds:.4} s"))?;
        failures += exceeding(empty, now, &format!("round {round}, mounted"));
        pool.unmount()?;
        let now = measure(&pool, &format!("round {round}, not mounted"))?;
        failures += exceeding(closed, now, &format!("round {round}, not mounted"));
        pool.fsck()?;
    }
    if failures > 0 {
        return fail(format!("{failures} sizes are more than 2% over the empty pool's"));
    }
    say!("back to the empty size after every round");
    Ok(())
}
