//! The tables of MFDedup (Zou et al., FAST 2021), simulated with the chunks of real series.

mod capping;
mod categories;
mod chunkers;
mod classes;
mod disk;
mod har;
mod names;
mod report;
mod restore;
mod simulation;
mod store;
mod trace;

use std::path::{Path, PathBuf};

use dedupfs_content::Fingerprinter;
use dedupfs_store::superblock::FingerprintAlgorithm;

use crate::options::count;
use crate::synthetic::Synthetic;
use crate::{Outcome, cleanup, files, machine, say, usage};
use chunkers::Chunking;
use disk::Disk;
use report::Series;
use simulation::Settings;
use trace::{Trace, Tracer};

/// Containers of the paper, and segments of capping.
const CONTAINER_BYTES: u64 = 4 << 20;
const SEGMENT_BYTES: u64 = 20 << 20;

/// Simulates MFDedup, exact deduplication, HAR and capping with the chunks of series, and prints the paper's figures beside theirs.
///
/// Each version is a directory or a file. Nothing is compressed. A restore reads whole containers of 4 MiB, or the categories that it needs.
/// Its time is that of a disk: seeks, and bytes in a row. HAR rewrites at most 5% of a version, from containers of which less than half was
/// used. The paper leaves the cap, the segments of 20 MiB and the cache open; the cache is that of Destor.
#[derive(clap::Args)]
pub struct Mfdedup {
    /// Directories with a directory or file for each version [default: synthetic ones: half of the files change in four places each time]
    series: Vec<PathBuf>,
    /// The synthetic series beside others
    #[arg(long)]
    synthetic: bool,
    #[command(flatten)]
    made: Synthetic,
    /// Chunks as pools cut them by default, mincdc or fastcdc, or FastCDC of 2, 8 and 64 KiB: paper
    #[arg(long, default_value = "mincdc")]
    chunker: Chunking,
    /// Versions kept
    #[arg(long, default_value = "20", value_parser = count)]
    kept: u64,
    /// Old containers that a segment may use, for capping
    #[arg(long, default_value = "20", value_parser = count)]
    cap: u64,
    /// Containers in memory during a restore, those used last
    #[arg(long, default_value = "30", value_parser = count)]
    cache: u64,
    /// Milliseconds of a seek
    #[arg(long, default_value = "10", value_parser = count)]
    seek_ms: u64,
    /// MB that the disk reads a second, in a row
    #[arg(long, default_value = "160", value_parser = count)]
    rate: u64,
    /// Divides containers, segments and the time of a seek, but no chunks: so small versions have as many containers as large ones
    #[arg(long, default_value = "1", value_parser = count)]
    scale: u64,
    /// Directory for synthetic versions [default: TMPDIR or /var/tmp]
    #[arg(long, default_value_os_t = machine::scratch_parent(), hide_default_value = true)]
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Mfdedup) -> Outcome {
    if args.kept < 3 {
        return usage("fewer than 3 versions have no oldest, middle and newest one");
    }
    let disk =
        Disk { seek_seconds: args.seek_ms as f64 / 1e3 / args.scale as f64, bytes_per_second: args.rate as f64 * 1e6 };
    let settings = Settings {
        kept: args.kept as usize,
        container_bytes: CONTAINER_BYTES / args.scale,
        segment_bytes: SEGMENT_BYTES / args.scale,
        cap: args.cap as usize,
        cache: args.cache as usize,
        disk,
    };
    let mut all = Vec::new();
    for path in &args.series {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        all.push(Series::of(name, &read(path, args.chunker)?, &settings));
    }
    if args.synthetic || args.series.is_empty() {
        all.push(Series::of("synthetic".to_owned(), &make(args)?, &settings));
    }

    println!("{}", machine::describe_processor());
    println!("- dedupfs {}; chunks by {}, of 8 KiB in the mean", env!("CARGO_PKG_VERSION"), args.chunker);
    println!(
        "- {} versions kept; containers of {} KiB, {} of them in memory; {} of them for a segment of {} KiB",
        args.kept,
        settings.container_bytes >> 10,
        args.cache,
        args.cap,
        settings.segment_bytes >> 10
    );
    println!("- disk: {} ms a seek, {} MB/s; scale {}\n", disk.seek_seconds * 1e3, args.rate, args.scale);
    report::print(&all);
    println!(
        "\nRow 9, and the time that dedupfs takes to arrange, come from dedupfs-bench retention DIR and dedupfs-bench layout DIR."
    );
    all.iter().for_each(Series::print_restores);
    Ok(())
}

fn read(series: &Path, chunking: Chunking) -> Outcome<Trace> {
    let mut versions: Vec<_> = files::entries(series)?.into_iter().filter(|path| !path.is_symlink()).collect();
    versions.sort_by_key(|path| names::key(&path.file_name().unwrap_or_default().to_string_lossy()));
    if versions.len() < 3 {
        return usage(format!("{} has fewer than 3 versions", series.display()));
    }
    say!("{}: {} versions", series.display(), versions.len());
    traced(chunking, |tracer| versions.iter().try_for_each(|version| tracer.version(version)))
}

fn make(args: &Mfdedup) -> Outcome<Trace> {
    if args.made.versions < 3 {
        return usage("the synthetic series needs 3 versions");
    }
    machine::need_room(&args.dir, args.made.files * args.made.size)?;
    let tree = cleanup::scratch(&args.dir)?.join("tree");
    say!("{} synthetic versions", args.made.versions);
    traced(args.chunker, |tracer| {
        (0..args.made.versions).try_for_each(|number| {
            args.made.change(&tree, number)?;
            tracer.version(&tree)
        })
    })
}

fn traced(chunking: Chunking, add: impl FnOnce(&mut Tracer<'_>) -> Outcome) -> Outcome<Trace> {
    let chunker = chunking.chunker();
    let mut tracer = Tracer::new(&*chunker, Fingerprinter::new(FingerprintAlgorithm::Blake3));
    add(&mut tracer)?;
    Ok(tracer.finish())
}
