//! Merging changes into a file's recipe: content is chunked anew from the boundary before a change until new and old
//! boundaries meet again. Segments are treated alike.
//!
//! For each changed stretch, one window of pieces is walked, from the start of the first piece that changes:
//! 1. Chunks before a change are taken over by reference.
//! 2. From the changed chunk on, bytes are fetched, overlaid and chunked anew.
//! 3. When a new boundary falls on an old one behind the change, the old references are used again ("resync").
//! 4. The window ends where a segment ends exactly at the end of an old piece, or at the end of the file.
//!
//! Cost: the chunks around each change are read, and the recipes of the touched segments are written anew. The old list
//! of pieces stays in force until all windows are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::{Result, allocator};
use dedupfs_store::recipe::Child;
use dedupfs_sync::Mutex;

use super::body::FileBody;
use super::delta::{Changes, DeltaSource};
use super::dirty::DirtyExtents;
use crate::containers::StreamId;
use crate::dedup::BlockIndex;
use crate::ingest::Ingest;
use crate::limits::GAP_AS_ZEROS_BYTES;
use crate::recipe::tree::hole_child;
use crate::recipe::{Piece, PieceKind, PieceList};

/// A merge of dirty extents of this size or more gives their memory back to the system at once.
const MERGE_GIVES_BACK_BYTES: u64 = 4 << 20;

/// The position behind the last piece of a window, and its new pieces.
type Rewritten = (usize, PieceList);

/// The windows that were begun.
#[derive(Default)]
struct Begun {
    /// Number of the next one.
    next: usize,
    /// Position behind the last piece that one of them has walked.
    walked_until: usize,
}

/// Bytes of a source, or of zeros, that are handled at once.
const STRETCH_BYTES_MAX: u64 = 1 << 20;

/// The changes to merge.
pub(super) enum Edits<'a> {
    /// These bytes are laid over the content.
    Dirty(DirtyExtents),
    /// This range becomes zeros.
    Zeros { from: u64, to: u64 },
    /// These ranges, and what lies around them, are read from the source, up to `end`.
    Source { changes: &'a Changes, source: &'a dyn DeltaSource, end: u64 },
}

impl Edits<'_> {
    fn next_from(&self, offset: u64) -> Option<(u64, u64)> {
        match self {
            Self::Dirty(extents) => extents.next_from(offset),
            Self::Zeros { from, to } => (offset < *to).then_some((*from, *to)),
            Self::Source { changes, end, .. } => {
                let next = changes.from(offset).next().filter(|change| change.from < *end);
                next.map(|change| (change.from, change.to.min(*end)))
            }
        }
    }

    /// Returns the first range before `end` that does not become a hole.
    fn next_data(&self, offset: u64, end: u64) -> Option<(u64, u64)> {
        match self {
            Self::Source { changes, end: last, .. } => {
                let mut before = changes.behind(offset).iter().take_while(|change| change.from < end.min(*last));
                before.find(|change| !change.is_hole()).map(|change| (change.from.max(offset), change.to.min(*last)))
            }
            Self::Dirty(_) | Self::Zeros { .. } => self.next_from(offset).filter(|(from, _)| *from < end),
        }
    }

    fn touches(&self, from: u64, to: u64) -> bool {
        self.next_from(from).is_some_and(|(start, _)| start < to)
    }

    fn overlay(&self, offset: u64, into: &mut [u8]) {
        match self {
            Self::Dirty(extents) => extents.overlay(offset, into),
            Self::Zeros { from, to } => fill_zeros(offset, into, (*from, *to)),
            Self::Source { .. } => {}
        }
    }

    /// Returns the part of `from..to` that becomes part of a hole. Zeros too few for a hole stay among data.
    fn hole_within(&self, offset: u64, end: u64) -> Option<(u64, u64)> {
        match self {
            Self::Zeros { from, to } if to - from >= GAP_AS_ZEROS_BYTES => Some(((*from).max(offset), (*to).min(end))),
            Self::Source { changes, .. } => {
                let mut touching = changes.behind(offset).iter().take_while(|change| change.from < end);
                let hole = touching.find(|change| change.is_hole())?;
                Some((hole.from.max(offset), hole.to.min(end)))
            }
            Self::Zeros { .. } | Self::Dirty(_) => None,
        }
    }

    /// Whether the whole chunk becomes part of a hole.
    fn zeroes(&self, offset: u64, end: u64, child: &Child) -> bool {
        match self {
            Self::Dirty(_) => false,
            Self::Zeros { from, to } => child.fingerprint.is_zero() || (*from <= offset && end <= *to),
            Self::Source { changes, .. } => {
                let first = changes.behind(offset).first();
                first.is_some_and(|change| change.is_hole() && change.from <= offset && end <= change.to)
            }
        }
    }

    fn covers(&self, from: u64, to: u64) -> bool {
        match self {
            Self::Dirty(extents) => extents.covers(from, to),
            Self::Zeros { from: start, to: end } => *start <= from && to <= *end,
            Self::Source { .. } => false,
        }
    }
}

/// Fills the part of `range` with zeros that lies in `into`, which begins at `offset`.
fn fill_zeros(offset: u64, into: &mut [u8], (from, to): (u64, u64)) {
    let within = |at: u64| at.saturating_sub(offset).min(into.len() as u64) as usize;
    let range = within(from)..within(to);
    if let Some(range) = into.get_mut(range) {
        range.fill(0);
    }
}

impl FileBody {
    /// Merges the dirty extents into the pieces.
    pub(super) fn apply_dirty(&mut self, stream: StreamId) -> Result<()> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let (extents, _held) = self.take_dirty();
        let bytes = extents.bytes();
        let outcome = self.rewrite(stream, &Edits::Dirty(extents), 1);
        if bytes >= MERGE_GIVES_BACK_BYTES {
            // These are small blocks of many threads: each arena would keep its share.
            allocator::give_back();
        }
        outcome
    }

    /// Replaces a range within the pieces by zeros.
    pub(super) fn zero_range(&mut self, stream: StreamId, from: u64, to: u64) -> Result<()> {
        self.rewrite(stream, &Edits::Zeros { from, to: to.min(self.pieces.len_bytes()) }, 1)
    }

    /// Rewrites what the edits touch, with at most `threads` threads.
    pub(super) fn rewrite(&mut self, stream: StreamId, edits: &Edits<'_>, threads: usize) -> Result<()> {
        let firsts = self.first_touched(edits);
        let mut windows = self.windows(stream, edits, &firsts, threads)?.into_iter();
        let mut rewritten = PieceList::default();
        let (mut position, mut stretch) = (0, Stretch::default());
        for first in firsts {
            let window = windows.next().flatten();
            // Else an earlier window went on over this one.
            if first >= position {
                self.take_over(&mut rewritten, position..first);
                let (end, pieces) = match window {
                    Some(window) => window,
                    None => self.rewrite_window(stream, edits, first, &mut stretch, &|_| {})?,
                };
                pieces.pieces().iter().for_each(|piece| rewritten.push(piece.clone()));
                position = end;
            }
        }
        self.take_over(&mut rewritten, position..self.pieces.len());
        self.pieces = rewritten;
        Ok(())
    }

    /// Returns the positions of touched pieces behind untouched ones: each begins a window.
    fn first_touched(&self, edits: &Edits<'_>) -> Vec<usize> {
        let (mut firsts, mut next) = (Vec::new(), 0);
        let mut offset = 0;
        while let Some((from, _)) = edits.next_from(offset) {
            let position = self.pieces.position_at(from.max(offset));
            let Some((start, piece)) = self.pieces.get(position) else { break };
            if position > next || firsts.is_empty() {
                firsts.push(position);
            }
            (next, offset) = (position + 1, start + piece.len_bytes());
        }
        firsts
    }

    /// Rewrites the windows that begin at these pieces, unless one thread is to do it. Returns for each the position behind its last piece,
    /// and its new pieces; nothing for those that an earlier window has walked over, as it seems.
    fn windows(
        &self,
        stream: StreamId,
        edits: &Edits<'_>,
        firsts: &[usize],
        threads: usize,
    ) -> Result<Vec<Option<Rewritten>>> {
        let threads = threads.min(firsts.len());
        if threads <= 1 {
            return Ok(Vec::new());
        }
        let (begun, has_failed) = (Mutex::new(Begun::default()), AtomicBool::new(false));
        let work = || {
            let (mut done, mut stretch) = (Vec::new(), Stretch::default());
            while !has_failed.load(Ordering::Relaxed) {
                let (number, first) = {
                    let mut begun = begun.lock();
                    let number = begun.next;
                    let Some(first) = firsts.get(number) else { break };
                    begun.next += 1;
                    if *first < begun.walked_until {
                        continue;
                    }
                    (number, *first)
                };
                let walked = |until| {
                    let mut begun = begun.lock();
                    begun.walked_until = begun.walked_until.max(until);
                };
                let outcome = self.rewrite_window(stream, edits, first, &mut stretch, &walked);
                has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                done.push((number, outcome));
            }
            done
        };
        let done = dedupfs_sync::thread::scope(|scope| {
            let start = |number| {
                let thread = dedupfs_sync::thread::Builder::new().name(format!("rewrite-{number}"));
                thread
                    .spawn_scoped(scope, work)
                    .inspect_err(|error| tracing::warn!(%error, "one thread less rewrites a file"))
            };
            let others: Vec<_> = (1..threads).filter_map(|number| start(number).ok()).collect();
            let mut done = work();
            for other in others {
                done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            done
        });
        let mut windows: Vec<_> = firsts.iter().map(|_| None).collect();
        for (number, outcome) in done {
            if let Some(window) = windows.get_mut(number) {
                *window = Some(outcome?);
            }
        }
        Ok(windows)
    }

    fn take_over(&self, rewritten: &mut PieceList, range: std::ops::Range<usize>) {
        let pieces = self.pieces.pieces().get(range).unwrap_or_default();
        pieces.iter().for_each(|piece| rewritten.push(piece.clone()));
    }

    /// Rewrites from piece `first` on. Calls `walked` with the position behind each piece that it has walked.
    fn rewrite_window(
        &self,
        stream: StreamId,
        edits: &Edits<'_>,
        first: usize,
        stretch: &mut Stretch,
        walked: &dyn Fn(usize),
    ) -> Result<Rewritten> {
        stretch.forget();
        let known = Arc::new(BlockIndex::default());
        let run = Ingest::new(self.context.ingest.clone(), stream, Some(known.clone()));
        let mut window = Window { body: self, edits, stretch, run, tail: Vec::new(), changed_until: 0, open: false };
        let mut position = first;
        while let Some((start, piece)) = self.pieces.get(position) {
            if let Edits::Source { source, .. } = edits {
                source.store(0, &mut || Ok(()))?;
            }
            window.walk_piece(start, piece, &known)?;
            position += 1;
            walked(position);
            let next_changes =
                self.pieces.get(position).is_some_and(|(start, piece)| edits.touches(start, start + piece.len_bytes()));
            if !next_changes && !window.open && window.run.assemble_all()? {
                break;
            }
        }
        let mut run = window.run;
        run.prepare_finish(false)?;
        let section = self.context.ingest.dedup.enter();
        Ok((position, PieceList::new(run.finish(&section, false)?)))
    }
}

/// Bytes of a source that were read at once. A thread keeps the memory for all of its windows.
#[derive(Default)]
struct Stretch {
    at: u64,
    /// So many of the bytes were read.
    len: usize,
    bytes: Vec<u8>,
}

impl Stretch {
    /// Makes the next read one of the source as it is then.
    fn forget(&mut self) {
        self.len = 0;
    }

    /// Returns the bytes of a range. Reads on to `until` or, if that is far away, as far as it pays.
    fn read(&mut self, source: &dyn DeltaSource, (from, to): (u64, u64), until: u64) -> Result<&[u8]> {
        if from < self.at || to > self.at + self.len as u64 {
            let until = until.min(from + STRETCH_BYTES_MAX).max(to);
            let len = (until - from) as usize;
            self.bytes.resize(self.bytes.len().max(len), 0);
            self.forget();
            self.at = from;
            source.read(from, self.bytes.get_mut(..len).unwrap_or_default())?;
            self.len = len;
        }
        let (from, to) = ((from - self.at) as usize, (to - self.at) as usize);
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }
}

/// The state of one window.
struct Window<'a> {
    body: &'a FileBody,
    edits: &'a Edits<'a>,
    stretch: &'a mut Stretch,
    run: Ingest,
    /// Old chunks whose bytes may lie behind the last cut, with their offsets.
    tail: Vec<(u64, Child)>,
    /// Bytes before this offset may differ from the old ones.
    changed_until: u64,
    /// Whether there are bytes behind the last cut.
    open: bool,
}

impl Window<'_> {
    fn walk_piece(&mut self, start: u64, piece: &Piece, known: &BlockIndex) -> Result<()> {
        if piece.kind != PieceKind::Segment {
            let child = if piece.kind == PieceKind::Hole { hole_child(piece.len_bytes()) } else { piece.child };
            known.extend(&[child]);
            return self.walk_chunks(start, &[child]);
        }
        let view = self.body.context.dedup().nodes().node(0, &piece.child)?;
        known.extend(view.children());
        self.walk_chunks(start, view.children())
    }

    fn walk_chunks(&mut self, start: u64, chunks: &[Child]) -> Result<()> {
        let mut offset = start;
        let mut unchanged: Vec<Child> = Vec::new();
        for child in chunks {
            let end = offset + child.len_bytes;
            let zeroed = self.edits.zeroes(offset, end, child);
            let child = if zeroed { hole_child(child.len_bytes) } else { *child };
            let touched = !zeroed
                && match child.fingerprint.is_zero() {
                    true => self.edits.next_data(offset, end).is_some(),
                    false => self.edits.touches(offset, end),
                };
            if !self.open && !touched {
                unchanged.push(child);
            } else {
                self.take_over(&mut unchanged)?;
                match child.fingerprint.is_zero() {
                    true => self.walk_hole(offset, end, touched)?,
                    false => self.walk_chunk(offset, &child, touched)?,
                }
            }
            offset = end;
        }
        self.take_over(&mut unchanged)
    }

    fn take_over(&mut self, unchanged: &mut Vec<Child>) -> Result<()> {
        if unchanged.is_empty() {
            return Ok(());
        }
        self.run.push_known(unchanged)?;
        unchanged.clear();
        Ok(())
    }

    /// Pushes the bytes of a stored chunk that changes, or that follows a change before boundaries have met.
    fn walk_chunk(&mut self, offset: u64, child: &Child, touched: bool) -> Result<()> {
        let end = offset + child.len_bytes;
        if let Edits::Source { source, .. } = self.edits {
            self.push_from_source(*source, offset, end)?;
            self.changed_until = if touched { end } else { self.changed_until };
        } else if !touched {
            let bytes = self.body.context.chunks.chunk(child)?;
            self.run.push_data(&bytes)?;
        } else if let Some((from, to)) = self.edits.hole_within(offset, end) {
            let bytes = self.body.context.chunks.chunk(child)?;
            self.run.push_data(bytes.get(..(from - offset) as usize).unwrap_or_default())?;
            self.run.push_zeros(to - from)?;
            self.run.push_data(bytes.get((to - offset) as usize..).unwrap_or_default())?;
            self.changed_until = end;
        } else {
            let mut bytes = match self.edits.covers(offset, end) {
                true => vec![0; child.len_bytes as usize],
                false => self.body.context.chunks.chunk(child)?.to_vec(),
            };
            self.edits.overlay(offset, &mut bytes);
            self.run.push_data(&bytes)?;
            self.changed_until = end;
        }
        self.tail.push((offset, *child));
        self.try_resync(end)
    }

    /// Pushes bytes of the source, and its holes.
    fn push_from_source(&mut self, source: &dyn DeltaSource, mut offset: u64, end: u64) -> Result<()> {
        while offset < end {
            let hole = self.edits.hole_within(offset, end);
            let data_end = hole.map_or(end, |(from, _)| from);
            if offset < data_end {
                // Whole changed stretches at once.
                let changed = self.edits.next_data(offset, data_end);
                let until = changed.map_or(data_end, |(_, to)| to.max(data_end));
                let bytes = self.stretch.read(source, (offset, data_end), until)?;
                source.store(data_end - offset, &mut || self.run.push_data(bytes))?;
            }
            offset = data_end;
            if let Some((from, to)) = hole {
                self.run.push_zeros(to - from)?;
                offset = to;
            }
        }
        Ok(())
    }

    /// Uses the old references again if the last cut falls on an old boundary behind all changes.
    fn try_resync(&mut self, end: u64) -> Result<()> {
        let uncut_bytes = self.run.cut_now();
        let boundary = end - uncut_bytes;
        self.tail.retain(|(start, _)| *start >= boundary);
        let meets = boundary == end || self.tail.first().is_some_and(|(start, _)| *start == boundary);
        self.open = !(meets && boundary >= self.changed_until);
        if !self.open {
            self.run.discard_uncut();
            let children: Vec<Child> = self.tail.drain(..).map(|(_, child)| child).collect();
            self.run.push_known(&children)?;
        }
        Ok(())
    }

    /// Pushes zeros of any length: long runs stay zeros, short ones between changes are chunked with them.
    fn walk_hole(&mut self, start: u64, end: u64, touched: bool) -> Result<()> {
        if !touched && end - start < GAP_AS_ZEROS_BYTES {
            self.run.push_data(&vec![0; (end - start) as usize])?;
            self.tail.push((start, hole_child(end - start)));
            return self.try_resync(end);
        }
        let mut offset = start;
        while offset < end {
            let next = self.edits.next_data(offset, end);
            let (from, to) = next.map_or((end, end), |(from, to)| (from.clamp(offset, end), to.min(end)));
            let gap_bytes = from - offset;
            if gap_bytes >= GAP_AS_ZEROS_BYTES || (gap_bytes > 0 && !self.open) {
                self.run.push_zeros(gap_bytes)?;
                self.open = false;
            } else if gap_bytes > 0 {
                self.run.push_data(&vec![0; gap_bytes as usize])?;
            }
            offset = from;
            while offset < to {
                let mut bytes = vec![0; (to - offset).min(STRETCH_BYTES_MAX) as usize];
                match self.edits {
                    Edits::Source { source, .. } => {
                        source.read(offset, &mut bytes)?;
                        source.store(bytes.len() as u64, &mut || self.run.push_data(&bytes))?;
                    }
                    edits => {
                        edits.overlay(offset, &mut bytes);
                        self.run.push_data(&bytes)?;
                    }
                }
                offset += bytes.len() as u64;
                self.open = true;
            }
        }
        self.tail.clear();
        self.changed_until = end;
        self.try_resync(end)
    }
}
