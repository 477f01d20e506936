//! Section IV.F: memory for 10 TB at chunks of 4 KiB.

use std::path::Path;

use dedupfs_index::{IndexOptions, IndexStats};

use super::{CHUNKS_PER_CONTAINER, MILLION, made};

/// 10 TB of chunks of 4 KiB, as the paper counts them.
const PAPER_CHUNKS: u64 = 5 << 29;
const MIB: f64 = (1 << 20) as f64;

/// Bytes of the structures, by formula.
struct Formula {
    filters: f64,
    bucket_directories: f64,
    count_directories: f64,
    container_lists: f64,
    open_tanker: f64,
    caches: f64,
}

impl Formula {
    fn of(cells: u64, bits_per_cell: u64, options: &IndexOptions) -> Self {
        let tankers = cells.div_ceil(u64::from(options.cells_per_tanker)) as f64;
        Self {
            filters: tankers * f64::from(options.cells_per_tanker) * bits_per_cell as f64 / 8.0,
            // For each bucket a start of 4 bytes and a checksum of 8, and a last start.
            bucket_directories: tankers * (f64::from(options.buckets_per_tanker) * 12.0 + 4.0),
            // The counts of a bucket are a page of their own.
            count_directories: tankers * (f64::from(options.buckets_per_tanker) * 12.0 + 4.0),
            // 24 bytes for each container with cells in the tanker.
            container_lists: tankers * f64::from(options.cells_per_tanker) / CHUNKS_PER_CONTAINER as f64 * 24.0,
            // All open tankers and everything needed to seal them: the limit that the index keeps to.
            open_tanker: options.open_bytes as f64,
            caches: (options.cache_bytes + options.locality_bytes) as f64,
        }
    }

    fn directories(&self) -> f64 {
        self.bucket_directories + self.count_directories + self.container_lists
    }

    fn total(&self) -> f64 {
        self.filters + self.directories() + self.open_tanker + self.caches
    }
}

fn directories(stats: &IndexStats) -> f64 {
    stats.directory_bytes as f64
}

pub(crate) fn run(directory: &Path, stored: u64) {
    let tankers = stored / MILLION;
    println!("\n**Memory of {tankers} million fingerprints**, MiB: formula and index\n");
    println!(
        "| bits | filters: formula | measured | directories and lists: formula | measured | false reads per million absent |"
    );
    println!("|---|---|---|---|---|---|");
    let mut scaled = Vec::new();
    for bits in [24, 16, 12] {
        // Just enough, with the rounding of groups.
        let options = IndexOptions { filter_bytes: tankers * MILLION * bits / 8 * 17 / 16, ..IndexOptions::default() };
        let made = made(directory, options, stored);
        let (stats, formula) = (made.index.stats(), Formula::of(stored, bits, &options));
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
            stats.filter_bits_per_cell,
            formula.filters / MIB,
            stats.filter_bytes as f64 / MIB,
            formula.directories() / MIB,
            directories(&stats) / MIB,
            stats.false_reads_per_million,
        );
        scaled.push((bits, stats));
    }
    let millions = PAPER_CHUNKS / MILLION;
    println!(
        "\n**10 TB, {millions} million chunks of 4 KiB**, GiB; the paper's: filters 9.2 + 0.14 (files), caches 0.8, in all 10\n"
    );
    println!(
        "| bits | filters | bucket directories | counts' directories | container lists | open tanker | caches | all | scaled from \
         {tankers} M |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (bits, stats) in scaled {
        let options = IndexOptions::default();
        let formula = Formula::of(PAPER_CHUNKS, bits, &options);
        let gib = |bytes: f64| format!("{:.3}", bytes / MIB / 1024.0);
        let factor = PAPER_CHUNKS as f64 / stored as f64;
        let measured =
            (stats.filter_bytes as f64 + directories(&stats)) * factor + formula.open_tanker + formula.caches;
        println!(
            "| {bits} | {} | {} | {} | {} | {} | {} | {} | {} |",
            gib(formula.filters),
            gib(formula.bucket_directories),
            gib(formula.count_directories),
            gib(formula.container_lists),
            gib(formula.open_tanker),
            gib(formula.caches),
            gib(formula.total()),
            gib(measured),
        );
    }
}
