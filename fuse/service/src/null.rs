//! A service that keeps names and forgets content, to measure the cost of the mount itself.
//!
//! Writes are accepted and discarded, reads return zeros. The rest is the reference model.

use crate::{FileContent, FileService, MemoryOptions, MemoryService};

/// The length of content that is not kept.
#[derive(Default)]
struct Discarded(u64);

impl FileContent for Discarded {
    fn len_bytes(&self) -> u64 {
        self.0
    }

    fn set_len(&mut self, len_bytes: u64) {
        self.0 = len_bytes;
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) {
        self.0 = self.0.max(offset.saturating_add(data.len() as u64));
    }

    fn read_at(&self, offset: u64, len_bytes: u32, into: &mut Vec<u8>) {
        let available = self.0.saturating_sub(offset).min(u64::from(len_bytes));
        into.resize(into.len() + available as usize, 0);
    }

    fn zero(&mut self, _offset: u64, _len_bytes: u64) {}
}

/// Makes an empty filesystem that forgets content.
pub fn null_service() -> impl FileService {
    let options = MemoryOptions { file_bytes_max: i64::MAX.cast_unsigned(), ..MemoryOptions::default() };
    MemoryService::<Discarded>::with_options(options)
}
