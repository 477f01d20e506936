//! Asking a group: a block of queries goes through the rows together.
//!
//! What asking costs is the misses of cache and TLB that its rows are. They are independent of each other, but a processor only
//! has many under way as long as it does not guess wrong what comes after them, and where a branch depends on what a row
//! holds it has to guess until the row has come. So there is no such branch for each query: each round asks one row for every
//! query that is still alive and lists those that still are. The only guess left is where the list ends, once a round, and
//! blocks are so large that rounds are few.

use super::hashes::{HASHES, Hashes};

/// Queries that are worked on at the same time.
pub(crate) const BLOCK: usize = 256;

const _: () = assert!(BLOCK <= 1 << u16::BITS);

/// Asks `rows` rows of `W` words, which `row` fetches, for at most [`BLOCK`] queries. Calls `each` with (number of the query,
/// number of the word, columns of that word that say "perhaps") where there are any, among the columns in `valid`.
///
/// `AHEAD` rows are fetched for all queries before any is given up: few rounds, but rows in vain if most queries end sooner.
#[inline]
pub(super) fn sieve<const W: usize, const AHEAD: usize>(
    rows: u64,
    row: impl Fn(u64) -> [u64; W],
    hashes: &[Hashes],
    valid: [u64; W],
    each: &mut dyn FnMut(usize, usize, u64),
) {
    const { assert!(AHEAD <= HASHES) };
    let hashes = &hashes[..hashes.len().min(BLOCK)];
    let mut masks = [[0_u64; W]; BLOCK];
    let mut live = [0_u16; BLOCK];
    let mut living = 0;
    for (query, (hash, kept)) in hashes.iter().zip(&mut masks).enumerate() {
        let mut mask = valid;
        for number in 0..AHEAD {
            mask = and(mask, row(hash.place(number, rows)));
        }
        *kept = mask;
        live[living] = query as u16;
        living += usize::from(any(mask));
    }
    for number in AHEAD..HASHES {
        let mut still = 0;
        for at in 0..living {
            let query = live[at];
            let mask = and(masks[usize::from(query)], row(hashes[usize::from(query)].place(number, rows)));
            masks[usize::from(query)] = mask;
            live[still] = query;
            still += usize::from(any(mask));
        }
        living = still;
        if living == 0 {
            return;
        }
    }
    for &query in &live[..living] {
        for (word, &mask) in masks[usize::from(query)].iter().enumerate().filter(|(_, mask)| **mask != 0) {
            each(usize::from(query), word, mask);
        }
    }
}

fn and<const W: usize>(one: [u64; W], other: [u64; W]) -> [u64; W] {
    std::array::from_fn(|word| one[word] & other[word])
}

fn any<const W: usize>(mask: [u64; W]) -> bool {
    mask.iter().fold(0, |joined, word| joined | word) != 0
}
