//! Reading a file's content, and keeping sequential readers ahead.

use dedupfs_store::recipe::Child;

use super::body::FileBody;
use crate::config::PREFETCH_BYTES;
use crate::error::{EngineError, Result};
use crate::recipe::{Piece, PieceKind};

/// What one reader (handle) did last, to see whether it reads on.
#[derive(Clone, Copy, Default, Debug)]
pub struct ReadAhead {
    /// Where the next read of a sequential reader begins.
    next: u64,
    /// Sequential bytes read so far.
    run_bytes: u64,
    /// Content before this offset has been asked for.
    asked_until: u64,
}

/// Sequential bytes after which a reader is believed to go on.
const SEQUENTIAL_AFTER_BYTES: u64 = 256 * 1024;

impl FileBody {
    /// Appends at most `len_bytes` from `offset` to `into`; fewer only at the end. The stream must not reach there
    /// (see [`read_needs_finish`](FileBody::read_needs_finish)).
    ///
    /// # Errors
    /// `Corrupt` if the content is damaged; I/O errors.
    pub fn read(&self, offset: u64, len_bytes: u64, into: &mut Vec<u8>) -> Result<()> {
        self.check_failed()?;
        let end = offset.saturating_add(len_bytes).min(self.pieces.len_bytes());
        if offset >= end {
            return Ok(());
        }
        let base = into.len();
        into.reserve((end - offset) as usize);
        self.for_each_chunk(offset, end, &mut |start, child| {
            let from = offset.max(start);
            let to = end.min(start + child.len_bytes);
            if child.fingerprint.is_zero() {
                into.resize(into.len() + (to - from) as usize, 0);
                return Ok(true);
            }
            let data = self.context.chunks.chunk(child)?;
            let range = (from - start) as usize..(to - start) as usize;
            let Some(bytes) = data.get(range) else {
                let what = format!("chunk {}", child.fingerprint);
                return Err(dedupfs_store::StoreError::corrupt(what, child.len_bytes, data.len()).into());
            };
            into.extend_from_slice(bytes);
            Ok(true)
        })?;
        if into.len() - base != (end - offset) as usize {
            return Err(EngineError::Internal("pieces do not cover the range that was read"));
        }
        if let Some(read) = into.get_mut(base..) {
            self.dirty.overlay(offset, read);
        }
        Ok(())
    }

    /// Whether that read needs no disk: judged by its first and last chunk.
    #[must_use]
    pub fn read_is_quick(&self, offset: u64, len_bytes: u64) -> bool {
        let end = offset.saturating_add(len_bytes).min(self.pieces.len_bytes());
        if offset >= end {
            return true;
        }
        let cached = |at: u64| {
            let Some((start, piece)) = self.pieces.get(self.pieces.position_at(at)) else { return true };
            match piece.kind {
                PieceKind::Hole => true,
                PieceKind::Chunk => self.context.chunks.is_cached(&piece.child.fingerprint, piece.child.hint),
                PieceKind::Segment => {
                    let nodes = self.context.dedup().nodes();
                    nodes.is_cached(&piece.child)
                        && nodes.node(0, &piece.child).is_ok_and(|view| {
                            view.get(view.position_at(at - start)).is_none_or(|(_, child)| {
                                child.fingerprint.is_zero()
                                    || self.context.chunks.is_cached(&child.fingerprint, child.hint)
                            })
                        })
                }
            }
        };
        cached(offset) && cached(end - 1)
    }

    /// Notes a read and, for a reader that goes on, asks for what comes next (the recipe tells all places ahead).
    pub fn read_ahead(&self, ahead: &mut ReadAhead, offset: u64, len_bytes: u64) {
        // Requests of one reader can overtake each other a little.
        let continues = offset.abs_diff(ahead.next) <= SEQUENTIAL_AFTER_BYTES;
        ahead.run_bytes = if continues { ahead.run_bytes + len_bytes } else { len_bytes };
        ahead.next = offset + len_bytes;
        if !continues {
            ahead.asked_until = ahead.next;
        }
        if ahead.run_bytes < SEQUENTIAL_AFTER_BYTES && offset != 0 {
            return;
        }
        let size_bytes = self.pieces.len_bytes();
        if ahead.next >= size_bytes {
            self.read_on(offset, size_bytes);
            return;
        }
        let from = ahead.asked_until.max(ahead.next).min(size_bytes);
        let to = ahead.next.saturating_add(PREFETCH_BYTES).min(size_bytes);
        // In steps, so that each asks for whole stretches of containers.
        if from >= to || (to - from < PREFETCH_BYTES / 4 && to < size_bytes) {
            return;
        }
        let mut wanted = Vec::new();
        // What cannot be read now will say so when it is really read.
        let _hint_only = self.for_each_chunk(from, to, &mut |_, child| {
            if !child.fingerprint.is_zero() {
                wanted.push((child.hint, child.fingerprint));
            }
            Ok(true)
        });
        self.context.chunks.store().prefetch(&wanted);
        ahead.asked_until = to;
    }

    /// At the end of the content: whoever restores many files reads the one that lies behind this next.
    fn read_on(&self, offset: u64, size_bytes: u64) {
        let mut last = None;
        let _hint_only = self.for_each_chunk(offset.max(size_bytes.saturating_sub(1)), size_bytes, &mut |_, child| {
            last = Some((child.hint, child.fingerprint));
            Ok(true)
        });
        if let Some((hint, fingerprint)) = last.filter(|(_, fingerprint)| !fingerprint.is_zero()) {
            self.context.chunks.store().read_on(hint, &fingerprint);
        }
    }

    /// Calls `visit(offset, chunk)` for all chunks that touch `from..to`, in order, until it says `false`.
    pub(super) fn for_each_chunk(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(u64, &Child) -> Result<bool>,
    ) -> Result<()> {
        let mut position = self.pieces.position_at(from);
        while let Some((start, piece)) = self.pieces.get(position) {
            if start >= to || !self.visit_piece(start, piece, from, to, visit)? {
                break;
            }
            position += 1;
        }
        Ok(())
    }

    fn visit_piece(
        &self,
        start: u64,
        piece: &Piece,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(u64, &Child) -> Result<bool>,
    ) -> Result<bool> {
        if piece.kind != PieceKind::Segment {
            return visit(start, &piece.child);
        }
        let view = self.context.dedup().nodes().node(0, &piece.child)?;
        let mut at = view.position_at(from.saturating_sub(start));
        while let Some((within, child)) = view.get(at) {
            if start + within >= to {
                break;
            }
            if !visit(start + within, child)? {
                return Ok(false);
            }
            at += 1;
        }
        Ok(true)
    }
}
