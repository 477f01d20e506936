//! A set of columns of one group.

/// Words of the widest row: one cache line.
pub(crate) const ROW_WORDS_MAX: usize = 8;

pub(crate) const COLUMNS_MAX: u32 = ROW_WORDS_MAX as u32 * u64::BITS;

/// The set: column *n* is bit *n* mod 64 of word *n* / 64, as in a row.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Columns([u64; ROW_WORDS_MAX]);

pub(crate) const fn word_and_bit(column: u32) -> (usize, u32) {
    ((column / u64::BITS) as usize, column % u64::BITS)
}

impl Columns {
    pub(crate) fn insert(&mut self, column: u32) {
        let (word, bit) = word_and_bit(column);
        self.0[word] |= 1 << bit;
    }

    /// Removes a column; returns whether it was in the set.
    pub(crate) fn remove(&mut self, column: u32) -> bool {
        let (word, bit) = word_and_bit(column);
        let held = self.0[word] >> bit & 1 == 1;
        self.0[word] &= !(1 << bit);
        held
    }

    /// The lowest column outside the set; [`COLUMNS_MAX`] if all are in it.
    pub(crate) fn first_absent(&self) -> u32 {
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        full as u32 * u64::BITS + self.0.get(full).map_or(0, |word| word.trailing_ones())
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The first `W` words of the set.
    pub(crate) fn words<const W: usize>(&self) -> [u64; W] {
        const { assert!(W <= ROW_WORDS_MAX) };
        std::array::from_fn(|word| self.0[word])
    }
}
