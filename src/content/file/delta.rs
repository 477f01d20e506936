//! Delta writing: a file becomes like a source of which only the changed ranges are read.
//!
//! 1. What lies behind the end of the source is cut off.
//! 2. Changed ranges are merged as overwritten ones are ([`super::rewrite`]), except that all bytes come from the source: reading whole
//!    stretches there is cheaper than decompressing the few bytes around each change. Untouched pieces are shared, and nothing of
//!    them is read. Windows with an untouched piece between them are independent: several threads rewrite them.
//! 3. What the source has behind the old end is appended.
//!
//! A map of changes may lie. [`FileBody::first_difference`] compares unchanged chunks with the source by their fingerprints.
//!
//! Batch deduplication for VM backup (section 3) finds dirty segments likewise, and shares the metadata of clean ones.

use std::ops::Range;

use dedupfs_base::{EngineError, Result};
use dedupfs_store::recipe::Child;

use super::body::FileBody;
use super::rewrite::Edits;
use crate::containers::StreamId;
use crate::limits::{BATCH_BYTES, FILE_BYTES_MAX, GAP_AS_ZEROS_BYTES};

/// Content that is read at any place, by several threads.
pub trait DeltaSource: Sync {
    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The source cannot be read, or ends; the pool takes no more.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;
    /// Calls `push`, which takes so many bytes of the source into the pool, with room for them. Also called, with 0, before work that takes
    /// none.
    ///
    /// # Errors
    /// Those of `push`; the pool takes no more; the work is to end.
    fn store(&self, len_bytes: u64, push: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}

/// A changed range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its first byte.
    pub from: u64,
    /// The byte behind its last one.
    pub to: u64,
    /// It is known to be zeros, which need not be read.
    pub is_zero: bool,
}

impl Change {
    /// Whether its zeros become a hole. Too few of them stay among data.
    pub(super) fn is_hole(&self) -> bool {
        self.is_zero && self.to - self.from >= GAP_AS_ZEROS_BYTES
    }
}

/// Changed ranges: ascending, disjoint, none of them empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes(Vec<Change>);

impl Changes {
    /// Takes ranges in order.
    ///
    /// # Errors
    /// `Invalid` if they are not ascending and disjoint, or one is empty.
    pub fn new(changes: Vec<Change>) -> Result<Self> {
        let is_ascending = changes.is_sorted_by(|one, other| one.to <= other.from);
        if !is_ascending || changes.iter().any(|change| change.from >= change.to) {
            return Err(EngineError::Invalid("changed ranges that are empty, overlap or are not in order"));
        }
        Ok(Self(changes))
    }

    /// Everything up to this end.
    #[must_use]
    pub fn all(end: u64) -> Self {
        Self((end > 0).then_some(Change { from: 0, to: end, is_zero: false }).into_iter().collect())
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[Change] {
        &self.0
    }

    /// Returns these changes up to an offset, and everything from there to `end`.
    #[must_use]
    pub fn with_all_from(&self, offset: u64, end: u64) -> Self {
        let before = self.0.iter().filter(|change| change.from < offset);
        let before = before.map(|change| Change { to: change.to.min(offset), ..*change });
        let all = (offset < end).then_some(Change { from: offset, to: end, is_zero: false });
        Self(before.chain(all).collect())
    }

    /// The ranges that end behind an offset.
    pub(super) fn behind(&self, offset: u64) -> &[Change] {
        let first = self.0.partition_point(|change| change.to <= offset);
        self.0.get(first..).unwrap_or_default()
    }

    /// The same, the first one without its part before the offset.
    pub(super) fn from(&self, offset: u64) -> impl Iterator<Item = Change> + '_ {
        self.behind(offset).iter().map(move |change| Change { from: change.from.max(offset), ..*change })
    }

    /// Whether a range changes anything in `from..to`.
    #[must_use]
    pub fn touch(&self, from: u64, to: u64) -> bool {
        self.from(from).next().is_some_and(|change| change.from < to)
    }
}

impl FileBody {
    /// Makes the content that of `source`, of `size_bytes`, if it differs from the present one only in the ranges of `changes` and behind
    /// the present end. At most `threads` threads read the source.
    ///
    /// # Errors
    /// `FileTooLarge`; those of the source; the pool's write errors. All are remembered.
    pub fn follow(
        &mut self,
        stream: StreamId,
        source: &dyn DeltaSource,
        (changes, size_bytes): (&Changes, u64),
        threads: usize,
    ) -> Result<()> {
        self.check_failed()?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        if size_bytes == 0 {
            return self.truncate(stream, 0);
        }
        self.remembering(|body| {
            body.begin_to_follow(stream, source, size_bytes)?;
            let end = body.size_bytes();
            body.rewrite(stream, &Edits::Source { changes, source, end }, threads)?;
            body.append_from(stream, source, changes, size_bytes)
        })
    }

    /// Merges what is under way, and cuts off what lies behind the end of the source.
    pub(super) fn begin_to_follow(
        &mut self,
        stream: StreamId,
        source: &dyn DeltaSource,
        size_bytes: u64,
    ) -> Result<()> {
        source.store(0, &mut || {
            if size_bytes < self.size_bytes() {
                self.cut_to(stream, size_bytes)?;
            }
            self.finish_stream()?;
            self.apply_dirty(stream)
        })
    }

    fn append_from(
        &mut self,
        stream: StreamId,
        source: &dyn DeltaSource,
        changes: &Changes,
        size_bytes: u64,
    ) -> Result<()> {
        let mut buffer = vec![0; BATCH_BYTES];
        while self.size_bytes() < size_bytes {
            let at = self.size_bytes();
            let until = size_bytes.min(at + buffer.len() as u64);
            // Without a change behind the end, the bytes are as unknown as changed ones.
            let zeros = changes.from(at).take_while(|change| change.from < until).find(|change| change.is_zero);
            if let Some(zeros) = zeros.filter(|zeros| zeros.from == at) {
                let len_bytes = zeros.to.min(size_bytes) - at;
                source.store(0, &mut || self.append_zeros(stream, len_bytes))?;
                continue;
            }
            let end = zeros.map_or(until, |zeros| zeros.from);
            let bytes = buffer.get_mut(..(end - at) as usize).unwrap_or_default();
            source.read(at, bytes)?;
            source.store(bytes.len() as u64, &mut || self.append(stream, bytes))?;
        }
        Ok(())
    }

    /// Compares the chunks that touch `within` with the source, except those that changes touch and those that reach over
    /// the end of the source. Reads the source alone. Returns the first range that differs. The content must be [merged](Self::merge).
    ///
    /// # Errors
    /// Those of the source; `Corrupt` if the recipe is damaged.
    pub fn first_difference(
        &self,
        source: &dyn DeltaSource,
        changes: &Changes,
        within: Range<u64>,
        end_of_source: u64,
    ) -> Result<Option<Range<u64>>> {
        let mut batch = Comparing { body: self, source, at: 0, chunks: Vec::new(), len_bytes: 0 };
        let mut found = None;
        self.for_each_chunk(within.start, within.end, &mut |start, child| {
            let end = start + child.len_bytes;
            if child.fingerprint.is_zero() {
                found = match batch.compare()? {
                    None => {
                        batch.compare_hole(start.max(within.start)..end.min(within.end).min(end_of_source), changes)?
                    }
                    found => found,
                };
            } else if end > end_of_source || changes.touch(start, end) {
                found = batch.compare()?;
            } else {
                if batch.len_bytes + child.len_bytes > BATCH_BYTES as u64 || !batch.is_followed_by(start) {
                    found = batch.compare()?;
                }
                batch.add(start, child);
            }
            Ok(found.is_none())
        })?;
        if found.is_none() { batch.compare() } else { Ok(found) }
    }
}

/// Returns the first part of a range in which the source is not zero.
///
/// # Errors
/// Those of the source.
pub fn first_other_than_zero(source: &dyn DeltaSource, range: Range<u64>) -> Result<Option<Range<u64>>> {
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + BATCH_BYTES as u64);
        let mut bytes = vec![0; (end - at) as usize];
        source.read(at, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some(at..end));
        }
        at = end;
    }
    Ok(None)
}

/// Chunks in a row whose bytes are read from the source at once.
struct Comparing<'a> {
    body: &'a FileBody,
    source: &'a dyn DeltaSource,
    at: u64,
    chunks: Vec<Child>,
    len_bytes: u64,
}

impl Comparing<'_> {
    fn is_followed_by(&self, start: u64) -> bool {
        self.chunks.is_empty() || self.at + self.len_bytes == start
    }

    fn add(&mut self, start: u64, child: &Child) {
        if self.chunks.is_empty() {
            self.at = start;
        }
        self.len_bytes += child.len_bytes;
        self.chunks.push(*child);
    }

    /// Compares the chunks, and forgets them.
    fn compare(&mut self) -> Result<Option<Range<u64>>> {
        let (chunks, len_bytes) = (std::mem::take(&mut self.chunks), std::mem::take(&mut self.len_bytes));
        let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or(usize::MAX)];
        if bytes.is_empty() {
            return Ok(None);
        }
        self.source.read(self.at, &mut bytes)?;
        let lengths: Vec<_> = chunks.iter().map(|child| u32::try_from(child.len_bytes).unwrap_or(u32::MAX)).collect();
        let mut fingerprints = Vec::with_capacity(lengths.len());
        self.body.context.dedup().fingerprinter().batch(&bytes, &lengths, &mut fingerprints);
        let mut start = self.at;
        for (child, fingerprint) in chunks.iter().zip(fingerprints) {
            if child.fingerprint != fingerprint {
                return Ok(Some(start..start + child.len_bytes));
            }
            start += child.len_bytes;
        }
        Ok(None)
    }

    /// Reads the unchanged parts of a hole.
    fn compare_hole(&mut self, hole: Range<u64>, changes: &Changes) -> Result<Option<Range<u64>>> {
        let mut at = hole.start;
        for change in changes.from(hole.start).take_while(|change| change.from < hole.end) {
            if let found @ Some(_) = first_other_than_zero(self.source, at..change.from)? {
                return Ok(found);
            }
            at = change.to;
        }
        first_other_than_zero(self.source, at..hole.end)
    }
}
