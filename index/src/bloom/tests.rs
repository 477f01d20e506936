//! The array against plain sets, and its memory against its limit.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::bitmap::for_each_bit;
use super::columns::word_and_bit;
use super::group::Group;
use super::hashes::HASHES;
use super::shape::{Fullness, bytes_for, choose, layout, next_narrower};
use super::sieve::BLOCK;
use super::*;
use crate::tests::fingerprint;

fn bitmap(cells: u32, numbers: impl Iterator<Item = u64>) -> Bitmap {
    let mut bitmap = Bitmap::new(cells);
    numbers.for_each(|number| bitmap.insert(&fingerprint(number)));
    bitmap
}

/// The columns that say "perhaps", as (query, group, column).
fn perhaps(array: &FilterArray, numbers: &[u64]) -> HashSet<(usize, u32, u32)> {
    let hashes: Vec<_> = numbers.iter().map(|number| Hashes::of(&fingerprint(*number))).collect();
    let mut found = HashSet::new();
    array.ask(&array.used(), &hashes, |query, group, word, mask| {
        assert_ne!(mask, 0);
        for_each_bit(word as u64, &[mask], |column| assert!(found.insert((query, group as u32, column as u32))));
    });
    found
}

/// The expected answers of a column of `fold`, computed one bit at a time.
struct Plain {
    folded: HashSet<u64>,
    bits: u64,
}

impl Plain {
    fn new(bitmap: &Bitmap, fold: u64) -> Self {
        let mut folded = HashSet::new();
        for_each_bit(0, bitmap.words(), |bit| {
            folded.insert(bit / fold);
        });
        Self { folded, bits: bitmap.words().len() as u64 * 64 / fold }
    }

    fn says_perhaps(&self, hashes: &Hashes) -> bool {
        (0..HASHES).all(|number| self.folded.contains(&hashes.place(number, self.bits)))
    }
}

/// Every width that a group can have.
fn widths() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(COLUMNS_MAX), |columns| Some(next_narrower(*columns)).filter(|narrower| *narrower > 0))
}

#[test]
fn rows_of_every_width_hold_every_column() {
    assert_eq!(widths().collect::<Vec<_>>(), [512, 448, 384, 320, 256, 192, 128, 64, 32, 16, 8, 4, 2, 1]);
    assert!((0..1024).all(|columns| Group::is_width(columns) == widths().any(|width| width == columns)));
    for columns in widths() {
        let mut group = Group::new(1536, columns);
        let bitmaps: Vec<_> = (0..u64::from(columns)).map(|n| bitmap(32, n * 100..n * 100 + 32)).collect();
        let mut valid = Columns::default();
        for (column, bitmap) in (0..).zip(&bitmaps) {
            group.merge(column, 1, 0, bitmap.words());
            valid.insert(column);
        }
        for fold in [1, 2, 4] {
            assert!(group.bytes() <= Group::bytes_of(1536 / fold, columns), "as promised");
            let plain: Vec<_> = bitmaps.iter().map(|bitmap| Plain::new(bitmap, fold)).collect();
            let hashes: Vec<_> = (0..BLOCK as u64).map(|number| Hashes::of(&fingerprint(number * 401))).collect();
            let mut found = HashSet::new();
            group.ask(&hashes, &valid, &mut |query, word, mask| {
                for_each_bit(word as u64, &[mask], |column| assert!(found.insert((query, column as usize))));
            });
            for (query, hashes) in hashes.iter().enumerate() {
                for (column, plain) in plain.iter().enumerate() {
                    let expected = plain.says_perhaps(hashes);
                    assert_eq!(found.contains(&(query, column)), expected, "{columns} {fold}");
                }
            }
            group.fold(2);
        }
    }
}

#[test]
fn a_set_of_columns_is_a_set() {
    let mut set = Columns::default();
    assert!(set.is_empty() && set.first_absent() == 0);
    for column in 0..COLUMNS_MAX {
        assert_eq!((set.first_absent(), set.len()), (column, column));
        set.insert(column);
        assert!(!set.is_empty());
    }
    assert_eq!(set.first_absent(), COLUMNS_MAX);
    for (column, first) in [(511, 511), (64, 64), (63, 63), (200, 63)] {
        assert!(set.remove(column) && !set.remove(column));
        assert_eq!(set.first_absent(), first);
    }
    assert_eq!((set.first_absent(), set.len(), word_and_bit(200)), (63, 508, (3, 8)));
    assert_eq!(set.words::<2>(), [u64::MAX >> 1, u64::MAX << 1]);
}

#[test]
fn columns_are_cleared_before_they_mean_something_else() {
    let array = FilterArray::new(64, Fullness::FULL, 2, 1 << 20);
    let columns: Vec<_> = (0..2).map(|_| array.reserve().unwrap()).collect();
    columns[0].merge(0, bitmap(64, 0..64).words());
    columns[1].merge(0, bitmap(64, 64..128).words());
    assert!(perhaps(&array, &[3]).contains(&(0, 0, 0)) && perhaps(&array, &[70]).contains(&(0, 0, 1)));
    let (group, column) = (columns[0].group, columns[0].column);
    drop(columns);
    let again = array.reserve().unwrap();
    assert_eq!((again.group, again.column), (group, column), "the memory is used again");
    assert!((0..64).all(|number| !perhaps(&array, &[number]).contains(&(0, group, column))));
    assert_eq!(array.sizes().columns, 1);
}

#[test]
fn a_column_becomes_the_filter_of_what_is_left() {
    for fold_by_memory in [1 << 20, bytes_for(Bitmap::stored_bits(64), 3, 1)] {
        let array = FilterArray::new(64, Fullness::FULL, 1, fold_by_memory);
        let column = array.reserve().unwrap();
        column.merge(0, bitmap(64, 0..64).words());
        let left = bitmap(64, 0..20);
        for (first, words) in left.words().chunks(7).enumerate() {
            column.replace(first as u64 * 7, words);
        }
        let left = Plain::new(&left, array.sizes().fold);
        let mut superfluous = 0;
        for number in 0..500 {
            match (left.says_perhaps(&Hashes::of(&fingerprint(number))), !perhaps(&array, &[number]).is_empty()) {
                (true, false) => panic!("{number} is forgotten"),
                (false, true) => superfluous += 1,
                _ => {}
            }
        }
        assert!(superfluous <= 5, "{superfluous}: only what shares its borders");
    }
}

#[test]
fn memory_stays_within_every_limit_and_no_filter_forgets() {
    let one = bytes_for(Bitmap::stored_bits(64), 1, 1);
    for limit_bytes in [0, one / 8, one / 2, one, 3 * one, 10 * one, 100 * one] {
        let array = FilterArray::new(64, Fullness::FULL, 0, limit_bytes);
        let mut columns = Vec::new();
        for tanker in 0..150_u64 {
            let column = array.reserve();
            if let Some(column) = &column {
                column.merge(0, bitmap(64, tanker * 64..tanker * 64 + 64).words());
            }
            columns.push(column);
            let sizes = array.sizes();
            assert!(sizes.bytes <= limit_bytes, "{sizes:?} of {limit_bytes}");
            assert!(FOLDS.contains(&sizes.fold));
        }
        for (tanker, column) in columns.iter().enumerate() {
            let Some(column) = column else { continue };
            let numbers: Vec<_> = (tanker as u64 * 64..tanker as u64 * 64 + 64).collect();
            let found = perhaps(&array, &numbers);
            assert!((0..64).all(|query| found.contains(&(query, column.group, column.column))));
        }
        if limit_bytes >= 100 * one {
            assert!(columns.iter().all(Option::is_some) && array.sizes().fold == 2);
        }
    }
}

#[test]
fn shapes_follow_the_budget() {
    let bits = Bitmap::stored_bits(1 << 20);
    assert_eq!((choose(bits, Fullness::FULL, 0, 0), choose(bits, Fullness::FULL, 1, 0)), (2, 8));
    assert_eq!(choose(bits, Fullness::FULL, 1, 64 << 20), 2);
    assert_eq!(choose(bits, Fullness::FULL, 20, 64 << 20), 3, "16 bits in 32 columns");
    assert_eq!(choose(bits, Fullness::FULL, 1000, u64::MAX), 1, "with many tankers 24 bits would cost reads");
    assert_eq!((choose(bits, Fullness::FULL, 64, u64::MAX), choose(bits, Fullness::FULL, 256, u64::MAX)), (2, 1));
    assert_eq!(choose(bits, Fullness::FULL, 256, 1 << 30), 2, "but not more than there is");
    let layout = |tankers| layout(tankers).collect::<Vec<_>>();
    assert_eq!((layout(0), layout(5), layout(40), layout(130)), (vec![], vec![8], vec![64], vec![128, 2]));
    assert_eq!((layout(256), layout(512), layout(600)), (vec![256], vec![512], vec![512, 64, 32]));
    assert_eq!((layout(1100), layout(1024)), (vec![512, 512, 64, 16], vec![512, 512]));
    assert_eq!(bytes_for(bits, 2, 64), 192 << 20);
    assert_eq!(bytes_for(bits, 2, 256), (768 << 20) + 56, "and what lies before a cache line");
    let rates: Vec<_> = FOLDS.into_iter().map(|fold| Fullness::FULL.false_positive_rate(fold)).collect();
    assert!(rates.is_sorted() && rates[1] < 1.5e-5 && rates[2] < 5e-4 && rates[0] < 2e-8, "{rates:?}");
}

#[test]
fn false_positives_are_as_rare_as_the_formula_says() {
    let cells = 1 << 14;
    let array = FilterArray::new(cells, Fullness::FULL, 4, bytes_for(Bitmap::stored_bits(cells), 4, 4));
    assert_eq!(array.sizes().fold, 4, "12 bits");
    let columns: Vec<_> = (0..4_u64).map(|_| array.reserve().unwrap()).collect();
    for (tanker, column) in (0_u64..).zip(&columns) {
        let first = tanker * u64::from(cells);
        column.merge(0, bitmap(cells, first..first + u64::from(cells)).words());
    }
    let asked: Vec<_> = (1 << 30..(1 << 30) + 100_000).collect();
    let found = perhaps(&array, &asked).len() as f64;
    let expected = asked.len() as f64 * Fullness::FULL.expected_false_reads(4, 4, 0);
    assert!((0.8..1.2).contains(&(found / expected)), "{found} and not {expected}");
}

#[test]
fn asking_goes_on_while_columns_come_and_go() {
    let array = FilterArray::new(1024, Fullness::FULL, 0, 1 << 20);
    let kept = array.reserve().unwrap();
    kept.merge(0, bitmap(1024, 0..1024).words());
    let numbers: Vec<_> = (0..64).collect();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for _ in 0..200 {
                let found = perhaps(&array, &numbers);
                assert!((0..64).all(|query| found.contains(&(query, kept.group, kept.column))));
            }
        });
        let mut columns: Vec<Arc<FilterColumn>> = Vec::new();
        while !asking.is_finished() {
            match array.reserve() {
                Some(column) => {
                    column.merge(0, bitmap(1024, 5000..5100).words());
                    columns.push(column);
                }
                None => columns.clear(),
            }
        }
        asking.join().unwrap();
    });
}

#[test]
fn a_wide_group_gets_a_stale_column_back_cleared() {
    let array = FilterArray::new(64, Fullness::FULL, 200, 1 << 30);
    let mut columns: Vec<_> = (0..200).map(|_| array.reserve().unwrap()).collect();
    for (tanker, column) in (0..).zip(&columns) {
        column.merge(0, bitmap(64, tanker * 64..tanker * 64 + 64).words());
    }
    assert_eq!(columns[150].word(), (0, 2));
    drop(columns.remove(150));
    let before = array.bits();
    let again = array.reserve().unwrap();
    assert_eq!((again.group, again.column), (0, 150));
    let mut expected = before;
    expected[0].iter_mut().skip(2).step_by(3).for_each(|word| *word &= !(1 << (150 % 64)));
    assert_eq!(array.bits(), expected, "and of the others everything");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Transposed merging equals merging one bit at a time, bit for bit.
    #[test]
    fn merging_many_is_merging_each(
        // Sizes unrelated to words, pieces or folds.
        cells in prop::sample::select(vec![5_u32, 64, 100, 520]),
        width in prop::sample::select(widths().collect::<Vec<_>>()),
        fold in prop::sample::select(FOLDS.to_vec()),
        missing in prop::collection::hash_set(0..64_u32, 0..64),
        piece in prop::sample::select(vec![1_usize, 7, 64, 383, 384, 385, 10_000]),
        seed in any::<u32>(),
    ) {
        let arrays = [(); 2].map(|()| FilterArray::with_fold(cells, Fullness::FULL, u64::from(width), u64::MAX, fold));
        let columns = arrays.each_ref().map(|array| (0..width).map(|_| array.reserve().unwrap()).collect::<Vec<_>>());
        // Arbitrary bits, including ones that no fingerprint sets and ones behind the last row.
        let words = Bitmap::stored_words(cells);
        let mut state = u64::from(seed);
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        let filters: Vec<Vec<u64>> = (0..width).map(|_| (0..words).map(|_| noise() & noise()).collect()).collect();
        for word in 0..width.div_ceil(64) {
            let of_word = (word * 64..width.min(word * 64 + 64)).filter(|column| !missing.contains(&(column % 64)));
            let of_word: Vec<usize> = of_word.map(|column| column as usize).collect();
            for first in (0..words as usize).step_by(piece) {
                let end = (first + piece).min(words as usize);
                for &column in &of_word {
                    columns[0][column].merge(first as u64, &filters[column][first..end]);
                }
                let many: Vec<_> = of_word.iter().map(|&column| (&*columns[1][column], &filters[column][first..end])).collect();
                arrays[1].merge_many(&many, first as u64);
            }
        }
        prop_assert_eq!(arrays[0].bits(), arrays[1].bits());
    }
}

proptest! {
    /// Every fold of a stored filter equals the filter of that size.
    #[test]
    fn folding_is_building_smaller(first in any::<u32>(), many in 0..64_u64) {
        let stored = bitmap(64, u64::from(first)..u64::from(first) + many);
        let bits = Bitmap::stored_bits(64);
        for fold in FOLDS {
            let mut folded = HashSet::new();
            for_each_bit(0, stored.words(), |bit| { folded.insert(bit / fold); });
            let mut small = HashSet::new();
            for number in u64::from(first)..u64::from(first) + many {
                let hashes = Hashes::of(&fingerprint(number));
                small.extend((0..HASHES).map(|number| hashes.place(number, bits / fold)));
            }
            prop_assert_eq!(folded, small);
        }
    }
}
