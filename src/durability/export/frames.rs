//! Frames of an export: compressed items, with the commits that they lead from and to.
//!
//! A *group* is a run of frames that count together: a base, or one delta of a log. Its last frame is marked, so a group that was cut
//! off counts as absent. Nothing is believed before its checksums are checked (invariant I-5): first the frame's, then each record's.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_namespace::{ExportTable, Item, KEY_BYTES_MAX};
use dedupfs_store::codec::{ByteReader, ByteWriter, align_up};
use dedupfs_store::device::DeviceFile;
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

use crate::config::{EXPORT_FRAME_BYTES, EXPORT_FRAME_BYTES_MAX};

/// Version of the meta part.
const VERSION: u16 = 1;
const FLAG_LAST: u16 = 1;
const META_BYTES: usize = 48;
/// Groups begin at multiples of this, so that no synced block is written again.
pub(super) const GROUP_ALIGNMENT_BYTES: u64 = 4096;
/// zstd's fastest level: saves two thirds, at some 300 MB/s.
const COMPRESSION_LEVEL: i32 = 1;
const _: () = assert!(EXPORT_FRAME_BYTES < EXPORT_FRAME_BYTES_MAX);

/// The identity of a group, with the commits that it leads from and to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// The base it belongs to.
    pub(super) generation: u64,
    /// 0 for the base, then counts the deltas of its log.
    pub(super) number: u32,
    /// The commit whose state it extends; 0 for a base.
    pub(super) from_row: u64,
    /// The commit whose state results.
    pub(super) row: u64,
    /// When it was written, in seconds since 1970.
    pub(super) time_secs: u64,
}

/// Writes one group. It is durable only once the caller has synced the file.
pub(super) struct GroupWriter {
    file: Arc<dyn DeviceFile>,
    pool: PoolId,
    group: Group,
    start_bytes: u64,
    offset_bytes: u64,
    frame: u32,
    raw: ByteWriter,
    items: u32,
}

impl GroupWriter {
    pub(super) fn new(file: Arc<dyn DeviceFile>, pool: PoolId, group: Group, start_bytes: u64) -> Self {
        let (offset_bytes, raw) = (start_bytes, ByteWriter::new());
        Self { file, pool, group, start_bytes, offset_bytes, frame: 0, raw, items: 0 }
    }

    pub(super) fn push(&mut self, item: Item<'_>) -> Result<()> {
        self.raw.u8(item.table as u8);
        self.raw.u8(u8::from(item.value.is_some()));
        self.raw.u16(item.key.len() as u16); // A key is a number, or a number and a name.
        self.raw.bytes(item.key);
        if let Some(value) = item.value {
            self.raw.u32(value.len() as u32); // A record: at most an attribute's 64 KiB.
            self.raw.bytes(value);
        }
        self.items += 1;
        if self.raw.as_slice().len() >= EXPORT_FRAME_BYTES { self.write(0) } else { Ok(()) }
    }

    /// Writes the last frame; returns the new length of the file.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.write(FLAG_LAST)?;
        Ok(align_up(self.offset_bytes, GROUP_ALIGNMENT_BYTES))
    }

    /// Bytes written so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.offset_bytes - self.start_bytes
    }

    fn write(&mut self, flags: u16) -> Result<()> {
        let raw = std::mem::take(&mut self.raw).into_vec();
        let packed = zstd::bulk::compress(&raw, COMPRESSION_LEVEL)
            .map_err(|error| StoreError::from_io("compress", "an export", error))?;
        let mut meta = ByteWriter::with_capacity(META_BYTES);
        meta.u16(VERSION);
        meta.u16(flags);
        meta.u32(self.group.number);
        meta.u32(self.frame);
        meta.u32(self.items);
        meta.u32(raw.len() as u32); // Bounded: a frame is written once it is full.
        meta.u32(0);
        [self.group.from_row, self.group.row, self.group.time_secs].into_iter().for_each(|number| meta.u64(number));
        let mut bytes = encode_frame(FrameKind::Export, &self.pool, self.group.generation, meta.as_slice(), &packed);
        if flags & FLAG_LAST != 0 {
            let end_bytes = align_up(self.offset_bytes + bytes.len() as u64, GROUP_ALIGNMENT_BYTES);
            bytes.resize(usize::try_from(end_bytes - self.offset_bytes).unwrap_or(bytes.len()), 0);
        }
        self.file.write_at(&bytes, self.offset_bytes)?;
        self.offset_bytes += bytes.len() as u64;
        (self.frame, self.items) = (self.frame + 1, 0);
        Ok(())
    }
}

/// One frame, read and checked.
pub(super) struct ReadFrame {
    pub(super) group: Group,
    /// Number within its group.
    pub(super) frame: u32,
    pub(super) is_last: bool,
    /// Number of its items.
    pub(super) items: u32,
    raw_bytes: usize,
    packed: Vec<u8>,
    /// End of its own bytes; zeros follow up to the next frame.
    own_end_bytes: u64,
    /// Start of the next frame.
    pub(super) end_bytes: u64,
}

impl ReadFrame {
    /// Reads and checks the frame of this generation at `offset_bytes`. The payload stays packed.
    pub(super) fn read(
        file: &dyn DeviceFile,
        what: &str,
        pool: &PoolId,
        generation: u64,
        offset_bytes: u64,
    ) -> Result<Self> {
        let mut head = [0; FRAME_HEADER_BYTES];
        file.read_exact_at(&mut head, offset_bytes)?;
        let expect = Expect { kind: FrameKind::Export, pool: Some(pool), owner: Some(generation) };
        let header = FrameHeader::decode(what, &head)?;
        header.check(what, &expect, EXPORT_FRAME_BYTES_MAX)?;
        let mut bytes = vec![0; usize::try_from(header.frame_bytes()).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, offset_bytes)?;
        let frame = decode_frame(what, &bytes, &expect, EXPORT_FRAME_BYTES_MAX)?;
        let mut meta = ByteReader::new(frame.meta, what);
        let version = meta.u16()?;
        if version != VERSION {
            let (what, found) = (what.to_owned(), format!("version {version}"));
            let advice = "use the release that wrote it, or a newer one".to_owned();
            return Err(StoreError::Unsupported { what, found, advice }.into());
        }
        let flags = meta.u16()?;
        let (number, frame_number, items, raw_bytes) = (meta.u32()?, meta.u32()?, meta.u32()?, meta.u32()? as usize);
        let reserved = meta.u32()?;
        if flags & !FLAG_LAST != 0 || reserved != 0 || raw_bytes > EXPORT_FRAME_BYTES_MAX {
            let found = format!("flags {flags:#x}, {reserved:#x}, {raw_bytes} bytes");
            return Err(StoreError::corrupt(what, "known flags and a bounded payload", found).into());
        }
        let (from_row, row, time_secs) = (meta.u64()?, meta.u64()?, meta.u64()?);
        meta.finish()?;
        let is_last = flags & FLAG_LAST != 0;
        let end_bytes = offset_bytes + header.frame_bytes();
        Ok(Self {
            group: Group { generation, number, from_row, row, time_secs },
            frame: frame_number,
            is_last,
            items,
            raw_bytes,
            packed: frame.payload.to_vec(),
            own_end_bytes: end_bytes,
            end_bytes: if is_last { align_up(end_bytes, GROUP_ALIGNMENT_BYTES) } else { end_bytes },
        })
    }

    /// Checks the padding up to the next frame, which nothing else reads.
    pub(super) fn check_padding(&self, file: &dyn DeviceFile, what: &str) -> Result<()> {
        let len = usize::try_from(self.end_bytes.saturating_sub(self.own_end_bytes)).unwrap_or(0);
        let mut padding = vec![0; len.min(GROUP_ALIGNMENT_BYTES as usize)];
        file.read_exact_at(&mut padding, self.own_end_bytes)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(StoreError::corrupt(what, "zeros behind a group", "other bytes").into());
        }
        Ok(())
    }

    /// Unpacks the payload.
    pub(super) fn unpack(&self, what: &str) -> Result<Vec<u8>> {
        let raw = zstd::bulk::decompress(&self.packed, self.raw_bytes);
        let raw = raw.map_err(|error| StoreError::corrupt(what, "zstd data", error))?;
        if raw.len() == self.raw_bytes {
            return Ok(raw);
        }
        Err(StoreError::corrupt(what, format!("{} bytes unpacked", self.raw_bytes), raw.len()).into())
    }

    /// Decodes the items of an unpacked payload.
    pub(super) fn items<'a>(&self, what: &'a str, raw: &'a [u8]) -> Result<Vec<Item<'a>>> {
        let mut reader = ByteReader::new(raw, what);
        let mut items = Vec::new();
        while reader.remaining() > 0 {
            let table = reader.u8()?;
            let table = ExportTable::from_u8(table).ok_or_else(|| reader.corrupt("a table of 1 to 5", table))?;
            let has_value = match reader.u8()? {
                0 => false,
                1 => true,
                other => return Err(reader.corrupt("0 or 1", other).into()),
            };
            let key_bytes = usize::from(reader.u16()?);
            if key_bytes > KEY_BYTES_MAX {
                return Err(reader.corrupt(format!("a key of at most {KEY_BYTES_MAX} bytes"), key_bytes).into());
            }
            let key = reader.bytes(key_bytes)?;
            let value = if has_value {
                let value_bytes = reader.u32()? as usize;
                Some(reader.bytes(value_bytes)?)
            } else {
                None
            };
            items.push(Item { table, key, value });
        }
        if items.len() != self.items as usize {
            return Err(reader.corrupt(format!("{} items", self.items), items.len()).into());
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

    use super::*;

    const POOL: PoolId = PoolId([7; 16]);

    /// Writes a frame of one item with these fields of its meta part, under checksums that fit, and reads it.
    fn read(flags: u16, reserved: u32, raw_bytes: usize) -> Result<ReadFrame> {
        let mut meta = ByteWriter::new();
        [VERSION, flags].into_iter().for_each(|number| meta.u16(number));
        [1, 0, 1, raw_bytes as u32, reserved].into_iter().for_each(|number| meta.u32(number));
        [1, 2, 3].into_iter().for_each(|number| meta.u64(number));
        let bytes = encode_frame(FrameKind::Export, &POOL, 1, meta.as_slice(), b"packed");
        let file = MemoryDevice::new().open("log", OpenMode::CreateNew).expect("creates");
        file.write_at(&bytes, 0).expect("writes");
        ReadFrame::read(&*file, "log", &POOL, 1, 0)
    }

    #[test]
    fn a_frame_with_a_field_that_no_release_writes_is_refused() {
        assert!(read(FLAG_LAST, 0, EXPORT_FRAME_BYTES_MAX).is_ok_and(|frame| frame.is_last));
        assert!(read(0, 0, 0).is_ok_and(|frame| !frame.is_last));
        assert!(read(2, 0, 100).is_err());
        assert!(read(FLAG_LAST, 1, 100).is_err());
        assert!(read(FLAG_LAST, 0, EXPORT_FRAME_BYTES_MAX + 1).is_err());
    }

    /// A log with sound checksums could make a reader keep keys of any length.
    #[test]
    fn regression_a_key_longer_than_the_namespace_has_is_refused() {
        let file = MemoryDevice::new().open("log", OpenMode::CreateNew).expect("creates");
        let is_read = |key_bytes: usize| {
            let group = Group { generation: 1, number: 1, from_row: 1, row: 2, time_secs: 3 };
            let mut writer = GroupWriter::new(Arc::clone(&file), POOL, group, 0);
            let (table, key) = (ExportTable::Names, vec![7; key_bytes]);
            writer.push(Item { table, key: &key, value: Some(b"value") }).expect("takes an item");
            writer.finish().expect("writes");
            let frame = ReadFrame::read(&*file, "log", &POOL, 1, 0).expect("reads");
            let raw = frame.unpack("log").expect("unpacks");
            frame.items("log", &raw).is_ok_and(|items| items.len() == 1)
        };
        assert!(is_read(KEY_BYTES_MAX));
        assert!(!is_read(KEY_BYTES_MAX + 1));
        assert!(!is_read(usize::from(u16::MAX)));
    }
}
