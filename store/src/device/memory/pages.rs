//! The content of one file: existing pages, and holes.
//!
//! Copies of a content share maps and pages until one of them writes (copy on write). Keeping a durable and a volatile
//! state, or copying a whole disk, costs nothing until then.
//!
//! Invariant: no byte other than zero lies at or beyond `len_bytes`, so growing needs no cleaning.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use twox_hash::XxHash3_128;

/// Unit of allocation in bytes.
pub(super) const PAGE_BYTES: usize = 4096;

/// Unit in bytes that a disk writes wholly or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    len_bytes: u64,
    pages: Arc<BTreeMap<u64, Arc<[u8; PAGE_BYTES]>>>,
}

impl Pages {
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(super) fn missing_pages(&self, offset: u64, len_bytes: u64) -> u64 {
        let touched = page_range(offset, len_bytes);
        let present = self.pages.range(touched.clone()).count() as u64;
        (touched.end - touched.start) - present
    }

    /// Reads up to the end of the file; returns the number of bytes.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let available = self.len_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..available];
        buffer.fill(0);
        for (&number, page) in self.pages.range(page_range(offset, available as u64)) {
            let (in_buffer, in_page) = overlap(number, offset, available);
            buffer[in_buffer].copy_from_slice(&page[in_page]);
        }
        available
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let pages = Arc::make_mut(&mut self.pages);
        for number in page_range(offset, data.len() as u64) {
            let (in_data, in_page) = overlap(number, offset, data.len());
            let page = pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[in_page].copy_from_slice(&data[in_data]);
        }
        if !data.is_empty() {
            self.len_bytes = self.len_bytes.max(offset + data.len() as u64);
        }
    }

    pub(super) fn set_len(&mut self, len_bytes: u64) {
        if len_bytes < self.len_bytes {
            self.clear(len_bytes, self.len_bytes - len_bytes);
        }
        self.len_bytes = len_bytes;
    }

    /// Makes the range a hole; the length stays.
    pub(super) fn punch(&mut self, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes).min(self.len_bytes);
        if offset < end {
            self.clear(offset, end - offset);
        }
    }

    /// Drops whole pages of the range and zeroes the parts at its ends.
    fn clear(&mut self, offset: u64, len_bytes: u64) {
        let touched: Vec<u64> = self.pages.range(page_range(offset, len_bytes)).map(|(&number, _)| number).collect();
        // A range up to the end of the file clears the whole last page: nothing lies beyond.
        let is_to_end = offset + len_bytes >= self.len_bytes;
        let pages = Arc::make_mut(&mut self.pages);
        for number in touched {
            let start = offset.saturating_sub(number * PAGE_BYTES as u64).min(PAGE_BYTES as u64) as usize;
            let end = (offset + len_bytes - number * PAGE_BYTES as u64).min(PAGE_BYTES as u64) as usize;
            let end = if is_to_end { PAGE_BYTES } else { end };
            if start == 0 && end == PAGE_BYTES {
                pages.remove(&number);
            } else if let Some(page) = pages.get_mut(&number) {
                Arc::make_mut(page)[start..end].fill(0);
            }
        }
    }

    /// Takes over from `other` the pages and holes that the range touches, as writing them back does.
    pub(super) fn take_over_pages(&mut self, other: &Self, offset: u64, len_bytes: u64) {
        let touched = page_range(offset, len_bytes);
        let old: Vec<u64> = self.pages.range(touched.clone()).map(|(&number, _)| number).collect();
        let pages = Arc::make_mut(&mut self.pages);
        for number in old {
            pages.remove(&number);
        }
        pages.extend(other.pages.range(touched).map(|(&number, page)| (number, Arc::clone(page))));
    }

    /// Feeds length, places and bytes of the existing pages to a hash. Pages of zeros count as holes.
    pub(super) fn hash_into(&self, hasher: &mut XxHash3_128) {
        hasher.write(&self.len_bytes.to_le_bytes());
        for (number, page) in self.pages.iter().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
            hasher.write(&number.to_le_bytes());
            hasher.write(&page[..]);
        }
    }

    /// Takes over the length from `other`. Call it after every page that a change of the length touched was taken over.
    pub(super) fn take_over_len(&mut self, other: &Self) {
        self.len_bytes = other.len_bytes;
    }
}

fn page_range(offset: u64, len_bytes: u64) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    if len_bytes == 0 { 0..0 } else { offset / page_bytes..(offset + len_bytes).div_ceil(page_bytes) }
}

/// The overlap of page `number` and the range: its place within the range, and within the page.
fn overlap(number: u64, offset: u64, len: usize) -> (Range<usize>, Range<usize>) {
    let page_start = number * PAGE_BYTES as u64;
    let start = offset.max(page_start);
    let end = (offset + len as u64).min(page_start + PAGE_BYTES as u64);
    let range = |origin: u64| (start - origin) as usize..(end - origin) as usize;
    (range(offset), range(page_start))
}
