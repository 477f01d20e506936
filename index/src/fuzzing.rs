//! The decoders of index files, for the fuzz targets. Each returns the decoded value encoded again, so that a target
//! can compare. Panics are defects.

use dedupfs_store::codec::checksum;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::frame::{FrameHeader, FrameKind, encode_frame};
use dedupfs_store::{PoolId, Result};

use crate::bloom::{FilterArray, Fullness};
use crate::manifest::Manifest;
use crate::names::{open_name, progress_name};
use crate::open::file::OpenFile;
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

/// A manifest with these bytes and matching checksums: decoded, and encoded again.
pub fn manifest(meta: &[u8], payload: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let bytes = encode_frame(FrameKind::Manifest, &POOL, 0, meta, payload);
    let manifest = Manifest::decode("fuzzed", &bytes, &POOL, "index")?;
    let again = manifest.encode(&POOL, "index");
    Ok((bytes, again))
}

/// The tag of the directory that a manifest and a progress file must carry.
pub fn directory_tag() -> u64 {
    checksum(b"index")
}

/// A file of an open tanker with one frame and a matching seal; returns the number of cells.
pub fn open_tanker(generation: u64, cells: u32, meta: &[u8], payload: &[u8]) -> Result<usize> {
    let bytes = encode_frame(FrameKind::OpenTanker, &POOL, 0, meta, payload);
    let body = FrameHeader::decode("fuzzed", &bytes)?.body_checksum;
    let disk = disk(&open_name(generation), &bytes)?;
    let file = OpenFile { generation, cells, bytes: bytes.len() as u64, seal: checksum(&body.to_le_bytes()) };
    with_writer(&disk, |writer| Ok(file.read(writer)?.len()))
}

/// A file of a sealed tanker with a matching seal. Reads all its pages; returns its cells.
pub fn tanker_file(kind: u8, generation: u64, meta: &[u8], payload: &[u8], pages: &[u8]) -> Result<u32> {
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
    Ok(file.cells())
}

/// The list of containers of a tanker.
pub fn container_shares(bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(ContainerShares::decode("fuzzed", bytes)?.encode())
}

/// An occupancy list in a frame with matching checksums, for a tanker of `cells` cells. Returns the file, and the
/// decoded list encoded again. Generation and seals must be those of [`occupancy_meta`].
pub fn tanker_occupancy(cells: u32, meta: &[u8], payload: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let of = ListOf { tanker: 3, generation: 9, cells_seal: 17, counts_seal: 23, cells };
    let bytes = encode_frame(FrameKind::TankerOccupancy, &POOL, of.tanker, meta, payload);
    let again = OccupancyList::decode("fuzzed", &bytes, &POOL, &of)?.encode(&POOL, &of).unwrap_or_default();
    Ok((bytes, again))
}

/// The meta fields for a list of `entries` entries.
pub fn occupancy_meta(entries: u32) -> Vec<u8> {
    let mut meta = vec![1, 0, 0, 0];
    for number in [9_u64, 17, 23] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    meta.extend_from_slice(&entries.to_le_bytes());
    meta
}

/// A progress file; returns its notes.
pub fn progress(number: u64, meta: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
    let bytes = encode_frame(FrameKind::Progress, &POOL, 0, meta, payload);
    let disk = MemoryDevice::new();
    disk.create_directory("index")?;
    disk.open(&format!("index/{}", progress_name(number)), OpenMode::CreateNew)?.write_at(&bytes, 0)?;
    crate::progress::read(&disk, "index", &POOL, number)
}
