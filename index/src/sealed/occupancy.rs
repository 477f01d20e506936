//! The occupancy of each container by the cells of a sealed tanker: a file beside the tanker's counts, written with
//! them.
//!
//! No manifest names it. It has the name of the counts, and it holds the seals of the cells and counts that it was made
//! from, which the manifest does name. So no other list, however sound, can be taken for it, and older versions ignore
//! it. It is derived from both files; `crate::occupancy` handles tankers without it.
//!
//! Cost: 32 bytes for each container, some 60 KiB for a tanker of 2^20 cells in containers of 512.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::frame::{
    Expect, FRAME_ALIGNMENT_BYTES, FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, FrameKind, decode_frame, encode_frame,
};
use dedupfs_store::{ContainerId, PoolId, Result, StoreError};

use super::containers::ContainerShares;
use crate::occupancy::{Occupied, Tally};

const VERSION: u16 = 1;

const META_BYTES: usize = 2 + 2 + 8 + 8 + 8 + 4;

pub(crate) const ENTRY_BYTES: usize = 8 + 4 + 4 + 8 + 8;

/// Most containers of a list: 512 MiB. A tanker with more, which no pool comes near, has no list.
const ENTRIES_MAX: usize = 1 << 24;

const _: () = assert!(META_BYTES + ENTRIES_MAX * ENTRY_BYTES <= FRAME_BODY_BYTES_MAX);

/// The files that a list was made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListOf {
    pub(crate) tanker: u64,
    /// Generation of the counts.
    pub(crate) generation: u64,
    pub(crate) cells_seal: u64,
    pub(crate) counts_seal: u64,
    /// Number of cells of the tanker.
    pub(crate) cells: u32,
}

/// The list, in order of container, [`ContainerId::NONE`] included.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct OccupancyList {
    entries: Vec<(ContainerId, Occupied)>,
}

impl From<&Tally> for OccupancyList {
    fn from(tally: &Tally) -> Self {
        let mut entries: Vec<_> = tally.iter().collect();
        entries.sort_unstable_by_key(|(container, _)| *container);
        Self { entries }
    }
}

impl OccupancyList {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ContainerId, Occupied)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the list after these changes.
    pub(crate) fn changed(&self, changes: &Tally) -> Self {
        let mut tally = changes.clone();
        self.iter().for_each(|(container, occupied)| tally.add(container, occupied));
        Self::from(&tally)
    }

    /// Encodes the file; `None` if it would be too long.
    pub(crate) fn encode(&self, pool: &PoolId, of: &ListOf) -> Option<Vec<u8>> {
        if self.entries.len() > ENTRIES_MAX {
            return None;
        }
        let mut meta = ByteWriter::with_capacity(META_BYTES);
        meta.u16(VERSION);
        meta.u16(0);
        meta.u64(of.generation);
        meta.u64(of.cells_seal);
        meta.u64(of.counts_seal);
        meta.u32(self.entries.len() as u32);
        let mut payload = ByteWriter::with_capacity(self.entries.len() * ENTRY_BYTES);
        for (container, occupied) in &self.entries {
            payload.u64(container.0);
            // A tanker has fewer than 2^32 cells.
            payload.u32(occupied.cells as u32);
            payload.u32(occupied.live_cells as u32);
            payload.u64(occupied.bytes);
            payload.u64(occupied.live_bytes);
        }
        Some(encode_frame(FrameKind::TankerOccupancy, pool, of.tanker, meta.as_slice(), payload.as_slice()))
    }

    /// Most bytes of the file of a list for `cells` cells.
    pub(crate) fn bytes_max(cells: u32) -> u64 {
        let body_bytes = META_BYTES + (cells as usize).min(ENTRIES_MAX) * ENTRY_BYTES;
        (FRAME_HEADER_BYTES + body_bytes.next_multiple_of(FRAME_ALIGNMENT_BYTES)) as u64
    }

    /// Decodes the whole file, which must be the list of exactly these files.
    pub(crate) fn decode(what: &str, bytes: &[u8], pool: &PoolId, of: &ListOf) -> Result<Self> {
        let expect = Expect { kind: FrameKind::TankerOccupancy, pool: Some(pool), owner: Some(of.tanker) };
        let frame = decode_frame(what, bytes, &expect, META_BYTES + ENTRIES_MAX * ENTRY_BYTES)?;
        if frame.header.frame_bytes() != bytes.len() as u64 {
            return Err(StoreError::corrupt(what, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
        }
        let mut meta = ByteReader::new(frame.meta, what);
        let version = meta.u16()?;
        if version != VERSION {
            return Err(StoreError::Unsupported {
                what: what.to_owned(),
                found: format!("occupancy version {version}"),
                advice: "it was written by a newer version of dedupfs, and is made anew".to_owned(),
            });
        }
        let found = (meta.u16()?, meta.u64()?, meta.u64()?, meta.u64()?);
        let count = meta.u32()?;
        meta.finish()?;
        let expected = (0, of.generation, of.cells_seal, of.counts_seal);
        if found != expected {
            return Err(StoreError::corrupt(what, format!("{expected:x?}"), format!("{found:x?}")));
        }
        if frame.payload.len() as u64 != u64::from(count) * ENTRY_BYTES as u64 {
            let found = format!("{} bytes", frame.payload.len());
            return Err(StoreError::corrupt(what, format!("{count} entries"), found));
        }
        // Bounded by the bytes of the file.
        let mut entries = Vec::with_capacity(count as usize);
        let mut reader = ByteReader::new(frame.payload, what);
        let (mut previous, mut cells) = (None, 0_u64);
        for _ in 0..count {
            let container = ContainerId(reader.u64()?);
            let occupied = Occupied {
                cells: reader.u32()?.into(),
                live_cells: reader.u32()?.into(),
                bytes: reader.u64()?,
                live_bytes: reader.u64()?,
            };
            if previous >= Some(container) || !is_sensible(&occupied) {
                let expected = "containers in order, each with cells, and the living among them";
                return Err(reader.corrupt(expected, format!("{container}: {occupied:?}")));
            }
            previous = Some(container);
            cells += occupied.cells;
            entries.push((container, occupied));
        }
        reader.finish()?;
        if cells != u64::from(of.cells) {
            return Err(StoreError::corrupt(what, format!("{} cells", of.cells), cells));
        }
        Ok(Self { entries })
    }

    /// Whether another list of the same cells agrees.
    pub(super) fn agrees_with(&self, shares: &ContainerShares) -> bool {
        self.entries.len() == shares.len()
            && self.iter().all(|(container, occupied)| {
                shares.of(container).is_some_and(|share| u64::from(share.cells) == occupied.cells)
            })
    }
}

/// Whether cells of at most 2^32 - 1 bytes each can have this occupancy.
fn is_sensible(occupied: &Occupied) -> bool {
    let fits = |bytes: u64, cells: u64| bytes <= cells * u64::from(u32::MAX);
    occupied.cells > 0
        && occupied.live_cells <= occupied.cells
        && occupied.live_bytes <= occupied.bytes
        && fits(occupied.live_bytes, occupied.live_cells)
        && fits(occupied.dead_bytes(), occupied.dead_cells())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{POOL, cell};

    const OF: ListOf = ListOf { tanker: 3, generation: 9, cells_seal: 17, counts_seal: 23, cells: 4 };

    fn list() -> OccupancyList {
        OccupancyList::from(&Tally::of([cell(7, 1), cell(7, 0), cell(2, 5), cell(9, 0)].into_iter()))
    }

    #[test]
    fn byte_map_is_stable() {
        let bytes = list().encode(&POOL, &OF).unwrap();
        assert_eq!(bytes.len() as u64, 64 + 128);
        assert!(bytes.len() as u64 <= OccupancyList::bytes_max(4));
        assert_eq!(OccupancyList::decode("list", &bytes, &POOL, &OF).unwrap(), list());
        let meta = [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(bytes[64..96], meta);
        let second =
            [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0xde, 7, 0, 0, 0, 0, 0, 0, 0xef, 3, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[128..160], second, "container 7: 2 cells, 1 live, 2014 bytes, 1007 live");
    }

    #[test]
    fn only_the_list_of_these_files_is_taken() {
        let bytes = list().encode(&POOL, &OF).unwrap();
        let others = [
            ListOf { tanker: 4, ..OF },
            ListOf { generation: 8, ..OF },
            ListOf { cells_seal: 18, ..OF },
            ListOf { counts_seal: 24, ..OF },
            ListOf { cells: 5, ..OF },
        ];
        for other in others {
            assert!(OccupancyList::decode("list", &bytes, &POOL, &other).is_err(), "{other:?}");
        }
        assert!(OccupancyList::decode("list", &bytes, &PoolId([8; 16]), &OF).is_err());
    }

    #[test]
    fn nonsense_with_good_checksums_is_an_error() {
        let entry = |container, cells, live_cells, bytes, live_bytes| {
            (ContainerId(container), Occupied { cells, live_cells, bytes, live_bytes })
        };
        let sound = entry(2, 4, 2, 100, 60);
        let wrong = [
            vec![entry(2, 3, 2, 100, 60)],
            vec![entry(2, 2, 2, 60, 60), entry(2, 2, 0, 40, 0)],
            vec![entry(3, 2, 2, 60, 60), entry(2, 2, 0, 40, 0)],
            vec![entry(2, 0, 0, 0, 0), entry(3, 4, 2, 100, 60)],
            vec![entry(2, 4, 5, 100, 60)],
            vec![entry(2, 4, 2, 100, 101)],
            vec![entry(2, 4, 0, 100, 60)],
            vec![entry(2, 4, 4, 100, 60)],
            vec![entry(2, 4, 2, 1 << 40, 60)],
            vec![],
        ];
        let decode = |entries: Vec<_>| {
            let bytes = OccupancyList { entries }.encode(&POOL, &OF).unwrap();
            OccupancyList::decode("list", &bytes, &POOL, &OF)
        };
        decode(vec![sound]).unwrap();
        for entries in wrong {
            assert!(decode(entries.clone()).is_err(), "{entries:?}");
        }
    }

    #[test]
    fn a_list_changes_as_its_cells_do() {
        let mut changes = Tally::default();
        changes.change(Some(cell(7, 1)), Some(cell(7, 0)));
        changes.change(Some(cell(9, 0)), Some(cell(9, 8)));
        let expected = [cell(7, 0), cell(7, 0), cell(2, 5), cell(9, 8)];
        assert_eq!(list().changed(&changes), OccupancyList::from(&Tally::of(expected.into_iter())));
    }
}
