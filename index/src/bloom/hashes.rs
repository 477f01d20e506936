//! The places of a fingerprint in a filter, by enhanced double hashing (Dillinger and Manolios): an arithmetic
//! progression plus a cubic one. Plain progressions that meet in two places may meet in many.

use dedupfs_store::Fingerprint;

use crate::guide::Key;

/// Number of hash functions. The module's head explains why all shapes use the same number.
pub(crate) const HASHES: usize = 12;

/// 2^64 divided by the golden ratio: its multiples lie far apart.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Two independent words of a fingerprint, from which all its places follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hashes {
    /// By which guides know it.
    pub(crate) key: Key,
    first: u64,
    step: u64,
}

impl Hashes {
    /// Takes bytes 4 to 20 of the fingerprint itself: it is uniformly distributed. The first 32 bits choose shard and
    /// bucket, and SHA-1 has only 20 bytes.
    pub(crate) const fn of(fingerprint: &Fingerprint) -> Self {
        let [_, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = fingerprint.0;
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        // Odd, so that the places differ.
        let step = u64::from_le_bytes([i, j, k, l, m, n, o, p]) | 1;
        Self { key: Key::of(fingerprint), first, step }
    }

    /// Place number `number` in a filter of `bits`; always below `bits`.
    pub(crate) const fn place(self, number: usize, bits: u64) -> u64 {
        let number = number as u64;
        let cubic = (number * number * number).wrapping_mul(SCATTER);
        let hash = self.first.wrapping_add(self.step.wrapping_mul(number)).wrapping_add(cubic);
        ((hash as u128 * bits as u128) >> u64::BITS) as u64
    }
}
