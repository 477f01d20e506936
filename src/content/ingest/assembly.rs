//! Assembly of chunks, in file order, into segments and holes.
//!
//! Runs of zero chunks are merged. A short run is one entry of its segment. A long run (a hole) ends the segment and
//! stands beside it. Both depend on content only, so equal content gives equal pieces.

use std::ops::Range;
use std::sync::Arc;

use dedupfs_base::{Hold, Result};
use dedupfs_store::recipe::Child;

use super::IngestContext;
use super::buffer::PooledBuffer;
use crate::containers::StreamId;
use crate::dedup::{BlockIndex, Deduplicator, Own, Section, SegmentEntry};
use crate::limits::HOLE_CUT_BYTES;
use crate::recipe::segmenter::SegmentRule;
use crate::recipe::tree::hole_child;
use crate::recipe::{Piece, PieceKind};

/// One chunk of the segment that is being collected.
struct Entry {
    child: Child,
    /// Its bytes; `None` if a live recipe names it already, or the pool must have it.
    data: Option<(Arc<PooledBuffer>, Range<usize>)>,
    is_named: bool,
}

/// Collects chunks and stores a segment whenever one is complete.
pub(super) struct Assembly {
    dedup: Arc<Deduplicator>,
    stream: StreamId,
    own: Own,
    rule: SegmentRule,
    entries: Vec<Entry>,
    bytes: u64,
    zero_run_bytes: u64,
    pieces: Vec<Piece>,
    /// Bytes of this run that are not stored yet.
    content: Arc<Hold>,
    /// The memory of `entries`; the buffers count the memory of their bytes.
    listed: Hold,
}

impl Assembly {
    /// Makes an empty assembly.
    pub(super) fn new(
        context: &IngestContext,
        stream: StreamId,
        known: Option<Arc<BlockIndex>>,
        content: Arc<Hold>,
    ) -> Self {
        let (entries, pieces) = (Vec::new(), Vec::new());
        let (dedup, listed) = (context.dedup.clone(), context.memory.hold(0, 0));
        let own = Own { known, scope: context.scope.clone(), kept: context.kept.clone() };
        Self { dedup, stream, own, rule: context.rule, entries, bytes: 0, zero_run_bytes: 0, pieces, content, listed }
    }

    /// Whether all pushed chunks are stored: a segment could begin here.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.entries.is_empty() && self.zero_run_bytes == 0
    }

    /// Adds a chunk that a live recipe names, or zeros of any length. A caller inside a section passes it on, because
    /// sections are not reentrant.
    pub(super) fn push_known(&mut self, child: Child, section: Option<&Section<'_>>) -> Result<()> {
        if child.fingerprint.is_zero() {
            self.zero_run_bytes += child.len_bytes;
            return Ok(());
        }
        self.push(Entry { child, data: None, is_named: false }, section)
    }

    /// Adds a chunk by its fingerprint alone.
    pub(super) fn push_named(&mut self, child: Child, section: Option<&Section<'_>>) -> Result<()> {
        if child.fingerprint.is_zero() {
            return self.push_known(child, section);
        }
        self.push(Entry { child, data: None, is_named: true }, section)
    }

    /// Adds a chunk with its bytes.
    pub(super) fn push_data(
        &mut self,
        child: Child,
        buffer: &Arc<PooledBuffer>,
        range: Range<usize>,
        section: Option<&Section<'_>>,
    ) -> Result<()> {
        if child.fingerprint.is_zero() {
            self.zero_run_bytes += child.len_bytes;
            self.content.release(child.len_bytes);
            return Ok(());
        }
        self.push(Entry { child, data: Some((buffer.clone(), range)), is_named: false }, section)
    }

    fn push(&mut self, entry: Entry, section: Option<&Section<'_>>) -> Result<()> {
        self.end_zeros(section)?;
        let len_bytes = entry.child.len_bytes;
        if self.rule.must_end_before(self.bytes, self.entries.len(), len_bytes) {
            self.end_segment(section)?;
        }
        let ends = self.rule.ends_behind(self.bytes + len_bytes, &entry.child.fingerprint);
        self.bytes += len_bytes;
        self.list(entry);
        if ends { self.end_segment(section) } else { Ok(()) }
    }

    fn list(&mut self, entry: Entry) {
        let before = self.entries.capacity();
        self.entries.push(entry);
        let grown = self.entries.capacity() - before;
        if grown > 0 {
            self.listed.add((grown * size_of::<Entry>()) as u64);
        }
    }

    fn end_zeros(&mut self, section: Option<&Section<'_>>) -> Result<()> {
        let run_bytes = self.zero_run_bytes;
        if run_bytes == 0 {
            return Ok(());
        }
        if run_bytes >= HOLE_CUT_BYTES {
            self.end_segment(section)?;
            self.pieces.push(Piece::hole(run_bytes));
        } else {
            if self.rule.must_end_before(self.bytes, self.entries.len(), run_bytes) {
                self.end_segment(section)?;
            }
            self.list(Entry { child: hole_child(run_bytes), data: None, is_named: false });
            self.bytes += run_bytes;
        }
        self.zero_run_bytes = 0;
        Ok(())
    }

    fn end_segment(&mut self, section: Option<&Section<'_>>) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        // A segment of only zeros is a hole of any length: it is the whole file or follows a forced cut.
        if self.entries.iter().all(|entry| entry.child.fingerprint.is_zero()) {
            self.pieces.push(Piece::hole(self.bytes));
        } else {
            let (child, pin) = match section {
                Some(section) => self.store(section)?,
                None => self.store(&self.dedup.enter())?,
            };
            self.pieces.push(Piece { kind: PieceKind::Segment, child, pin: Some(Arc::new(pin)) });
        }
        // Its new chunks are in a container by now, which counts them.
        let with_data = self.entries.iter().filter(|entry| entry.data.is_some());
        self.content.release(with_data.map(|entry| entry.child.len_bytes).sum());
        self.entries.clear();
        self.bytes = 0;
        Ok(())
    }

    fn store(&self, section: &Section<'_>) -> Result<(Child, crate::dedup::Pin)> {
        let entries: Vec<SegmentEntry<'_>> = self.entries.iter().map(Entry::view).collect();
        self.dedup.store_segment(section, self.stream, &entries, &self.own)
    }

    /// Returns all content as pieces. If this is a whole file of one chunk (`whole_file`), the chunk stands alone. The
    /// caller logs the root within the same `section`.
    pub(super) fn finish(mut self, section: &Section<'_>, whole_file: bool) -> Result<Vec<Piece>> {
        self.end_zeros(Some(section))?;
        if whole_file
            && self.pieces.is_empty()
            && let [only] = self.entries.as_slice()
            && !only.child.fingerprint.is_zero()
        {
            let own = Own { known: None, ..self.own.clone() };
            let child = self.dedup.store_chunk(section, self.stream, only.view(), &own)?;
            return Ok(vec![Piece { kind: PieceKind::Chunk, child, pin: None }]);
        }
        self.end_segment(Some(section))?;
        Ok(self.pieces)
    }
}

impl Entry {
    fn view(&self) -> SegmentEntry<'_> {
        let data = self.data.as_ref().and_then(|(buffer, range)| buffer.get(range.clone()));
        SegmentEntry { child: self.child, data, is_named: self.is_named }
    }
}
