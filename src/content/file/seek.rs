//! SEEK_DATA and SEEK_HOLE.
//!
//! Chunks of zeros begin and end anywhere. But programs rely on the behaviour of all other filesystems: a hole begins
//! and ends at a multiple of the block size, or at the end of the file (otherwise qemu-img aborts). So a hole is a
//! whole block or more, and a block with a byte of data is data.

use dedupfs_base::{EngineError, Result};

use super::body::FileBody;
use crate::limits::HOLE_UNIT_BYTES;

impl FileBody {
    /// Returns the first offset at or behind `offset` that is data, or with `hole`, that is a hole; the end counts as a
    /// hole. The run and the dirty extents must have been merged.
    ///
    /// # Errors
    /// `BeyondEnd` at or behind the end, and for data if only a hole follows.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        let size_bytes = self.pieces.len_bytes();
        if offset >= size_bytes {
            return Err(EngineError::BeyondEnd);
        }
        let mut search = Search::new(offset, size_bytes, hole);
        self.for_each_chunk(search.block, size_bytes, &mut |start, child| {
            search.visit(start, start + child.len_bytes, child.fingerprint.is_zero());
            Ok(search.found.is_none())
        })?;
        search.finish().ok_or(EngineError::BeyondEnd)
    }
}

/// A walk over chunks, from the block of the offset on.
struct Search {
    offset: u64,
    /// Start of the block that contains `offset`.
    block: u64,
    size_bytes: u64,
    hole: bool,
    /// Start of the zeros before the next chunk, rounded up to a block.
    zeros_from: Option<u64>,
    found: Option<u64>,
}

impl Search {
    fn new(offset: u64, size_bytes: u64, hole: bool) -> Self {
        let block = offset - offset % HOLE_UNIT_BYTES;
        Self { offset, block, size_bytes, hole, zeros_from: None, found: None }
    }

    fn visit(&mut self, start: u64, end: u64, is_zero: bool) {
        // Zeros end where a block of data begins.
        let whole_blocks_end = |at: u64| if at == self.size_bytes { at } else { at - at % HOLE_UNIT_BYTES };
        match (self.hole, is_zero) {
            (true, true) => {
                let from = *self.zeros_from.get_or_insert(start.max(self.block).next_multiple_of(HOLE_UNIT_BYTES));
                let at = from.max(self.offset);
                self.found = (whole_blocks_end(end) > at).then_some(at);
            }
            (true, false) => self.zeros_from = None,
            (false, true) => {}
            (false, false) => {
                // Between the block's start and this chunk there are only zeros.
                let zeros_end = whole_blocks_end(start.max(self.block));
                self.found = Some(zeros_end.max(self.offset));
            }
        }
    }

    fn finish(self) -> Option<u64> {
        self.found.or(self.hole.then_some(self.size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = HOLE_UNIT_BYTES;

    fn seek(chunks: &[(u64, bool)], offset: u64, hole: bool) -> Option<u64> {
        let size_bytes = chunks.iter().map(|(len, _)| len).sum();
        let mut search = Search::new(offset, size_bytes, hole);
        let mut start = 0;
        for &(len, is_zero) in chunks {
            if start + len > search.block && search.found.is_none() {
                search.visit(start, start + len, is_zero);
            }
            start += len;
        }
        search.finish()
    }

    /// The same result, computed block by block.
    fn expected(chunks: &[(u64, bool)], offset: u64, hole: bool) -> Option<u64> {
        let bytes: Vec<bool> = chunks.iter().flat_map(|&(len, is_zero)| vec![is_zero; len as usize]).collect();
        let blocks = bytes.chunks(UNIT as usize).enumerate().skip((offset / UNIT) as usize);
        let mut matching = blocks.filter(|(_, block)| block.iter().all(|&is_zero| is_zero) == hole);
        let found = matching.next().map(|(number, _)| (number as u64 * UNIT).max(offset));
        found.or(hole.then_some(bytes.len() as u64))
    }

    #[test]
    fn regression_holes_begin_and_end_at_blocks() {
        let chunks = [(UNIT + 100, false), (3 * UNIT, true), (UNIT, false)];
        assert_eq!(seek(&chunks, 0, true), Some(2 * UNIT));
        assert_eq!(seek(&chunks, 2 * UNIT, false), Some(4 * UNIT));
        assert_eq!(seek(&chunks, 4 * UNIT + 10, false), Some(4 * UNIT + 10));
        assert_eq!(seek(&chunks, 4 * UNIT, true), Some(5 * UNIT + 100));
        // Less than a block is no hole, and the end of the file ends a hole at any offset.
        assert_eq!(seek(&[(10, false), (2 * UNIT - 20, true), (10, false)], 0, true), Some(2 * UNIT));
        assert_eq!(seek(&[(10, false), (UNIT, true)], 0, true), Some(UNIT));
        assert_eq!(seek(&[(10, false), (UNIT, true)], UNIT, false), None);
    }

    proptest! {
        #[test]
        fn every_block_is_data_or_a_hole(
            chunks in prop::collection::vec(((1..3 * UNIT), any::<bool>()), 1..12),
            at in 0.0..1.0_f64,
            hole: bool,
        ) {
            let size_bytes: u64 = chunks.iter().map(|(len, _)| len).sum();
            let offset = ((size_bytes as f64 * at) as u64).min(size_bytes - 1);
            prop_assert_eq!(seek(&chunks, offset, hole), expected(&chunks, offset, hole));
        }
    }
}
