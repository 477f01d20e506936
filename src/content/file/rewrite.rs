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

use dedupfs_base::{Result, allocator};
use dedupfs_store::recipe::Child;

use super::body::FileBody;
use super::dirty::DirtyExtents;
use crate::containers::StreamId;
use crate::dedup::BlockIndex;
use crate::ingest::Ingest;
use crate::limits::GAP_AS_ZEROS_BYTES;
use crate::recipe::tree::hole_child;
use crate::recipe::{Piece, PieceKind, PieceList};

/// A merge of dirty extents of this size or more gives their memory back to the system at once.
const MERGE_GIVES_BACK_BYTES: u64 = 4 << 20;

/// The changes to merge.
enum Edits {
    /// These bytes are laid over the content.
    Dirty(DirtyExtents),
    /// This range becomes zeros.
    Zeros { from: u64, to: u64 },
}

impl Edits {
    fn next_from(&self, offset: u64) -> Option<(u64, u64)> {
        match self {
            Self::Dirty(extents) => extents.next_from(offset),
            Self::Zeros { from, to } => (offset < *to).then_some((*from, *to)),
        }
    }

    fn touches(&self, from: u64, to: u64) -> bool {
        self.next_from(from).is_some_and(|(start, _)| start < to)
    }

    fn overlay(&self, offset: u64, into: &mut [u8]) {
        match self {
            Self::Dirty(extents) => extents.overlay(offset, into),
            Self::Zeros { from, to } => {
                let start = from.saturating_sub(offset).min(into.len() as u64) as usize;
                let end = to.saturating_sub(offset).min(into.len() as u64) as usize;
                if let Some(range) = into.get_mut(start..end) {
                    range.fill(0);
                }
            }
        }
    }

    /// Returns the part of `from..to` that becomes part of a hole. Zeros too few for a hole stay among data.
    fn hole_within(&self, offset: u64, end: u64) -> Option<(u64, u64)> {
        match self {
            Self::Zeros { from, to } if to - from >= GAP_AS_ZEROS_BYTES => Some(((*from).max(offset), (*to).min(end))),
            Self::Zeros { .. } | Self::Dirty(_) => None,
        }
    }

    fn covers(&self, from: u64, to: u64) -> bool {
        match self {
            Self::Dirty(extents) => extents.covers(from, to),
            Self::Zeros { from: start, to: end } => *start <= from && to <= *end,
        }
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
        let outcome = self.rewrite(stream, &Edits::Dirty(extents));
        if bytes >= MERGE_GIVES_BACK_BYTES {
            // These are small blocks of many threads: each arena would keep its share.
            allocator::give_back();
        }
        outcome
    }

    /// Replaces a range within the pieces by zeros.
    pub(super) fn zero_range(&mut self, stream: StreamId, from: u64, to: u64) -> Result<()> {
        self.rewrite(stream, &Edits::Zeros { from, to: to.min(self.pieces.len_bytes()) })
    }

    fn rewrite(&mut self, stream: StreamId, edits: &Edits) -> Result<()> {
        let mut rewritten = PieceList::default();
        let mut position = 0;
        while let Some((start, _)) = edits.next_from(rewritten.len_bytes()) {
            let first = self.pieces.position_at(start.max(rewritten.len_bytes())).max(position);
            if first >= self.pieces.len() {
                break;
            }
            self.take_over(&mut rewritten, position..first);
            position = self.rewrite_window(stream, edits, first, &mut rewritten)?;
        }
        self.take_over(&mut rewritten, position..self.pieces.len());
        self.pieces = rewritten;
        Ok(())
    }

    fn take_over(&self, rewritten: &mut PieceList, range: std::ops::Range<usize>) {
        let pieces = self.pieces.pieces().get(range).unwrap_or_default();
        pieces.iter().for_each(|piece| rewritten.push(piece.clone()));
    }

    /// Rewrites from piece `first` on. Returns the position of the first piece that stays.
    fn rewrite_window(&self, stream: StreamId, edits: &Edits, first: usize, into: &mut PieceList) -> Result<usize> {
        let known = Arc::new(BlockIndex::default());
        let run = Ingest::new(self.context.ingest.clone(), stream, Some(known.clone()));
        let mut window = Window { body: self, edits, run, tail: Vec::new(), changed_until: 0, open: false };
        let mut position = first;
        while let Some((start, piece)) = self.pieces.get(position) {
            window.walk_piece(start, piece, &known)?;
            position += 1;
            let next_changes =
                self.pieces.get(position).is_some_and(|(start, piece)| edits.touches(start, start + piece.len_bytes()));
            if !next_changes && !window.open && window.run.assemble_all()? {
                break;
            }
        }
        let mut run = window.run;
        run.prepare_finish()?;
        let section = self.context.ingest.dedup.enter();
        run.finish(&section, false)?.into_iter().for_each(|piece| into.push(piece));
        Ok(position)
    }
}

/// The state of one window.
struct Window<'a> {
    body: &'a FileBody,
    edits: &'a Edits,
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
            let zeroed = matches!(self.edits, Edits::Zeros { .. })
                && (child.fingerprint.is_zero() || self.edits.covers(offset, end));
            let child = if zeroed { hole_child(child.len_bytes) } else { *child };
            let touched = !zeroed && self.edits.touches(offset, end);
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
        if !touched {
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
            let (from, to) =
                self.edits.next_from(offset).map_or((end, end), |(from, to)| (from.clamp(offset, end), to.min(end)));
            let gap_bytes = from - offset;
            if gap_bytes >= GAP_AS_ZEROS_BYTES || (gap_bytes > 0 && !self.open) {
                self.run.push_zeros(gap_bytes)?;
                self.open = false;
            } else if gap_bytes > 0 {
                self.run.push_data(&vec![0; gap_bytes as usize])?;
            }
            offset = from;
            while offset < to {
                let mut bytes = vec![0; (to - offset).min(1 << 20) as usize];
                self.edits.overlay(offset, &mut bytes);
                self.run.push_data(&bytes)?;
                offset += bytes.len() as u64;
                self.open = true;
            }
        }
        self.tail.clear();
        self.changed_until = end;
        self.try_resync(end)
    }
}
