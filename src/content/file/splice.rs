//! Cloning: a range of one file becomes content of another file (or of the same) without being read.
//!
//! 1. The new content is a row of slices: the target's pieces before the range, the source's pieces, the target's
//!    pieces behind.
//! 2. A whole piece is shared as it is. A piece of another file is pinned first: until the target is published, only
//!    the source refers to it.
//! 3. A cut piece goes into a run, chunk by chunk: whole chunks by reference, cut chunks by their bytes. The following
//!    slices go into the same run until a segment ends at the end of a piece. From there on pieces are shared again.
//!
//! Invariants: the old pieces stay in force until all is done, so a failed clone changes nothing. Runs are finished
//! before the caller gives up the lock of the source, whose recipe keeps their chunks alive. A lost chunk is referred
//! to and counted as in the source: both files give an I/O error there, and storing the chunk again heals both.
//!
//! Cost: a pin for each shared piece. At each end of the range at most two chunks are read and some segments are stored
//! anew.

use std::ops::Range;

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Child;
use dedupfs_sync::canary::{Canary, is_planted};

use super::body::{FileBody, push_gap};
use crate::containers::StreamId;
use crate::ingest::Ingest;
use crate::limits::{HOLE_CUT_BYTES, SEGMENT_MIN_BYTES};
use crate::recipe::{Piece, PieceKind, PieceList};

/// The origin of a slice's piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The target, before the range.
    Before,
    /// The same file as the target.
    Within,
    /// Another file.
    Elsewhere,
    /// The target, behind the range.
    Behind,
}

/// Calls a function that stores at most so many bytes, with room for them.
pub(super) type Store<'a> = dyn Fn(u64, &mut dyn FnMut() -> Result<()>) -> Result<()> + 'a;

/// `take_bytes` of a piece, behind its first `skip_bytes`.
struct Slice<'a> {
    origin: Origin,
    piece: &'a Piece,
    skip_bytes: u64,
    take_bytes: u64,
}

impl Slice<'_> {
    fn is_whole(&self) -> bool {
        self.take_bytes == self.piece.len_bytes()
    }

    fn ends_piece(&self) -> bool {
        self.skip_bytes + self.take_bytes == self.piece.len_bytes()
    }

    /// Whether it should join the next slice: many small clones would otherwise make a recipe of small segments.
    fn is_short_before(&self, next: Option<&Self>) -> bool {
        self.take_bytes < SEGMENT_MIN_BYTES && next.is_some_and(|next| next.origin != self.origin)
    }
}

/// Returns the slices of `from..to`.
fn slices(pieces: &PieceList, origin: Origin, from: u64, to: u64) -> impl Iterator<Item = Slice<'_>> {
    let first = pieces.position_at(from);
    (first..).map_while(move |position| {
        let (start, piece) = pieces.get(position).filter(|(start, _)| *start < to)?;
        let skip_bytes = from.saturating_sub(start);
        let take_bytes = (to - start).min(piece.len_bytes()) - skip_bytes;
        Some(Slice { origin, piece, skip_bytes, take_bytes })
    })
}

impl FileBody {
    /// Puts `len_bytes` from offset `from` of `source` at offset `at`, in place of the old content. `None` as source
    /// means this file. A gap behind the end reads as zeros. Both files must be [merged](Self::merge), and the source
    /// must have the whole range. The source must stay locked; if this file then [is one chunk](Self::is_one_chunk),
    /// until it is published.
    ///
    /// # Errors
    /// `Corrupt` if a cut chunk or a recipe is damaged; the pool's write errors. On an error the content is unchanged.
    pub fn clone_range(
        &mut self,
        stream: StreamId,
        source: Option<&Self>,
        from: u64,
        len_bytes: u64,
        at: u64,
    ) -> Result<()> {
        self.check_failed()?;
        let (origin, source) = source.map_or((Origin::Within, &*self), |source| (Origin::Elsewhere, source));
        source.check_failed()?;
        let size_bytes = self.pieces.len_bytes();
        let gap = Piece::hole(at.saturating_sub(size_bytes));
        let gap = Slice { origin: Origin::Before, piece: &gap, skip_bytes: 0, take_bytes: gap.len_bytes() };
        let row: Vec<Slice<'_>> = slices(&self.pieces, Origin::Before, 0, at)
            .chain((gap.take_bytes > 0).then_some(gap))
            .chain(slices(&source.pieces, origin, from, from + len_bytes))
            .chain(slices(&self.pieces, Origin::Behind, at + len_bytes, size_bytes))
            .collect();
        // The caller has room for the ends of one range.
        let pieces = self.join(stream, &row, &|_, push| push())?;
        (self.pieces, self.changed) = (pieces, true);
        self.count_memory();
        Ok(())
    }

    /// Puts each of these ranges of `source`, which ascend, in place of the same range of this content, or behind it. Costs one walk over
    /// both, however many ranges there are.
    pub(super) fn take_ranges(
        &mut self,
        stream: StreamId,
        source: &Self,
        ranges: &[Range<u64>],
        store: &Store<'_>,
    ) -> Result<()> {
        let size_bytes = self.pieces.len_bytes();
        let mut row = Vec::new();
        let mut end = 0;
        for range in ranges {
            let until = range.start.min(size_bytes);
            if end < until {
                row.extend(slices(&self.pieces, Origin::Before, end, until));
            }
            row.extend(slices(&source.pieces, Origin::Elsewhere, range.start, range.end));
            end = range.end;
        }
        if end < size_bytes {
            row.extend(slices(&self.pieces, Origin::Behind, end, size_bytes));
        }
        let pieces = self.join(stream, &row, store)?;
        (self.pieces, self.changed) = (pieces, true);
        self.count_memory();
        Ok(())
    }

    /// Returns the best end of a clone from `from` of at most `len_bytes_max`: the end of a piece, so that the next
    /// clone starts with a whole one.
    #[must_use]
    pub fn clone_end(&self, from: u64, len_bytes_max: u64) -> u64 {
        let end = from + len_bytes_max;
        let position = self.pieces.position_at(end);
        self.pieces.get(position).map(|(start, _)| start).filter(|start| *start > from).unwrap_or(end)
    }

    /// Whether the content is a chunk that stands alone: only a root keeps it alive, and there is no pin for it.
    #[must_use]
    pub fn is_one_chunk(&self) -> bool {
        matches!(self.pieces.pieces(), [only] if only.kind == PieceKind::Chunk)
    }

    fn join(&self, stream: StreamId, row: &[Slice<'_>], store: &Store<'_>) -> Result<PieceList> {
        if let [only] = row
            && only.is_whole()
            && only.piece.kind == PieceKind::Chunk
        {
            return Ok(PieceList::new([only.piece.clone()]));
        }
        let mut pieces = PieceList::default();
        let mut run: Option<Ingest> = None;
        for (position, slice) in row.iter().enumerate() {
            if run.is_none()
                && !slice.is_short_before(row.get(position + 1))
                && let Some(piece) = self.shared(slice)
            {
                pieces.push(piece);
                continue;
            }
            let open = run.get_or_insert_with(|| Ingest::new(self.context.ingest.clone(), stream, None));
            store(slice.take_bytes, &mut || self.push_slice(open, slice))?;
            if slice.ends_piece()
                && open.assemble_all()?
                && let Some(run) = run.take()
            {
                self.finish_run(run, &mut pieces)?;
            }
        }
        if let Some(run) = run {
            self.finish_run(run, &mut pieces)?;
        }
        Ok(pieces)
    }

    /// Returns the slice as a piece of this file, if it can stand by itself.
    fn shared(&self, slice: &Slice<'_>) -> Option<Piece> {
        match slice.piece.kind {
            PieceKind::Hole if slice.is_whole() || slice.take_bytes >= HOLE_CUT_BYTES => {
                Some(Piece::hole(slice.take_bytes))
            }
            PieceKind::Segment if slice.is_whole() => {
                let mut piece = slice.piece.clone();
                if slice.origin == Origin::Elsewhere && piece.pin.is_none() {
                    // If reclaiming has claimed the node, there is no pin: then its chunks are stored as a new segment.
                    let pin = self.context.dedup().pins().pin_existing(piece.child.fingerprint)?;
                    piece.pin = (!is_planted(Canary::CloneNotPinned)).then(|| pin.into());
                }
                Some(piece)
            }
            PieceKind::Hole | PieceKind::Segment | PieceKind::Chunk => None,
        }
    }

    fn push_slice(&self, run: &mut Ingest, slice: &Slice<'_>) -> Result<()> {
        let (from, to) = (slice.skip_bytes, slice.skip_bytes + slice.take_bytes);
        match slice.piece.kind {
            PieceKind::Hole => push_gap(run, slice.take_bytes),
            PieceKind::Chunk => self.push_chunks(run, [(0, &slice.piece.child)], from, to),
            PieceKind::Segment => {
                let view = self.context.dedup().nodes().node(0, &slice.piece.child)?;
                let first = view.position_at(from);
                self.push_chunks(run, (first..).map_while(|position| view.get(position)), from, to)
            }
        }
    }

    /// Pushes the parts of these chunks, each given with its offset, that lie in `from..to`.
    fn push_chunks<'a>(
        &self,
        run: &mut Ingest,
        chunks: impl IntoIterator<Item = (u64, &'a Child)>,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let mut whole = Vec::new();
        for (start, child) in chunks {
            let end = start + child.len_bytes;
            if start >= to {
                break;
            }
            if from <= start && end <= to {
                whole.push(*child);
                continue;
            }
            if !whole.is_empty() {
                run.push_known(&std::mem::take(&mut whole))?;
            }
            let (from, to) = (from.max(start) - start, to.min(end) - start);
            if child.fingerprint.is_zero() {
                push_gap(run, to - from)?;
                continue;
            }
            let data = self.context.chunks.chunk(child)?;
            let Some(part) = data.get(from as usize..to as usize) else {
                let what = format!("chunk {}", child.fingerprint);
                return Err(StoreError::corrupt(what, child.len_bytes, data.len()).into());
            };
            run.push_data(part)?;
        }
        if whole.is_empty() { Ok(()) } else { run.push_known(&whole) }
    }

    fn finish_run(&self, mut run: Ingest, pieces: &mut PieceList) -> Result<()> {
        run.prepare_finish(false)?;
        let section = self.context.dedup().enter();
        run.finish(&section, false)?.into_iter().for_each(|piece| pieces.push(piece));
        Ok(())
    }
}
