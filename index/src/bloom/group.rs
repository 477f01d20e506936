//! Up to 64 filters of one shape, bit-sliced: row *n* holds bit *n* of each.
//!
//! The first groups of an index have narrow rows, of which several share a word, so that memory grows with the number
//! of tankers from the first one on.

use super::bitmap::for_each_bit;
use super::hashes::{HASHES, Hashes};

/// Most columns of a group.
pub(crate) const COLUMNS_MAX: u32 = u64::BITS;

/// Queries that are worked on at the same time: as many cache misses are under way at once.
pub(crate) const BLOCK: usize = 16;

/// Rows that are fetched for all queries of a block before any is given up: fewer would stall, more would be wasted.
const ROWS_AHEAD: usize = 2;

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    words: Vec<u64>,
    rows: u64,
    /// log2 of the columns.
    log_columns: u32,
    /// Columns that are given out.
    pub(crate) used: u64,
    /// Columns that were given back and not cleared yet; never in `used`.
    pub(crate) stale: u64,
}

impl Group {
    /// Bytes of a group of `columns` (a power of two up to 64) filters of `rows` bits.
    pub(crate) const fn bytes_of(rows: u64, columns: u32) -> u64 {
        (rows * columns as u64).div_ceil(64) * 8
    }

    /// An empty group.
    pub(crate) fn new(rows: u64, columns: u32) -> Self {
        debug_assert!(columns.is_power_of_two() && columns <= COLUMNS_MAX, "rows divide words");
        let words = vec![0; (Self::bytes_of(rows, columns) / 8) as usize];
        Self { words, rows, log_columns: columns.trailing_zeros(), used: 0, stale: 0 }
    }

    /// Columns, in use or not.
    pub(crate) const fn columns(&self) -> u32 {
        1 << self.log_columns
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.words.capacity() * 8) as u64
    }

    /// A column that is not given out.
    pub(crate) fn free_column(&self) -> Option<u32> {
        let column = self.used.trailing_ones();
        (column < self.columns()).then_some(column)
    }

    /// Word and shift of a row.
    const fn place(&self, row: u64) -> (usize, u32) {
        let log_rows = 6 - self.log_columns;
        let shift = (row as u32 & ((1 << log_rows) - 1)) << self.log_columns;
        ((row >> log_rows) as usize, shift)
    }

    /// A row; what lies above its columns belongs to other rows.
    fn row(&self, row: u64) -> u64 {
        let (word, shift) = self.place(row);
        self.words[word] >> shift
    }

    /// Adds bits of a stored filter to a column: `words` from word `first_word` on, folded by `fold`.
    pub(crate) fn merge(&mut self, column: u32, fold: u64, first_word: u64, words: &[u64]) {
        // A division by a number that is known is a multiplication: this is most of the time of a mount.
        match fold {
            1 => self.merge_rows(column, first_word, words, |bit| bit),
            2 => self.merge_rows(column, first_word, words, |bit| bit / 2),
            3 => self.merge_rows(column, first_word, words, |bit| bit / 3),
            4 => self.merge_rows(column, first_word, words, |bit| bit / 4),
            6 => self.merge_rows(column, first_word, words, |bit| bit / 6),
            8 => self.merge_rows(column, first_word, words, |bit| bit / 8),
            other => self.merge_rows(column, first_word, words, |bit| bit / other),
        }
    }

    fn merge_rows(&mut self, column: u32, first_word: u64, words: &[u64], row_of: impl Fn(u64) -> u64) {
        let rows = self.rows;
        for_each_bit(first_word, words, |bit| {
            let row = row_of(bit);
            // A filter has no bits behind its last row; one with such bits is not stored by us.
            if row < rows {
                let (word, shift) = self.place(row);
                self.words[word] |= 1 << (shift + column);
            }
        });
    }

    /// Clears a column between two bits of the stored filter. A row at either end that belongs to what lies beyond, too, stays.
    pub(crate) fn clear_between(&mut self, column: u32, fold: u64, first_word: u64, words: u64) {
        let start = (first_word * 64).div_ceil(fold);
        let end = ((first_word + words) * 64 / fold).min(self.rows);
        for row in start..end {
            let (word, shift) = self.place(row);
            self.words[word] &= !(1 << (shift + column));
        }
    }

    /// Clears a column.
    pub(crate) fn clear(&mut self, column: u32) {
        // The column's bit in every row of a word.
        let rows_in_word = (0..64 >> self.log_columns).fold(0_u64, |mask, row| mask | 1 << (row << self.log_columns));
        let keep = !(rows_in_word << column);
        for word in &mut self.words {
            *word &= keep;
        }
    }

    /// Joins each `factor` neighbouring rows into one, in place.
    pub(crate) fn fold(&mut self, factor: u64) {
        let rows = self.rows.div_ceil(factor);
        let mask = u64::MAX >> (64 - self.columns());
        for row in 0..rows {
            let mut joined = 0;
            for old in row * factor..((row + 1) * factor).min(self.rows) {
                joined |= self.row(old);
            }
            // Rows are read before they are written over: the target lies at or before the source.
            let (word, shift) = self.place(row);
            self.words[word] = self.words[word] & !(mask << shift) | (joined & mask) << shift;
        }
        self.rows = rows;
        let columns = self.columns();
        self.words.truncate((Self::bytes_of(rows, columns) / 8) as usize);
        // What is left of old rows in the last word.
        let tail = (rows * u64::from(columns)) % 64;
        if let Some(last) = self.words.last_mut()
            && tail != 0
        {
            *last &= u64::MAX >> (64 - tail);
        }
        self.words.shrink_to_fit();
    }

    /// For each query the columns among `valid` whose filters say "perhaps".
    pub(crate) fn ask(&self, hashes: &[Hashes], valid: u64, masks: &mut [u64; BLOCK]) {
        let hashes = &hashes[..hashes.len().min(BLOCK)];
        let mut live = [0_u8; BLOCK];
        let mut living = 0;
        for (query, hash) in hashes.iter().enumerate() {
            let mut mask = valid;
            for number in 0..ROWS_AHEAD {
                mask &= self.row(hash.place(number, self.rows));
            }
            masks[query] = mask;
            live[living] = query as u8;
            living += usize::from(mask != 0);
        }
        for number in ROWS_AHEAD..HASHES {
            let mut still = 0;
            for at in 0..living {
                let query = live[at] as usize;
                let mask = masks[query] & self.row(hashes[query].place(number, self.rows));
                masks[query] = mask;
                live[still] = query as u8;
                still += usize::from(mask != 0);
            }
            living = still;
        }
    }
}
