//! Figure 4: the imbalance of super buckets, and its cost.

use std::path::Path;

use dedupfs_index::IndexOptions;

use super::{CELL_BYTES, MILLION, fingerprint, made};

const SUPER_BUCKETS: [usize; 5] = [128, 256, 512, 1024, 2048];
/// Millions of fingerprints: figure 4-(b) counts from 2 to 44.
const POINTS: [u64; 6] = [2, 4, 8, 16, 32, 44];
/// Number of streams. Each has its own fingerprints.
const STREAMS: u64 = 5;
/// The paper's threshold: section IV.A.
const THRESHOLD: u64 = 1024;

fn bucket(number: u64, buckets: usize) -> usize {
    (u64::from_be_bytes(fingerprint(number).0[..8].try_into().unwrap()) >> (64 - buckets.ilog2())) as usize
}

fn imbalance(counts: &[u64]) -> u64 {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

/// The expected range of `n` normal variables of standard deviation 1, by integration (Tippett).
fn expected_range(n: f64) -> f64 {
    let step = 0.001;
    let (mut below, mut range) = (0.0, 0.0);
    for number in -8000..8000 {
        let at = f64::from(number) * step;
        below += (-at * at / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * step;
        let below: f64 = below.min(1.0);
        range += (1.0 - below.powf(n) - (1.0 - below).powf(n)) * step;
    }
    range
}

/// Smallest and largest imbalance over the streams, for each point and number of super buckets.
fn figure() {
    println!(
        "\n**Imbalance by number of fingerprints** (figure 4-(b)), least and most of {STREAMS} streams; by formula below\n"
    );
    println!("| super buckets | {} | paper, 44 M |", POINTS.map(|point| format!("{point} M")).join(" | "));
    println!("|---|{}", "---|".repeat(POINTS.len() + 1));
    for buckets in SUPER_BUCKETS {
        let mut seen = [(u64::MAX, 0); POINTS.len()];
        for stream in 0..STREAMS {
            let mut counts = vec![0; buckets];
            let mut at = 0;
            for (seen, point) in seen.iter_mut().zip(POINTS) {
                for number in at..point * 1_000_000 {
                    counts[bucket((stream << 40) + number, buckets)] += 1;
                }
                at = point * 1_000_000;
                *seen = (seen.0.min(imbalance(&counts)), seen.1.max(imbalance(&counts)));
            }
        }
        let paper = match buckets {
            128 => "3,550",
            2048 => "1,077",
            _ => "",
        };
        println!("| {buckets} | {} | {paper} |", seen.map(|(least, most)| format!("{least}-{most}")).join(" | "));
        let range = expected_range(buckets as f64);
        let formula = POINTS.map(|point| {
            let depth = point as f64 * 1e6 / buckets as f64;
            format!("{:.0}", range * (depth * (1.0 - 1.0 / buckets as f64)).sqrt())
        });
        println!("| formula: {range:.2} √depth | {} | |", formula.join(" | "));
    }
}

/// MAD2's matrix of buckets of 1024 cells: the number of tankers that take fingerprints at once, and the cells that
/// rebalancing leaves empty.
fn matrix() {
    let (buckets, cells, total) = (1024, 1024_u64, 88 * MILLION);
    println!("\n**MAD2's matrix**: 1024 buckets of 1024 cells, {} million fingerprints\n", total / MILLION);
    println!("| rebalancing | times | tankers | empty cells | most tankers open at once | tankers between |");
    println!("|---|---|---|---|---|---|");
    for threshold in [u64::MAX, THRESHOLD, 256] {
        let (mut counts, mut sealed, mut times, mut open) = (vec![0_u64; buckets], 0, 0_u64, 0);
        for number in 0..total {
            counts[bucket(number, buckets)] += 1;
            if number % 4096 == 0 {
                let (most, least) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
                open = open.max(most.div_ceil(cells) - least / cells);
                if most - least > threshold {
                    sealed += most.div_ceil(cells);
                    times += 1;
                    counts.fill(0);
                }
            }
        }
        let tankers = sealed + counts.iter().max().unwrap().div_ceil(cells);
        let empty = 1.0 - total as f64 / (tankers * cells * buckets as u64) as f64;
        let name = if threshold == u64::MAX { "none".to_owned() } else { format!("beyond {threshold}") };
        let between = if times > 0 { format!("{:.1}", sealed as f64 / times as f64) } else { "-".to_owned() };
        println!("| {name} | {times} | {tankers} | {:.2} % | {open} | {between} |", empty * 100.0);
    }
}

/// Buckets of variable length: tankers are closed when they are full, or when their own imbalance exceeds a threshold.
fn variable() {
    let (cells, total) = (MILLION, 32 * MILLION);
    println!("\n**Buckets of variable length**, {} million fingerprints, simulated\n", total / MILLION);
    println!(
        "| buckets | closed beyond an imbalance of | tankers | imbalance at most | mean read, KiB | longest, KiB | against mean bucket |"
    );
    println!("|---|---|---|---|---|---|---|");
    for buckets in [1024, 2048] {
        for threshold in [u64::MAX, THRESHOLD, 256, 192, 128] {
            let (mut counts, mut held) = (vec![0_u64; buckets], 0);
            let (mut tankers, mut most_imbalance, mut longest, mut read) = (0_u64, 0, 0, 0.0);
            for number in 0..total {
                counts[bucket(number, buckets)] += 1;
                held += 1;
                let look = threshold < u64::MAX && number % 1024 == 0 && imbalance(&counts) > threshold;
                if held == cells || look || number + 1 == total {
                    tankers += 1;
                    most_imbalance = most_imbalance.max(imbalance(&counts));
                    longest = longest.max(*counts.iter().max().unwrap());
                    // A lookup of a stored fingerprint reads each bucket in proportion to its cells.
                    read += counts.iter().map(|count| (count * count) as f64).sum::<f64>() * CELL_BYTES;
                    counts.fill(0);
                    held = 0;
                }
            }
            let name = if threshold == u64::MAX { "-".to_owned() } else { threshold.to_string() };
            let mean_bucket = total as f64 / (tankers as f64 * buckets as f64) * CELL_BYTES;
            println!(
                "| {buckets} | {name} | {tankers} | {most_imbalance} | {:.2} | {:.2} | {:.4} |",
                read / total as f64 / 1024.0,
                longest as f64 * CELL_BYTES / 1024.0,
                read / total as f64 / mean_bucket
            );
        }
    }
}

/// The same from tankers on disk.
fn sealed(directory: &Path) {
    let stored = 4 * MILLION;
    println!("\n**Sealed tankers**, {} million fingerprints, random order, no cache\n", stored / MILLION);
    println!("| buckets | imbalance at most | bytes a read | longest | longest against mean |\n|---|---|---|---|---|");
    for buckets in [1024, 2048] {
        let options =
            IndexOptions { buckets_per_tanker: buckets, cache_bytes: 0, locality_bytes: 0, ..IndexOptions::default() };
        let made = made(directory, options, stored);
        let before = made.index.stats();
        let mut found = Vec::new();
        for number in 0..20_000_u64 {
            made.index.locate_batch(&[fingerprint(number * 206 % stored)], &mut found).unwrap();
            assert!(found[0].is_some());
        }
        let after = made.index.stats();
        let bytes = (after.bucket_read_bytes - before.bucket_read_bytes) as f64;
        let read = bytes / (after.bucket_reads - before.bucket_reads) as f64;
        let longest = after.bucket_cells_max as f64 * CELL_BYTES;
        println!("| {buckets} | {} | {read:.0} | {longest:.0} | {:.3} |", after.bucket_imbalance_max, longest / read);
    }
}

pub(crate) fn run(directory: &Path) {
    figure();
    matrix();
    variable();
    sealed(directory);
}
