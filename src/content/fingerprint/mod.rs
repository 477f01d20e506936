//! Fingerprints of chunks and recipe nodes, one at a time or a whole segment in one batch.
//!
//! - BLAKE3: the plain hash, 32 bytes. A batch shares SIMD lanes across chunks ([`blake3_batch`]), because one chunk of
//!   8 KiB is too short to fill them.
//! - SHA-1: 20 bytes, then twelve zeros (the setting of the MAD2 and dedupv1 papers). A batch is a loop.
//! - Data of zero bytes only, of any length, gets [`Fingerprint::ZERO`] and is not hashed at all (MAD2 section 4.2).
//!
//! **Invariant.** A fingerprint is [`Fingerprint::ZERO`] exactly if all bytes are zero. That no other data hashes to
//! zero is not checked. Finding such data would be a preimage of a fixed value. By chance it is as likely as any two
//! given chunks sharing a fingerprint (2^-256, SHA-1 2^-160), the risk that deduplication by fingerprint takes anyway.

mod blake3_batch;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(test)]
mod tests;

use dedupfs_store::superblock::FingerprintAlgorithm;
use dedupfs_store::{FINGERPRINT_BYTES, Fingerprint};
use sha1::{Digest, Sha1};

use blake3_batch::BatchHasher;

/// Computes the fingerprints of a pool. Cheap to copy; holds no state between calls.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprinter {
    algorithm: FingerprintAlgorithm,
    batch_hasher: BatchHasher,
}

impl Fingerprinter {
    /// Makes a fingerprinter that uses the best instructions of this processor.
    #[must_use]
    pub fn new(algorithm: FingerprintAlgorithm) -> Self {
        Self { algorithm, batch_hasher: BatchHasher::detect() }
    }

    /// Returns the fingerprint of `data`. Empty data counts as all zero.
    #[must_use]
    pub fn of(&self, data: &[u8]) -> Fingerprint {
        if is_all_zero(data) { Fingerprint::ZERO } else { self.hash(data) }
    }

    /// Appends the fingerprints of consecutive chunks of `data` to `out`, in order.
    ///
    /// # Panics
    /// If the lengths sum up to more than `data`.
    pub fn batch(&self, data: &[u8], chunk_lens: &[u32], out: &mut Vec<Fingerprint>) {
        let mut rest = data;
        let chunks: Vec<&[u8]> = chunk_lens
            .iter()
            .map(|&len_bytes| {
                let (chunk, behind) = rest.split_at(len_bytes as usize);
                rest = behind;
                chunk
            })
            .collect();
        self.batch_of(&chunks, out);
    }

    /// Appends the fingerprints of chunks that lie anywhere to `out`, in order.
    pub(crate) fn batch_of(&self, chunks: &[&[u8]], out: &mut Vec<Fingerprint>) {
        match self.algorithm {
            // A single chunk has no partners to share lanes with.
            FingerprintAlgorithm::Blake3 if chunks.len() > 1 => self.batch_hasher.hash_all(chunks, out),
            FingerprintAlgorithm::Blake3 | FingerprintAlgorithm::Sha1 => {
                out.extend(chunks.iter().map(|chunk| self.of(chunk)))
            }
        }
    }

    fn hash(&self, data: &[u8]) -> Fingerprint {
        match self.algorithm {
            FingerprintAlgorithm::Blake3 => Fingerprint(*blake3::hash(data).as_bytes()),
            FingerprintAlgorithm::Sha1 => {
                let digest = Sha1::digest(data);
                let mut bytes = [0; FINGERPRINT_BYTES];
                bytes.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
                Fingerprint(bytes)
            }
        }
    }
}

/// Whether all bytes are zero. True for empty data.
///
/// Ordinary data is recognized after the first few bytes; zeros are read at memory speed. Blocks of 64 bytes are OR-ed
/// together (a few vector instructions) with one branch for each block.
#[must_use]
pub(crate) fn is_all_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.as_chunks::<64>();
    blocks.iter().all(|block| block.iter().fold(0, |sum, byte| sum | byte) == 0) && rest.iter().all(|byte| *byte == 0)
}
