//! Many stored filters into rows at once. Filters lie along the words on disk and across them in memory, so loading is
//! a transposition.
//!
//! Setting the bits of one filter after another touches every cache line of its group once for each filter. Here 64
//! words, one of each filter, become 64 rows at once by 32 * 6 exchanges, which compile to vector instructions. Then
//! neighbouring rows are joined as the fold says.

pub(super) const TOGETHER: usize = u64::BITS as usize;

/// Words taken from each filter in one go: a cache line.
const LINE_WORDS: usize = 8;

/// Exchanges bit *j* of word *i* with bit *i* of word *j*.
fn transpose(square: &mut [u64; TOGETHER]) {
    exchange::<32>(square, 0x0000_0000_ffff_ffff);
    exchange::<16>(square, 0x0000_ffff_0000_ffff);
    exchange::<8>(square, 0x00ff_00ff_00ff_00ff);
    exchange::<4>(square, 0x0f0f_0f0f_0f0f_0f0f);
    exchange::<2>(square, 0x3333_3333_3333_3333);
    exchange::<1>(square, 0x5555_5555_5555_5555);
}

/// In each square of twice `SIDE`, exchanges the two quarters beside the diagonal. `low` masks the left half of the
/// columns.
fn exchange<const SIDE: usize>(square: &mut [u64; TOGETHER], low: u64) {
    for rows in square.chunks_exact_mut(2 * SIDE) {
        let (upper, lower) = rows.split_at_mut(SIDE);
        for (upper, lower) in upper.iter_mut().zip(lower) {
            let changed = ((*upper >> SIDE) ^ *lower) & low;
            *upper ^= changed << SIDE;
            *lower ^= changed;
        }
    }
}

/// Transposes words of up to 64 stored filters, all of one length and starting at `first_word`, into rows of a group of
/// this `fold`: bit *n* of each row in `into` belongs to filter *n*. Returns the number of the first row. The first and
/// the last row may also cover neighbouring words.
pub(super) fn rows_of(filters: &[&[u64]], fold: u64, first_word: u64, into: &mut Vec<u64>) -> u64 {
    match fold {
        // The compiler turns a division by a constant into a multiplication.
        1 => transpose_all(filters, first_word, into, |bit| bit),
        2 => transpose_all(filters, first_word, into, |bit| bit / 2),
        3 => transpose_all(filters, first_word, into, |bit| bit / 3),
        4 => transpose_all(filters, first_word, into, |bit| bit / 4),
        6 => transpose_all(filters, first_word, into, |bit| bit / 6),
        8 => transpose_all(filters, first_word, into, |bit| bit / 8),
        other => transpose_all(filters, first_word, into, |bit| bit / other),
    }
}

fn transpose_all(filters: &[&[u64]], first_word: u64, into: &mut Vec<u64>, row_of: impl Fn(u64) -> u64) -> u64 {
    debug_assert!(filters.len() <= TOGETHER, "a filter for each bit of a word");
    let words = filters.iter().map(|filter| filter.len()).max().unwrap_or(0);
    let first_row = row_of(first_word * 64);
    into.clear();
    if words == 0 {
        return first_row;
    }
    into.resize((row_of((first_word + words as u64) * 64 - 1) - first_row + 1) as usize, 0);
    let mut squares = [[0; TOGETHER]; LINE_WORDS];
    for start in (0..words).step_by(LINE_WORDS) {
        let many = LINE_WORDS.min(words - start);
        for (number, filter) in filters.iter().enumerate() {
            for (square, word) in squares.iter_mut().zip(filter.iter().skip(start).take(many)) {
                square[number] = *word;
            }
        }
        for (at, square) in squares.iter_mut().enumerate().take(many) {
            transpose(square);
            let first_bit = (first_word + (start + at) as u64) * 64;
            for (bit, row) in (first_bit..).zip(square.iter()) {
                into[(row_of(bit) - first_row) as usize] |= row;
            }
            // The bits of absent filters stay empty.
            square.fill(0);
        }
    }
    first_row
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_change_places(words in prop::collection::vec(any::<u64>(), TOGETHER)) {
            let before: [u64; TOGETHER] = words.try_into().unwrap();
            let mut after = before;
            transpose(&mut after);
            for (i, j) in (0..TOGETHER).flat_map(|i| (0..TOGETHER).map(move |j| (i, j))) {
                prop_assert_eq!(after[i] >> j & 1, before[j] >> i & 1);
            }
        }
    }
}
