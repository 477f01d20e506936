//! Measures the limits of this machine for each stage of the data path alone, as a reference for backup and restore
//! rates.
//!
//! ```text
//! limits DIR [ROUNDS]
//! ```
//! Reads the files of DIR into memory, 1 GiB of them at most, and prints a line for each stage: its name, a tab, and the median of
//! ROUNDS (default 5) rates in MB/s of uncompressed data.
//!
//! | stage | work |
//! |---|---|
//! | `copy` | memory to memory, on one core |
//! | `cut` | chunk boundaries of the default chunker, on one core |
//! | `fingerprint` | BLAKE3 of these chunks in batches, on one core |
//! | `fingerprint_all` | the same on all cores |
//! | `compress`, `compress_all` | zstd:1 of regions as a pool has them, on one core and on all |
//! | `decompress`, `decompress_all` | of the same regions |
//!
//! Regions that zstd does not make smaller are stored uncompressed, and decompressing skips them: the rate is that of
//! all data, as a restore sees it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dedupfs::config::DATA_REGION_BYTES;
use dedupfs_content::Fingerprinter;
use dedupfs_content::chunker;
use dedupfs_store::superblock::PoolProperties;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const DATA_BYTES_MAX: usize = 1 << 30;
const LEVEL: i32 = 1;

/// Bytes of chunks that are fingerprinted together, as in a batch of the write path.
const BATCH_BYTES: usize = 1 << 20;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, rounds) = match arguments.as_slice() {
        [directory] => (directory, 5),
        [directory, rounds] => (directory, rounds.parse::<usize>()?.max(1)),
        _ => return Err("usage: limits DIR [ROUNDS]".into()),
    };
    let data = read(Path::new(directory))?;
    if data.is_empty() {
        return Err(format!("{directory} has no content").into());
    }
    let cores = std::thread::available_parallelism()?.get();
    let show = |name: &str, mut once: Box<dyn FnMut() + '_>| {
        let mut rates: Vec<f64> = (0..rounds)
            .map(|_| {
                let started = Instant::now();
                once();
                data.len() as f64 / 1e6 / started.elapsed().as_secs_f64()
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        println!("{name}\t{:.0}", rates[rounds / 2]);
    };

    let mut copy = vec![1_u8; data.len()];
    show("copy", Box::new(|| copy.copy_from_slice(std::hint::black_box(&data))));
    drop(copy);

    let properties = PoolProperties::default();
    let cutter = chunker(properties.chunker, properties.chunk_size_bytes);
    let mut lens = Vec::with_capacity(data.len() / cutter.min_bytes() + 1);
    show(
        "cut",
        Box::new(|| {
            lens.clear();
            let mut rest = &data[..];
            while let Some(len) = cutter.next_cut(rest, true) {
                lens.push(len as u32);
                rest = &rest[len..];
            }
        }),
    );
    let batches = batches(&data, &lens);
    let fingerprinter = Fingerprinter::new(properties.fingerprint);
    let fingerprint = |threads| {
        on(threads, batches.len(), Vec::new, |fingerprints, number| {
            let (bytes, lens) = batches[number];
            fingerprints.clear();
            fingerprinter.batch(bytes, lens, fingerprints);
        });
    };
    show("fingerprint", Box::new(|| fingerprint(1)));
    show("fingerprint_all", Box::new(|| fingerprint(cores)));

    let regions: Vec<&[u8]> = data.chunks(DATA_REGION_BYTES as usize).collect();
    let room = zstd::zstd_safe::compress_bound(DATA_REGION_BYTES as usize);
    let compress = |threads| {
        let state = || (zstd::bulk::Compressor::new(LEVEL).expect("a compressor"), vec![0_u8; room]);
        on(threads, regions.len(), state, |(compressor, out), number| {
            compressor.compress_to_buffer(regions[number], &mut out[..]).expect("there is room");
        });
    };
    show("compress", Box::new(|| compress(1)));
    show("compress_all", Box::new(|| compress(cores)));

    let compressed: Vec<Vec<u8>> =
        regions.iter().map(|region| zstd::bulk::compress(region, LEVEL)).collect::<Result<_, _>>()?;
    let decompress = |threads| {
        let state =
            || (zstd::bulk::Decompressor::new().expect("a decompressor"), vec![0_u8; DATA_REGION_BYTES as usize]);
        on(threads, regions.len(), state, |(decompressor, out), number| {
            if compressed[number].len() < regions[number].len() {
                decompressor.decompress_to_buffer(&compressed[number], &mut out[..]).expect("it was compressed");
            }
        });
    };
    show("decompress", Box::new(|| decompress(1)));
    show("decompress_all", Box::new(|| decompress(cores)));
    Ok(())
}

/// Runs jobs `0..count` on `threads` threads, each with its own state.
fn on<S>(threads: usize, count: usize, state: impl Fn() -> S + Sync, job: impl Fn(&mut S, usize) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut state = state();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            job(&mut state, number);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}

/// Splits the data into batches of whole chunks.
fn batches<'d>(data: &'d [u8], lens: &'d [u32]) -> Vec<(&'d [u8], &'d [u32])> {
    let mut found = Vec::new();
    let (mut data, mut lens) = (data, lens);
    while !lens.is_empty() {
        let mut bytes = 0;
        let mut chunks = 0;
        while chunks < lens.len() && bytes < BATCH_BYTES {
            bytes += lens[chunks] as usize;
            chunks += 1;
        }
        let (batch, behind) = data.split_at(bytes);
        let (batch_lens, lens_behind) = lens.split_at(chunks);
        found.push((batch, batch_lens));
        (data, lens) = (behind, lens_behind);
    }
    found
}

/// Reads all files below a directory, in the order of their paths.
fn read(directory: &Path) -> Outcome<Vec<u8>> {
    let mut paths = Vec::new();
    find(directory, &mut paths)?;
    paths.sort();
    let mut data = Vec::new();
    for path in paths {
        let left = DATA_BYTES_MAX - data.len();
        std::fs::File::open(path)?.take(left as u64).read_to_end(&mut data)?;
    }
    Ok(data)
}

fn find(directory: &Path, paths: &mut Vec<PathBuf>) -> Outcome<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find(&entry.path(), paths)?;
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
    Ok(())
}
