//! A file's content as a flat list of pieces, as open files hold it.

use std::sync::Arc;

use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint};

use crate::dedup::Pin;

/// The kind of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PieceKind {
    /// A run of zeros.
    Hole,
    /// A level 0 node.
    Segment,
    /// A single chunk: only as the sole piece of a file.
    Chunk,
}

/// One piece of a file's content.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its kind.
    pub kind: PieceKind,
    /// Fingerprint, length and hint.
    pub child: Child,
    /// Keeps the node from being reclaimed until a logged root refers to it.
    pub pin: Option<Arc<Pin>>,
}

impl Piece {
    /// Makes a run of zeros.
    pub(crate) fn hole(len_bytes: u64) -> Self {
        let child = Child { fingerprint: Fingerprint::ZERO, len_bytes, hint: ContainerId::NONE };
        Self { kind: PieceKind::Hole, child, pin: None }
    }

    /// Bytes of content.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.child.len_bytes
    }
}

/// Pieces with their offsets.
#[derive(Clone, Debug, Default)]
pub(crate) struct PieceList {
    pieces: Vec<Piece>,
    /// End offset of each piece.
    ends: Vec<u64>,
    data_bytes: u64,
}

impl PieceList {
    /// Makes a list of these pieces; adjacent holes become one.
    pub(crate) fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut list = Self::default();
        pieces.into_iter().for_each(|piece| list.push(piece));
        list
    }

    /// Adds a piece at the end.
    pub(crate) fn push(&mut self, piece: Piece) {
        if piece.len_bytes() == 0 {
            return;
        }
        let end = self.len_bytes() + piece.len_bytes();
        if piece.kind == PieceKind::Hole
            && let (Some(last), Some(last_end)) = (self.pieces.last_mut(), self.ends.last_mut())
            && last.kind == PieceKind::Hole
        {
            last.child.len_bytes += piece.len_bytes();
            *last_end = end;
            return;
        }
        if piece.kind != PieceKind::Hole {
            self.data_bytes += piece.len_bytes();
        }
        self.pieces.push(piece);
        self.ends.push(end);
    }

    /// Removes the last piece.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        self.ends.pop();
        let piece = self.pieces.pop()?;
        if piece.kind != PieceKind::Hole {
            self.data_bytes -= piece.len_bytes();
        }
        Some(piece)
    }

    /// Bytes of content.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes that are not holes.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there is no content.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let pins = self.pieces.len() * size_of::<Pin>();
        (self.pieces.capacity() * size_of::<Piece>() + self.ends.capacity() * size_of::<u64>() + pins) as u64
    }

    /// All pieces in order.
    #[must_use]
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Drops all pins: a logged or committed root refers to everything now.
    pub(crate) fn unpin(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.pin = None);
    }

    /// Returns the position of the piece that covers `offset`; `len()` at or behind the end.
    pub(crate) fn position_at(&self, offset: u64) -> usize {
        self.ends.partition_point(|&end| end <= offset)
    }

    /// Returns the piece at `position`, with its start offset.
    pub(crate) fn get(&self, position: usize) -> Option<(u64, &Piece)> {
        let piece = self.pieces.get(position)?;
        let end = self.ends.get(position)?;
        Some((end - piece.len_bytes(), piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len_bytes: u64) -> Piece {
        let child = Child { fingerprint: Fingerprint([7; 32]), len_bytes, hint: ContainerId::NONE };
        Piece { kind: PieceKind::Segment, child, pin: None }
    }

    #[test]
    fn offsets_and_lengths() {
        let mut list = PieceList::new([segment(10), Piece::hole(5), Piece::hole(6), segment(1)]);
        assert_eq!((list.len(), list.len_bytes(), list.data_bytes()), (3, 22, 11));
        assert_eq!(list.position_at(0), 0);
        assert_eq!(list.position_at(9), 0);
        assert_eq!(list.position_at(10), 1);
        assert_eq!(list.position_at(21), 2);
        assert_eq!(list.position_at(22), 3);
        assert_eq!(list.get(1).map(|(start, piece)| (start, piece.len_bytes())), Some((10, 11)));
        assert_eq!(list.pop().map(|piece| piece.len_bytes()), Some(1));
        assert_eq!(list.len_bytes(), 21);
    }
}
