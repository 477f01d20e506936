//! A group: up to 512 filters of one shape, bit-sliced. Row *n* holds bit *n* of each.
//!
//! A row has 1 to 8 words of 64 columns, so one cache miss asks up to 512 tankers. The first groups of an index have
//! narrower rows, several of which share a word. So memory grows with the number of tankers from the first one on.

use super::bitmap::for_each_bit;
use super::columns::{COLUMNS_MAX, Columns, word_and_bit};
use super::hashes::Hashes;
use super::sieve::sieve;

/// Spare words in a group of rows of several words, so that the first row can begin at a cache line.
const SPARE_WORDS: u64 = 7;

/// With at most this many columns, two rows rule out most absent fingerprints; more columns take four rows or more.
const COLUMNS_FEW: u32 = 4;

const CACHE_LINE_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Group {
    /// `first` unused words, then the rows.
    words: Vec<u64>,
    first: usize,
    rows: u64,
    columns: u32,
    /// Columns that are given out.
    pub(crate) used: Columns,
    /// Columns that were given back and are not cleared yet; never in `used`.
    pub(crate) stale: Columns,
}

/// Words of a row; 0 if several rows share one.
const fn words_in_row(columns: u32) -> u64 {
    (columns / u64::BITS) as u64
}

impl Group {
    /// Whether a group can have this number of columns: a power of two up to 64, or a multiple of 64 up to
    /// [`COLUMNS_MAX`].
    pub(crate) const fn is_width(columns: u32) -> bool {
        columns.is_power_of_two() && columns < u64::BITS
            || columns > 0 && columns.is_multiple_of(u64::BITS) && columns <= COLUMNS_MAX
    }

    /// Bytes of a group of `columns` filters of `rows` bits.
    pub(crate) const fn bytes_of(rows: u64, columns: u32) -> u64 {
        let spare = if columns > u64::BITS { SPARE_WORDS } else { 0 };
        ((rows * columns as u64).div_ceil(64) + spare) * 8
    }

    pub(crate) fn new(rows: u64, columns: u32) -> Self {
        debug_assert!(Self::is_width(columns), "rows divide words, or words rows");
        let words = vec![0_u64; (Self::bytes_of(rows, columns) / 8) as usize];
        let spare = words.len() - (rows * u64::from(columns)).div_ceil(64) as usize;
        // The start affects only speed: folding may move the words.
        let first = words.as_ptr().align_offset(CACHE_LINE_BYTES).min(spare);
        Self { words, first, rows, columns, used: Columns::default(), stale: Columns::default() }
    }

    /// Number of columns, in use or not.
    pub(crate) const fn columns(&self) -> u32 {
        self.columns
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.words.capacity() * 8) as u64
    }

    pub(crate) fn free_column(&self) -> Option<u32> {
        let column = self.used.first_absent();
        (column < self.columns).then_some(column)
    }

    fn body(&self) -> &[u64] {
        &self.words[self.first..]
    }

    fn body_mut(&mut self) -> &mut [u64] {
        &mut self.words[self.first..]
    }

    /// log2 of the rows in a word, for rows no longer than words.
    const fn log_rows(&self) -> u32 {
        6 - self.columns.trailing_zeros()
    }

    const fn place(&self, row: u64, word: usize) -> (usize, u32) {
        match words_in_row(self.columns) {
            0 => {
                let log_rows = self.log_rows();
                let shift = (row as u32 & ((1 << log_rows) - 1)) * self.columns;
                ((row >> log_rows) as usize, shift)
            }
            words => ((row * words) as usize + word, 0),
        }
    }

    /// Adds bits of a stored filter to a column: `words` from word `first_word` on, folded by `fold`.
    pub(crate) fn merge(&mut self, column: u32, fold: u64, first_word: u64, words: &[u64]) {
        // The compiler turns a division by a constant into a multiplication.
        match fold {
            1 => self.merge_bits(column, first_word, words, |bit| bit),
            2 => self.merge_bits(column, first_word, words, |bit| bit / 2),
            3 => self.merge_bits(column, first_word, words, |bit| bit / 3),
            4 => self.merge_bits(column, first_word, words, |bit| bit / 4),
            6 => self.merge_bits(column, first_word, words, |bit| bit / 6),
            8 => self.merge_bits(column, first_word, words, |bit| bit / 8),
            other => self.merge_bits(column, first_word, words, |bit| bit / other),
        }
    }

    fn merge_bits(&mut self, column: u32, first_word: u64, words: &[u64], row_of: impl Fn(u64) -> u64) {
        let (rows, (word_in_row, bit_in_word)) = (self.rows, word_and_bit(column));
        for_each_bit(first_word, words, |bit| {
            let row = row_of(bit);
            // A filter has no bits behind its last row. We never store such bits.
            if row < rows {
                let (word, shift) = self.place(row, word_in_row);
                self.body_mut()[word] |= 1 << (shift + bit_in_word);
            }
        });
    }

    /// Adds bits to the 64 columns of word `word_in_row`, or to all columns of a narrower group: `rows` from row
    /// `first_row` on. `rows` has no bits behind the last column; rows behind the last row are ignored.
    pub(crate) fn merge_rows(&mut self, word_in_row: usize, first_row: u64, rows: &[u64]) {
        let rows = &rows[..rows.len().min(self.rows.saturating_sub(first_row) as usize)];
        match words_in_row(self.columns) as usize {
            0 => {
                for (row, bits) in (first_row..).zip(rows) {
                    let (word, shift) = self.place(row, 0);
                    self.body_mut()[word] |= bits << shift;
                }
            }
            words => {
                let start = first_row as usize * words + word_in_row;
                let into = self.body_mut()[start..].iter_mut().step_by(words);
                into.zip(rows).for_each(|(word, bits)| *word |= bits);
            }
        }
    }

    /// Clears a column between two bits of the stored filter. A row at either end that also covers bits beyond stays.
    pub(crate) fn clear_between(&mut self, column: u32, fold: u64, first_word: u64, words: u64) {
        let start = (first_word * 64).div_ceil(fold);
        let end = ((first_word + words) * 64 / fold).min(self.rows);
        let (word_in_row, bit_in_word) = word_and_bit(column);
        for row in start..end {
            let (word, shift) = self.place(row, word_in_row);
            self.body_mut()[word] &= !(1 << (shift + bit_in_word));
        }
    }

    /// Joins each `factor` neighbouring rows into one, in place.
    pub(crate) fn fold(&mut self, factor: u64) {
        let rows = self.rows.div_ceil(factor);
        let mask = u64::MAX >> (u64::BITS - self.columns.min(u64::BITS));
        for row in 0..rows {
            for word_in_row in 0..words_in_row(self.columns).max(1) as usize {
                let mut joined = 0;
                for old in row * factor..((row + 1) * factor).min(self.rows) {
                    let (word, shift) = self.place(old, word_in_row);
                    joined |= self.body()[word] >> shift;
                }
                // Rows are read before they are overwritten: the target lies at or before the source.
                let (word, shift) = self.place(row, word_in_row);
                let target = &mut self.body_mut()[word];
                *target = *target & !(mask << shift) | (joined & mask) << shift;
            }
        }
        self.rows = rows;
        let bits = rows * u64::from(self.columns);
        self.words.truncate(self.first + bits.div_ceil(64) as usize);
        // Clears the rest of old rows in the last word.
        if let Some(last) = self.words.last_mut()
            && !bits.is_multiple_of(64)
        {
            *last &= u64::MAX >> (64 - bits % 64);
        }
        self.words.shrink_to_fit();
    }

    /// Asks at most [`BLOCK`](super::sieve::BLOCK) queries. Calls `each` with (number of the query, number of the word
    /// in a row, columns of that word that say "perhaps") if there are such columns among `valid`.
    pub(crate) fn ask(&self, hashes: &[Hashes], valid: &Columns, each: &mut dyn FnMut(usize, usize, u64)) {
        match words_in_row(self.columns) {
            0 => {
                let (body, valid) = (self.body(), valid.words());
                let row = |row| {
                    let (word, shift) = self.place(row, 0);
                    // Bits above the columns belong to other rows: `valid` masks them.
                    [body[word] >> shift]
                };
                if self.columns <= COLUMNS_FEW {
                    sieve::<1, 2>(self.rows, row, hashes, valid, each);
                } else {
                    sieve::<1, 4>(self.rows, row, hashes, valid, each);
                }
            }
            1 => self.ask_words::<1>(hashes, valid, each),
            2 => self.ask_words::<2>(hashes, valid, each),
            3 => self.ask_words::<3>(hashes, valid, each),
            4 => self.ask_words::<4>(hashes, valid, each),
            5 => self.ask_words::<5>(hashes, valid, each),
            6 => self.ask_words::<6>(hashes, valid, each),
            7 => self.ask_words::<7>(hashes, valid, each),
            _ => self.ask_words::<8>(hashes, valid, each),
        }
    }

    fn ask_words<const W: usize>(&self, hashes: &[Hashes], valid: &Columns, each: &mut dyn FnMut(usize, usize, u64)) {
        let rows = self.body().as_chunks::<W>().0;
        sieve::<W, 4>(self.rows, |row| rows[row as usize], hashes, valid.words(), each);
    }

    #[cfg(test)]
    pub(crate) fn bits(&self) -> &[u64] {
        let words = (self.rows * u64::from(self.columns)).div_ceil(64) as usize;
        &self.body()[..words]
    }
}
