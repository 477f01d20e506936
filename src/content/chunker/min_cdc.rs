//! `MinCDC`: cut behind the four bytes whose hash is the smallest between the shortest and the longest length.
//!
//! The position of a minimum over a window is uniform on random data, so lengths spread evenly over `average / 2 ..=
//! average * 3 / 2`, and no chunk is ever cut by force. The mean lies 2 to 3% above the average: the start of a window
//! has often been searched for the chunk before, and holds no small hash. Among equal minima the earliest wins: a run
//! of one byte value is cut at the shortest length.

use mincdc::{MinCdcHash4, SliceChunker};

use super::{Chunker, can_decide};

/// `MinCDC` over a multiplicative hash of four bytes, with the crate's default constants.
#[derive(Clone, Debug)]
pub(crate) struct MinCdc {
    min_bytes: usize,
    average_bytes: usize,
    max_bytes: usize,
    hash: MinCdcHash4,
}

impl MinCdc {
    /// Derives all parameters from the average.
    pub(crate) const fn new(average_bytes: usize) -> Self {
        Self { min_bytes: average_bytes / 2, average_bytes, max_bytes: average_bytes / 2 * 3, hash: MinCdcHash4::new() }
    }
}

impl Chunker for MinCdc {
    fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    fn min_bytes(&self) -> usize {
        self.min_bytes
    }

    fn average_bytes(&self) -> usize {
        self.average_bytes
    }

    fn next_cut(&self, data: &[u8], at_end: bool) -> Option<usize> {
        if !can_decide(data, at_end, self.max_bytes) {
            return None;
        }
        // One step of the crate's own iterator, so that its rules for the end of the data hold here too.
        SliceChunker::new(data, self.min_bytes, self.max_bytes, self.hash).next().map(|chunk| chunk.len())
    }
}
