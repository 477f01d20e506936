//! Regions: chunks that are compressed together, with the list of their fingerprints.
//!
//! A region is a frame. Its meta lists the chunks: codec, container kind, count, uncompressed length, fingerprints,
//! lengths, and a checksum of the list itself. Its payload is the chunks' bytes one after another, compressed or not.
//! The list's own checksum, seeded with the container's id, lets a scan trust the list without reading the payload.
//!
//! Encoding compresses with zstd into a bounded buffer. If that does not save at least one sixteenth, the chunks are
//! stored uncompressed: reading incompressible data back is then a copy. Data that looks random is not tried
//! ([`super::compressible`]). Each thread keeps its compressor, because making one costs more than compressing a small
//! region.
//!
//! Cost: compression is by far the most expensive step of the write path (0.85 GB/s at level 1), so it belongs on
//! workers. Chunks that stay uncompressed are not copied: the frame is laid around them.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

use super::compressible::{TRIAL_BYTES, is_evenly_spread};
use super::{Compression, ENTRY_BYTES, REGION_ENTRIES_MAX, REGION_RAW_BYTES_MAX, TableEntry};
use crate::codec::{ByteReader, ByteWriter, checksum_seeded};
use crate::error::{Result, StoreError};
use crate::frame::{
    Expect, FRAME_ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame,
    encode_frame_head,
};
use crate::id::{ContainerId, ContainerKind, PoolId};

/// Bytes of a region's meta before the entries: codec, kind, reserved, count, uncompressed length.
const META_HEAD_BYTES: usize = 12;
/// Bytes of a region's meta besides the entries: the head and the list's checksum.
const META_FIXED_BYTES: usize = META_HEAD_BYTES + 8;

/// Limit of a region's body: a full list, and chunks that did not compress.
pub(super) const REGION_BODY_BYTES_MAX: usize =
    META_FIXED_BYTES + REGION_ENTRIES_MAX * ENTRY_BYTES + REGION_RAW_BYTES_MAX;

/// A larger compression buffer (for a region far beyond the usual size) is not kept.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// Uncompressed chunks below this size are copied into the frame. Their buffer may be much larger, and a frame laid
/// around it would keep it alive.
const AROUND_BYTES_MIN: usize = 64 << 10;

const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;

thread_local! {
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    /// Compressed bytes on their way into a frame. Kept because fresh memory is slow.
    static COMPRESSED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A region ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedRegion {
    /// The whole frame, or the part before the chunks' bytes.
    pub head: Vec<u8>,
    /// Whether the uncompressed chunks follow the head, and then zeros up to the frame's end.
    pub raw_follows: bool,
    /// Bytes of the whole frame, a multiple of 64.
    pub frame_bytes: u32,
    /// Its chunks in order.
    pub entries: Vec<TableEntry>,
    /// Uncompressed bytes of all chunks.
    pub raw_bytes: u32,
}

impl EncodedRegion {
    /// Returns the whole frame in one piece; `raw` are the chunks' bytes that it was made of.
    pub fn frame(&self, raw: &[u8]) -> Vec<u8> {
        let mut frame = self.head.clone();
        if self.raw_follows {
            frame.extend_from_slice(raw);
            frame.resize(self.frame_bytes as usize, 0);
        }
        frame
    }
}

/// A region that was read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedRegion {
    /// The kind of its container.
    pub kind: ContainerKind,
    /// Its chunks in order.
    pub entries: Vec<TableEntry>,
    /// The chunks' bytes, one after another.
    pub raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegionMeta {
    pub(super) kind: ContainerKind,
    codec: u8,
    pub(super) raw_bytes: u32,
    pub(super) entries: Vec<TableEntry>,
}

/// Returns the largest frame size of a region with this number of entries and uncompressed bytes.
pub const fn region_frame_bytes_bound(entries: usize, raw_bytes: usize) -> usize {
    (FRAME_HEADER_BYTES + META_FIXED_BYTES + entries * ENTRY_BYTES + raw_bytes).next_multiple_of(FRAME_ALIGNMENT_BYTES)
}

/// Encodes a region of `container` from its chunks' list and their bytes one after another.
///
/// # Errors
/// [`StoreError::Usage`]: the list does not fit the bytes, or a limit is exceeded.
pub fn encode_region(
    pool: &PoolId,
    container: ContainerId,
    kind: ContainerKind,
    entries: Vec<TableEntry>,
    raw: &[u8],
    compression: Compression,
) -> Result<EncodedRegion> {
    if entries.is_empty() || entries.len() > REGION_ENTRIES_MAX || raw.len() > REGION_RAW_BYTES_MAX {
        return Err(StoreError::Usage(format!(
            "a region has 1 to {REGION_ENTRIES_MAX} chunks of {REGION_RAW_BYTES_MAX} bytes in all, not {} of {}",
            entries.len(),
            raw.len()
        )));
    }
    check_entries("region to be written", &entries, raw.len() as u64)
        .map_err(|error| StoreError::Usage(error.to_string()))?;
    let raw_bytes = raw.len() as u32; // Bounded above.
    let (head, raw_follows) = with_compressed(raw, compression, |compressed| {
        let (codec, payload) = compressed.map_or((CODEC_NONE, raw), |bytes| (CODEC_ZSTD, bytes));
        let meta = encode_meta(container, kind, codec, raw_bytes, &entries);
        let raw_follows = codec == CODEC_NONE && raw.len() >= AROUND_BYTES_MIN;
        let encode = if raw_follows { encode_frame_head } else { encode_frame };
        (encode(FrameKind::Region, pool, container.0, &meta, payload), raw_follows)
    });
    let following_bytes = if raw_follows { raw.len() } else { 0 };
    // Bounded by the limits above.
    let frame_bytes = (head.len() + following_bytes).next_multiple_of(FRAME_ALIGNMENT_BYTES) as u32;
    Ok(EncodedRegion { head, raw_follows, frame_bytes, entries, raw_bytes })
}

/// Decodes and verifies a region of `container`. Other bytes may follow `frame`.
pub fn decode_region(pool: &PoolId, container: ContainerId, frame: &[u8]) -> Result<DecodedRegion> {
    let what = format!("region of container {container}");
    let expect = Expect { kind: FrameKind::Region, pool: Some(pool), owner: Some(container.0) };
    let frame = decode_frame(&what, frame, &expect, REGION_BODY_BYTES_MAX)?;
    let meta = decode_meta(&what, container, frame.meta)?;
    let raw_bytes = meta.raw_bytes as usize;
    let raw = match meta.codec {
        CODEC_NONE => frame.payload.to_vec(),
        CODEC_ZSTD => decompress(&what, frame.payload, raw_bytes)?,
        codec => return Err(unknown_codec(&what, codec)),
    };
    if raw.len() != raw_bytes {
        return Err(StoreError::corrupt(what, format!("{raw_bytes} uncompressed bytes"), raw.len()));
    }
    Ok(DecodedRegion { kind: meta.kind, entries: meta.entries, raw })
}

/// Checks that a header belongs to a region of `container`.
pub(super) fn check_region_header(
    what: &str,
    pool: &PoolId,
    container: ContainerId,
    header: &FrameHeader,
) -> Result<()> {
    let expect = Expect { kind: FrameKind::Region, pool: Some(pool), owner: Some(container.0) };
    header.check(what, &expect, REGION_BODY_BYTES_MAX)
}

fn encode_meta(
    container: ContainerId,
    kind: ContainerKind,
    codec: u8,
    raw_bytes: u32,
    entries: &[TableEntry],
) -> Vec<u8> {
    let mut writer = ByteWriter::with_capacity(META_FIXED_BYTES + entries.len() * ENTRY_BYTES);
    writer.u8(codec);
    writer.u8(kind as u8);
    writer.u16(0); // reserved
    writer.u32(entries.len() as u32); // Bounded by the caller.
    writer.u32(raw_bytes);
    write_entries(&mut writer, entries);
    let own = checksum_seeded(writer.as_slice(), container.0);
    writer.u64(own);
    writer.into_vec()
}

/// Decodes a region's meta. It trusts only the meta's own checksum.
pub(super) fn decode_meta(what: &str, container: ContainerId, meta: &[u8]) -> Result<RegionMeta> {
    let covered_bytes = meta.len().saturating_sub(8);
    let (covered, trailer) = meta.split_at_checked(covered_bytes).unwrap_or_default();
    let (expected, found) = (ByteReader::new(trailer, what).u64()?, checksum_seeded(covered, container.0));
    StoreError::check_sum(what, "list checksum", expected, found)?;
    let mut reader = ByteReader::new(covered, what);
    let (codec, kind, reserved) = (reader.u8()?, reader.u8()?, reader.u16()?);
    if reserved != 0 || codec > CODEC_ZSTD {
        return Err(unknown_codec(what, codec));
    }
    let kind = ContainerKind::from_u8(kind).ok_or_else(|| reader.corrupt("a container kind (1 or 2)", kind))?;
    let (count, raw_bytes) = (reader.u32()?, reader.u32()?);
    if raw_bytes as usize > REGION_RAW_BYTES_MAX || count == 0 || count as usize > REGION_ENTRIES_MAX {
        let expected =
            format!("at least 1 and at most {REGION_ENTRIES_MAX} chunks of {REGION_RAW_BYTES_MAX} bytes in all");
        return Err(reader.corrupt(expected, format!("{count} of {raw_bytes}")));
    }
    let entries = read_entries(&mut reader, count)?;
    reader.finish()?;
    check_entries(what, &entries, raw_bytes.into())?;
    Ok(RegionMeta { kind, codec, raw_bytes, entries })
}

/// Appends a list column by column.
pub(super) fn write_entries(writer: &mut ByteWriter, entries: &[TableEntry]) {
    entries.iter().for_each(|entry| writer.fingerprint(&entry.fingerprint));
    entries.iter().for_each(|entry| writer.u32(entry.len_bytes));
}

/// Reads a list of `count` entries. It allocates no more than the available bytes can fill.
pub(super) fn read_entries(reader: &mut ByteReader<'_>, count: u32) -> Result<Vec<TableEntry>> {
    let count = count as usize;
    let columns = count.checked_mul(ENTRY_BYTES).filter(|&bytes| bytes <= reader.remaining());
    if columns.is_none() {
        return Err(reader.corrupt(format!("{count} entries"), format!("{} bytes", reader.remaining())));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(TableEntry { fingerprint: reader.fingerprint()?, len_bytes: 0 });
    }
    for entry in &mut entries {
        entry.len_bytes = reader.u32()?;
    }
    Ok(entries)
}

/// Checks that no entry is empty or has the built-in fingerprint, and that the lengths add up.
pub(super) fn check_entries(what: &str, entries: &[TableEntry], raw_bytes: u64) -> Result<()> {
    let mut sum = 0_u64;
    for entry in entries {
        if entry.len_bytes == 0 || entry.fingerprint.is_zero() {
            let found = format!("{} bytes of {}", entry.len_bytes, entry.fingerprint);
            return Err(StoreError::corrupt(what, "chunks with bytes and a fingerprint", found));
        }
        sum += u64::from(entry.len_bytes); // No overflow: fewer than 2^32 entries.
    }
    if sum != raw_bytes {
        return Err(StoreError::corrupt(what, format!("chunks of {raw_bytes} bytes in all"), sum));
    }
    Ok(())
}

fn unknown_codec(what: &str, codec: u8) -> StoreError {
    StoreError::newer(what, format!("region codec {codec}"))
}

/// Calls `use_it` with the compressed bytes, or with `None` if compression is off or saves too little.
fn with_compressed<T>(raw: &[u8], compression: Compression, use_it: impl FnOnce(Option<&[u8]>) -> T) -> T {
    let Compression::Zstd(level) = compression else { return use_it(None) };
    COMPRESSED.with_borrow_mut(|buffer| {
        let limit = raw.len() - raw.len() / 16;
        buffer.resize(limit.saturating_sub(1), 0);
        let compressed = COMPRESSOR.with_borrow_mut(|slot| {
            let context = match slot {
                Some((of_level, context)) if *of_level == level => context,
                _ => &mut slot.insert((level, Compressor::new(level).ok()?)).1,
            };
            // It fails if the result does not fit: then compression saves too little.
            let mut try_with = |raw: &[u8]| {
                let most = (raw.len() - raw.len() / 16).saturating_sub(1);
                context.compress_to_buffer(raw, buffer.get_mut(..most)?).ok()
            };
            if is_evenly_spread(raw) {
                try_with(raw.get(..TRIAL_BYTES)?)?;
            }
            try_with(raw)
        });
        let used = use_it(compressed.and_then(|len| buffer.get(..len)));
        if buffer.capacity() > KEPT_BYTES_MAX {
            *buffer = Vec::new();
        }
        used
    })
}

fn decompress(what: &str, payload: &[u8], raw_bytes: usize) -> Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let failed = |error: std::io::Error| {
            let found = format!("data for which zstd says: {error}");
            StoreError::corrupt(what, format!("zstd data of {raw_bytes} bytes"), found)
        };
        let context = match slot {
            Some(context) => context,
            None => slot.insert(Decompressor::new().map_err(failed)?),
        };
        // Bounded by REGION_RAW_BYTES_MAX, and protected by two checksums.
        let mut raw = Vec::with_capacity(raw_bytes);
        context.decompress_to_buffer(payload, &mut raw).map_err(failed)?;
        Ok(raw)
    })
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
