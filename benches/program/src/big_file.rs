//! One large file: written several times, and edited at random places.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use dedupfs_tools::parse_size;

use crate::command::Run;
use crate::data::{self, Random};
use crate::figures::timed;
use crate::options::{PoolOptions, count};
use crate::pool::{Bench, Pool};
use crate::table::{exact, human, number, rate};
use crate::{Outcome, command, fail, files, machine, print_row, say, table};

/// Measures and verifies one large file, written and edited.
///
/// It is written twice, which may store nothing new the second time, restored and compared. Another one is edited by dd: the edits are at
/// random places (overwritten, truncated, extended, appended to). The file is compared with the same edits on the backing filesystem after
/// each batch, and again after a new mount.
#[derive(clap::Args)]
pub struct BigFile {
    /// Size of the file that is written twice; three times SIZE is needed on disk. 0 leaves it out
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    size: u64,
    /// Size of the file that is edited; three times SIZE is needed on disk. 0 leaves it out
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    edit_size: u64,
    /// Batches of edits, each compared before and after a new mount
    #[arg(long, default_value = "6", value_parser = count)]
    batches: u64,
    /// Edits in each batch
    #[arg(long, default_value = "40", value_parser = count)]
    edits: u64,
    /// Seed of the list of edits
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(0..1_000_000))]
    seed: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Bytes of the data that edits are taken from.
const DATA_BYTES: u64 = 32 << 20;

/// Runs the command.
pub fn run(args: &BigFile) -> Outcome {
    let disk = args.size.max(args.edit_size) * 3 + (256 << 20);
    let commands = ["dd", "cmp", "cp", "sync"];
    let Bench { work, mut pool, .. } = Bench::new(&["dedupfs", "dedupfs-stats"], &commands, &args.pool, 0, disk)?;
    println!("{}\n", machine::describe(&work)?);
    if args.size > 0 {
        twice(args, &work, &mut pool)?;
    }
    if args.edit_size > 0 {
        edited(args, &work, &mut pool)?;
    }
    say!("all content is identical");
    Ok(())
}

fn new_pool(pool: &mut Pool) -> Outcome {
    files::remove(&pool.path)?;
    pool.format()?;
    pool.mount()
}

/// Numbers of a mounted pool: chunks and nodes that this mount stored, unique chunks, nodes, bytes of content on disk.
fn snapshot(pool: &Pool) -> Outcome<[u64; 5]> {
    pool.sync()?;
    let stats = pool.stats()?;
    let mut numbers = [0; 5];
    let names =
        ["session.chunks_stored", "session.nodes_stored", "unique_chunks", "recipe_nodes", "data_container_bytes"];
    for (number, name) in numbers.iter_mut().zip(names) {
        *number = stats.number(name)?;
    }
    Ok(numbers)
}

fn dd(from: &Path, to: &Path, options: &str) -> Command {
    let mut dd = command!("dd", format!("if={}", from.display()), format!("of={}", to.display()), "status=none");
    dd.args(options.split(' '));
    dd
}

fn twice(args: &BigFile, work: &Path, pool: &mut Pool) -> Outcome {
    let (source, native, restored) = (work.join("source"), work.join("native"), work.join("restored"));
    let show = |title: &str, seconds: f64| {
        print_row!(title, number(seconds, 4), rate(args.size, seconds), "", "", "");
    };
    say!("making {} of pseudo-random data", human(args.size));
    data::random_file(&format!("big {}", args.seed), args.size, &source)?;
    command!("sync", &source).run()?;
    new_pool(pool)?;
    let columns = ["written", "seconds", "MB/s", "new chunks", "new recipe nodes", "content on disk"];
    println!("{}", table::head(&columns));
    let seconds = timed(|| dd(&source, &native, "bs=1M conv=fsync").run())?;
    show("on the backing filesystem, dd bs=1M", seconds);
    files::remove(&native)?;
    let mut before = snapshot(pool)?;
    // The third time in pieces that fit no boundary, the fourth after a new mount: the deduplication may not depend on that.
    for (copy, block, pattern) in [
        ("first", "bs=1M", "dd bs=1M"),
        ("second", "bs=1M", "dd bs=1M"),
        ("pieces", "bs=99991", "dd bs=99991"),
        ("remounted", "bs=1M", "dd bs=1M after a new mount"),
    ] {
        if copy == "remounted" {
            pool.remount_cold(false)?;
            before = snapshot(pool)?;
        }
        let seconds = timed(|| dd(&source, &pool.at(copy), &format!("{block} conv=fsync")).run())?;
        let after = snapshot(pool)?;
        let new: Vec<u64> = after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        let title = format!("{copy}, {pattern}");
        print_row!(title, number(seconds, 4), rate(args.size, seconds), new[0], new[1], exact(after[4]));
        if copy == "first" {
            if new[2] != new[0] {
                let (stored, unique) = (new[0], new[2]);
                return fail(format!("{stored} chunks stored but {unique} more unique ones: chunks were stored twice"));
            }
        } else if new[0] != 0 || after[2] != before[2] {
            return fail(format!("the {copy} copy stored {} new chunks", new[0]));
        } else if new[1] > 1 || new[3] > 1 {
            // The last segment of the file may end otherwise.
            return fail(format!("the {copy} copy stored {} new recipe nodes", new[1]));
        }
        before = after;
    }
    files::evict(&source);
    let seconds = timed(|| command!("cp", &source, &restored).run())?;
    show("copied on the backing filesystem, cold", seconds);
    files::remove(&restored)?;
    for copy in ["first", "pieces"] {
        pool.remount_cold(false)?;
        let seconds = timed(|| command!("cp", pool.at(copy), &restored).run())?;
        show(&format!("restored {copy}, cold"), seconds);
        files::same(&source, &restored)?;
        files::remove(&restored)?;
    }
    files::same(&source, &pool.at("second"))?;
    pool.unmount()?;
    pool.fsck()?;
    files::remove(&source)
}

/// A change of a file, as options of dd, and the bytes that it writes.
type Edit = (String, u64);

/// Draws edits of a file of `length` bytes; changes `length` as they do.
fn draw_edits(random: &mut Random, args: &BigFile, length: &mut u64) -> Vec<Edit> {
    let mut draw = || {
        let limit = [64, 5000, 70000, 1_100_000, 4_200_000][random.below(5) as usize];
        let bytes = random.below(limit) + 1;
        let kind = random.below(20);
        if kind < 2 {
            // Down by up to an eighth, or up by up to an eighth: a hole.
            *length = match kind {
                0 => *length - random.below(*length / 8 + 1),
                _ => *length + random.below(args.edit_size / 8 + 1),
            };
            // dd truncates where it would begin to write.
            return (format!("bs=1 count=0 seek={length}"), 0);
        }
        let from = random.below(DATA_BYTES - bytes);
        let copy = format!("bs=1M iflag=skip_bytes,count_bytes conv=notrunc skip={from} count={bytes}");
        let offset = match kind {
            2 => *length + random.below(3_000_000),
            3..=6 => *length,
            _ => random.below(*length + 1),
        };
        *length = (*length).max(offset + bytes);
        let place =
            if kind < 7 && kind > 2 { "oflag=append".to_owned() } else { format!("oflag=seek_bytes seek={offset}") };
        (format!("{copy} {place}"), bytes)
    };
    (0..args.edits).map(|_| draw()).collect()
}

/// Opens, writes and closes the file as many times as there are edits, and syncs it.
fn apply(edits: &[Edit], data: &Path, file: &Path) -> Outcome {
    for (options, bytes) in edits {
        dd(if *bytes == 0 { "/dev/null".as_ref() } else { data }, file, options).run()?;
    }
    command!("sync", file).run()
}

fn edited(args: &BigFile, work: &Path, pool: &mut Pool) -> Outcome {
    let (data, native, file): (PathBuf, _, _) = (work.join("data"), work.join("native"), pool.at("file"));
    data::random_file(&format!("edits {}", args.seed), DATA_BYTES, &data)?;
    say!("making {} for the edits", human(args.edit_size));
    let make = |mut file: File| {
        let [libraries, _] = data::real_directories();
        let got = data::real_bytes(&libraries, args.edit_size / 2, &mut file)?;
        Random::new(&format!("edited {}", args.seed)).write(args.edit_size - got, file)
    };
    File::create(&native).and_then(make).or_else(files::at("write", &native))?;
    command!("sync", &native).run()?;
    new_pool(pool)?;
    command!("cp", &native, &file).run()?;
    let mut random = Random::new(&args.seed.to_string());
    let mut length = args.edit_size;
    let first = format!("batch of {} edits", args.edits);
    let columns =
        [&first, "MB written", "backing filesystem, s", "dedupfs, s", "dedupfs took", "new chunks", "length after"];
    println!("\n{}", table::head(&columns));
    let compare = |batch: &str, edits: &[Edit]| {
        files::same(&native, &file).or_else(|failure| fail(format!("{batch}: {failure}; the edits were {edits:?}")))
    };
    for batch in 1..=args.batches {
        let before = snapshot(pool)?;
        let edits = draw_edits(&mut random, args, &mut length);
        let written: u64 = edits.iter().map(|(_, bytes)| bytes).sum();
        let native_seconds = timed(|| apply(&edits, &data, &native))?;
        let seconds = timed(|| apply(&edits, &data, &file))?;
        let new_chunks = snapshot(pool)?[0] - before[0];
        let times = format!("{:.1} times", seconds / native_seconds);
        let [native_seconds, seconds] = [native_seconds, seconds].map(|seconds| number(seconds, 4));
        let written = number(written as f64 / 1e6, 1);
        print_row!(batch, written, native_seconds, seconds, times, new_chunks, length);
        let found = file.metadata().or_else(files::at("find", &file))?.len();
        if found != length {
            return fail(format!("batch {batch}: length {found} instead of {length}; the edits were {edits:?}"));
        }
        compare(&format!("batch {batch}"), &edits)?;
        pool.remount_cold(false)?;
        compare(&format!("batch {batch} after a new mount"), &edits)?;
    }
    // Two batches of a file that stays in the daemon's caches: without a new mount between them.
    let mut edits = Vec::new();
    for _ in 0..2 {
        edits = draw_edits(&mut random, args, &mut length);
        apply(&edits, &data, &native)?;
        apply(&edits, &data, &file)?;
    }
    compare("two batches without a new mount between them", &edits)?;
    pool.unmount()?;
    pool.fsck()?;
    [&native, &data, &pool.path].into_iter().try_for_each(|path| files::remove(path))
}
