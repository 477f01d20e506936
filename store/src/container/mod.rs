//! Containers: self-describing, append-only runs of chunks or recipe nodes.
//!
//! A container lies in one *slot* of a large file (`slots`) and is a sequence of frames: *regions* (`region`), each
//! a list of fingerprints and lengths and the bytes themselves, compressed together; then, in a sealed container, one
//! *table of contents* (`table`). Frames start at multiples of 64 bytes. Each write-out pads with zeros to the next
//! multiple of 4096, so that direct I/O never rewrites a synced block.
//!
//! Steps of a writer: collect chunks up to a region's target size; [`encode_region`]; place the frame at the next
//! offset and tell the [`TableBuilder`]; write and sync through [`SlotFiles`]; at the end append
//! [`TableBuilder::encode_toc`]. Steps of a reader: get a [`Table`] from the table of contents ([`decode_toc`]) or, if
//! there is none, from the regions' own lists ([`scan_table`]); [`Table::find`]; read that region's frame;
//! [`decode_region`]; take the chunk out of it.
//!
//! Invariants: a frame carries its container's id, so leftovers of an earlier user of the slot are never taken for the
//! container's frames; an id is never used twice. A container's own bytes suffice to rebuild its index entries (I-6).
//!
//! Data containers and recipe containers differ only in their [`ContainerKind`](crate::ContainerKind) and root.

use std::fmt;
use std::str::FromStr;

use crate::codec::align_up;
use crate::error::StoreError;
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};

mod compressible;
pub(crate) mod record;
mod region;
mod scan;
mod slot_states;
mod slots;
mod table;

pub use region::{DecodedRegion, EncodedRegion, decode_region, encode_region, region_frame_bytes_bound};
pub use scan::{ScannedTable, scan_table};
pub use slots::{SlotAddress, SlotFiles};
pub use table::{ChunkPlace, Table, TableBuilder, decode_toc, toc_bytes_bound};

/// Each write-out pads to a multiple of this. A scan looks there for the next frame.
const WRITE_OUT_ALIGNMENT_BYTES: usize = crate::device::DIRECT_ALIGNMENT_BYTES;

/// Limit of a region's uncompressed bytes. Regions aim at 128 to 256 KiB and a chunk has at most 1 MiB; the rest is for
/// the largest recipe node. It bounds the memory that decoding a region allocates.
pub const REGION_RAW_BYTES_MAX: usize = 16 << 20;

/// Limit of the chunks in a region (tiny files make tiny chunks). It bounds a region's list to 2.3 MiB.
const REGION_ENTRIES_MAX: usize = 65_536;

/// Bytes of one list entry on disk: fingerprint and length.
pub const ENTRY_BYTES: usize = FINGERPRINT_BYTES + 4;

/// One chunk in a region: its fingerprint and length. Its place follows from the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// Fingerprint of the chunk; never [`Fingerprint::ZERO`].
    pub fingerprint: Fingerprint,
    /// Uncompressed length, at least 1.
    pub len_bytes: u32,
}

/// The place of a region in its container, and its entries in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionPlace {
    /// Offset of the frame in the container.
    pub offset_bytes: u32,
    /// Bytes of the frame with header and padding.
    pub frame_bytes: u32,
    /// Uncompressed bytes of its chunks.
    pub raw_bytes: u32,
    /// Index of its first entry in the table.
    pub first_entry: u32,
    /// Number of its entries.
    pub entry_count: u32,
}

impl RegionPlace {
    /// Offset just after the frame.
    const fn end_bytes(&self) -> u64 {
        self.offset_bytes as u64 + self.frame_bytes as u64
    }
}

const fn align_to_write_out(offset_bytes: u64) -> u64 {
    align_up(offset_bytes, WRITE_OUT_ALIGNMENT_BYTES as u64)
}

/// The compression of regions. Readers need no setting: each region names its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compression {
    /// Stored uncompressed.
    None,
    /// zstd at this level, 1 to 19.
    Zstd(i32),
}

/// The levels of zstd that are accepted.
pub(crate) const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd(1)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text == "none" {
            return Ok(Self::None);
        }
        let level = text.strip_prefix("zstd:").and_then(|level| level.parse::<i32>().ok());
        match level {
            Some(level) if ZSTD_LEVELS.contains(&level) => Ok(Self::Zstd(level)),
            _ => Err(StoreError::Usage(format!(
                "compression {text:?} is not known: use \"none\" or \"zstd:LEVEL\" with a level of {} to {}",
                ZSTD_LEVELS.start(),
                ZSTD_LEVELS.end()
            ))),
        }
    }
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_parsed_and_printed() {
        for text in ["none", "zstd:1", "zstd:19"] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        for text in ["", "zstd", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:x", "lz4", "None"] {
            let message = text.parse::<Compression>().unwrap_err().to_string();
            assert!(message.contains("1 to 19"), "{message}");
        }
    }
}
