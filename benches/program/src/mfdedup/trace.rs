//! A series of versions as chunks: all that the simulations know of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use dedupfs_content::{Chunker, Fingerprinter};
use dedupfs_store::Fingerprint;

use crate::{Outcome, cleanup, files};

/// Bytes of a file in memory at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The chunks of a series. Equal chunks have one number.
///
/// Memory: 4 bytes for each chunk of each version, and some 40 bytes for each distinct chunk.
#[derive(Debug, Default)]
pub struct Trace {
    /// Bytes of each distinct chunk, by number.
    pub lens: Vec<u32>,
    /// The versions, oldest first: the numbers of their chunks, in the order of names.
    pub versions: Vec<Vec<u32>>,
}

impl Trace {
    /// Returns the bytes of some chunks.
    pub fn bytes(&self, chunks: &[u32]) -> u64 {
        chunks.iter().map(|chunk| self.len_bytes(*chunk)).sum()
    }

    /// Returns the bytes of a chunk.
    pub fn len_bytes(&self, chunk: u32) -> u64 {
        u64::from(self.lens[chunk as usize])
    }
}

/// Makes a trace of files. Chunks of zeros are left out, as a pool stores none.
pub struct Tracer<'a> {
    chunker: &'a dyn Chunker,
    fingerprinter: Fingerprinter,
    /// Half of each fingerprint suffices: 2^-64 for a pair even among 2^32 chunks.
    numbers: HashMap<u128, u32>,
    buffer: Vec<u8>,
    trace: Trace,
}

impl<'a> Tracer<'a> {
    /// Begins a trace without versions.
    pub fn new(chunker: &'a dyn Chunker, fingerprinter: Fingerprinter) -> Self {
        let buffer = vec![0; BUFFER_BYTES.max(2 * chunker.max_bytes())];
        Self { chunker, fingerprinter, numbers: HashMap::new(), buffer, trace: Trace::default() }
    }

    /// Adds a version: a directory or a file. Symbolic links are not followed.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn version(&mut self, path: &Path) -> Outcome {
        let mut chunks = Vec::new();
        self.path(path, &mut chunks)?;
        self.trace.versions.push(chunks);
        Ok(())
    }

    /// Returns the trace.
    pub fn finish(self) -> Trace {
        self.trace
    }

    fn path(&mut self, path: &Path, chunks: &mut Vec<u32>) -> Outcome {
        cleanup::check().or_else(files::at("read", path))?;
        let metadata = path.symlink_metadata().or_else(files::at("look at", path))?;
        if metadata.is_dir() {
            files::entries(path)?.iter().try_for_each(|entry| self.path(entry, chunks))
        } else if metadata.is_file() {
            File::open(path).and_then(|file| self.file(file, chunks)).or_else(files::at("read", path))
        } else {
            Ok(())
        }
    }

    fn file(&mut self, mut file: impl Read, chunks: &mut Vec<u32>) -> std::io::Result<()> {
        let mut filled = 0;
        loop {
            let got = file.read(&mut self.buffer[filled..])?;
            filled += got;
            let (is_full, at_end) = (filled == self.buffer.len(), got == 0);
            if !is_full && !at_end {
                continue;
            }
            let mut at = 0;
            // The buffer is full only if something can be cut: it holds two of the longest chunks.
            while let Some(len) = self.chunker.next_cut(&self.buffer[at..filled], at_end) {
                let fingerprint = self.fingerprinter.of(&self.buffer[at..at + len]);
                if fingerprint != Fingerprint::ZERO {
                    chunks.push(self.number(&fingerprint, len as u32));
                }
                at += len;
            }
            if at_end {
                return Ok(());
            }
            self.buffer.copy_within(at..filled, 0);
            filled -= at;
        }
    }

    fn number(&mut self, fingerprint: &Fingerprint, len_bytes: u32) -> u32 {
        let mut half = [0; 16];
        half.copy_from_slice(&fingerprint.0[..16]);
        let next = self.trace.lens.len() as u32;
        let number = *self.numbers.entry(u128::from_le_bytes(half)).or_insert(next);
        if number == next {
            self.trace.lens.push(len_bytes);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_content::chunker;
    use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm};

    use super::*;
    use crate::data::Random;

    #[test]
    fn equal_content_has_equal_numbers_and_zeros_have_none() {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let mut content = vec![0; 3 << 20];
        let _ = Random::new("trace").read(&mut content);
        for (version, name) in [("1", "a"), ("2", "b")] {
            let version = directory.path().join(version);
            std::fs::create_dir(&version).expect("makes");
            std::fs::write(version.join(name), &content).expect("writes");
            std::fs::write(version.join("zeros"), vec![0; 1 << 20]).expect("writes");
        }
        let chunker = chunker(ChunkerKind::FastCdc, 8192);
        let mut tracer = Tracer::new(&*chunker, Fingerprinter::new(FingerprintAlgorithm::Blake3));
        for version in ["1", "2"] {
            tracer.version(&directory.path().join(version)).expect("reads");
        }
        let trace = tracer.finish();
        assert_eq!(trace.versions[0], trace.versions[1]);
        assert_eq!(trace.bytes(&trace.versions[0]), 3 << 20);
        assert_eq!(trace.lens.len(), trace.versions[0].len(), "random content repeats nothing");
        // The cuts are those of the whole content, though the buffer has a third of it.
        let (mut at, mut lens) = (0, Vec::new());
        while let Some(len) = chunker.next_cut(&content[at..], true) {
            lens.push(len as u32);
            at += len;
        }
        assert_eq!(trace.lens, lens);
    }
}
