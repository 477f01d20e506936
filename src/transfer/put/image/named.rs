//! Named chunks of an image, as detection in stages gives them: a file of records in the order of the image. Nothing in it is believed: the
//! chunks must lie in order within the image, and an answer without a seal of this mount is looked up again.
//! `docs/format.md` (Beside a pool) has the bytes.
//!
//! The file lives as long as a put, so it is not part of the pool's format.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dedupfs_content::{
    ASKED_AT_ONCE, Chunker, Fingerprinter, KeptAnswers, NamedBytes, NamedChunk, SEALED_BYTES, chunker,
};
use dedupfs_store::Fingerprint;
use serde::{Deserialize, Serialize};

use super::super::super::{Result, TransferError};
use crate::engine::Core;

/// Bytes of a record.
pub const NAMED_RECORD_BYTES: usize = 64;
const IN_SOURCE: u32 = 1 << 31;

/// Encodes a named chunk.
#[must_use]
pub fn encode_named(chunk: &NamedChunk) -> [u8; NAMED_RECORD_BYTES] {
    let flag = if chunk.bytes == NamedBytes::InSource { IN_SOURCE } else { 0 };
    let mut record = [0; NAMED_RECORD_BYTES];
    let mut rest = record.as_mut_slice();
    for part in [
        chunk.at.to_le_bytes().as_slice(),
        &(chunk.len_bytes & !IN_SOURCE | flag).to_le_bytes(),
        &chunk.fingerprint.0,
        &chunk.sealed,
    ] {
        let (into, behind) = rest.split_at_mut(part.len());
        into.copy_from_slice(part);
        rest = behind;
    }
    record
}

fn decode(record: &[u8; NAMED_RECORD_BYTES]) -> NamedChunk {
    let mut rest = record.as_slice();
    let (at, len) = (u64::from_le_bytes(take(&mut rest)), u32::from_le_bytes(take(&mut rest)));
    let bytes = if len & IN_SOURCE == 0 { NamedBytes::InPool } else { NamedBytes::InSource };
    let fingerprint = Fingerprint(take(&mut rest));
    NamedChunk { at, len_bytes: len & !IN_SOURCE, fingerprint, bytes, sealed: take::<SEALED_BYTES>(&mut rest) }
}

fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = from.split_at(N.min(from.len()));
    *from = rest;
    taken.try_into().unwrap_or([0; N])
}

/// The named chunks of one image.
pub(super) struct Named {
    file: File,
    pub(super) kept: Arc<KeptAnswers>,
}

impl Named {
    pub(super) fn new(core: &Core, file: OwnedFd) -> Self {
        Self { file: file.into(), kept: core.dedup.kept_answers() }
    }

    /// Calls `each` with a function that gives one chunk after the other, from the first on.
    pub(super) fn read<T>(
        &mut self,
        each: impl FnOnce(&mut dyn FnMut() -> dedupfs_base::Result<Option<NamedChunk>>) -> dedupfs_base::Result<T>,
    ) -> Result<T> {
        let failed = |error| TransferError::Disk { what: "cannot read the named chunks of an image".to_owned(), error };
        self.file.rewind().map_err(failed)?;
        let mut reader = BufReader::with_capacity(64 << 10, &self.file);
        let mut failure = None;
        let mut next = || {
            let mut record = [0; NAMED_RECORD_BYTES];
            let mut filled = 0;
            while let Some(rest) = record.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match reader.read(rest) {
                    Ok(0) if filled == 0 => return Ok(None),
                    Ok(0) => return Err(dedupfs_base::EngineError::Invalid("a record of a named chunk is cut off")),
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        failure = Some(error);
                        return Err(dedupfs_base::EngineError::Internal("named chunks cannot be read"));
                    }
                }
            }
            Ok(Some(decode(&record)))
        };
        let outcome = each(&mut next);
        match failure {
            Some(error) => Err(failed(error)),
            None => Ok(outcome?),
        }
    }
}

/// How a pool cuts content, and names the chunks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cutting {
    chunker: String,
    chunk_bytes: u32,
    fingerprint: String,
}

impl Cutting {
    /// A way of cutting, by the names that `dedupfs mkfs` takes.
    #[must_use]
    pub fn new(chunker: &str, chunk_bytes: u32, fingerprint: &str) -> Self {
        Self { chunker: chunker.to_owned(), chunk_bytes, fingerprint: fingerprint.to_owned() }
    }

    pub(crate) fn of(core: &Core) -> Self {
        let properties = &core.properties;
        let (chunker, fingerprint) = (properties.chunker.to_string(), properties.fingerprint.to_string());
        Self { chunker, chunk_bytes: properties.chunk_size_bytes, fingerprint }
    }

    /// Makes a cutter like that of the pool.
    ///
    /// # Errors
    /// A text that names no chunker or fingerprint of this release.
    pub fn cutter(&self) -> std::result::Result<Cutter, String> {
        let unknown = |what: &str| format!("this release does not know the {what} of the pool");
        let kind = self.chunker.parse().map_err(|_| unknown("chunker"))?;
        let algorithm = self.fingerprint.parse().map_err(|_| unknown("fingerprint"))?;
        if !dedupfs_store::superblock::CHUNK_SIZE_BYTES.contains(&self.chunk_bytes) {
            return Err(unknown("size of chunks"));
        }
        Ok(Cutter { chunker: chunker(kind, self.chunk_bytes), fingerprinter: Fingerprinter::new(algorithm) })
    }
}

impl fmt::Display for Cutting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chunker, chunk_bytes, fingerprint } = self;
        write!(f, "chunker = \"{chunker}\", chunk_bytes = {chunk_bytes}, fingerprint = \"{fingerprint}\"")
    }
}

/// Cuts content as a pool does, outside of it.
#[derive(Clone)]
pub struct Cutter {
    chunker: Arc<dyn Chunker>,
    fingerprinter: Fingerprinter,
}

impl Cutter {
    /// Appends the lengths and fingerprints of the chunks at the start of `bytes`, and returns the length of all. Unless these bytes are the
    /// last ones (`at_end`), a rest of at most [`longest_bytes`](Self::longest_bytes) stays.
    pub fn cut(&self, bytes: &[u8], at_end: bool, chunks: &mut Vec<(Fingerprint, u32)>) -> usize {
        let (mut lengths, mut cut_bytes) = (Vec::new(), 0);
        while let Some(len) = self.chunker.next_cut(bytes.get(cut_bytes..).unwrap_or_default(), at_end) {
            lengths.push(len as u32);
            cut_bytes += len;
        }
        let mut fingerprints = Vec::with_capacity(lengths.len());
        self.fingerprinter.batch(bytes, &lengths, &mut fingerprints);
        chunks.extend(fingerprints.into_iter().zip(lengths));
        cut_bytes
    }

    /// Length of the longest chunk.
    #[must_use]
    pub fn longest_bytes(&self) -> usize {
        self.chunker.max_bytes()
    }

    /// Mean length of chunks, roughly.
    #[must_use]
    pub fn mean_bytes(&self) -> usize {
        self.chunker.average_bytes()
    }

    /// Returns the fingerprint of a chunk.
    #[must_use]
    pub fn fingerprint(&self, bytes: &[u8]) -> Fingerprint {
        self.fingerprinter.of(bytes)
    }
}

/// Bytes of a question about a chunk: its fingerprint, and its length.
pub const QUESTION_BYTES: usize = 36;
/// Bytes of its answer: 1 if the pool has it, and the sealed answer.
pub const ANSWER_BYTES: usize = 1 + SEALED_BYTES;

/// Answers the questions of detection in stages.
///
/// # Errors
/// A part of a question; too many; those of [`Deduplicator::answer_ahead`](dedupfs_content::Deduplicator::answer_ahead).
pub(crate) fn answer(core: &Core, questions: &[u8]) -> dedupfs_base::Result<Vec<u8>> {
    let (questions, rest) = questions.as_chunks::<QUESTION_BYTES>();
    if !rest.is_empty() || questions.len() > ASKED_AT_ONCE {
        return Err(dedupfs_base::EngineError::Invalid("questions about chunks that are cut off, or too many"));
    }
    let chunks: Vec<(Fingerprint, u32)> = questions
        .iter()
        .map(|question| {
            let mut rest = question.as_slice();
            (Fingerprint(take(&mut rest)), u32::from_le_bytes(take(&mut rest)))
        })
        .collect();
    let answers = core.dedup.answer_ahead(&chunks)?;
    Ok(answers.iter().flat_map(|answer| [u8::from(answer.is_known)].into_iter().chain(answer.sealed)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_chunk_comes_back_as_it_was() {
        for bytes in [NamedBytes::InPool, NamedBytes::InSource] {
            let chunk =
                NamedChunk { at: 7 << 40, len_bytes: 8191, fingerprint: Fingerprint([9; 32]), bytes, sealed: [3; 20] };
            assert_eq!(decode(&encode_named(&chunk)), chunk);
        }
    }
}
