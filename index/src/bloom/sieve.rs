//! Asking a group: a block of queries goes through the rows together.
//!
//! The cost of asking is the cache and TLB misses of the rows. They are independent, but a processor keeps many under
//! way only while its branch predictions are right. A branch on a row's content must be predicted until the row
//! arrives. So no query has such a branch: each round asks one row for every live query and lists the queries that stay
//! alive. The only prediction left is the end of the list, once a round. Large blocks keep the rounds few.

use super::hashes::{HASHES, Hashes};

pub(crate) const BLOCK: usize = 256;

const _: () = assert!(BLOCK <= 1 << u16::BITS);

/// Asks `rows` rows of `W` words, which `row` fetches, for at most [`BLOCK`] queries. Calls `each` with (number of the
/// query, number of the word, columns of that word that say "perhaps") if there are such columns in `valid`.
///
/// It fetches `AHEAD` rows for all queries before it drops any: fewer rounds, but wasted rows if most queries end
/// sooner.
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
