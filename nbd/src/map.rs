//! Maps of an export: its extents in a context.

use std::ops::Range;

use crate::connection::Connection;
use crate::{Error, Result};

/// Bytes of a question at most.
const QUESTION_BYTES_MAX: u64 = 1 << 30;

/// Of [`crate::BASE_ALLOCATION`]: reads as zeros.
pub const STATE_ZERO: u32 = 2;
/// Of a bitmap of qemu: written since the bitmap began.
pub const STATE_DIRTY: u32 = 1;

/// A range in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first byte.
    pub from: u64,
    /// The byte behind its last one.
    pub to: u64,
    /// Its state, by the context.
    pub flags: u32,
}

impl Connection {
    /// Returns the extents of a context in a range: one behind the other, neighbours in other states.
    ///
    /// # Errors
    /// There are more than `extents_max`; the server refuses or cannot be used; `GivenUp`.
    pub fn extents(
        &self,
        context: u32,
        range: Range<u64>,
        extents_max: usize,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        let block_bytes = u64::from(self.agreed().block_bytes);
        let (mut at, end) = (range.start - range.start % block_bytes, range.end.min(self.agreed().size_bytes));
        while at < end {
            if !keep_waiting() {
                return Err(Error::GivenUp);
            }
            let until = (at + QUESTION_BYTES_MAX).min(end.next_multiple_of(block_bytes)).min(self.agreed().size_bytes);
            for stretch in self.status(context, at..until, keep_waiting)?.stretches {
                // The last one may be longer than the question.
                let to = (at + u64::from(stretch.len_bytes)).min(end);
                match extents.last_mut() {
                    Some(last) if last.flags == stretch.flags => last.to = to,
                    _ => extents.push(Extent { from: at.max(range.start), to, flags: stretch.flags }),
                }
                at = to;
            }
            if extents.len() > extents_max {
                return Err(Error::Limit(format!("the map of the NBD server has more than {extents_max} extents")));
            }
        }
        Ok(extents)
    }
}
