//! The index's knowledge of a fingerprint, and its encoding.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::{ContainerId, FINGERPRINT_BYTES, Fingerprint};

/// The location of a chunk or recipe node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The container.
    pub container: ContainerId,
    /// Length of the chunk or node in bytes.
    pub len_bytes: u32,
}

impl Location {
    /// Lost: something refers to it, and no container has it. Its count is kept until it is stored again.
    pub const LOST: Self = Self { container: ContainerId::NONE, len_bytes: 0 };

    /// Quarantined: its copy in a container was found bad. The length stays and is never 0. That distinguishes it from
    /// [`LOST`](Self::LOST), whose length is unknown.
    #[must_use]
    pub fn bad(len_bytes: u32) -> Self {
        Self { container: ContainerId::NONE, len_bytes: len_bytes.max(1) }
    }

    /// Whether it is [`bad`](Self::bad).
    #[must_use]
    pub fn is_bad(&self) -> bool {
        self.is_lost() && self.len_bytes > 0
    }

    /// Whether no container has it: [`LOST`](Self::LOST) or [`bad`](Self::bad).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.container == ContainerId::NONE
    }
}

/// A counting fingerprint (MAD2 section III.E) without the fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Its location.
    pub location: Location,
    /// Number of references. `u32::MAX` means "too many to count" and stays.
    pub references: u32,
}

/// A fingerprint with its cell, as checkpoints collect them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cell: Cell,
}

/// Bytes of a cell in a sealed tanker: fingerprint, container, length. Counts are in another file.
pub(crate) const CELL_BYTES: usize = FINGERPRINT_BYTES + 8 + 4;

/// Bytes of a count.
pub(crate) const COUNT_BYTES: usize = 4;

/// Bytes of a cell in an open tanker's file: as in a sealed tanker, plus the count.
pub(crate) const OPEN_CELL_BYTES: usize = CELL_BYTES + COUNT_BYTES;

const _: () = assert!(CELL_BYTES == 44 && OPEN_CELL_BYTES == 48);

/// Encodes a cell of a sealed tanker.
pub(crate) fn encode_cell(fingerprint: &Fingerprint, location: Location, out: &mut Vec<u8>) {
    out.extend_from_slice(&fingerprint.0);
    out.extend_from_slice(&location.container.0.to_le_bytes());
    out.extend_from_slice(&location.len_bytes.to_le_bytes());
}

/// The fingerprint of a cell of a sealed tanker.
pub(crate) fn cell_fingerprint(cell: &[u8; CELL_BYTES]) -> &[u8; FINGERPRINT_BYTES] {
    // The array is long enough (asserted above), so the default is never taken.
    cell.first_chunk().unwrap_or(&[0; FINGERPRINT_BYTES])
}

/// The location of a cell of a sealed tanker.
pub(crate) fn cell_location(cell: &[u8; CELL_BYTES]) -> Location {
    let [.., a, b, c, d, e, f, g, h, i, j, k, l] = *cell;
    let container = ContainerId(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    Location { container, len_bytes: u32::from_le_bytes([i, j, k, l]) }
}

/// Returns the cell at a position of a page of cells.
pub(crate) fn cell_at(page: &[u8], position: usize) -> Option<&[u8; CELL_BYTES]> {
    page.as_chunks::<CELL_BYTES>().0.get(position)
}

/// Returns the count at a position of a page of counts.
pub(crate) fn count_at(page: &[u8], position: usize) -> Option<u32> {
    page.as_chunks::<COUNT_BYTES>().0.get(position).map(|count| u32::from_le_bytes(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_trip() {
        let (fingerprint, location) =
            (Fingerprint([3; 32]), Location { container: ContainerId(0x0102_0304_0506_0708), len_bytes: 0x0a0b_0c0d });
        let mut page = vec![0; CELL_BYTES];
        encode_cell(&fingerprint, location, &mut page);
        let cell = cell_at(&page, 1).unwrap();
        assert_eq!(cell[32..], [8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a], "little-endian");
        assert_eq!(*cell_fingerprint(cell), fingerprint.0);
        assert_eq!(cell_location(cell), location);
        assert!(cell_at(&page, 2).is_none());
    }
}
