//! The array: all groups under one lock and one budget.
//!
//! # Lifetime of a column
//! A sealed tanker owns its column ([`FilterColumn`]), and all its generations share the column: a rewritten tanker
//! never holds a fingerprint that it did not hold before. The column is given back when the last set of tankers that
//! names it is dropped, so no lookup ever asks a column that has a new owner.
//!
//! # Memory
//! The groups' words never exceed the limit. When a tanker needs a column and another group does not fit, all groups
//! are folded in place. When they cannot be folded any more, the tanker gets no filter and every lookup asks it. Both
//! cases log their cost.
//!
//! # Locking
//! One read-write lock. Asking holds it for a block of queries. Loading, clearing and replacing hold it for one piece
//! at a time: 48 KiB of one stored filter, or 3 KiB of each of 64. Folding holds it for some 100 ms per GB, at most
//! three times in the life of an opened index. Transposing needs no lock: after a concurrent fold it is repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_sync::RwLock;

use super::bitmap::Bitmap;
use super::columns::{Columns, word_and_bit};
use super::group::Group;
use super::hashes::Hashes;
use super::shape::{BITS_PER_CELL_SCANT, Fullness, bytes_for, choose, layout, next_narrower};
use super::sieve::BLOCK;
use super::transpose::{TOGETHER, rows_of};

/// Columns of the first unplanned group, and of the widest: a small pool needs few, and a large one is soon mounted
/// again with a better plan.
const COLUMNS_GROWN: std::ops::RangeInclusive<u32> = 4..=64;

/// Words of a filter that are merged under one lock: whole rows at every fold.
const MERGE_WORDS: usize = 3 << 11;

/// As [`MERGE_WORDS`], for many filters at once.
const MERGE_MANY_WORDS: usize = 3 << 7;

/// With fewer filters, setting bits one by one is faster than transposing 64.
const MANY: usize = 8;

const _: () = assert!((MERGE_WORDS * 64).is_multiple_of(48) && (MERGE_MANY_WORDS * 64).is_multiple_of(48));

#[derive(Debug)]
pub(crate) struct FilterArray {
    stored_bits: u64,
    fullness: Fullness,
    limit_bytes: AtomicU64,
    state: RwLock<Groups>,
}

#[derive(Debug)]
struct Groups {
    fold: u64,
    groups: Vec<Group>,
    /// Number of requests for a column that were refused.
    refused: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct FilterSizes {
    pub(crate) bytes: u64,
    pub(crate) fold: u64,
    pub(crate) columns: u64,
}

impl FilterArray {
    /// Makes an empty array for `tankers` of `cells_per_tanker`, none fuller than `fullness`, in at most `limit_bytes`.
    pub(crate) fn new(cells_per_tanker: u32, fullness: Fullness, tankers: u64, limit_bytes: u64) -> Arc<Self> {
        let fold = choose(Bitmap::stored_bits(cells_per_tanker), fullness, tankers, limit_bytes);
        Self::with_fold(cells_per_tanker, fullness, tankers, limit_bytes, fold)
    }

    /// As [`new`](Self::new), with this fold.
    pub(super) fn with_fold(
        cells_per_tanker: u32,
        fullness: Fullness,
        tankers: u64,
        limit_bytes: u64,
        fold: u64,
    ) -> Arc<Self> {
        let stored_bits = Bitmap::stored_bits(cells_per_tanker);
        let mut state = Groups { fold, groups: Vec::new(), refused: 0 };
        for columns in layout(tankers) {
            if !state.grow(stored_bits / fold, columns, limit_bytes) {
                break;
            }
        }
        let limit_bytes = AtomicU64::new(limit_bytes);
        let array = Self { stored_bits, fullness, limit_bytes, state: RwLock::new(state) };
        array.warn_if_scant(fold, tankers);
        Arc::new(array)
    }

    /// Returns a cleared column, or `None` if there is no memory for one.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Arc<FilterColumn>> {
        let mut state = self.state.write();
        loop {
            let free = |(number, group): (usize, &mut Group)| Some((number, group.free_column()?));
            if let Some((group, column)) = state.groups.iter_mut().enumerate().find_map(free) {
                let found = &mut state.groups[group];
                let stale = found.stale.remove(column);
                found.used.insert(column);
                // Unlock first: dropping a column takes the lock too.
                drop(state);
                let found = Arc::new(FilterColumn { array: self.clone(), group: group as u32, column });
                // The column is reserved, and no set names it yet.
                if stale {
                    found.clear();
                }
                return Some(found);
            }
            let columns: u32 = state.groups.iter().map(Group::columns).sum();
            let rows = self.stored_bits / state.fold;
            let wanted = columns.clamp(*COLUMNS_GROWN.start(), *COLUMNS_GROWN.end());
            if state.grow(rows, 1 << wanted.ilog2(), self.limit_bytes()) {
                continue;
            }
            let Some(factor) = self.fullness.next_factor(state.fold) else {
                state.refused += 1;
                tracing::warn!(
                    "no memory for the filter of another tanker: each absent lookup reads {} buckets more; the filters \
                     may take {} MiB",
                    state.refused,
                    self.limit_bytes() >> 20
                );
                return None;
            };
            for group in &mut state.groups {
                group.fold(factor);
            }
            state.fold *= factor;
            self.warn_if_scant(state.fold, u64::from(columns) + 1);
        }
    }

    fn warn_if_scant(&self, fold: u64, tankers: u64) {
        let bits = self.fullness.bits_per_cell(fold);
        if bits < BITS_PER_CELL_SCANT && tankers > 0 {
            let better = self.fullness.wanted_fold(tankers);
            tracing::warn!(
                "Bloom filters have only {bits:.1} bits for each fingerprint: an absent one costs {:.3} false reads with {tankers} \
                 tankers; {} MiB instead of {} would make it {:.4}",
                self.fullness.expected_false_reads(fold, tankers, 0),
                bytes_for(self.stored_bits, better, tankers).div_ceil(1 << 20),
                self.limit_bytes() >> 20,
                self.fullness.expected_false_reads(better, tankers, 0),
            );
        }
    }

    fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit for further columns. Memory that is in use stays.
    pub(crate) fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    pub(crate) fn fullness(&self) -> Fullness {
        self.fullness
    }

    /// Asks all groups. Calls `each` with (number of the query, number of the group, number of the word in its rows,
    /// columns of that word that say "perhaps") if there are such columns. It asks only the columns in `valid` (a set
    /// for each group).
    pub(crate) fn ask(&self, valid: &[Columns], hashes: &[Hashes], mut each: impl FnMut(usize, usize, usize, u64)) {
        for (block, hashes) in hashes.chunks(BLOCK).enumerate() {
            let state = self.state.read();
            for (number, (group, valid)) in state.groups.iter().zip(valid).enumerate() {
                if !valid.is_empty() {
                    group.ask(hashes, valid, &mut |query, word, mask| each(block * BLOCK + query, number, word, mask));
                }
            }
        }
    }

    /// Adds bits of the stored filters of up to 64 columns that share a word. All pieces begin at word `first_word` and
    /// have the same length.
    pub(crate) fn merge_many(&self, columns: &[(&FilterColumn, &[u64])], first_word: u64) {
        let Some(&(first, words)) = columns.first() else { return };
        if columns.len() < MANY {
            columns.iter().for_each(|(column, words)| column.merge(first_word, words));
            return;
        }
        debug_assert!(columns.iter().all(|(column, _)| column.word() == first.word()), "columns of one word");
        let (group, word) = first.word();
        let mut rows = Vec::new();
        for start in (0..words.len()).step_by(MERGE_MANY_WORDS) {
            let mut pieces: [&[u64]; TOGETHER] = [&[]; TOGETHER];
            for (column, words) in columns {
                let words = words.get(start..).unwrap_or_default();
                pieces[word_and_bit(column.column).1 as usize] = &words[..words.len().min(MERGE_MANY_WORDS)];
            }
            loop {
                let fold = self.state.read().fold;
                let first_row = rows_of(&pieces, fold, first_word + start as u64, &mut rows);
                let mut state = self.state.write();
                // Otherwise a fold happened meanwhile, and row numbers have changed.
                if state.fold == fold {
                    state.groups[group as usize].merge_rows(word as usize, first_row, &rows);
                    break;
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> Vec<Columns> {
        self.state.read().groups.iter().map(|group| group.used).collect()
    }

    #[cfg(test)]
    pub(crate) fn bits(&self) -> Vec<Vec<u64>> {
        self.state.read().groups.iter().map(|group| group.bits().to_vec()).collect()
    }

    pub(crate) fn sizes(&self) -> FilterSizes {
        let state = self.state.read();
        FilterSizes {
            bytes: state.groups.iter().map(Group::bytes).sum(),
            fold: state.fold,
            columns: state.groups.iter().map(|group| u64::from(group.used.len())).sum(),
        }
    }
}

impl Groups {
    /// Adds a group of `columns`, or of fewer if memory is short; `false` if not even one column fits.
    fn grow(&mut self, rows: u64, columns: u32, limit_bytes: u64) -> bool {
        let room = limit_bytes.saturating_sub(self.groups.iter().map(Group::bytes).sum());
        let mut columns = columns;
        while columns > 0 && Group::bytes_of(rows, columns) > room {
            columns = next_narrower(columns);
        }
        if columns > 0 {
            self.groups.push(Group::new(rows, columns));
        }
        columns > 0
    }
}

/// The column of one sealed tanker.
#[derive(Debug)]
pub(crate) struct FilterColumn {
    array: Arc<FilterArray>,
    pub(crate) group: u32,
    pub(crate) column: u32,
}

impl FilterColumn {
    /// Its group, and its word in the group's rows, as (group, word).
    pub(crate) fn word(&self) -> (u32, u32) {
        (self.group, self.column / u64::BITS)
    }

    /// Adds bits of the stored filter: `words` from word `first_word` on.
    pub(crate) fn merge(&self, first_word: u64, words: &[u64]) {
        self.each_piece(first_word, words, |group, column, fold, first, piece| group.merge(column, fold, first, piece));
    }

    /// Replaces a part of the column by that of a stored filter that says "perhaps" to fewer fingerprints. No bit of
    /// the stored filter is ever missing meanwhile. A row at the border of two pieces may keep a superfluous bit.
    pub(crate) fn replace(&self, first_word: u64, words: &[u64]) {
        self.each_piece(first_word, words, |group, column, fold, first, piece| {
            group.clear_between(column, fold, first, piece.len() as u64);
            group.merge(column, fold, first, piece);
        });
    }

    pub(crate) fn clear(&self) {
        let words = self.array.stored_bits.div_ceil(64);
        for first in (0..words).step_by(MERGE_WORDS) {
            let mut state = self.array.state.write();
            let fold = state.fold;
            state.groups[self.group as usize].clear_between(self.column, fold, first, MERGE_WORDS as u64);
        }
    }

    fn each_piece(&self, first_word: u64, words: &[u64], mut action: impl FnMut(&mut Group, u32, u64, u64, &[u64])) {
        for (piece, first) in words.chunks(MERGE_WORDS).zip((first_word..).step_by(MERGE_WORDS)) {
            let mut state = self.array.state.write();
            let fold = state.fold;
            action(&mut state.groups[self.group as usize], self.column, fold, first, piece);
        }
    }
}

impl Drop for FilterColumn {
    fn drop(&mut self) {
        let mut state = self.array.state.write();
        if let Some(group) = state.groups.get_mut(self.group as usize) {
            group.used.remove(self.column);
            group.stale.insert(self.column);
        }
    }
}
