//! Following a source of whose changes the chunks are named already: detection in stages has cut them and asked the pool for them.
//!
//! 1. The named chunks make a file of their own, with holes where nothing changed. Those that the pool has are taken by their
//!    fingerprints, the others are read from the source.
//! 2. All changed ranges are taken over from it at once. At the ends of a range a chunk of the old content may be cut: then it is read.
//!
//! Batch deduplication for VM backup (section 3): stages 2b and 4b, the second reading and the recipes.

use std::ops::Range;

use dedupfs_base::{EngineError, Result};
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Child;

use super::body::FileBody;
use super::delta::DeltaSource;
use crate::containers::StreamId;
use crate::dedup::{KeptAnswers, SEALED_BYTES};
use crate::limits::FILE_BYTES_MAX;

/// Named chunks that are handed on at once.
const NAMED_AT_ONCE: usize = 256;
/// Ranges of named chunks at most: as many as a map of changes has.
const RANGES_MAX: usize = 1 << 20;

/// The place of a named chunk's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedBytes {
    /// The pool has them, or a named chunk that is stored before this one brings them.
    InPool,
    /// The source has them.
    InSource,
}

/// A chunk of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedChunk {
    /// Its first byte in the source.
    pub at: u64,
    /// Its length. Zeros may be longer than a chunk.
    pub len_bytes: u32,
    /// Its fingerprint; [`Fingerprint::ZERO`] for zeros.
    pub fingerprint: Fingerprint,
    /// Where its bytes are.
    pub bytes: NamedBytes,
    /// The sealed answer about it. One that is not of this mount costs a lookup.
    pub sealed: [u8; SEALED_BYTES],
}

/// How named chunks are followed.
#[derive(Clone, Copy)]
pub struct NamedRules<'a> {
    /// Takes their answers. The body's context must have it.
    pub kept: &'a KeptAnswers,
    /// Whether bytes of the source that have another fingerprint than was named are an error. If not, they are stored as they are.
    pub is_strict: bool,
}

impl FileBody {
    /// Makes the content that of `source`, of `size_bytes`: `next` gives the chunks of all that differs from the present content, in
    /// order, until it gives none. Returns the ranges that they cover.
    ///
    /// # Errors
    /// `ChunkGone` if the pool lacks a chunk that it should have; `Invalid` if the chunks overlap, are not in order, reach beyond the source,
    /// or leave out what the source has behind the present end; `FileTooLarge`; those of the source; the pool's write errors.
    pub fn follow_named(
        &mut self,
        stream: StreamId,
        source: &dyn DeltaSource,
        next: &mut dyn FnMut() -> Result<Option<NamedChunk>>,
        (rules, size_bytes): (NamedRules<'_>, u64),
    ) -> Result<Vec<Range<u64>>> {
        self.check_failed()?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        let new = Self::open(self.context.clone(), &dedupfs_store::recipe::Root::Empty)?;
        let mut named =
            Named { body: new, stream, source, rules, size_bytes, children: Vec::new(), ranges: Vec::new() };
        while let Some(chunk) = next()? {
            named.add(&chunk)?;
        }
        let (new, ranges) = named.finish()?;
        let old_end = self.size_bytes().min(size_bytes);
        let covers_the_rest = ranges.last().is_some_and(|last| last.start <= old_end && last.end == size_bytes);
        if old_end < size_bytes && !covers_the_rest {
            return Err(EngineError::Invalid("named chunks leave out the end of a file"));
        }
        self.remembering(|body| {
            body.begin_to_follow(stream, source, size_bytes)?;
            body.take_ranges(stream, &new, &ranges, &|len_bytes, push| source.store(len_bytes, push))
        })?;
        Ok(ranges)
    }
}

/// The file of the named chunks.
struct Named<'a> {
    body: FileBody,
    stream: StreamId,
    source: &'a dyn DeltaSource,
    rules: NamedRules<'a>,
    size_bytes: u64,
    /// Chunks in the pool that are not handed on yet.
    children: Vec<Child>,
    ranges: Vec<Range<u64>>,
}

impl Named<'_> {
    /// The end of the chunks so far.
    fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.end)
    }

    fn add(&mut self, chunk: &NamedChunk) -> Result<()> {
        let end = chunk.at.saturating_add(u64::from(chunk.len_bytes));
        let longest = self.body.context.ingest.chunker.max_bytes();
        if chunk.at < self.end() || end > self.size_bytes || chunk.len_bytes == 0 {
            return Err(EngineError::Invalid("named chunks overlap, are out of order, or lie behind the end"));
        }
        if !chunk.fingerprint.is_zero() && chunk.len_bytes as usize > longest {
            return Err(EngineError::Invalid("a named chunk is longer than chunks of this pool"));
        }
        if chunk.at > self.end() || self.ranges.is_empty() {
            if self.ranges.len() >= RANGES_MAX {
                return Err(EngineError::Invalid("named chunks lie in too many ranges"));
            }
            self.zeros(chunk.at - self.end())?;
            self.ranges.push(chunk.at..chunk.at);
        }
        if chunk.fingerprint.is_zero() {
            self.zeros(u64::from(chunk.len_bytes))?;
        } else {
            self.rules.kept.add((chunk.fingerprint, chunk.len_bytes), &chunk.sealed);
            match chunk.bytes {
                NamedBytes::InPool => {
                    let Self { children, .. } = self;
                    let len_bytes = u64::from(chunk.len_bytes);
                    children.push(Child {
                        fingerprint: chunk.fingerprint,
                        len_bytes,
                        hint: dedupfs_store::ContainerId::NONE,
                    });
                    if children.len() >= NAMED_AT_ONCE {
                        self.hand_on()?;
                    }
                }
                NamedBytes::InSource => self.read(chunk)?,
            }
        }
        if let Some(last) = self.ranges.last_mut() {
            last.end = end;
        }
        Ok(())
    }

    fn zeros(&mut self, len_bytes: u64) -> Result<()> {
        self.hand_on()?;
        let Self { body, stream, source, .. } = self;
        if len_bytes > 0 { source.store(0, &mut || body.append_exact_zeros(*stream, len_bytes)) } else { Ok(()) }
    }

    fn hand_on(&mut self) -> Result<()> {
        let Self { body, stream, source, children, .. } = self;
        if children.is_empty() {
            return Ok(());
        }
        let children = std::mem::take(children);
        source.store(0, &mut || body.append_named(*stream, &children))
    }

    fn read(&mut self, chunk: &NamedChunk) -> Result<()> {
        self.hand_on()?;
        let mut bytes = vec![0; chunk.len_bytes as usize];
        let Self { body, stream, source, rules, .. } = self;
        source.read(chunk.at, &mut bytes)?;
        if rules.is_strict && body.context.dedup().fingerprinter().of(&bytes) != chunk.fingerprint {
            return Err(EngineError::Invalid("bytes that came for a chunk are not those of its fingerprint"));
        }
        source.store(bytes.len() as u64, &mut || body.append_chunk(*stream, &bytes))
    }

    fn finish(mut self) -> Result<(FileBody, Vec<Range<u64>>)> {
        self.hand_on()?;
        let Self { body, source, .. } = &mut self;
        source.store(0, &mut || body.finish_stream())?;
        Ok((self.body, self.ranges))
    }
}
