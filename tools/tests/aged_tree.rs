//! The synthetic series of trees: the same for the same seed, with the requested shares.

#[path = "../examples/aged_stream/tape.rs"]
mod tape;
#[path = "../examples/aged_tree/tree.rs"]
mod tree;

use std::collections::HashSet;

use tape::{Content, Range};
use tree::{Pattern, Tree, generation, path, write};

const PATTERN: Pattern = Pattern {
    files: 2000,
    size_bytes: 256 << 20,
    created: 0.02,
    deleted: 0.03,
    modified: 0.20,
    changed: 0.05,
    place_bytes: 2048.0,
    hot: 0.0,
    sigma: 1.0,
};

fn total_bytes(tree: &Tree) -> u64 {
    tree.values().map(Content::len_bytes).sum()
}

fn bytes(seed: u64, content: &Content) -> Vec<u8> {
    let mut out = Vec::new();
    write(seed, content, &mut out).expect("writes to memory");
    out
}

/// Returns `part` as a share of `whole`.
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[test]
fn the_first_generation_has_the_size_asked_for() {
    let first = generation(5, 1, &PATTERN);
    assert_eq!(first.len(), 2000);
    assert_eq!(total_bytes(&first), PATTERN.size_bytes);
    let mut lengths: Vec<u64> = first.values().map(Content::len_bytes).collect();
    lengths.sort_unstable();
    assert!(lengths[1800] > 5 * lengths[200], "lengths vary");
    let paths: HashSet<_> = first.keys().map(|number| path(*number)).collect();
    assert_eq!(paths.len(), first.len());
}

#[test]
fn shares_of_files_and_bytes_come_out_as_asked() {
    let (mut created, mut deleted, mut modified, mut files) = (0, 0, 0, 0);
    let (mut written_bytes, mut touched_bytes, mut shifted) = (0, 0, 0);
    for number in 1..=8 {
        let [old, new] = [number, number + 1].map(|number| generation(9, number, &PATTERN));
        let tape_end = |tree: &Tree| {
            let ranges = tree.values().flat_map(Content::ranges);
            ranges.map(|range| range.tape + range.len_bytes).max().unwrap_or(0)
        };
        let old_end = tape_end(&old);
        files += old.len();
        created += new.keys().filter(|number| !old.contains_key(number)).count();
        deleted += old.keys().filter(|number| !new.contains_key(number)).count();
        for (content, changed) in old.iter().filter_map(|(number, content)| Some((content, new.get(number)?))) {
            if content == changed {
                continue;
            }
            modified += 1;
            touched_bytes += content.len_bytes();
            let fresh = changed.ranges().iter().filter(|range| range.tape >= old_end);
            written_bytes += fresh.map(|range| range.len_bytes).sum::<u64>();
            shifted += usize::from(content.len_bytes() != changed.len_bytes());
        }
    }
    let near = |found: f64, asked: f64| (found / asked - 1.0).abs() < 0.15;
    assert!(near(share(created, 8 * 2000), 0.02), "{created} created");
    assert!(near(share(deleted, files), 0.03), "{deleted} of {files} deleted");
    assert!(near(share(modified, files - deleted), 0.20), "{modified} of {files} modified");
    // Three quarters of the places write something new.
    assert!(near(written_bytes as f64 / touched_bytes as f64, 0.75 * 0.05), "{written_bytes} of {touched_bytes}");
    assert!(share(shifted, modified) > 0.5, "{shifted} of {modified} have another length");
}

#[test]
fn the_size_stays_about_the_same() {
    let pattern = Pattern { created: 0.01, deleted: 0.01, ..PATTERN };
    let last = total_bytes(&generation(2, 100, &pattern));
    assert!((0.7..1.4).contains(&(last as f64 / pattern.size_bytes as f64)), "{last} bytes after 100 generations");
}

#[test]
fn nothing_changes_where_nothing_may() {
    let pattern = Pattern { created: 0.0, deleted: 0.0, modified: 0.0, ..PATTERN };
    assert_eq!(generation(1, 1, &pattern), generation(1, 5, &pattern));
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let pattern = Pattern { files: 4, size_bytes: 1 << 20, modified: 1.0, ..PATTERN };
    let all = |seed, number| {
        let tree = generation(seed, number, &pattern);
        tree.values().flat_map(|content| bytes(seed, content)).collect::<Vec<u8>>()
    };
    let first = all(1, 1);
    assert_eq!(first.len(), 1 << 20);
    assert_eq!(first, all(1, 1));
    assert_ne!(first, all(1, 2));
    assert_ne!(first, all(2, 1));
}

#[test]
fn a_range_has_the_same_bytes_wherever_it_is_cut() {
    let content = |ranges: &[(u64, u64)]| {
        let mut content = Content::default();
        ranges.iter().for_each(|&(tape, len_bytes)| content.push(Range { tape, len_bytes }));
        bytes(3, &content)
    };
    let whole = content(&[(0, 1 << 20)]);
    for (start, len_bytes) in [(0, 1), (1, 1), (1, 2), (7, 300_001), (262_143, 262_145), (300_000, 700_000)] {
        assert_eq!(content(&[(start, len_bytes)]), whole[start as usize..(start + len_bytes) as usize], "{start}");
    }
    assert_eq!(content(&[(5, 3), (100, 2)]), [&whole[5..8], &whole[100..102]].concat());
}

#[test]
fn a_modified_file_keeps_what_lies_between_the_places() {
    let pattern = Pattern { files: 1, size_bytes: 4 << 20, modified: 1.0, created: 0.0, deleted: 0.0, ..PATTERN };
    let [old, new] = [1, 2].map(|number| generation(4, number, &pattern).remove(&0).expect("the only file"));
    let kept: u64 = new.ranges().iter().filter(|range| range.tape < 4 << 20).map(|range| range.len_bytes).sum();
    assert!(kept as f64 / old.len_bytes() as f64 > 0.9, "{kept} bytes are old");
    let old_parts: Vec<&Range> = new.ranges().iter().filter(|range| range.tape < 4 << 20).collect();
    assert!(old_parts.windows(2).all(|pair| pair[0].tape + pair[0].len_bytes <= pair[1].tape), "in the old order");
}

#[test]
fn content_has_half_a_byte_of_chance_in_each_byte() {
    let mut content = Content::default();
    content.push(Range { tape: 11, len_bytes: 1 << 20 });
    let mut counts = [0_u32; 256];
    bytes(1, &content).iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let used: Vec<u32> = counts.into_iter().filter(|count| *count > 0).collect();
    assert_eq!(used.len(), 16);
    assert!(used.iter().all(|count| (64_000..67_000).contains(count)), "{used:?}");
}

#[test]
fn hot_files_take_four_fifths_of_the_modifications() {
    let pattern = Pattern { hot: 0.1, modified: 0.05, created: 0.0, deleted: 0.0, ..PATTERN };
    let first = generation(3, 1, &pattern);
    let (mut counts, rounds) = (vec![0_u32; first.len()], 20);
    for number in 1..=rounds {
        let [old, new] = [number, number + 1].map(|number| generation(3, number, &pattern));
        for (file, content) in &old {
            counts[*file as usize] += u32::from(new[file] != *content);
        }
    }
    let all: u32 = counts.iter().sum();
    assert!((f64::from(all) / f64::from(rounds) / 2000.0 / 0.05 - 1.0).abs() < 0.15, "{all}");
    counts.sort_unstable();
    let hottest: u32 = counts[1800..].iter().sum();
    let of_hottest = f64::from(hottest) / f64::from(all);
    assert!((0.75..0.9).contains(&of_hottest), "{of_hottest}");
}
