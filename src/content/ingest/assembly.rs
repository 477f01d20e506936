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
use crate::dedup::{BlockIndex, Deduplicator, Early, Own, Section, SegmentEntry};
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
    /// Answers about all of `entries`.
    early: Option<Early>,
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
        let (rule, early) = (context.rule, None);
        Self { dedup, stream, own, rule, entries, early, bytes: 0, zero_run_bytes: 0, pieces, content, listed }
    }

    /// Whether all pushed chunks are stored: a segment could begin here.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.entries.is_empty() && self.zero_run_bytes == 0
    }

    /// Adds a chunk that a live recipe names, or zeros of any length. Not in a section: segments have their own.
    pub(super) fn push_known(&mut self, child: Child) -> Result<()> {
        if child.fingerprint.is_zero() {
            self.zero_run_bytes += child.len_bytes;
            return Ok(());
        }
        self.push(Entry { child, data: None, is_named: false })
    }

    /// Adds a chunk by its fingerprint alone.
    pub(super) fn push_named(&mut self, child: Child) -> Result<()> {
        if child.fingerprint.is_zero() {
            return self.push_known(child);
        }
        self.push(Entry { child, data: None, is_named: true })
    }

    /// Adds a chunk with its bytes.
    pub(super) fn push_data(&mut self, child: Child, buffer: &Arc<PooledBuffer>, range: Range<usize>) -> Result<()> {
        if child.fingerprint.is_zero() {
            self.zero_run_bytes += child.len_bytes;
            self.content.release(child.len_bytes);
            return Ok(());
        }
        self.push(Entry { child, data: Some((buffer.clone(), range)), is_named: false })
    }

    fn push(&mut self, entry: Entry) -> Result<()> {
        self.end_zeros()?;
        let len_bytes = entry.child.len_bytes;
        if self.rule.must_end_before(self.bytes, self.entries.len(), len_bytes) {
            self.end_segment()?;
        }
        let ends = self.rule.ends_behind(self.bytes + len_bytes, &entry.child.fingerprint);
        self.bytes += len_bytes;
        self.list(entry);
        if ends { self.end_segment() } else { Ok(()) }
    }

    fn list(&mut self, entry: Entry) {
        let before = self.entries.capacity();
        self.entries.push(entry);
        let grown = self.entries.capacity() - before;
        if grown > 0 {
            self.listed.add((grown * size_of::<Entry>()) as u64);
        }
    }

    fn end_zeros(&mut self) -> Result<()> {
        let run_bytes = self.zero_run_bytes;
        if run_bytes == 0 {
            return Ok(());
        }
        if run_bytes >= HOLE_CUT_BYTES {
            self.end_segment()?;
            self.pieces.push(Piece::hole(run_bytes));
        } else {
            if self.rule.must_end_before(self.bytes, self.entries.len(), run_bytes) {
                self.end_segment()?;
            }
            self.list(Entry { child: hole_child(run_bytes), data: None, is_named: false });
            self.bytes += run_bytes;
        }
        self.zero_run_bytes = 0;
        Ok(())
    }

    fn end_segment(&mut self) -> Result<()> {
        if !self.is_hole() {
            self.look_up_early(false)?;
            let dedup = self.dedup.clone();
            self.store(&dedup.enter())?;
        }
        self.end_entries();
        Ok(())
    }

    /// Stores the segment, which is no hole.
    fn store(&mut self, section: &Section<'_>) -> Result<()> {
        let early = self.early.take();
        let entries: Vec<SegmentEntry<'_>> = self.entries.iter().map(Entry::view).collect();
        let (child, pin) = self.dedup.store_segment(section, self.stream, &entries, &self.own, early)?;
        self.pieces.push(Piece { kind: PieceKind::Segment, child, pin: Some(Arc::new(pin)) });
        Ok(())
    }

    /// Goes on behind the segment, which is stored or a hole.
    fn end_entries(&mut self) {
        if self.is_hole() && !self.entries.is_empty() {
            self.pieces.push(Piece::hole(self.bytes));
        }
        // Its new chunks are in a container by now, which counts them.
        let with_data = self.entries.iter().filter(|entry| entry.data.is_some());
        self.content.release(with_data.map(|entry| entry.child.len_bytes).sum());
        self.entries.clear();
        self.bytes = 0;
    }

    /// Whether the segment is empty or has only zeros. Such a one is a hole of any length: it is the whole file or follows a forced cut.
    fn is_hole(&self) -> bool {
        self.entries.iter().all(|entry| entry.child.fingerprint.is_zero())
    }

    fn look_up_early(&mut self, is_whole: bool) -> Result<()> {
        self.early = None;
        if !self.is_hole() {
            let entries: Vec<SegmentEntry<'_>> = self.entries.iter().map(Entry::view).collect();
            self.early = self.dedup.look_up_early(&entries, &self.own, is_whole)?;
        }
        Ok(())
    }

    /// Stores all but the last segment, and looks that one up, so that [`finish`](Self::finish) reads little. Nothing is added behind this.
    pub(super) fn prepare_finish(&mut self, whole_file: bool) -> Result<()> {
        self.end_zeros()?;
        let is_whole = self.only_chunk(whole_file).is_some();
        if is_whole {
            // Nothing but the root will name it.
            self.own.known = None;
        }
        self.look_up_early(is_whole)
    }

    /// Returns the chunk that is the whole file.
    fn only_chunk(&self, whole_file: bool) -> Option<&Entry> {
        let [only] = self.entries.as_slice() else { return None };
        (whole_file && self.pieces.is_empty() && !only.child.fingerprint.is_zero()).then_some(only)
    }

    /// Returns all content as pieces, after [`prepare_finish`](Self::prepare_finish). If this is a whole file of one chunk (`whole_file`), the
    /// chunk stands alone. The caller logs the root within the same `section`.
    pub(super) fn finish(mut self, section: &Section<'_>, whole_file: bool) -> Result<Vec<Piece>> {
        let early = self.early.take();
        if let Some(only) = self.only_chunk(whole_file) {
            let child = self.dedup.store_chunk(section, self.stream, only.view(), &self.own, early)?;
            return Ok(vec![Piece { kind: PieceKind::Chunk, child, pin: None }]);
        }
        self.early = early;
        if !self.is_hole() {
            self.store(section)?;
        }
        self.end_entries();
        Ok(self.pieces)
    }
}

impl Entry {
    fn view(&self) -> SegmentEntry<'_> {
        let data = self.data.as_ref().and_then(|(buffer, range)| buffer.get(range.clone()));
        SegmentEntry { child: self.child, data, is_named: self.is_named }
    }
}
