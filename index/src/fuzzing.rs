//! The decoders of index files, for the fuzz targets. The input bytes get the right checksums first. A decoded value
//! must encode to the same bytes. Panics are defects.

use dedupfs_store::codec::checksum;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::frame::{FrameHeader, FrameKind, encode_frame};
use dedupfs_store::{PoolId, Result};

use crate::bloom::{FilterArray, Fullness};
use crate::guide::{GuideFile, GuideNames, Key};
use crate::manifest::Manifest;
use crate::names::{guide_name, open_name, progress_name};
use crate::open::file::OpenFile;
use crate::prefixes::Prefixes;
use crate::sealed::{ContainerShares, ListOf, OccupancyList, PageCache, PagedFile, PagedFileKind, Writer};

const POOL: PoolId = PoolId([7; 16]);

fn disk(path: &str, bytes: &[u8]) -> Result<MemoryDevice> {
    let disk = MemoryDevice::new();
    disk.open(path, OpenMode::CreateNew)?.write_at(bytes, 0)?;
    Ok(disk)
}

fn with_writer<T>(disk: &MemoryDevice, action: impl FnOnce(Writer<'_>) -> Result<T>) -> Result<T> {
    let (cache, filters) = (PageCache::new(0), FilterArray::new(64, Fullness::new(64, 64), 0, 0));
    let writer =
        Writer { device: disk, directory: "", pool: &POOL, cache: &cache, filters: &filters, cells_per_tanker: 64 };
    action(writer)
}

/// A decoder, with the part of its input that is not the payload of the file.
#[derive(Clone, Copy, Debug)]
pub enum Decoder<'a> {
    /// A manifest with these meta fields, and with the right tag of its directory among them.
    Manifest(&'a [u8]),
    /// A file of an open tanker with one frame: its generation, number of cells and meta fields.
    OpenTanker(u64, u32, &'a [u8]),
    /// A file of a sealed tanker: its kind, generation, meta fields, and the pages behind the frame.
    SealedTanker(u8, u64, &'a [u8], &'a [u8]),
    /// The list of containers of a tanker.
    Containers,
    /// An occupancy list with these meta fields, and with valid ones.
    Occupancy(&'a [u8]),
    /// The file of a guide: its generation, the bytes in front of the directory, and its meta fields.
    Guide(u64, &'a [u8], &'a [u8]),
    /// A progress file: its number and meta fields, and with the right tag of its directory among them.
    Progress(u64, &'a [u8]),
}

/// Decodes a file with this payload. An error is a right answer to most inputs.
pub fn decode(decoder: Decoder<'_>, payload: &[u8]) {
    let outcomes = match decoder {
        Decoder::Manifest(meta) => vec![manifest(meta, payload), manifest(&with_tag(meta), payload)],
        Decoder::OpenTanker(generation, cells, meta) => vec![open_tanker(generation, cells, meta, payload)],
        Decoder::SealedTanker(kind, generation, meta, pages) => {
            vec![sealed_tanker(kind, generation, meta, payload, pages)]
        }
        Decoder::Containers => vec![containers(payload)],
        Decoder::Occupancy(meta) => {
            let entries = payload.as_chunks().0;
            vec![occupancy(entries, meta, payload), occupancy(entries, &occupancy_meta(entries.len()), payload)]
        }
        Decoder::Guide(generation, parts, meta) => vec![guide(generation, parts, meta, payload)],
        Decoder::Progress(number, meta) => {
            vec![progress(number, meta, payload), progress(number, &with_tag(meta), payload)]
        }
    };
    drop(outcomes);
}

/// Puts the tag of the directory into its place.
fn with_tag(meta: &[u8]) -> Vec<u8> {
    let mut meta = meta.to_vec();
    if let Some(tag) = meta.get_mut(4..12) {
        tag.copy_from_slice(&checksum(b"index").to_le_bytes());
    }
    meta
}

fn manifest(meta: &[u8], payload: &[u8]) -> Result<()> {
    let bytes = encode_frame(FrameKind::Manifest, &POOL, 0, meta, payload);
    let manifest = Manifest::decode("fuzzed", &bytes, &POOL, "index")?;
    assert_eq!(manifest.encode(&POOL, "index"), bytes);
    Ok(())
}

/// A file with a matching seal.
fn open_tanker(generation: u64, cells: u32, meta: &[u8], payload: &[u8]) -> Result<()> {
    let bytes = encode_frame(FrameKind::OpenTanker, &POOL, 0, meta, payload);
    let body = FrameHeader::decode("fuzzed", &bytes)?.body_checksum;
    let disk = disk(&open_name(generation), &bytes)?;
    let file = OpenFile { generation, cells, bytes: bytes.len() as u64, seal: checksum(&body.to_le_bytes()) };
    let found = with_writer(&disk, |writer| Ok(file.read(writer)?.len()))?;
    assert!(found * 48 <= payload.len());
    Ok(())
}

/// A file with a matching seal. Reads all its pages.
fn sealed_tanker(kind: u8, generation: u64, meta: &[u8], payload: &[u8], pages: &[u8]) -> Result<()> {
    let kind = match kind % 4 {
        0 => PagedFileKind { frame: FrameKind::TankerDirectory, cell_bytes: 44 },
        1 => PagedFileKind { frame: FrameKind::Counts, cell_bytes: 4 },
        2 => PagedFileKind { frame: FrameKind::TankerFilter, cell_bytes: 8 },
        _ => PagedFileKind { frame: FrameKind::TankerContainers, cell_bytes: 20 },
    };
    let mut bytes = encode_frame(kind.frame, &POOL, 3, meta, payload);
    let seal = FrameHeader::decode("fuzzed", &bytes)?.body_checksum;
    bytes.extend_from_slice(pages);
    let disk = disk("tanker", &bytes)?;
    let file = with_writer(&disk, |writer| PagedFile::open(writer, "tanker", kind, (3, generation), seal))?;
    for page in 0..file.pages() {
        let (start, end) = file.page_range(page);
        assert!(start <= end && end <= file.cells());
        // A page with a wrong checksum is only an error.
        let _ = file.read_page(page);
    }
    let _ = file.read_through(&mut |_, _| Ok(()));
    Ok(())
}

fn containers(bytes: &[u8]) -> Result<()> {
    assert_eq!(ContainerShares::decode("fuzzed", bytes)?.encode(), bytes);
    Ok(())
}

/// A list for a tanker that has as many cells as these entries.
fn occupancy(entries: &[[u8; 32]], meta: &[u8], payload: &[u8]) -> Result<()> {
    let cells_of = |entry: &[u8; 32]| u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]]);
    let cells = entries.iter().map(cells_of).fold(0, u32::wrapping_add);
    let of = ListOf { tanker: 3, generation: 9, cells_seal: 17, counts_seal: 23, cells };
    let bytes = encode_frame(FrameKind::TankerOccupancy, &POOL, of.tanker, meta, payload);
    let again = OccupancyList::decode("fuzzed", &bytes, &POOL, &of)?.encode(&POOL, &of).unwrap_or_default();
    assert_eq!(again, bytes);
    Ok(())
}

/// The meta fields for a list of this many entries, with the generation and the seals of [`occupancy`].
fn occupancy_meta(entries: usize) -> Vec<u8> {
    let mut meta = vec![1, 0, 0, 0];
    for number in [9_u64, 17, 23] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    meta.extend_from_slice(&(entries as u32).to_le_bytes());
    meta
}

/// A file with a matching seal. Reads all its filters and pages.
fn guide(generation: u64, parts: &[u8], meta: &[u8], payload: &[u8]) -> Result<()> {
    let frame = encode_frame(FrameKind::TankerGuide, &POOL, 3, meta, payload);
    let seal = FrameHeader::decode("fuzzed", &frame)?.body_checksum;
    let disk = disk(&guide_name(3, generation), &[parts, &frame].concat())?;
    let names = GuideNames { id: 3, generation, seal, directory_offset: parts.len() as u64, tankers: vec![1, 2] };
    let file = with_writer(&disk, |writer| GuideFile::open(writer, names))?;
    let filters: Result<Vec<_>> = (0..file.parts()).map(|part| file.read_filter(part, 7)).collect();
    for prefix in [0, 1 << 63, u64::MAX] {
        let key = Key::of_prefix(prefix);
        let _ = filters.as_ref().map(|filters| file.may_have(key, filters));
        let _ = file.tankers_of(&PageCache::new(0), key, &mut Vec::new());
    }
    let _ = file.for_each_place(Prefixes::ALL, &mut |_| {});
    Ok(())
}

fn progress(number: u64, meta: &[u8], payload: &[u8]) -> Result<()> {
    let bytes = encode_frame(FrameKind::Progress, &POOL, 0, meta, payload);
    let disk = MemoryDevice::new();
    disk.create_directory("index")?;
    disk.open(&format!("index/{}", progress_name(number)), OpenMode::CreateNew)?.write_at(&bytes, 0)?;
    assert_eq!(crate::progress::read(&disk, "index", &POOL, number)?, payload);
    Ok(())
}
