//! The synthetic series: the same for the same seed, with the requested shares.

#[path = "../examples/aged_stream/stream.rs"]
mod stream;
#[path = "../examples/aged_stream/tape.rs"]
mod tape;

use std::collections::BTreeMap;

use stream::{Pattern, generation, write};
use tape::Content;

const SIZE_BYTES: u64 = 512 << 20;

/// Returns the bytes of the generation that are neither in `seen` nor earlier in itself. Adds them to `seen`.
fn new_bytes(generation: &Content, seen: &mut BTreeMap<u64, u64>) -> u64 {
    let mut new = 0;
    for range in generation.ranges() {
        let (mut at, end) = (range.tape, range.tape + range.len_bytes);
        while at < end {
            let inside = seen.range(..=at).next_back().filter(|(_, known)| **known > at).map(|(_, known)| *known);
            match inside {
                Some(known) => at = known,
                None => {
                    let next = seen.range(at..).next().map_or(end, |(start, _)| (*start).min(end));
                    new += next - at;
                    seen.insert(at, next);
                    at = next;
                }
            }
        }
    }
    new
}

#[test]
fn shares_come_out_as_asked() {
    let pattern = Pattern::default();
    let mut seen = BTreeMap::new();
    let shares: Vec<f64> = (1..=4)
        .map(|number| {
            let made = generation(7, number, SIZE_BYTES, &pattern);
            assert_eq!(made.len_bytes(), SIZE_BYTES);
            1.0 - new_bytes(&made, &mut seen) as f64 / SIZE_BYTES as f64
        })
        .collect();
    assert!((0.28..0.37).contains(&shares[0]), "internal redundancy {shares:?}");
    assert!(shares[1..].iter().all(|share| (0.965..0.985).contains(share)), "redundancy {shares:?}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let bytes = |seed, number| {
        let mut out = Vec::new();
        write(seed, &generation(seed, number, 1 << 20, &Pattern::default()), &mut out).expect("writes to memory");
        out
    };
    let first = bytes(1, 2);
    assert_eq!(first.len(), 1 << 20);
    assert_eq!(first, bytes(1, 2));
    assert_ne!(first, bytes(1, 1));
    assert_ne!(first, bytes(2, 2));
}

#[test]
fn a_share_of_nothing_is_nothing() {
    let pattern = Pattern { internal: 0.0, redundant: 0.0, ..Pattern::default() };
    let mut seen = BTreeMap::new();
    for number in 1..=2 {
        assert_eq!(new_bytes(&generation(3, number, 1 << 24, &pattern), &mut seen), 1 << 24);
    }
}
