//! A file of checksummed pages: a directory frame, then the pages without gaps, then nothing.
//!
//! Page n holds the cells (or their counts) of bucket n. The directory holds the number of cells and the checksum of
//! each page; a page's start follows from the sizes before it. Opening checks the directory and the file's length. Each
//! read of a page checks the page. So a checksum covers every byte of the file, and is checked before the byte is used
//! (invariant I-5).
//!
//! Cost: one read per page that is not cached; 16 bytes of memory per page.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::ops::Range;
use std::sync::Arc;

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::device::{DeviceFile, OpenMode};
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{Result, StoreError};

use super::cache::{PageCache, PageKey};
use super::tanker::Writer;
use crate::names::{FileWriter, join};
use crate::options::{BUCKETS_PER_TANKER_MAX, CELLS_PER_TANKER_MAX, SEQUENTIAL_BYTES};

const DIRECTORY_VERSION: u16 = 1;

const PAGE_ENTRY_BYTES: usize = 4 + 8;

const DIRECTORY_BYTES_MAX: usize = 64 + BUCKETS_PER_TANKER_MAX as usize * PAGE_ENTRY_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PagedFileKind {
    pub(crate) frame: FrameKind,
    pub(crate) cell_bytes: u32,
}

/// Appends the bytes of a page, given its number and the positions of its cells.
pub(crate) type PageBytes<'a> = &'a dyn Fn(u32, std::ops::Range<usize>, &mut Vec<u8>);

#[derive(Debug)]
pub(crate) struct PagedFile {
    file: Arc<dyn DeviceFile>,
    pub(crate) path: String,
    number: u32,
    kind: PagedFileKind,
    /// The checkpoint attempt that wrote it.
    pub(crate) generation: u64,
    /// Checksum of the directory: identifies the file's whole content.
    pub(crate) seal: u64,
    data_offset: u64,
    /// For each page the number of cells before it; one more entry at the end.
    starts: Vec<u32>,
    /// Cells of the fullest page, and of the emptiest.
    extremes: (u32, u32),
    checksums: Vec<u64>,
}

/// Makes the list of starts for `pages` pages, with the first start. It has its exact final capacity, because it stays
/// in memory.
fn first_start(pages: usize) -> Vec<u32> {
    let mut starts = Vec::with_capacity(pages + 1);
    starts.push(0);
    starts
}

fn extremes(starts: &[u32]) -> (u32, u32) {
    let cells = || starts.array_windows::<2>().map(|[start, end]| end - start);
    (cells().max().unwrap_or(0), cells().min().unwrap_or(0))
}

impl PagedFile {
    /// Writes and syncs a new file with pages of `page_cells` cells. `page` appends the bytes of a page, given its
    /// number and the positions of its cells. It is called twice for each page, in order, so only one page is in
    /// memory.
    pub(crate) fn write(
        writer: Writer<'_>,
        name: &str,
        kind: PagedFileKind,
        (tanker, generation): (u64, u64),
        page_cells: &[u32],
        page: PageBytes<'_>,
    ) -> Result<Self> {
        let path = join(writer.directory, name);
        let cells: u32 = page_cells.iter().sum();
        let mut payload = ByteWriter::with_capacity(page_cells.len() * PAGE_ENTRY_BYTES);
        let (mut starts, mut checksums) = (first_start(page_cells.len()), Vec::with_capacity(page_cells.len()));
        let (mut bytes, mut start) = (Vec::new(), 0_u32);
        for (number, &count) in (0..).zip(page_cells) {
            let end = start.saturating_add(count);
            bytes.clear();
            page(number, start as usize..end as usize, &mut bytes);
            let expected_bytes = count as usize * kind.cell_bytes as usize;
            if bytes.len() != expected_bytes {
                return Err(StoreError::corrupt(path, format!("{expected_bytes} bytes for a page"), bytes.len()));
            }
            let sum = checksum(&bytes);
            payload.u32(count);
            payload.u64(sum);
            starts.push(end);
            checksums.push(sum);
            start = end;
        }
        let mut meta = ByteWriter::new();
        meta.u16(DIRECTORY_VERSION);
        meta.u16(0);
        meta.u32(kind.cell_bytes);
        meta.u64(generation);
        meta.u32(cells);
        meta.u32(page_cells.len() as u32);
        let frame = encode_frame(kind.frame, writer.pool, tanker, meta.as_slice(), payload.as_slice());
        let seal = FrameHeader::decode(&path, &frame)?.body_checksum;
        let mut file = FileWriter::new(writer.device, &path)?;
        file.append(&frame)?;
        for (number, range) in (0..).zip(starts.array_windows::<2>()) {
            let [start, end] = *range;
            bytes.clear();
            page(number, start as usize..end as usize, &mut bytes);
            file.append(&bytes)?;
        }
        let file = file.finish()?;
        let data_offset = frame.len() as u64;
        let number = writer.cache.file_number();
        let extremes = extremes(&starts);
        Ok(Self { file, path, number, kind, generation, seal, data_offset, starts, extremes, checksums })
    }

    /// Opens an existing file and checks its directory and its length.
    pub(crate) fn open(
        writer: Writer<'_>,
        name: &str,
        kind: PagedFileKind,
        (tanker, generation): (u64, u64),
        seal: u64,
    ) -> Result<Self> {
        let path = join(writer.directory, name);
        let file = writer.device.open(&path, OpenMode::Read)?;
        let mut header_bytes = [0; FRAME_HEADER_BYTES];
        file.read_exact_at(&mut header_bytes, 0)?;
        let header = FrameHeader::decode(&path, &header_bytes)?;
        let expect = Expect { kind: kind.frame, pool: Some(writer.pool), owner: Some(tanker) };
        header.check(&path, &expect, DIRECTORY_BYTES_MAX)?;
        let data_offset = header.frame_bytes();
        // Bounded by the check above.
        let mut frame_bytes = vec![0; data_offset as usize];
        file.read_exact_at(&mut frame_bytes, 0)?;
        let frame = decode_frame(&path, &frame_bytes, &expect, DIRECTORY_BYTES_MAX)?;
        if frame.header.body_checksum != seal {
            let expected = format!("the file of checksum {seal:#018x} that the manifest names");
            return Err(StoreError::corrupt(&path, expected, format!("{:#018x}", frame.header.body_checksum)));
        }

        let mut meta = ByteReader::new(frame.meta, &path);
        let version = meta.u16()?;
        if version != DIRECTORY_VERSION {
            return Err(StoreError::newer(path, format!("tanker file version {version}")));
        }
        let reserved = meta.u16()?;
        let (cell_bytes, found_generation, cells, pages) = (meta.u32()?, meta.u64()?, meta.u32()?, meta.u32()?);
        if (reserved, cell_bytes, found_generation) != (0, kind.cell_bytes, generation) {
            let expected = format!("cells of {} bytes, generation {generation}", kind.cell_bytes);
            return Err(meta.corrupt(expected, format!("{cell_bytes}, {found_generation}, flags {reserved}")));
        }
        meta.finish()?;
        if cells > CELLS_PER_TANKER_MAX || !pages.is_power_of_two() || pages > BUCKETS_PER_TANKER_MAX {
            return Err(StoreError::corrupt(&path, "cells and buckets within limits", format!("{cells}, {pages}")));
        }

        let mut entries = ByteReader::new(frame.payload, &path);
        let (mut starts, mut checksums) = (first_start(pages as usize), Vec::with_capacity(pages as usize));
        let mut total = 0_u32;
        for _ in 0..pages {
            total = total.saturating_add(entries.u32()?);
            starts.push(total);
            checksums.push(entries.u64()?);
        }
        entries.finish()?;
        if total != cells {
            return Err(StoreError::corrupt(&path, format!("{cells} cells in all pages"), total));
        }
        let expected_bytes = data_offset + u64::from(cells) * u64::from(kind.cell_bytes);
        let found_bytes = file.len()?;
        if found_bytes != expected_bytes {
            let (expected, found) = (format!("{expected_bytes} bytes"), format!("{found_bytes} bytes"));
            return Err(StoreError::corrupt(&path, expected, found));
        }
        let number = writer.cache.file_number();
        let extremes = extremes(&starts);
        Ok(Self { file, path, number, kind, generation, seal, data_offset, starts, extremes, checksums })
    }

    pub(crate) fn pages(&self) -> u32 {
        self.checksums.len() as u32
    }

    pub(crate) fn cells(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn page_cells(&self) -> Vec<u32> {
        self.starts.array_windows::<2>().map(|[start, end]| end - start).collect()
    }

    /// Position of the first cell of `page`, and of the first one after it.
    pub(crate) fn page_range(&self, page: u32) -> (u32, u32) {
        let start = self.starts.get(page as usize).copied().unwrap_or(0);
        (start, self.starts.get(page as usize + 1).copied().unwrap_or(start))
    }

    /// Cells of the fullest page, and of the emptiest.
    pub(crate) fn page_extremes(&self) -> (u32, u32) {
        self.extremes
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.data_offset + u64::from(self.cells()) * u64::from(self.kind.cell_bytes)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.starts.capacity() * 4 + self.checksums.capacity() * 8) as u64
    }

    fn byte_offset(&self, cell: u32) -> u64 {
        self.data_offset + u64::from(cell) * u64::from(self.kind.cell_bytes)
    }

    fn verify(&self, page: u32, bytes: &[u8]) -> Result<()> {
        let expected = self.checksums.get(page as usize).copied();
        let found = checksum(bytes);
        if expected == Some(found) {
            return Ok(());
        }
        let expected = expected.map_or_else(|| "a page".to_owned(), |expected| format!("checksum {expected:#018x}"));
        let found =
            format!("{found:#018x}; nothing is lost: make the index anew with `dedupfs fsck --rebuild-index POOL`");
        Err(StoreError::corrupt(format!("page {page} of {}", self.path), expected, found))
    }

    /// Returns a verified page, through the cache.
    pub(crate) fn page(&self, cache: &PageCache, page: u32) -> Result<Arc<[u8]>> {
        cache.page(PageKey { file: self.number, page }, || Ok(self.read_page(page)?.into()))
    }

    pub(crate) fn read_page(&self, page: u32) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_page_into(page, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`read_page`](Self::read_page), into existing memory. After an error its content is invalid.
    pub(crate) fn read_page_into(&self, page: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let (start, end) = self.page_range(page);
        bytes.resize((end - start) as usize * self.kind.cell_bytes as usize, 0);
        self.file.read_exact_at(bytes, self.byte_offset(start))?;
        self.verify(page, bytes)
    }

    /// Reads all pages in order, verified, in large pieces and past the cache.
    pub(crate) fn read_through(&self, each: &mut dyn FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        self.read_pages(0..self.pages(), each)
    }

    /// Reads pages as [`read_through`](Self::read_through) does.
    pub(crate) fn read_pages(&self, pages: Range<u32>, each: &mut dyn FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        let cell_bytes = self.kind.cell_bytes as usize;
        let mut buffer = Vec::new();
        let mut page = pages.start;
        let end = pages.end.min(self.pages());
        while page < end {
            // A run of pages of at most SEQUENTIAL_BYTES, but at least one page.
            let (first, run_start) = (page, self.page_range(page).0);
            let mut run_end = self.page_range(page).1;
            page += 1;
            while page < end && (self.page_range(page).1 - run_start) as usize * cell_bytes <= SEQUENTIAL_BYTES {
                run_end = self.page_range(page).1;
                page += 1;
            }
            buffer.resize((run_end - run_start) as usize * cell_bytes, 0);
            self.file.read_exact_at(&mut buffer, self.byte_offset(run_start))?;
            let mut rest = buffer.as_slice();
            for number in first..page {
                let (start, end) = self.page_range(number);
                let (bytes, after) = rest.split_at_checked((end - start) as usize * cell_bytes).unwrap_or((rest, &[]));
                self.verify(number, bytes)?;
                each(number, bytes)?;
                rest = after;
            }
        }
        Ok(())
    }
}
