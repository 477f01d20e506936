//! The index's knowledge of a fingerprint, and its encoding.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::{ContainerId, FINGERPRINT_BYTES, Fingerprint};

/// The location of a chunk or recipe node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In this container, with this length in bytes.
    Stored {
        /// The container; never [`ContainerId::NONE`].
        container: ContainerId,
        /// Length of the chunk or node.
        len_bytes: u32,
    },
    /// Nowhere: its copy in a container was found bad. Its length is known, and its count is kept.
    Quarantined {
        /// Length of the chunk or node, at least 1.
        len_bytes: u32,
    },
    /// Nowhere: something refers to it, and no container has it. Its count is kept until it is stored again.
    Lost,
}

impl Location {
    /// Makes the location of a container and a length, as files, logs and lists hold them (`docs/format.md`): container
    /// 0 is nowhere, and there the length 0 means that the content is unknown.
    pub const fn new(container: ContainerId, len_bytes: u32) -> Self {
        match (container, len_bytes) {
            (ContainerId::NONE, 0) => Self::Lost,
            (ContainerId::NONE, len_bytes) => Self::Quarantined { len_bytes },
            (container, len_bytes) => Self::Stored { container, len_bytes },
        }
    }

    /// A quarantined copy of this length.
    pub fn quarantined(len_bytes: u32) -> Self {
        Self::Quarantined { len_bytes: len_bytes.max(1) }
    }

    /// The container, as [`new`](Self::new) takes it.
    pub const fn container(&self) -> ContainerId {
        match self {
            Self::Stored { container, .. } => *container,
            Self::Quarantined { .. } | Self::Lost => ContainerId::NONE,
        }
    }

    /// The length in bytes, as [`new`](Self::new) takes it.
    pub const fn len_bytes(&self) -> u32 {
        match self {
            Self::Stored { len_bytes, .. } | Self::Quarantined { len_bytes } => *len_bytes,
            Self::Lost => 0,
        }
    }

    /// Whether its copy was found bad.
    pub const fn is_quarantined(&self) -> bool {
        matches!(self, Self::Quarantined { .. })
    }

    /// Whether no container has it.
    pub const fn is_lost(&self) -> bool {
        !matches!(self, Self::Stored { .. })
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

impl Cell {
    /// Returns the cell that lookups see: a staged location takes the place of the committed one.
    pub(crate) fn with_staged(committed: Option<Self>, staged: Option<Location>) -> Option<Self> {
        match staged {
            Some(location) => Some(Self { location, references: committed.map_or(0, |cell| cell.references) }),
            None => committed,
        }
    }

    /// Whether there is a cell and no container has its chunk.
    pub(crate) fn is_lost(cell: Option<Self>) -> bool {
        cell.is_some_and(|cell| cell.location.is_lost())
    }
}

// Millions of cells are in memory: the kinds of locations cost nothing beside their numbers.
const _: () = assert!(size_of::<Location>() == 16 && size_of::<Cell>() == 24);

/// A fingerprint with its cell, as checkpoints collect them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cell: Cell,
}

/// Bytes of a cell in a sealed tanker: fingerprint, container, length. Counts are in another file.
pub(crate) const CELL_BYTES: usize = FINGERPRINT_BYTES + 8 + 4;

pub(crate) const COUNT_BYTES: usize = 4;

/// Bytes of a cell in an open tanker's file: as in a sealed tanker, plus the count.
pub(crate) const OPEN_CELL_BYTES: usize = CELL_BYTES + COUNT_BYTES;

const _: () = assert!(CELL_BYTES == 44 && OPEN_CELL_BYTES == 48);

pub(crate) fn encode_cell(fingerprint: &Fingerprint, location: Location, out: &mut Vec<u8>) {
    out.extend_from_slice(&fingerprint.0);
    out.extend_from_slice(&location.container().0.to_le_bytes());
    out.extend_from_slice(&location.len_bytes().to_le_bytes());
}

pub(crate) fn cell_fingerprint(cell: &[u8; CELL_BYTES]) -> &[u8; FINGERPRINT_BYTES] {
    // The array is long enough (asserted above), so the default is never taken.
    cell.first_chunk().unwrap_or(&[0; FINGERPRINT_BYTES])
}

pub(crate) fn cell_location(cell: &[u8; CELL_BYTES]) -> Location {
    let [.., a, b, c, d, e, f, g, h, i, j, k, l] = *cell;
    let container = ContainerId(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    Location::new(container, u32::from_le_bytes([i, j, k, l]))
}

pub(crate) fn cell_at(page: &[u8], position: usize) -> Option<&[u8; CELL_BYTES]> {
    page.as_chunks::<CELL_BYTES>().0.get(position)
}

pub(crate) fn count_at(page: &[u8], position: usize) -> Option<u32> {
    page.as_chunks::<COUNT_BYTES>().0.get(position).map(|count| u32::from_le_bytes(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_trip() {
        let (fingerprint, location) =
            (Fingerprint([3; 32]), Location::new(ContainerId(0x0102_0304_0506_0708), 0x0a0b_0c0d));
        let mut page = vec![0; CELL_BYTES];
        encode_cell(&fingerprint, location, &mut page);
        let cell = cell_at(&page, 1).unwrap();
        assert_eq!(cell[32..], [8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a], "little-endian");
        assert_eq!(*cell_fingerprint(cell), fingerprint.0);
        assert_eq!(cell_location(cell), location);
        assert!(cell_at(&page, 2).is_none());
    }

    #[test]
    fn container_0_is_nowhere() {
        for (container, len_bytes, expected) in [
            (7, 3, Location::Stored { container: ContainerId(7), len_bytes: 3 }),
            (7, 0, Location::Stored { container: ContainerId(7), len_bytes: 0 }),
            (0, 3, Location::Quarantined { len_bytes: 3 }),
            (0, 0, Location::Lost),
        ] {
            let location = Location::new(ContainerId(container), len_bytes);
            assert_eq!(location, expected);
            assert_eq!((location.container(), location.len_bytes()), (ContainerId(container), len_bytes));
            assert_eq!(location.is_lost(), container == 0);
        }
        assert_eq!(Location::quarantined(0), Location::Quarantined { len_bytes: 1 }, "not taken for unknown content");
    }
}
