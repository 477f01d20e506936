//! A series of versions against an independent count.

use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::figures::timed;
use crate::options::{PoolOptions, count};
use crate::pool::{self, Bench, Stats, dedupfs};
use crate::table::{exact, number, rate};
use crate::{Outcome, command, fail, files, machine, print_row, say, table, usage};

/// Compares the deduplication of a series with an independent count.
///
/// Backs the versions of one tree up twice into one pool: each by rsync into a directory of its own, then each as one tar.
/// Compares the unique chunk bytes of dedupfs-stats with an independent count over the same files, to the byte, tells the size of all of it
/// on disk, and verifies all content after a new mount. Fails if any figure or byte differs.
#[derive(clap::Args)]
pub struct Series {
    /// Directory with one directory for each version
    series: PathBuf,
    /// Empty or absent directory, formatted here and kept [default: a temporary one that is removed]
    pool_path: Option<PathBuf>,
    /// Only the first versions, so many
    #[arg(long, value_name = "N", default_value = "1000000", hide_default_value = true, value_parser = count)]
    versions: u64,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Statistics of a pool and the names that the count has for the same numbers.
const COMPARED: [(&str, &str); 4] = [
    ("files", "files"),
    ("logical_bytes", "total_bytes"),
    ("unique_chunks", "distinct_chunks"),
    ("unique_chunk_bytes", "distinct_chunk_bytes"),
];

/// Counts without any code of dedupfs, with the chunker and the chunk size of the pool.
struct Count(String);

impl Count {
    fn of(mkfs: &[String], paths: &[PathBuf]) -> Outcome<Self> {
        let is_passed = |pair: &&[String]| ["--chunker", "--chunk-size"].contains(&pair[0].as_str());
        let options = mkfs.windows(2).filter(is_passed).flatten();
        Ok(Self(command!(pool::program("offline_count")).args(options).args(paths).text()?))
    }

    fn number(&self, name: &str) -> Outcome<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let found = line.and_then(|number| number.parse().ok());
        found.map_or_else(|| fail(format!("offline_count prints no {name}")), Ok)
    }
}

/// Prints rows for the statistics; returns how many differ from the count. Nothing was deleted or overwritten, so nothing may be stored
/// without a reference.
fn check(title: &str, stats: &Stats, count: &Count) -> Outcome<usize> {
    let mut expected = Vec::new();
    for (name, counted) in COMPARED {
        expected.push((name, name, count.number(counted)?));
    }
    expected.push(("unreferenced_chunks", "chunks without reference", 0));
    let mut failures = 0;
    for (name, label, counted) in expected {
        let said = stats.number(name)?;
        let label = format!("{title}, {label}");
        if said == counted {
            print_row!(label, counted, "equal");
        } else {
            let difference = i128::from(said) - i128::from(counted);
            print_row!(label, format!("{counted} counted, {said} said"), format!("**differs by {difference}**"));
            failures += 1;
        }
    }
    Ok(failures)
}

/// Runs the command.
pub fn run(args: &Series) -> Outcome {
    let series = args.series.canonicalize().or_else(|_| usage(format!("no directory {}", args.series.display())))?;
    let mut versions = files::directories(&series)?;
    versions.truncate(args.versions as usize);
    if versions.is_empty() {
        return usage(format!("{} has no directories", series.display()));
    }
    let sources: Vec<PathBuf> = versions.iter().map(|version| series.join(version)).collect();
    let bytes: u64 = sources.iter().map(|source| files::content_bytes(source)).sum();
    let (programs, commands) = (["dedupfs", "dedupfs-stats", "offline_count"], ["rsync", "tar", "cmp", "diff"]);
    let Bench { work, mut pool, .. } = Bench::new(&programs, &commands, &args.pool, 0, 2 * bytes)?;
    let tars = work.join("tars");
    files::make_dir(&tars)?;
    if let Some(path) = &args.pool_path {
        pool.path.clone_from(path);
    }

    println!("{}", machine::describe(&work)?);
    println!("\n{}", table::head(&["", "bytes or number", "offline count and dedupfs-stats"]));
    pool.format()?;
    pool.mount()?;
    let (copies, tars_there) = (pool.at("directories"), pool.at("tars"));
    files::make_dir(&copies)?;
    files::make_dir(&tars_there)?;
    let slashed = |path: &Path| format!("{}/", path.display());
    say!("rsync of {} versions", versions.len());
    let directories_seconds = timed(|| {
        for (version, source) in versions.iter().zip(&sources) {
            command!("rsync", "-aHAX", slashed(source), slashed(&copies.join(version))).run()?;
        }
        pool.sync()
    })?;
    let directories = pool.stats()?;
    say!("counting");
    let mut failures = check("directories", &directories, &Count::of(&args.pool.mkfs.0, &sources)?)?;

    // The order of names is all that a tar of the same tree could do differently.
    let make_tars = |directory: &Path| {
        versions.iter().try_for_each(|version| {
            let tar = directory.join(format!("{version}.tar"));
            let name = format!("./{version}");
            command!("tar", "-C", &series, "--sort=name", "--format=gnu", "-cf", tar, name).run()
        })
    };
    say!("tar of {} versions", versions.len());
    let tars_seconds = timed(|| make_tars(&tars_there).and_then(|()| pool.sync()))?;
    make_tars(&tars)?;
    let all = Count::of(&args.pool.mkfs.0, &[&sources[..], std::slice::from_ref(&tars)].concat())?;
    failures += check("directories and tars", &pool.stats()?, &all)?;
    pool.unmount()?;
    let stats = pool.stats()?;
    failures += check("after the unmount", &stats, &all)?;
    let on_disk = files::disk_bytes(&pool.path);
    let tars_alone = Count::of(&args.pool.mkfs.0, std::slice::from_ref(&tars))?.number("distinct_chunk_bytes")?;

    say!("verifying after a new mount");
    files::evict(&pool.path);
    pool.mount()?;
    let verify_seconds = timed(|| {
        for (version, source) in versions.iter().zip(&sources) {
            files::same(source, &copies.join(version))?;
            let tar = format!("{version}.tar");
            files::same(&tars.join(&tar), &tars_there.join(&tar))?;
        }
        let (one, other) = (slashed(&sources[0]), slashed(&copies.join(&versions[0])));
        let differences = command!("rsync", "-aHAXn", "--delete", "--itemize-changes", one, other).text()?;
        if differences.is_empty() {
            Ok(())
        } else {
            fail(format!("attributes of {} differ: {differences}", versions[0]))
        }
    })?;
    pool.unmount()?;
    let fsck_seconds = timed(|| dedupfs("fsck").arg("--read-data").arg(&pool.path).run())?;

    let bytes = |stats: &Stats, name: &str| stats.number(name).map(exact);
    let [logical, unique] = ["logical_bytes", "unique_chunk_bytes"].map(|name| stats.number(name));
    let (logical, unique) = (logical?, unique?);
    let (copied, first) = (directories.number("logical_bytes")?, directories.number("unique_chunk_bytes")?);
    let added = unique.saturating_sub(first);
    let percent = number(100.0 * added as f64 / first as f64, 2);
    let took = |seconds: f64, bytes: u64| format!("{seconds:.4} s, {} MB/s", rate(bytes, seconds));
    println!("\n{}", table::head(&["", ""]));
    print_row!("versions, as directories and as tars", versions.len());
    print_row!("logical, directories", exact(copied));
    print_row!("logical, all", exact(logical));
    print_row!("unique chunks, directories", exact(first));
    print_row!("unique chunks, all", exact(unique));
    let added = format!("{}, {percent}% of the directories' unique chunks; alone they have", exact(added));
    print_row!("the tars added", format!("{added} {}", exact(tars_alone)));
    print_row!("deduplication", number(logical as f64 / unique as f64, 2));
    print_row!("content on disk, compressed", bytes(&stats, "data_container_bytes")?);
    let parts = ["recipe_container_bytes", "namespace_bytes", "index_bytes"].map(|name| bytes(&stats, name));
    print_row!("recipes, namespace, index on disk", parts.into_iter().collect::<Outcome<Vec<_>>>()?.join(", "));
    let (all, alone) = (bytes(&stats, "physical_bytes")?, bytes(&directories, "physical_bytes")?);
    print_row!("physical, all, as dedupfs-stats says", format!("{all}; with the directories alone {alone}"));
    print_row!("physical, all, as du says", exact(on_disk));
    print_row!("logical against physical", number(logical as f64 / on_disk as f64, 2));
    print_row!("rsync of the directories", took(directories_seconds, copied));
    print_row!("tars", took(tars_seconds, logical.saturating_sub(copied)));
    print_row!("compared after a new mount", took(verify_seconds, logical));
    print_row!("fsck --read-data", format!("clean, {fsck_seconds:.4} s"));
    if failures > 0 {
        return fail(format!("{failures} figures differ from the offline count"));
    }
    say!("all content is identical, all figures equal the offline count");
    Ok(())
}
