//! The array against plain sets, and its memory against its limit.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::bitmap::for_each_bit;
use super::group::Group;
use super::hashes::HASHES;
use super::shape::{bytes_for, choose, false_positive_rate, layout};
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
    array.ask(&array.used(), &hashes, |query, group, mask| {
        assert_ne!(mask, 0);
        for_each_bit(0, &[mask], |column| assert!(found.insert((query, group as u32, column as u32))));
    });
    found
}

/// What a column of `fold` must say, computed one bit after another.
fn says_perhaps(bitmap: &Bitmap, fold: u64, number: u64) -> bool {
    let mut folded = HashSet::new();
    for_each_bit(0, bitmap.words(), |bit| {
        folded.insert(bit / fold);
    });
    let bits = bitmap.words().len() as u64 * 64 / fold;
    let hashes = Hashes::of(&fingerprint(number));
    (0..HASHES).all(|number| folded.contains(&hashes.place(number, bits)))
}

#[test]
fn rows_of_every_width_hold_every_column() {
    for log_columns in 0..=6 {
        let mut group = Group::new(1536, 1 << log_columns);
        let bitmaps: Vec<_> = (0..1_u64 << log_columns).map(|n| bitmap(32, n * 100..n * 100 + 32)).collect();
        for (column, bitmap) in bitmaps.iter().enumerate() {
            group.merge(column as u32, 1, 0, bitmap.words());
        }
        for fold in [1, 2, 4] {
            let numbers: Vec<_> = (0..16).map(|n| n * 401).collect();
            let hashes: Vec<_> = numbers.iter().map(|number| Hashes::of(&fingerprint(*number))).collect();
            let mut masks = [0; 16];
            let valid = u64::MAX >> (64 - (1 << log_columns));
            group.ask(&hashes, valid, &mut masks);
            for (number, mask) in numbers.iter().zip(masks) {
                for (column, bitmap) in bitmaps.iter().enumerate() {
                    assert_eq!(mask >> column & 1 == 1, says_perhaps(bitmap, fold, *number), "{log_columns} {fold}");
                }
            }
            group.fold(2);
        }
    }
}

#[test]
fn columns_are_cleared_before_they_mean_something_else() {
    let array = FilterArray::new(64, 2, 1 << 20);
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
        let array = FilterArray::new(64, 1, fold_by_memory);
        let column = array.reserve().unwrap();
        column.merge(0, bitmap(64, 0..64).words());
        let left = bitmap(64, 0..20);
        for (first, words) in left.words().chunks(7).enumerate() {
            column.replace(first as u64 * 7, words);
        }
        let fold = array.sizes().fold;
        let mut superfluous = 0;
        for number in 0..500 {
            match (says_perhaps(&left, fold, number), !perhaps(&array, &[number]).is_empty()) {
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
        let array = FilterArray::new(64, 0, limit_bytes);
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
    assert_eq!((choose(bits, 0, 0), choose(bits, 1, 0)), (2, 8));
    assert_eq!(choose(bits, 1, 64 << 20), 2);
    assert_eq!(choose(bits, 20, 64 << 20), 3, "16 bits in 32 columns");
    assert_eq!(choose(bits, 1000, u64::MAX), 1, "with many tankers 24 bits would cost reads");
    assert_eq!(choose(bits, 256, u64::MAX), 2);
    assert_eq!(layout(130).collect::<Vec<_>>(), [64, 64, 2]);
    assert_eq!(bytes_for(bits, 2, 64), 192 << 20);
    let rates: Vec<_> = FOLDS.into_iter().map(false_positive_rate).collect();
    assert!(rates.is_sorted() && rates[1] < 1.5e-5 && rates[2] < 5e-4 && rates[0] < 2e-8, "{rates:?}");
}

#[test]
fn false_positives_are_as_rare_as_the_formula_says() {
    let cells = 1 << 14;
    let array = FilterArray::new(cells, 4, bytes_for(Bitmap::stored_bits(cells), 4, 4));
    assert_eq!(array.sizes().fold, 4, "12 bits");
    let columns: Vec<_> = (0..4_u64).map(|_| array.reserve().unwrap()).collect();
    for (tanker, column) in (0_u64..).zip(&columns) {
        let first = tanker * u64::from(cells);
        column.merge(0, bitmap(cells, first..first + u64::from(cells)).words());
    }
    let asked: Vec<_> = (1 << 30..(1 << 30) + 100_000).collect();
    let found = perhaps(&array, &asked).len() as f64;
    let expected = asked.len() as f64 * expected_false_reads(4, 4, 0);
    assert!((0.8..1.2).contains(&(found / expected)), "{found} and not {expected}");
}

#[test]
fn asking_goes_on_while_columns_come_and_go() {
    let array = FilterArray::new(1024, 0, 1 << 20);
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

proptest! {
    /// Every fold of a stored filter is the filter of that size.
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
