//! Copies of a pool in an object store, beside other tools and the store's own rate.

mod distance;
mod gateway;
mod tools;

use std::path::Path;

use self::distance::{Distance, Traffic};
use self::gateway::{BUCKET, Gateway};
use self::tools::Copying;
use crate::figures::timed;
use crate::options::{PoolOptions, list, size_1m};
use crate::pool::Bench;
use crate::table::{human, number, rate};
use crate::{Outcome, data, files, machine, print_row, say, table};

/// The file that is restored alone.
const ONE_FILE: &str = "f00003";
/// Bytes of a file: as many as a container has.
const FILE_BYTES: u64 = 4 << 20;

/// Measures first copies, nightly copies and restores of backups in an object store.
///
/// A tree of random files of 4 MiB is stored by each tool on this machine, and copied to a store on this machine (versitygw), through a proxy that
/// delays each direction by half of a latency and counts requests. A night adds new files. Then one file, and the first tree, are restored from the
/// store alone, without any cache, and compared. `files` is `rclone copy` of the files themselves: the rate of the store. Tools that are not
/// installed are left out; kopia restores nothing. Each step is done once, because it needs an empty store.
#[derive(clap::Args)]
pub struct Replicas {
    /// Bytes of the tree
    #[arg(long, default_value = "1G", value_parser = size_1m)]
    size: u64,
    /// Percent of the tree that a night adds
    #[arg(long, default_value_t = 2)]
    night: u64,
    /// Milliseconds to the store and back, each a table of its own
    #[arg(long, default_value = "0 20 100")]
    latency: String,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Runs the command.
pub fn run(args: &Replicas) -> Outcome {
    let latencies =
        list(&args.latency, |text| text.parse().map_err(|_| "it must be a number of milliseconds".to_owned()))?;
    let disk = 8 * args.size + (1 << 30);
    for (position, latency) in latencies.into_iter().enumerate() {
        let Bench { work, mut pool, .. } = Bench::new(&["dedupfs"], &["versitygw"], &args.pool, 0, disk)?;
        if position == 0 {
            println!("{}", machine::describe(&work)?);
        }
        let source = work.join("source");
        add_files(&source, "first", args.size)?;
        pool.format()?;
        pool.mount()?;
        let gateway = Gateway::start(&work.join("store"))?;
        let distance = Distance::new(gateway.port, latency)?;
        let copying = Copying { work: &work, source: &source, pool: &pool, port: distance.port };
        let known = copying.installed();
        println!("\nLatency {latency} ms; {} of random files, nights of {}%\n", human(args.size), args.night);
        println!(
            "{}",
            table::head(&[
                "",
                "first copy, MB/s",
                "s",
                "requests",
                "night, s",
                "requests",
                "MB sent",
                "one file, s",
                "requests",
                "tree, s",
                "requests"
            ])
        );
        let mut steps = Vec::new();
        for name in &known {
            copying.prepare(name, "first")?;
            steps.push(measure(&distance, || copying.copy(name))?);
        }
        let night = args.size * args.night / 100;
        add_files(&source, "night", night)?;
        for (name, first) in known.iter().zip(steps) {
            copying.prepare(name, "night")?;
            let second = measure(&distance, || copying.copy(name))?;
            let file = measure(&distance, || copying.restore(name, Some(ONE_FILE)))?;
            let tree = measure(&distance, || copying.restore(name, None))?;
            let (secs, traffic) = first;
            print_row!(
                name,
                rate(args.size, secs),
                number(secs, 1),
                traffic.requests,
                number(second.0, 1),
                second.1.requests,
                number(second.1.sent_bytes as f64 / 1e6, 1),
                number(file.0, 1),
                file.1.requests,
                number(tree.0, 1),
                tree.1.requests,
            );
        }
        pool.unmount()?;
        drop(gateway);
        files::remove(&work)?;
    }
    Ok(())
}

/// Adds random files to a tree.
fn add_files(source: &Path, name: &str, bytes: u64) -> Outcome {
    let directory = source.join(name);
    if !source.exists() {
        files::make_dir(source)?;
    }
    files::make_dir(&directory)?;
    for file in 0..bytes.div_ceil(FILE_BYTES) {
        data::random_file(&format!("replicas {name} {file}"), FILE_BYTES, &directory.join(format!("f{file:05}")))?;
    }
    Ok(())
}

fn measure(distance: &Distance, work: impl FnOnce() -> Outcome) -> Outcome<(f64, Traffic)> {
    let before = distance.traffic();
    let secs = timed(work)?;
    let traffic = distance.traffic().since(&before);
    say!("{secs:.1} s, {} requests, {} sent to bucket {BUCKET}", traffic.requests, human(traffic.sent_bytes));
    Ok((secs, traffic))
}
