//! Reading a file's content.

use dedupfs_base::{EngineError, Result};
use dedupfs_store::recipe::Child;

use super::body::FileBody;
use crate::recipe::{Piece, PieceKind};

impl FileBody {
    /// Appends at most `len_bytes` from `offset` to `into`; fewer only at the end. The run must not reach there (see
    /// [`read_needs_finish`](FileBody::read_needs_finish)).
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

    /// Whether this read needs no disk, judged by its first and last chunk.
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

    /// Calls `visit(offset, chunk)` for all chunks that touch `from..to`, in order, until it returns `false`.
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
