//! Counts the expected deduplication in files, without any code of dedupfs: an independent check of the figures of
//! `dedupfs-stats`.
//!
//! ```text
//! cargo run --release --example offline_count -- [--chunker mincdc|fastcdc] [--chunk-size 8K] PATH...
//! ```
//!
//! The chunking crates' own readers cut every regular file below the paths on its own, and the plain `blake3::hash`
//! hashes the chunks. Symbolic links are not followed, an inode with several names counts once, and chunks of only
//! zeros are left out (they are never stored). Only the parameters of the chunkers are repeated here from their
//! description. Prints one `name value` a line. Memory: about 60 bytes a distinct chunk.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fastcdc::v2020::{Normalization, StreamCDC};
use mincdc::{MinCdcHash4, ReadChunker};

/// The chunking algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// `MinCDC` with this average.
    MinCdc(usize),
    /// FastCDC with this average.
    FastCdc(usize),
}

/// The results of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regular files, one for each inode.
    pub files: u64,
    /// Bytes of the files, chunks of zeros and holes included.
    pub total_bytes: u64,
    /// Bytes in chunks of zeros.
    pub zero_bytes: u64,
    /// Chunks with a byte that is not zero.
    pub chunks: u64,
    /// Distinct chunks among them.
    pub distinct_chunks: u64,
    /// Bytes of the distinct chunks.
    pub distinct_chunk_bytes: u64,
}

/// A count in progress.
struct Counter {
    chunking: Chunking,
    counts: Counts,
    inodes: HashSet<(u64, u64)>,
    chunks: HashMap<blake3::Hash, u32>,
}

impl Counter {
    fn path(&mut self, path: &Path) -> io::Result<()> {
        let metadata = fs::symlink_metadata(path)?;
        if metadata.is_dir() {
            for entry in fs::read_dir(path)? {
                self.path(&entry?.path())?;
            }
        } else if metadata.is_file() && self.inodes.insert((metadata.dev(), metadata.ino())) {
            self.counts.files += 1;
            self.file(File::open(path)?)?;
        }
        Ok(())
    }

    fn file(&mut self, reader: impl Read) -> io::Result<()> {
        match self.chunking {
            Chunking::MinCdc(average) => {
                let mut chunker = ReadChunker::new(reader, average / 2, average / 2 * 3, MinCdcHash4::new());
                while let Some(chunk) = chunker.next()? {
                    self.chunk(&chunk);
                }
            }
            Chunking::FastCdc(average) => {
                let [min, center, max] = [average / 4, average * 29 / 32, average * 4].map(|bytes| bytes & !1);
                for chunk in StreamCDC::with_level(reader, min, center, max, Normalization::Level3) {
                    self.chunk(&chunk.map_err(io::Error::other)?.data);
                }
            }
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &[u8]) {
        let len_bytes = chunk.len() as u64;
        self.counts.total_bytes += len_bytes;
        if chunk.iter().all(|byte| *byte == 0) {
            self.counts.zero_bytes += len_bytes;
            return;
        }
        self.counts.chunks += 1;
        if self.chunks.insert(blake3::hash(chunk), chunk.len() as u32).is_none() {
            self.counts.distinct_chunks += 1;
            self.counts.distinct_chunk_bytes += len_bytes;
        }
    }
}

/// Counts all regular files at and below `paths`.
///
/// # Errors
/// If something cannot be read. The error names the given path, not the file below it.
pub fn count(paths: &[PathBuf], chunking: Chunking) -> io::Result<Counts> {
    let (inodes, chunks) = (HashSet::new(), HashMap::new());
    let mut counter = Counter { chunking, counts: Counts::default(), inodes, chunks };
    for path in paths {
        counter.path(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(counter.counts)
}

/// Parses "8192", "8K", "8k" or "8KiB".
fn parse_size(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches("ib").trim_end_matches('k');
    let number: usize = digits.parse().ok()?;
    if digits.len() == lower.len() { Some(number) } else { number.checked_mul(1024) }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<(Chunking, Vec<PathBuf>)> {
    let (mut chunker, mut average, mut paths) = ("mincdc".to_owned(), 8 * 1024, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--chunker" => chunker = arguments.next()?,
            "--chunk-size" => average = parse_size(&arguments.next()?).filter(|size| (4096..=65536).contains(size))?,
            option if option.starts_with("--") => return None,
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    let chunking = match chunker.as_str() {
        "mincdc" => Chunking::MinCdc(average),
        "fastcdc" => Chunking::FastCdc(average),
        _ => return None,
    };
    (!paths.is_empty()).then_some((chunking, paths))
}

fn main() -> ExitCode {
    let Some((chunking, paths)) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: offline_count [--chunker mincdc|fastcdc] [--chunk-size 4K..64K] PATH...");
        return ExitCode::from(2);
    };
    match count(&paths, chunking) {
        Ok(counts) => {
            println!("files {}", counts.files);
            println!("total_bytes {}", counts.total_bytes);
            println!("zero_bytes {}", counts.zero_bytes);
            println!("chunks {}", counts.chunks);
            println!("distinct_chunks {}", counts.distinct_chunks);
            println!("distinct_chunk_bytes {}", counts.distinct_chunk_bytes);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("offline_count: {error}");
            ExitCode::FAILURE
        }
    }
}
