//! Tables: the chunks of a container and their places.
//!
//! A [`TableBuilder`] grows with the regions placed in an open container. A [`Table`] is immutable and answers
//! [`find`](Table::find) by binary search. A sealed container ends with its table as a frame (the *table of contents*),
//! so that one read opens it. A container without one is scanned ([`super::scan`]) to the same table.
//!
//! Invariants, checked by [`decode_toc`] and [`TableBuilder::push_region`]: regions do not overlap and their offsets
//! ascend in multiples of 64; each region's entries follow those of the region before; their lengths add up to the
//! region's uncompressed bytes. If a fingerprint occurs twice, its first entry is found.
//!
//! Cost: 44 bytes of memory for a chunk; a container of 4 MiB at 8 KiB a chunk, compressed by half, takes 45 KiB.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use super::region::{REGION_BODY_BYTES_MAX, check_entries, read_entries, write_entries};
use super::{ENTRY_BYTES, EncodedRegion, REGION_ENTRIES_MAX, REGION_RAW_BYTES_MAX, RegionPlace, TableEntry};
use crate::codec::{ByteReader, ByteWriter};
use crate::error::{Result, StoreError};
use crate::fingerprint::Fingerprint;
use crate::frame::{
    Expect, FRAME_ALIGNMENT_BYTES, FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, FrameKind, decode_frame, encode_frame,
};
use crate::id::{ContainerId, ContainerKind, PoolId};

const TOC_META_BYTES: usize = 12;
const TOC_REGION_BYTES: usize = 16;
const REGION_FRAME_BYTES_MAX: usize =
    (FRAME_HEADER_BYTES + REGION_BODY_BYTES_MAX).next_multiple_of(FRAME_ALIGNMENT_BYTES);

/// Returns the largest table of contents with this number of entries and regions.
pub const fn toc_bytes_bound(entries: usize, regions: usize) -> usize {
    let body = TOC_META_BYTES + regions * TOC_REGION_BYTES + entries * ENTRY_BYTES;
    (FRAME_HEADER_BYTES + body).next_multiple_of(FRAME_ALIGNMENT_BYTES)
}

/// The place of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// Index of its region in [`Table::regions`].
    pub region: u32,
    /// Offset in the region's uncompressed bytes.
    pub offset_in_region: u32,
    /// Its length.
    pub len_bytes: u32,
}

/// The chunks of a container and their places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The container's id.
    pub container: ContainerId,
    /// The container's kind.
    pub kind: ContainerKind,
    /// Its regions, by offset.
    pub regions: Vec<RegionPlace>,
    /// Its chunks, region by region.
    pub entries: Vec<TableEntry>,
    /// Indices of `entries`, ordered by fingerprint, then index.
    sorted: Vec<u32>,
    /// For each entry its offset in its region's uncompressed bytes.
    offsets: Vec<u32>,
}

impl Table {
    fn new(
        container: ContainerId,
        kind: ContainerKind,
        regions: Vec<RegionPlace>,
        mut entries: Vec<TableEntry>,
    ) -> Self {
        let mut offsets = Vec::with_capacity(entries.len());
        let mut rest = entries.iter();
        for region in &regions {
            let mut offset = 0_u32;
            for entry in rest.by_ref().take(region.entry_count as usize) {
                offsets.push(offset);
                offset = offset.saturating_add(entry.len_bytes);
            }
        }
        // By their first bytes: comparing whole fingerprints takes four times as long.
        let mut sorted: Vec<(u64, u32)> = entries.iter().map(|entry| entry.fingerprint.prefix()).zip(0..).collect();
        let of = |index: u32| entries.get(index as usize).map(|entry| &entry.fingerprint);
        sorted.sort_unstable_by(|(left, one), (right, other)| {
            left.cmp(right).then_with(|| of(*one).cmp(&of(*other))).then(one.cmp(other))
        });
        let mut sorted: Vec<u32> = sorted.into_iter().map(|(_, index)| index).collect();
        // Collected in place, it holds more memory than it needs.
        sorted.shrink_to_fit();
        entries.shrink_to_fit();
        Self { container, kind, regions, entries, sorted, offsets }
    }

    /// Returns the place of a chunk, or `None` if the container lacks it.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<ChunkPlace> {
        let fingerprint_of = |index: &u32| self.entries.get(*index as usize).map(|entry| &entry.fingerprint);
        let position = self.sorted.partition_point(|index| fingerprint_of(index) < Some(fingerprint));
        let index = *self.sorted.get(position)?;
        let entry = self.entries.get(index as usize).filter(|entry| entry.fingerprint == *fingerprint)?;
        let region = self.regions.partition_point(|region| region.first_entry <= index).checked_sub(1)?;
        let offset_in_region = *self.offsets.get(index as usize)?;
        Some(ChunkPlace { region: region as u32, offset_in_region, len_bytes: entry.len_bytes })
    }

    /// Returns the entries of a region.
    pub fn region_entries(&self, region: &RegionPlace) -> &[TableEntry] {
        let first = region.first_entry as usize;
        self.entries.get(first..first + region.entry_count as usize).unwrap_or_default()
    }

    /// Memory of the table in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.regions.capacity() * size_of::<RegionPlace>()
            + self.entries.capacity() * size_of::<TableEntry>()
            + (self.sorted.capacity() + self.offsets.capacity()) * size_of::<u32>()
    }

    /// Uncompressed bytes of all chunks.
    pub fn chunk_bytes(&self) -> u64 {
        self.regions.iter().map(|region| u64::from(region.raw_bytes)).sum()
    }

    /// End of the last region; 0 if there is none.
    pub fn used_bytes(&self) -> u64 {
        self.regions.last().map_or(0, RegionPlace::end_bytes)
    }
}

/// A table that grows with its container.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    container: ContainerId,
    kind: ContainerKind,
    pub(super) regions: Vec<RegionPlace>,
    pub(super) entries: Vec<TableEntry>,
}

impl TableBuilder {
    /// Returns an empty builder.
    pub const fn new(container: ContainerId, kind: ContainerKind) -> Self {
        Self { container, kind, regions: Vec::new(), entries: Vec::new() }
    }

    /// Adds the region placed at `offset_bytes`, which must be aligned and behind all earlier regions.
    pub fn push_region(&mut self, offset_bytes: u32, region: &EncodedRegion) -> Result<()> {
        self.push(offset_bytes, region.frame_bytes, region.raw_bytes, &region.entries)
    }

    pub(super) fn push(
        &mut self,
        offset_bytes: u32,
        frame_bytes: u32,
        raw_bytes: u32,
        entries: &[TableEntry],
    ) -> Result<()> {
        let place = RegionPlace {
            offset_bytes,
            frame_bytes,
            raw_bytes,
            first_entry: self.entries.len() as u32,
            entry_count: entries.len() as u32,
        };
        let end = self.regions.last().map_or(0, RegionPlace::end_bytes);
        check_place(&format!("container {}", self.container), &place, end)
            .map_err(|error| StoreError::Usage(error.to_string()))?;
        self.regions.push(place);
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    /// Returns the table in its current state.
    pub fn snapshot(&self) -> Table {
        Table::new(self.container, self.kind, self.regions.clone(), self.entries.clone())
    }

    /// The finished table.
    #[must_use]
    pub fn build(mut self) -> Table {
        self.regions.shrink_to_fit();
        self.entries.shrink_to_fit();
        Table::new(self.container, self.kind, self.regions, self.entries)
    }

    /// Encodes the table of contents as a frame, to be written behind the last region.
    pub fn encode_toc(&self, pool: &PoolId) -> Vec<u8> {
        let mut meta = ByteWriter::with_capacity(TOC_META_BYTES);
        meta.u8(self.kind as u8);
        meta.bytes(&[0; 3]); // reserved
        meta.u32(self.regions.len() as u32);
        meta.u32(self.entries.len() as u32);
        let mut payload =
            ByteWriter::with_capacity(self.regions.len() * TOC_REGION_BYTES + self.entries.len() * ENTRY_BYTES);
        for region in &self.regions {
            payload.u32(region.offset_bytes);
            payload.u32(region.frame_bytes);
            payload.u32(region.raw_bytes);
            payload.u32(region.entry_count);
        }
        write_entries(&mut payload, &self.entries);
        encode_frame(FrameKind::Toc, pool, self.container.0, meta.as_slice(), payload.as_slice())
    }
}

/// Decodes and verifies the table of contents of `container`. Other bytes may follow `frame`.
pub fn decode_toc(pool: &PoolId, container: ContainerId, frame: &[u8]) -> Result<Table> {
    let what = format!("table of contents of container {container}");
    let expect = Expect { kind: FrameKind::Toc, pool: Some(pool), owner: Some(container.0) };
    let frame = decode_frame(&what, frame, &expect, FRAME_BODY_BYTES_MAX)?;
    let mut meta = ByteReader::new(frame.meta, &what);
    let kind = meta.u8()?;
    let kind = ContainerKind::from_u8(kind).ok_or_else(|| meta.corrupt("a container kind (1 or 2)", kind))?;
    if meta.array::<3>()? != [0; 3] {
        return Err(meta.corrupt("zeros in reserved bytes", "other bytes"));
    }
    let (region_count, entry_count) = (meta.u32()?, meta.u32()?);
    meta.finish()?;
    let mut payload = ByteReader::new(frame.payload, &what);
    let mut columns = ByteReader::new(payload.bytes(region_count as usize * TOC_REGION_BYTES)?, &what);
    // Allocations are bounded: the bytes for the regions exist, and `read_entries` checks the same for the entries.
    let mut regions = Vec::with_capacity(region_count as usize);
    let mut rest = read_entries(&mut payload, entry_count)?;
    payload.finish()?;
    let (mut end, mut first_entry) = (0_u64, 0_u32);
    for _ in 0..region_count {
        let (offset_bytes, frame_bytes) = (columns.u32()?, columns.u32()?);
        let (raw_bytes, entry_count) = (columns.u32()?, columns.u32()?);
        let place = RegionPlace { offset_bytes, frame_bytes, raw_bytes, first_entry, entry_count };
        check_place(&what, &place, end)?;
        let entries = rest.get(first_entry as usize..).and_then(|rest| rest.get(..entry_count as usize));
        let entries = entries.ok_or_else(|| columns.corrupt("entries for all regions", "fewer"))?;
        check_entries(&what, entries, raw_bytes.into())?;
        (end, first_entry) = (place.end_bytes(), first_entry.saturating_add(entry_count));
        regions.push(place);
    }
    if first_entry != entry_count {
        return Err(columns.corrupt(format!("regions for {entry_count} entries"), first_entry));
    }
    rest.shrink_to_fit();
    Ok(Table::new(container, kind, regions, rest))
}

/// Checks a region's place: aligned, behind `end_before`, and within all limits.
fn check_place(what: &str, place: &RegionPlace, end_before: u64) -> Result<()> {
    let aligned = |bytes: u32| (bytes as usize).is_multiple_of(FRAME_ALIGNMENT_BYTES);
    let sound = aligned(place.offset_bytes)
        && aligned(place.frame_bytes)
        && (FRAME_HEADER_BYTES..=REGION_FRAME_BYTES_MAX).contains(&(place.frame_bytes as usize))
        && u64::from(place.offset_bytes) >= end_before
        && place.end_bytes() <= u64::from(u32::MAX)
        && place.raw_bytes as usize <= REGION_RAW_BYTES_MAX
        && (1..=REGION_ENTRIES_MAX).contains(&(place.entry_count as usize))
        && place.first_entry.checked_add(place.entry_count).is_some();
    if !sound {
        return Err(StoreError::corrupt(what, format!("an aligned region behind {end_before}"), format!("{place:?}")));
    }
    Ok(())
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
