//! Data to measure with: pseudo-random bytes, real files of this machine, and many small files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};

use crate::command::{Run, wait};
use crate::table::human;
use crate::{Outcome, cleanup, command, fail, files, say};

/// Bytes of a small file.
pub const SMALL_BYTES: u64 = 4096;

/// Pseudo-random numbers, the same for the same seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// Makes a sequence of a text.
    pub fn new(seed: &str) -> Self {
        Self(seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
        }))
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Writes so many bytes.
    pub fn write(self, bytes: u64, to: impl Write) -> io::Result<()> {
        let mut to = BufWriter::with_capacity(1 << 20, to);
        io::copy(&mut self.take(bytes), &mut to)?;
        to.flush()
    }
}

impl Read for Random {
    /// Fills the buffer.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        cleanup::check()?;
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
        Ok(buffer.len())
    }
}

/// Bytes of a block of thin data, of which the first are random.
const THIN_BLOCK_BYTES: usize = 512;
const THIN_RANDOM_BYTES: usize = 16;

/// Fills a buffer of zeros, or of thin data, with thin data: random bytes between zeros.
pub fn fill_thin(random: &mut Random, buffer: &mut [u8]) -> io::Result<()> {
    buffer.chunks_mut(THIN_BLOCK_BYTES).try_for_each(|block| {
        let end = block.len().min(THIN_RANDOM_BYTES);
        random.read_exact(&mut block[..end])
    })
}

/// Makes a file of so many bytes of thin data. Its chunks are all different, and take almost no space.
pub fn thin_file(seed: &str, bytes: u64, path: &Path) -> Outcome {
    let (mut random, mut buffer) = (Random::new(seed), vec![0; bytes.min(1 << 20) as usize]);
    let mut write = |mut file: File| {
        let mut left = bytes as usize;
        while left > 0 {
            let now = left.min(buffer.len());
            fill_thin(&mut random, &mut buffer[..now])?;
            file.write_all(&buffer[..now])?;
            left -= now;
        }
        Ok(())
    };
    File::create(path).and_then(&mut write).or_else(files::at("write", path))
}

/// Makes a file of so many pseudo-random bytes.
pub fn random_file(seed: &str, bytes: u64, path: &Path) -> Outcome {
    File::create(path).and_then(|file| Random::new(seed).write(bytes, file)).or_else(files::at("write", path))
}

/// Lets `write` fill files of at most 256 MiB, whose names begin with this path.
fn in_parts<T>(prefix: &Path, write: impl FnOnce(&mut ChildStdin) -> io::Result<T>) -> Outcome<T> {
    let mut split = command!("split", "-b", "256M", "-a", "3", "-", prefix).stdin(Stdio::piped()).start()?;
    let input = split.stdin.take();
    let written = input.map(|mut input| write(&mut input));
    wait(split, "split")?;
    written.map_or_else(|| fail("split has no input"), |written| written.or_else(files::at("write", prefix)))
}

/// Directories with real files: libraries and programs; sources and texts.
pub fn real_directories() -> [Vec<PathBuf>; 2] {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let mut libraries: Vec<PathBuf> = files::entries(&home.join(".rustup/toolchains")).unwrap_or_default();
    libraries.iter_mut().for_each(|toolchain| toolchain.push("lib"));
    libraries.extend(["/usr/lib", "/usr/bin"].map(PathBuf::from));
    [libraries, vec![home.join(".cargo/registry/src"), "/usr/share".into(), "/usr/include".into()]]
}

/// Writes at most `bytes` of the real files in some directories, each content once. Files that are compressed, or cannot be read, are left
/// out. Returns the bytes written.
pub fn real_bytes(directories: &[PathBuf], bytes: u64, to: &mut dyn Write) -> io::Result<u64> {
    let (mut seen, mut left, mut result) = (HashSet::new(), bytes, Ok(()));
    for directory in directories {
        files::walk(directory, &mut |path, metadata| {
            let is_compressed = ["gz", "xz", "crate"].iter().any(|end| path.extension().is_some_and(|is| is == *end));
            if left == 0 || result.is_err() || !metadata.is_file() || metadata.len() == 0 || is_compressed {
                return;
            }
            let Ok(content) = cleanup::check().and_then(|()| fs::read(path)) else { return };
            if seen.insert(blake3::hash(&content)) {
                let now = content.len().min(left as usize);
                result = to.write_all(&content[..now]);
                left -= now as u64;
            }
        });
    }
    result.map(|()| bytes - left)
}

/// Makes a directory of real data, half of libraries and half of sources; returns its bytes.
pub fn real_data(directory: &Path, bytes: u64) -> Outcome<u64> {
    files::make_dir(directory)?;
    let mut got = 0;
    for (kind, directories) in ["libraries", "sources"].iter().zip(real_directories()) {
        got += in_parts(&directory.join(format!("{kind}-")), |to| real_bytes(&directories, bytes / 2, to))?;
    }
    if got == 0 {
        return fail("no real files found for the compressible data");
    }
    if got < bytes / 2 * 2 {
        say!("only {} of distinct real files on this machine", human(got));
    }
    Ok(got)
}

/// Makes a directory of random data in large files.
pub fn random_data(seed: &str, directory: &Path, bytes: u64) -> Outcome {
    files::make_dir(directory)?;
    in_parts(&directory.join("part-"), |to| Random::new(seed).write(bytes, to))
}

/// Makes small files, all different, a hundred in a directory.
pub fn small_files(directory: &Path, count: u64) -> Outcome {
    files::make_dir(directory)?;
    let (mut random, mut content) = (Random::new("small"), [0; SMALL_BYTES as usize]);
    for number in 0..count {
        let sub = directory.join(format!("d{:05}", number / 100));
        if number % 100 == 0 {
            files::make_dir(&sub)?;
        }
        let _ = random.read(&mut content);
        let path = sub.join(format!("f{number:07}"));
        fs::write(&path, content).or_else(files::at("write", &path))?;
    }
    Ok(())
}

/// Makes the directories `random`, `real` and `small`, and `small.tar`, below `ram`. Returns the bytes of real data.
pub fn make_sources(ram: &Path, bytes: u64, count: u64) -> Outcome<u64> {
    let size = human(bytes);
    say!("making the data: {size} random, {size} of real files, {count} files of 4 KiB");
    random_data("bench", &ram.join("random"), bytes)?;
    let real_bytes = real_data(&ram.join("real"), bytes)?;
    small_files(&ram.join("small"), count)?;
    command!("tar", "-C", ram, "-cf", ram.join("small.tar"), "small").run()?;
    Ok(real_bytes)
}

/// Writes the numbers from 10^10 on, a line each, at least one: data that is new throughout and takes little on disk.
pub fn write_numbers(bytes: u64, path: &Path) -> Outcome {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        for number in 0..bytes / 12 {
            writeln!(file, "{}", 10_000_000_000 + number)?;
        }
        file.flush()
    };
    write().or_else(files::at("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_data_depends_on_its_seed_alone() {
        let bytes = |seed| {
            let mut bytes = Vec::new();
            Random::new(seed).write(1000, &mut bytes).map(|()| bytes).unwrap_or_default()
        };
        assert_eq!(bytes("a"), bytes("a"));
        assert_ne!(bytes("a"), bytes("b"));
        assert_eq!(bytes("a").len(), 1000);
        assert!((0..100).all(|_| Random::new("c").below(7) < 7));
    }
}
