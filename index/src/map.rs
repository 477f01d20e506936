//! Hash maps keyed by fingerprint: a fingerprint is uniformly distributed already, so its second word is its hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use dedupfs_store::Fingerprint;

/// Passes the one word that a fingerprint writes through.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// A map from fingerprints.
pub(crate) type FingerprintMap<V> = HashMap<Fingerprint, V, BuildHasherDefault<FingerprintHasher>>;
