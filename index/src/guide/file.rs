//! A guide's file: part by part the slots of a filter and the places of cells, then a directory of all of it.
//!
//! A part has the cells of an equal range of fingerprints, [`PAGES_PER_PART`] pages of them. The directory holds the number of cells and the
//! checksum of each page, and the keys, the seed and the checksum of the slots of each part. So a checksum covers every byte of the file,
//! and is checked before the byte is used (invariant I-5).

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::sync::Arc;

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::device::{DeviceFile, OpenMode};
use dedupfs_store::frame::{Expect, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{Fingerprint, Result, StoreError};

use super::fuse::{self, Form, Packed};
use crate::names::{FileWriter, guide_name, join};
use crate::prefixes::Prefixes;
use crate::sealed::{PageCache, PageKey, Writer, bucket_of_prefix};

const VERSION: u16 = 1;

/// Bits of a fingerprint that tell cells apart: the first ones. Two cells with the same bits cost one more look.
const KEY_BITS: u32 = 56;
/// Bits of the key that an entry has; its page tells the others.
const ENTRY_KEY_BITS: u32 = 48;
const ENTRY_BYTES: usize = 8;
const SLOT_BYTES: usize = 2;
/// Fewest pages: they tell the first bits of a key.
const PAGES_MIN: u32 = 1 << (KEY_BITS - ENTRY_KEY_BITS);
/// Most pages: 17 billion cells.
const PAGES_MAX: u32 = 1 << 23;
/// Pages with one filter.
const PAGES_PER_PART: u32 = PAGES_MIN;
/// Cells of a page in the mean, 16 KiB: the unit of reading. Few in tests, so that guides have several parts.
const PAGE_CELLS: u64 = if cfg!(test) { 4 } else { 2048 };
/// Most cells of a page, and slots of a part: far more than chance brings.
const PAGE_CELLS_MAX: u32 = 1 << 20;
const PART_SLOTS_MAX: u32 = 1 << 25;
/// Most tankers of a guide.
pub(crate) const TANKERS_MAX: usize = u16::MAX as usize;

const PART_BYTES: usize = 4 + 2 + 2 + 8;
const PAGE_ENTRY_BYTES: usize = 4 + 8;
const DIRECTORY_BYTES_MAX: usize =
    256 + PAGES_MAX as usize * PAGE_ENTRY_BYTES + (PAGES_MAX / PAGES_PER_PART) as usize * PART_BYTES;

/// The first bits of a fingerprint, by which a guide knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) const fn of(fingerprint: &Fingerprint) -> Self {
        Self::of_prefix(fingerprint.prefix())
    }

    pub(crate) const fn of_prefix(prefix: u64) -> Self {
        Self(prefix >> (u64::BITS - KEY_BITS))
    }

    /// The least prefix of its fingerprints.
    const fn prefix(self) -> u64 {
        self.0 << (u64::BITS - KEY_BITS)
    }

    fn page(self, pages: u32) -> u32 {
        bucket_of_prefix(self.prefix(), pages)
    }
}

/// A cell: its key, and the number of its tanker in the guide's list.
pub(crate) type Place = (Key, u16);

fn entry_of((key, tanker): Place) -> u64 {
    key.0 << (u64::BITS - ENTRY_KEY_BITS) | u64::from(tanker)
}

/// The manifest's entry for a guide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GuideNames {
    pub(crate) id: u64,
    pub(crate) generation: u64,
    /// Checksum of the directory: identifies the file's whole content.
    pub(crate) seal: u64,
    pub(crate) directory_offset: u64,
    /// The tankers whose cells it has, by their numbers in its entries.
    pub(crate) tankers: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// Where its slots begin in the file.
    offset: u64,
    form: Form,
    slots_checksum: u64,
}

/// The parts of a file that tell where everything is.
#[derive(Debug, Default)]
struct Directory {
    parts: Vec<Part>,
    /// For each page, the number of cells before it in its part.
    starts: Vec<u32>,
    /// For each part, its cells.
    cells: Vec<u32>,
    checksums: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct GuideFile {
    pub(crate) names: GuideNames,
    path: String,
    file: Arc<dyn DeviceFile>,
    number: u32,
    directory: Directory,
}

/// The parts of a guide with so many cells.
fn parts_for(cells: u64) -> u32 {
    let pages = u32::try_from(cells.div_ceil(PAGE_CELLS).next_power_of_two()).unwrap_or(PAGES_MAX);
    pages.clamp(PAGES_MIN, PAGES_MAX) / PAGES_PER_PART
}

/// Gives the places of a range of fingerprints, in order. `None` ends the work.
pub(crate) type PlacesOf<'a> = &'a mut dyn FnMut(Prefixes) -> Result<Option<Vec<Place>>>;

impl GuideFile {
    /// Writes and syncs the file of a guide to `tankers`, of some `cells` cells. `places_of` is asked for one part after another. Returns
    /// `None` if it ends the work: then the file is left over.
    pub(crate) fn write(
        writer: Writer<'_>,
        (id, generation): (u64, u64),
        tankers: Vec<u64>,
        cells: u64,
        places_of: PlacesOf<'_>,
    ) -> Result<Option<Self>> {
        let path = join(writer.directory, &guide_name(id, generation));
        let parts = parts_for(cells);
        let mut file = FileWriter::new(writer.device, &path)?;
        let (mut directory, mut offset) = (Directory::default(), 0);
        for part in 0..parts {
            let Some(places) = places_of(Prefixes::part(part, parts))? else {
                return Ok(None);
            };
            offset += directory.append_part(&mut file, &path, part * PAGES_PER_PART, parts, offset, &places)?;
        }
        let frame = directory.encode(writer, id, generation);
        let seal = FrameHeader::decode(&path, &frame)?.body_checksum;
        file.append(&frame)?;
        let (file, number) = (file.finish()?, writer.cache.file_number());
        let names = GuideNames { id, generation, seal, directory_offset: offset, tankers };
        Ok(Some(Self { names, path, file, number, directory }))
    }

    /// Opens the file that a manifest names and checks its directory and its length.
    pub(crate) fn open(writer: Writer<'_>, names: GuideNames) -> Result<Self> {
        let path = join(writer.directory, &guide_name(names.id, names.generation));
        let file = writer.device.open(&path, OpenMode::Read)?;
        let len_bytes = file.len()?;
        let frame_bytes = len_bytes.checked_sub(names.directory_offset).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(frame_bytes) = frame_bytes.filter(|bytes| *bytes <= DIRECTORY_BYTES_MAX) else {
            let expected = format!("a directory from byte {} on", names.directory_offset);
            return Err(StoreError::corrupt(path, expected, format!("{len_bytes} bytes in all")));
        };
        let mut bytes = vec![0; frame_bytes];
        file.read_exact_at(&mut bytes, names.directory_offset)?;
        let directory = Directory::decode(&path, &bytes, writer, &names)?;
        Ok(Self { names, path, file, number: writer.cache.file_number(), directory })
    }

    pub(crate) fn cells(&self) -> u64 {
        self.directory.cells.iter().map(|cells| u64::from(*cells)).sum()
    }

    /// Slots of all parts.
    pub(crate) fn slots(&self) -> u64 {
        self.directory.parts.iter().map(|part| u64::from(part.form.slots())).sum()
    }

    pub(crate) fn parts(&self) -> usize {
        self.directory.parts.len()
    }

    /// Bytes of the filters of all parts with so many bits for each slot.
    pub(crate) fn bytes_with(&self, bits: u32) -> u64 {
        self.directory.parts.iter().map(|part| Packed::bytes_of(u64::from(part.form.slots()), bits)).sum()
    }

    pub(crate) fn pages(&self) -> u32 {
        self.directory.checksums.len() as u32
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.directory.memory_bytes() + (self.names.tankers.capacity() * 8) as u64
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        let frame = self.directory.checksums.len() * PAGE_ENTRY_BYTES + self.directory.parts.len() * PART_BYTES;
        self.names.directory_offset + frame as u64
    }

    /// Reads the filter of a part, with the lowest `bits` of each slot.
    pub(crate) fn read_filter(&self, number: usize, bits: u32) -> Result<Packed> {
        let Some(part) = self.directory.parts.get(number) else { return Ok(Packed::default()) };
        let mut bytes = vec![0; part.form.slots() as usize * SLOT_BYTES];
        self.file.read_exact_at(&mut bytes, part.offset)?;
        self.verify(&format!("filter {number}"), part.slots_checksum, &bytes)?;
        Ok(Packed::new(bytes.as_chunks().0.iter().map(|slot| u16::from_le_bytes(*slot)), bits))
    }

    /// The filter of a part with fewer bits than it has in memory.
    pub(crate) fn coarser(&self, number: usize, filter: &Packed, bits: u32) -> Packed {
        self.directory.parts.get(number).map_or_else(Packed::default, |part| filter.coarser(part.form.slots(), bits))
    }

    /// Whether a cell of this key may be in the tankers, given the filters of all parts.
    pub(crate) fn may_have(&self, key: Key, filters: &[Packed]) -> bool {
        let number = (key.page(self.pages()) / PAGES_PER_PART) as usize;
        let found = self.directory.parts.get(number).zip(filters.get(number));
        found.is_none_or(|(part, filter)| part.form.may_have(key.0, filter))
    }

    /// Appends the numbers of the tankers that have cells of this key. One page is read, unless the cache has it.
    pub(crate) fn tankers_of(&self, cache: &PageCache, key: Key, found: &mut Vec<u16>) -> Result<()> {
        let page = key.page(self.pages());
        let bytes = cache.page(PageKey { file: self.number, page }, || {
            let mut bytes = Vec::new();
            self.read_page_into(page, &mut bytes)?;
            Ok(bytes.into())
        })?;
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0;
        let (first, last) = (entry_of((key, 0)), entry_of((key, u16::MAX)));
        let from = entries.partition_point(|entry| u64::from_le_bytes(*entry) < first);
        let of_key =
            entries.iter().skip(from).map(|entry| u64::from_le_bytes(*entry)).take_while(|entry| *entry <= last);
        found.extend(of_key.map(|entry| entry as u16));
        Ok(())
    }

    /// Visits all places of a range in order. Reads its pages, past the cache.
    pub(crate) fn for_each_place(&self, prefixes: Prefixes, each: &mut dyn FnMut(Place)) -> Result<()> {
        let mut bytes = Vec::new();
        for page in prefixes.buckets(self.pages()) {
            self.read_page_into(page, &mut bytes)?;
            // The first bits of a key are those of its page.
            let above = u64::from(page / (self.pages() / PAGES_MIN).max(1)) << ENTRY_KEY_BITS;
            for entry in bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(|entry| u64::from_le_bytes(*entry)) {
                let key = Key(above | entry >> (u64::BITS - ENTRY_KEY_BITS));
                if prefixes.has_prefix(key.prefix()) {
                    each((key, entry as u16));
                }
            }
        }
        Ok(())
    }

    fn read_page_into(&self, page: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let (offset, cells) = self.directory.page(page);
        bytes.resize(cells as usize * ENTRY_BYTES, 0);
        self.file.read_exact_at(bytes, offset)?;
        self.verify(&format!("page {page}"), self.directory.checksums.get(page as usize).copied().unwrap_or(0), bytes)
    }

    fn verify(&self, what: &str, expected: u64, bytes: &[u8]) -> Result<()> {
        let found = checksum(bytes);
        if found == expected {
            return Ok(());
        }
        Err(StoreError::corrupt(
            format!("{what} of {}", self.path),
            format!("checksum {expected:#018x}"),
            format!("{found:#018x}"),
        ))
    }
}

impl Directory {
    /// Appends a part of `parts` with its pages from `first_page` on; returns its bytes.
    fn append_part(
        &mut self,
        file: &mut FileWriter,
        path: &str,
        first_page: u32,
        parts: u32,
        offset: u64,
        places: &[Place],
    ) -> Result<u64> {
        let mut keys: Vec<u64> = places.iter().map(|(key, _)| key.0).collect();
        keys.dedup();
        // Cells that are no fingerprints may crowd.
        let built = if keys.len() < PART_SLOTS_MAX as usize / 2 { fuse::build(&keys) } else { None };
        let (form, slots) =
            built.ok_or_else(|| StoreError::corrupt(path, "keys in order that a filter can have", keys.len()))?;
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        self.parts.push(Part { offset, form, slots_checksum: checksum(&bytes) });
        file.append(&bytes)?;
        let mut written = bytes.len() as u64;
        let (mut rest, mut start) = (places, 0);
        for page in first_page..first_page + PAGES_PER_PART {
            let (now, later) = rest.split_at(rest.partition_point(|(key, _)| key.page(parts * PAGES_PER_PART) <= page));
            let bytes: Vec<u8> = now.iter().flat_map(|place| entry_of(*place).to_le_bytes()).collect();
            self.starts.push(start);
            self.checksums.push(checksum(&bytes));
            file.append(&bytes)?;
            written += bytes.len() as u64;
            start += now.len() as u32;
            rest = later;
        }
        self.cells.push(start);
        Ok(written)
    }

    /// Where a page begins in the file, and its cells.
    fn page(&self, page: u32) -> (u64, u32) {
        let part = (page / PAGES_PER_PART) as usize;
        let start = self.starts.get(page as usize).copied().unwrap_or(0);
        let next = if (page + 1).is_multiple_of(PAGES_PER_PART) { None } else { self.starts.get(page as usize + 1) };
        let end = next.or(self.cells.get(part)).copied().unwrap_or(start);
        let slots_end =
            self.parts.get(part).map_or(0, |part| part.offset + u64::from(part.form.slots()) * SLOT_BYTES as u64);
        (slots_end + u64::from(start) * ENTRY_BYTES as u64, end - start)
    }

    fn memory_bytes(&self) -> u64 {
        let parts = self.parts.capacity() * size_of::<Part>();
        (parts + (self.starts.capacity() + self.cells.capacity()) * 4 + self.checksums.capacity() * 8) as u64
    }

    fn encode(&self, writer: Writer<'_>, id: u64, generation: u64) -> Vec<u8> {
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u16(0);
        meta.u64(generation);
        meta.u32(self.parts.len() as u32);
        let mut payload =
            ByteWriter::with_capacity(self.checksums.len() * PAGE_ENTRY_BYTES + self.parts.len() * PART_BYTES);
        for part in &self.parts {
            let (segments, exponent, seed) = part.form.to_store();
            payload.u32(segments);
            payload.u16(exponent);
            payload.u16(seed);
            payload.u64(part.slots_checksum);
        }
        for (page, sum) in (0_u32..).zip(&self.checksums) {
            payload.u32(self.page(page).1);
            payload.u64(*sum);
        }
        encode_frame(FrameKind::TankerGuide, writer.pool, id, meta.as_slice(), payload.as_slice())
    }

    fn decode(path: &str, bytes: &[u8], writer: Writer<'_>, names: &GuideNames) -> Result<Self> {
        let expect = Expect { kind: FrameKind::TankerGuide, pool: Some(writer.pool), owner: Some(names.id) };
        let frame = decode_frame(path, bytes, &expect, DIRECTORY_BYTES_MAX)?;
        if (frame.header.body_checksum, frame.header.frame_bytes()) != (names.seal, bytes.len() as u64) {
            let expected = format!("{} bytes of checksum {:#018x}, which the manifest names", bytes.len(), names.seal);
            let found = format!("{} bytes of {:#018x}", frame.header.frame_bytes(), frame.header.body_checksum);
            return Err(StoreError::corrupt(path, expected, found));
        }
        let mut meta = ByteReader::new(frame.meta, path);
        let version = meta.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(path, format!("guide version {version}")));
        }
        let (reserved, generation, parts) = (meta.u16()?, meta.u64()?, meta.u32()?);
        if (reserved, generation) != (0, names.generation)
            || !parts.is_power_of_two()
            || parts > PAGES_MAX / PAGES_PER_PART
        {
            let expected =
                format!("a guide of generation {}, with up to {} parts", names.generation, PAGES_MAX / PAGES_PER_PART);
            return Err(meta.corrupt(expected, format!("generation {generation}, {parts} parts, flags {reserved}")));
        }
        meta.finish()?;
        let mut payload = ByteReader::new(frame.payload, path);
        let mut directory = Self::default();
        for _ in 0..parts {
            let (segments, exponent, seed) = (payload.u32()?, payload.u16()?, payload.u16()?);
            let slots_checksum = payload.u64()?;
            let form = Form::stored(segments, exponent, seed).filter(|form| form.slots() <= PART_SLOTS_MAX);
            let form = form.ok_or_else(|| {
                payload.corrupt(
                    format!("a filter of up to {PART_SLOTS_MAX} slots"),
                    format!("{segments} segments of 2^{exponent}"),
                )
            })?;
            directory.parts.push(Part { offset: 0, form, slots_checksum });
        }
        let mut offset = 0_u64;
        for part in &mut directory.parts {
            part.offset = offset;
            let mut cells = 0_u32;
            for _ in 0..PAGES_PER_PART {
                directory.starts.push(cells);
                let here = payload.u32()?;
                if here > PAGE_CELLS_MAX {
                    return Err(payload.corrupt(format!("pages of up to {PAGE_CELLS_MAX} cells"), here));
                }
                cells += here;
                directory.checksums.push(payload.u64()?);
            }
            directory.cells.push(cells);
            offset += u64::from(part.form.slots()) * SLOT_BYTES as u64 + u64::from(cells) * ENTRY_BYTES as u64;
        }
        payload.finish()?;
        if offset != names.directory_offset {
            return Err(StoreError::corrupt(
                path,
                format!("a directory from byte {offset} on"),
                names.directory_offset,
            ));
        }
        Ok(directory)
    }
}
