//! The filter of one tanker in its stored form: 48 bits for each cell that a tanker may hold.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::Fingerprint;

use super::hashes::{HASHES, Hashes};

/// Bits for each cell of a full tanker in a stored filter; every fold divides it.
pub(crate) const STORED_BITS_PER_CELL: u64 = 48;

/// A filter. Bit *n* is bit *n* mod 64 of word *n* / 64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bitmap {
    bits: u64,
    words: Vec<u64>,
}

impl Bitmap {
    pub(crate) const fn stored_bits(cells_per_tanker: u32) -> u64 {
        cells_per_tanker as u64 * STORED_BITS_PER_CELL
    }

    pub(crate) const fn stored_words(cells_per_tanker: u32) -> u64 {
        Self::stored_bits(cells_per_tanker).div_ceil(u64::BITS as u64)
    }

    /// Returns an empty filter for a tanker of at most `cells_per_tanker`.
    pub(crate) fn new(cells_per_tanker: u32) -> Self {
        Self {
            bits: Self::stored_bits(cells_per_tanker),
            words: vec![0; Self::stored_words(cells_per_tanker) as usize],
        }
    }

    pub(crate) fn insert(&mut self, fingerprint: &Fingerprint) {
        let hashes = Hashes::of(fingerprint);
        for number in 0..HASHES {
            let place = hashes.place(number, self.bits);
            if let Some(word) = self.words.get_mut((place / 64) as usize) {
                *word |= 1 << (place % 64);
            }
        }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// Calls `each` with the number of every bit set in `words`, the first of which is word `first_word` of its filter.
pub(crate) fn for_each_bit(first_word: u64, words: &[u64], mut each: impl FnMut(u64)) {
    for (word, base) in words.iter().zip((first_word * 64..).step_by(64)) {
        let mut rest = *word;
        while rest != 0 {
            each(base + u64::from(rest.trailing_zeros()));
            rest &= rest - 1;
        }
    }
}
