//! FastCDC (Xia et al., 2020): cut where the gear hash has given bits zero, with normalised chunking of level 3.
//!
//! Below the *centre* a cut needs three bits more than the average asks for, above it three fewer (section 4.4 of the
//! 2016 paper). So nearly all chunks end shortly behind the centre. With the shortest length at a quarter of the
//! average, the mean lies 10% above the centre. A centre at 29/32 of the average gives a mean of about the average:
//! within 1% for powers of two, and up to 6% less between them, because the masks are whole bits.

use fastcdc::v2020::{Normalization, cut, select_masks};

use super::{Chunker, can_decide};

/// FastCDC in its 2020 form, gear tables unseeded.
#[derive(Clone, Debug)]
pub(crate) struct FastCdc {
    min_bytes: usize,
    center_bytes: usize,
    average_bytes: usize,
    max_bytes: usize,
    mask_below: u64,
    mask_above: u64,
}

impl FastCdc {
    /// Derives all parameters from the average. All lengths are even, because the scan takes two bytes at a time.
    pub(crate) fn new(average_bytes: usize) -> Self {
        let center_bytes = even(average_bytes * 29 / 32);
        let (mask_below, mask_above) = select_masks(center_bytes, Normalization::Level3);
        Self {
            min_bytes: even(average_bytes / 4),
            center_bytes,
            average_bytes,
            max_bytes: even(average_bytes * 4),
            mask_below,
            mask_above,
        }
    }
}

/// The nearest even number not above `bytes`.
const fn even(bytes: usize) -> usize {
    bytes & !1
}

impl Chunker for FastCdc {
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
        let (_, length) = cut(
            data,
            self.min_bytes,
            self.center_bytes,
            self.max_bytes,
            self.mask_below,
            self.mask_above,
            self.mask_below << 1,
            self.mask_above << 1,
        );
        Some(length)
    }
}
