//! The open tanker as of a checkpoint: a file of frames of at most 65,536 unordered cells each, and nothing behind
//! them.
//!
//! Each checkpoint that finds the open tanker changed writes it as a whole (at most 48 MiB with the default shape).
//! Opening the index reads it as a whole.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::device::OpenMode;
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{ContainerId, Fingerprint, Result, StoreError};

use crate::cell::{Cell, Entry, Location, OPEN_CELL_BYTES, encode_cell};
use crate::names::{FileWriter, join, open_name};
use crate::options::CELLS_PER_TANKER_MAX;
use crate::sealed::Writer;

const VERSION: u16 = 1;

const CELLS_PER_FRAME: usize = 1 << 16;

const META_BYTES: usize = 2 + 2 + 8 + 4 + 4 + 4;

const FRAME_BODY_BYTES_MAX: usize = META_BYTES + CELLS_PER_FRAME * OPEN_CELL_BYTES;

/// The manifest's entry for the open tanker's file. Generation 0: no file, because the open tanker is empty.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct OpenFile {
    pub(crate) generation: u64,
    pub(crate) cells: u32,
    pub(crate) bytes: u64,
    pub(crate) seal: u64,
}

impl OpenFile {
    pub(crate) fn write(writer: Writer<'_>, generation: u64, entries: &[Entry]) -> Result<Self> {
        if entries.is_empty() {
            return Ok(Self::default());
        }
        let path = join(writer.directory, &open_name(generation));
        let parts = entries.len().div_ceil(CELLS_PER_FRAME) as u32;
        let (mut file, mut bytes, mut seals) = (FileWriter::new(writer.device, &path)?, 0, ByteWriter::new());
        for (part, entries) in entries.chunks(CELLS_PER_FRAME).enumerate() {
            let mut meta = ByteWriter::with_capacity(META_BYTES);
            meta.u16(VERSION);
            meta.u16(0);
            meta.u64(generation);
            meta.u32(part as u32);
            meta.u32(parts);
            meta.u32(entries.len() as u32);
            let mut payload = Vec::with_capacity(entries.len() * OPEN_CELL_BYTES);
            for Entry { fingerprint, cell } in entries {
                encode_cell(fingerprint, cell.location, &mut payload);
                payload.extend_from_slice(&cell.references.to_le_bytes());
            }
            let frame = encode_frame(FrameKind::OpenTanker, writer.pool, 0, meta.as_slice(), &payload);
            seals.u64(FrameHeader::decode(&path, &frame)?.body_checksum);
            file.append(&frame)?;
            bytes += frame.len() as u64;
        }
        file.finish()?;
        Ok(Self { generation, cells: entries.len() as u32, bytes, seal: checksum(seals.as_slice()) })
    }

    /// Reads the file that the manifest names, checking everything.
    pub(crate) fn read(&self, writer: Writer<'_>) -> Result<Vec<Entry>> {
        if self.generation == 0 {
            return Ok(Vec::new());
        }
        let path = join(writer.directory, &open_name(self.generation));
        if self.cells > CELLS_PER_TANKER_MAX {
            return Err(StoreError::corrupt(path, format!("at most {CELLS_PER_TANKER_MAX} cells"), self.cells));
        }
        let file = writer.device.open(&path, OpenMode::Read)?;
        let found_bytes = file.len()?;
        if found_bytes != self.bytes {
            return Err(StoreError::corrupt(path, format!("{} bytes", self.bytes), format!("{found_bytes} bytes")));
        }
        let expect = Expect { kind: FrameKind::OpenTanker, pool: Some(writer.pool), owner: Some(0) };
        let (mut entries, mut seals) = (Vec::with_capacity(self.cells as usize), ByteWriter::new());
        let (mut offset, mut part) = (0_u64, 0_u32);
        while offset < self.bytes {
            let what = format!("part {part} of {path}");
            let mut header_bytes = [0; FRAME_HEADER_BYTES];
            file.read_exact_at(&mut header_bytes, offset)?;
            let header = FrameHeader::decode(&what, &header_bytes)?;
            header.check(&what, &expect, FRAME_BODY_BYTES_MAX)?;
            let mut bytes = vec![0; header.frame_bytes() as usize];
            file.read_exact_at(&mut bytes, offset)?;
            let frame = decode_frame(&what, &bytes, &expect, FRAME_BODY_BYTES_MAX)?;
            let mut meta = ByteReader::new(frame.meta, &what);
            let version = meta.u16()?;
            if version != VERSION {
                return Err(StoreError::newer(what, format!("open tanker version {version}")));
            }
            let (reserved, generation, found_part) = (meta.u16()?, meta.u64()?, meta.u32()?);
            let (parts, cells) = (meta.u32()?, meta.u32()?);
            meta.finish()?;
            if (reserved, generation, found_part) != (0, self.generation, part) || part >= parts {
                let expected = format!("generation {}, part {part}", self.generation);
                return Err(StoreError::corrupt(what, expected, format!("{generation}, {found_part} of {parts}")));
            }
            decode_cells(&what, frame.payload, cells, &mut entries)?;
            seals.u64(header.body_checksum);
            offset += header.frame_bytes();
            part += 1;
        }
        if offset != self.bytes || entries.len() != self.cells as usize || checksum(seals.as_slice()) != self.seal {
            let expected = format!("the {} cells that the manifest names", self.cells);
            return Err(StoreError::corrupt(path, expected, format!("{} others", entries.len())));
        }
        Ok(entries)
    }
}

fn decode_cells(what: &str, payload: &[u8], cells: u32, entries: &mut Vec<Entry>) -> Result<()> {
    let mut reader = ByteReader::new(payload, what);
    for _ in 0..cells {
        let fingerprint = reader.fingerprint()?;
        let location = Location::new(ContainerId(reader.u64()?), reader.u32()?);
        let cell = Cell { location, references: reader.u32()? };
        if fingerprint == Fingerprint::ZERO {
            return Err(reader.corrupt("fingerprints of stored chunks", "the one of zeros"));
        }
        entries.push(Entry { fingerprint, cell });
    }
    reader.finish()
}
