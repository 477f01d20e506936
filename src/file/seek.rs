//! SEEK_DATA and SEEK_HOLE.

use super::body::FileBody;
use crate::error::{EngineError, Result};

impl FileBody {
    /// The first offset at or behind `offset` that is data (or, with `hole`, that is a hole; the end counts as one).
    /// The stream and dirty extents must have been merged.
    ///
    /// # Errors
    /// `BeyondEnd` at or behind the end, and for data if only a hole follows.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        let size_bytes = self.pieces.len_bytes();
        if offset >= size_bytes {
            return Err(EngineError::BeyondEnd);
        }
        let mut found = None;
        self.for_each_chunk(offset, size_bytes, &mut |start, child| {
            if child.fingerprint.is_zero() == hole {
                found = Some(start.max(offset));
            }
            Ok(found.is_none())
        })?;
        match found {
            Some(found) => Ok(found),
            None if hole => Ok(size_bytes),
            None => Err(EngineError::BeyondEnd),
        }
    }
}
