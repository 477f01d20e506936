//! Fingerprints: the identity of chunks and recipe nodes.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Bytes of a fingerprint in memory and on disk. SHA-1 (20 bytes) is padded with zeros at the end.
pub const FINGERPRINT_BYTES: usize = 32;

/// The identity of a chunk or of a recipe node: a cryptographic hash of its content.
///
/// The all-zero value is reserved: in a recipe it stands for a run of zero bytes of any length (MAD2 section 4.2's
/// built-in fingerprint, extended to holes). It is never stored, looked up or counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

impl Fingerprint {
    /// The built-in fingerprint of a run of zero bytes.
    pub const ZERO: Self = Self([0; FINGERPRINT_BYTES]);

    /// Whether this is the built-in fingerprint of zero bytes.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Returns the first eight bytes as a big-endian number, which orders like the fingerprint.
    pub const fn prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns bytes 8 to 16, independent of [`prefix`](Self::prefix).
    pub const fn second_word(&self) -> u64 {
        let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl Ord for Fingerprint {
    /// Compares the bytes. The first eight nearly always decide, so sorting needs no call for each pair.
    fn cmp(&self, other: &Self) -> Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Fingerprint {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Fingerprint {
    /// Hashes the second word: fingerprints are uniformly distributed already, and tables that are partitioned by
    /// prefix stay evenly filled.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.second_word());
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_orders_like_its_fingerprint() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(Fingerprint(bytes).prefix(), 0x0001_0203_0405_0607);
        assert_eq!(Fingerprint(bytes).second_word(), 0x0809_0a0b_0c0d_0e0f);
    }
}
