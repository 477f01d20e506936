//! Images of disks of which a part changed: put by a map of changes, beside other ways.

mod disks;
mod nights;
mod staged;

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::data::{Random, real_bytes};
use crate::figures::Figures;
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool, dedupfs};
use crate::{Outcome, command, fail, files, machine, table};

pub use disks::{Disks, run as run_disks};
pub use nights::{ImageNights, run as run_nights};
pub use staged::{Staged, run as run_staged};

/// Puts images of which a part changed: by a map of changes, as a whole, by cloning the image before and writing the changes into the
/// clone, and the new bytes alone as a file.
///
/// Each way starts with a new pool that has the image before, and ends with `dedupfs sync`. The image that the first two ways make is
/// compared with the source. The image lies in memory; each 4 KiB of it compress to about half. An image that repeats its content lies in a
/// second pool, because it would fit nowhere else: what is read of it, that pool's daemon reads. One of real content lies beside the pool.
#[derive(clap::Args)]
pub struct Images {
    /// Size of the image; as much is needed on disk, and in memory; with --content twice as much on disk
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    size: u64,
    /// So many times the image repeats content of --size
    #[arg(long, default_value = "1", value_parser = count)]
    repeat: u64,
    /// Directories with the content of the image, each file's once
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "repeat")]
    content: Vec<PathBuf>,
    /// Ways
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = WAYS.map(str::to_owned), value_parser = WAYS)]
    ways: Vec<String>,
    /// Parts that changed: percentages, with `s` as clusters of 64 KiB anywhere, with `r` as segments of 2 MiB in runs of 2.92 in the mean
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1s,2s,5r,22r")]
    changed: Vec<Pattern>,
    /// Runs
    #[arg(long, default_value = "3", value_parser = count)]
    runs: u64,
    /// Option --verify of `dedupfs put` by a map of changes
    #[arg(long, value_name = "PERCENT|full|none", default_value = "none")]
    verify: String,
    #[command(flatten)]
    pool: PoolOptions,
}

/// How an image changes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Pattern {
    percent: u64,
    /// In runs of segments; otherwise in single clusters.
    in_runs: bool,
}

const CLUSTER_BYTES: u64 = 64 << 10;
const SEGMENT_BYTES: u64 = 2 << 20;
const BLOCK_BYTES: usize = 4 << 10;
/// Every so manieth run of dirty segments has 2, 3 or 4 of them: 2.92 in the mean, as in the paper (section 5.1).
const RUNS: [u64; 25] = [3, 2, 4, 3, 2, 3, 4, 3, 2, 3, 4, 3, 2, 3, 3, 3, 3, 2, 3, 4, 3, 2, 3, 4, 2];

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || format!("`{text}` is no part such as 2s or 22r");
        let (percent, letter) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(advice)?;
        let percent = percent.parse().ok().filter(|percent| (1..=50).contains(percent)).ok_or_else(advice)?;
        match letter {
            "s" => Ok(Self { percent, in_runs: false }),
            "r" => Ok(Self { percent, in_runs: true }),
            _ => Err(advice()),
        }
    }
}

impl Pattern {
    fn name(self) -> String {
        let what = if self.in_runs { "of segments of 2 MiB, in runs" } else { "in clusters of 64 KiB" };
        format!("{}% {what}", self.percent)
    }

    /// Bytes that change together.
    fn unit_bytes(self) -> u64 {
        if self.in_runs { SEGMENT_BYTES } else { CLUSTER_BYTES }
    }

    /// So many of the units of an image change.
    fn changed_units(self, size_bytes: u64) -> u64 {
        (size_bytes / self.unit_bytes() * self.percent / 100).max(1)
    }

    /// Returns the ranges that change, in order.
    fn ranges(self, size_bytes: u64, random: &mut Random) -> Vec<(u64, u64)> {
        let (unit, wanted) = (self.unit_bytes(), self.changed_units(size_bytes));
        let units = size_bytes / unit;
        let mut changed = std::collections::BTreeSet::new();
        let mut runs = RUNS.iter().cycle();
        while (changed.len() as u64) < wanted {
            let len = if self.in_runs { *runs.next().unwrap_or(&3) } else { 1 };
            let from = random.below(units);
            changed.extend((from..(from + len).min(units)).take((wanted - changed.len() as u64) as usize));
        }
        changed.into_iter().map(|number| (number * unit, unit)).collect()
    }
}

const WAYS: [&str; 4] = ["map", "whole", "clone", "new"];

/// Runs the command.
pub fn run(args: &Images) -> Outcome {
    let programs = ["dedupfs", "dedupfs-stats"];
    let size = args.size * args.repeat;
    // The new bytes lie in memory, too, and then in the pools.
    let new_bytes = args.changed.iter().map(|pattern| size / 100 * pattern.percent).max().unwrap_or(0);
    let content = args.size + new_bytes;
    let (memory, pools) = match args.content.is_empty() {
        true => (content, content * args.repeat.min(2)),
        false => (new_bytes, content + args.size),
    };
    let mut bench = Bench::new(&programs, &["cp", "cmp"], &args.pool, memory + (1 << 30), pools + (2 << 30))?;
    println!("{}\n", machine::describe(&bench.work)?);
    let place = if args.content.is_empty() { &bench.ram } else { &bench.work };
    let (unique, map, new) = (place.join("disk.raw"), bench.ram.join("map"), bench.ram.join("new"));
    let mut second = Pool::new(bench.work.join("second"), bench.work.join("second.mnt"), &[], &[])?;
    let image = if args.repeat == 1 { unique.clone() } else { second.at("disk.raw") };
    let mut figures = Figures::default();
    for run in 1..=args.runs {
        figures.run = run;
        for pattern in &args.changed {
            for way in &args.ways {
                make_image(&unique, args)?;
                if args.repeat > 1 {
                    second.format()?;
                    second.mount()?;
                    repeat_image(&unique, &image, args.repeat)?;
                    files::remove(&unique)?;
                }
                let target = format!("{} {way}", pattern.name());
                start(&mut bench, &image, way)?;
                let mut random = Random::new(&format!("{pattern:?} {run}"));
                let ranges = pattern.ranges(size, &mut random);
                change(&image, &ranges, (&map, &new), &mut random)?;
                measure(args, &bench, way, (&image, &map, &new), &ranges, (&target, &mut figures))?;
                for pool in [&mut bench.pool, &mut second] {
                    if pool.daemon.is_some() {
                        pool.unmount()?;
                        files::remove(&pool.path)?;
                    }
                }
            }
        }
    }
    println!(
        "Image of {}, seconds until durable, seconds of the processors, bytes read from the source, bytes that the pool grew by. Medians of {} runs.\n",
        table::human(size),
        args.runs
    );
    println!("{}", table::head(&["changed", "way", "seconds", "processors", "read", "grew"]));
    for pattern in &args.changed {
        for way in &args.ways {
            let target = format!("{} {way}", pattern.name());
            let bytes =
                |name| figures.median(name, &target).map_or_else(|| "-".to_owned(), |bytes| table::human(bytes as u64));
            let seconds = figures.median("put", &target).map(|rate| size as f64 / rate);
            println!(
                "{}",
                table::row(&[
                    pattern.name(),
                    way.clone(),
                    table::cell(seconds, 2),
                    table::cell(figures.median("put cpu", &target), 2),
                    bytes("read"),
                    bytes("grew"),
                ])
            );
        }
    }
    Ok(())
}

/// Makes a new pool with the image as it was.
fn start(bench: &mut Bench, image: &Path, way: &str) -> Outcome {
    bench.pool.format()?;
    bench.pool.mount()?;
    files::make_dir(&bench.pool.at("vm"))?;
    dedupfs("put").args(["--image", "--token", "1"]).arg(image).arg(bench.pool.at("vm/1")).quiet().run()?;
    if way == "clone" {
        dedupfs("put").arg("--live").arg(image).arg(bench.pool.at("live")).quiet().run()?;
    }
    bench.pool.sync()
}

fn measure(
    args: &Images,
    bench: &Bench,
    way: &str,
    (image, map, new): (&Path, &Path, &Path),
    ranges: &[(u64, u64)],
    (target, figures): (&str, &mut Figures),
) -> Outcome {
    let pool = &bench.pool;
    let to = pool.at("vm/2");
    let before = stored_bytes(pool)?;
    let mut read_bytes = None;
    figures.record("put", target, args.size * args.repeat, pool.daemon, || {
        match way {
            "map" | "whole" => {
                let mut put = dedupfs("put");
                put.arg("--json");
                match way {
                    "map" => put.arg("--changed").arg(map).args([
                        "--token-from",
                        "1",
                        "--token",
                        "2",
                        "--verify",
                        &args.verify,
                    ]),
                    _ => put.args(["--image", "--reread"]),
                };
                let text = put.arg(image).arg(&to).text()?;
                let report: serde_json::Value =
                    serde_json::from_str(text.trim()).or_else(|error| fail(format!("{error} in {text}")))?;
                read_bytes = report.pointer("/image/read_bytes").and_then(serde_json::Value::as_u64);
            }
            "clone" => {
                let clone = pool.at("clone");
                command!("cp", pool.at("live"), &clone).run()?;
                write_changes(image, &clone, ranges)?;
            }
            _ => dedupfs("put").arg("--live").arg(new).arg(pool.at("alone")).quiet().run()?,
        }
        pool.sync()
    })?;
    figures.note("grew", target, stored_bytes(pool)?.saturating_sub(before) as f64);
    read_bytes.iter().for_each(|bytes| figures.note("read", target, *bytes as f64));
    let made = match way {
        "map" | "whole" => to.join("disk.raw"),
        "clone" => pool.at("clone"),
        _ => return Ok(()),
    };
    command!("cmp", image, made).run()
}

fn stored_bytes(pool: &Pool) -> Outcome<u64> {
    let stats = pool.stats()?;
    Ok(stats.number("data_container_bytes")? + stats.number("recipe_container_bytes")?)
}

/// Makes an image, the same each time.
fn make_image(image: &Path, args: &Images) -> Outcome {
    let mut random = Random::new("image");
    let made = File::create(image).and_then(|file| {
        let (mut to, mut block) = (BufWriter::with_capacity(1 << 20, file), [0; BLOCK_BYTES]);
        if !args.content.is_empty() {
            let got = real_bytes(&args.content, args.size, &mut to)?;
            to.flush()?;
            // What is not written yet would be written while a way is measured.
            return to.get_ref().sync_all().map(|()| got);
        }
        for _ in 0..args.size / BLOCK_BYTES as u64 {
            fill(&mut random, &mut block)?;
            to.write_all(&block)?;
        }
        to.flush()?;
        Ok(args.size)
    });
    match made.or_else(files::at("make", image))? {
        got if got == args.size => Ok(()),
        got => fail(format!("the directories of --content have {} of content", table::human(got))),
    }
}

/// Makes an image that repeats another one: clones of a copy beside it, which the kernel asks of the pool.
fn repeat_image(unique: &Path, image: &Path, times: u64) -> Outcome {
    let part = image.with_extension("part");
    let made = fs::copy(unique, &part)
        .and_then(|_| File::create(image))
        .and_then(|mut file| (0..times).try_for_each(|_| std::io::copy(&mut File::open(&part)?, &mut file).map(drop)));
    made.or_else(files::at("make", image))
}

/// Fills a block, half of it with one letter.
fn fill(random: &mut Random, block: &mut [u8]) -> std::io::Result<()> {
    let (noise, rest) = block.split_at_mut(BLOCK_BYTES / 2);
    random.read_exact(noise)?;
    rest.fill(noise.first().copied().unwrap_or(0));
    Ok(())
}

/// Changes ranges of the image. Writes the map of them, and the new bytes alone.
fn change(image: &Path, ranges: &[(u64, u64)], (map, new): (&Path, &Path), random: &mut Random) -> Outcome {
    let lines: String = ranges.iter().map(|(from, len)| format!("{from} {len}\n")).collect();
    fs::write(map, lines).or_else(files::at("write", map))?;
    let mut changed = || -> std::io::Result<()> {
        let (file, mut alone) = (File::options().write(true).open(image)?, BufWriter::new(File::create(new)?));
        for (from, len) in ranges {
            let mut bytes = vec![0; *len as usize];
            bytes.chunks_mut(BLOCK_BYTES).try_for_each(|block| fill(random, block))?;
            file.write_all_at(&bytes, *from)?;
            alone.write_all(&bytes)?;
        }
        alone.flush()?;
        file.sync_all()
    };
    changed().or_else(files::at("change", image))
}

/// Writes the changed ranges of the image into a clone of the one before.
fn write_changes(image: &Path, clone: &PathBuf, ranges: &[(u64, u64)]) -> Outcome {
    let written = || -> std::io::Result<()> {
        let (from, to) = (File::open(image)?, File::options().write(true).open(clone)?);
        for (offset, len) in ranges {
            let mut bytes = vec![0; *len as usize];
            from.read_exact_at(&mut bytes, *offset)?;
            to.write_all_at(&bytes, *offset)?;
        }
        to.sync_all()
    };
    written().or_else(files::at("write", clone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_change_their_part_in_order() {
        for text in ["1s", "22r"] {
            let pattern: Pattern = text.parse().expect("is one");
            let ranges = pattern.ranges(1 << 30, &mut Random::new("test"));
            assert!(ranges.is_sorted() && ranges.iter().all(|(from, len)| from + len <= 1 << 30));
            let bytes: u64 = ranges.iter().map(|(_, len)| len).sum();
            assert_eq!(bytes * 100 / (1 << 30), if pattern.in_runs { 21 } else { 0 }, "{text}: rounded down");
        }
        assert!(["", "s", "51s", "0r", "5x", "5"].iter().all(|text| text.parse::<Pattern>().is_err()));
        let mean = RUNS.iter().sum::<u64>() as f64 / RUNS.len() as f64;
        assert!((mean - 2.92).abs() < 1e-9, "{mean}");
    }
}
