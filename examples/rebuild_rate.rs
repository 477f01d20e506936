//! Measures a rebuild of the indexes: time and memory.
//!
//! ```text
//! rebuild_rate make DIR GIB      a pool of random content, chunks of 4 KiB, tankers of 128 Ki fingerprints
//! rebuild_rate rebuild DIR       makes the indexes anew
//! rebuild_rate read-data DIR     the same, reading and checking all content
//! ```
//! Each prints its time and the peak of resident memory. Drop the system's caches in between to measure the disk.

use std::path::Path;
use std::time::Instant;

use dedupfs::{OpenOptions, Pool, format};
use dedupfs_service::{Caller, FileService, NewNode, OpenOptions as FileOptions, ROOT_INO, WriteFlags};
use dedupfs_store::superblock::PoolProperties;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Bytes of one file, and of one write.
const FILE_BYTES: u64 = 256 << 20;
const WRITE_BYTES: usize = 1 << 20;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let started = Instant::now();
    match words.as_slice() {
        ["make", directory, gib] => make(Path::new(directory), gib.parse::<u64>()? << 30)?,
        ["rebuild", directory] => rebuild(Path::new(directory), false)?,
        ["read-data", directory] => rebuild(Path::new(directory), true)?,
        _ => return Err("usage: rebuild_rate make DIR GIB | rebuild DIR | read-data DIR".into()),
    }
    println!("{:.2} s in all, {} resident at most", started.elapsed().as_secs_f64(), peak());
    Ok(())
}

fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?");
    line.trim().to_owned()
}

fn make(directory: &Path, bytes: u64) -> Outcome<()> {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        tanker_cells: 1 << 17,
        tanker_buckets: 256,
        ..PoolProperties::default()
    };
    format(directory, None, &properties)?;
    let pool = Pool::open(directory, &OpenOptions::default())?;
    let service = pool.service();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; WRITE_BYTES];
    for number in 0..bytes.div_ceil(FILE_BYTES) {
        let name = format!("file {number}").into_bytes();
        let node = NewNode { parent: ROOT_INO, name: &name, mode: 0o644, umask: 0 };
        let how = FileOptions { write: true, ..FileOptions::default() };
        let (attributes, opened) =
            service.create(Caller::default(), node, how).map_err(|error| format!("{error:?}"))?;
        for offset in (0..FILE_BYTES).step_by(WRITE_BYTES) {
            for word in piece.as_chunks_mut::<8>().0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state.to_le_bytes();
            }
            service
                .write(Caller::default(), attributes.ino, opened.handle, offset, &piece, WriteFlags::default())
                .map_err(|error| format!("{error:?}"))?;
        }
        service.flush(attributes.ino, opened.handle).map_err(|error| format!("{error:?}"))?;
        service.release(attributes.ino, opened.handle);
    }
    pool.close()?;
    Ok(())
}

fn rebuild(directory: &Path, rebuild_reads_data: bool) -> Outcome<()> {
    let options = OpenOptions { rebuild_index: true, rebuild_reads_data, ..OpenOptions::default() };
    let started = Instant::now();
    let pool = Pool::open(directory, &options)?;
    println!("{:?} in {:.2} s", pool.rebuilt(), started.elapsed().as_secs_f64());
    Ok(())
}
