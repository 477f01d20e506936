//! BLAKE3's compression of eight independent *leaves* side by side, each with its own counter, length and flags.
//!
//! A leaf is BLAKE3's chunk (section 2.4 of the BLAKE3 paper): up to 1,024 bytes of the input, 16 blocks of 64. The
//! `blake3` crate's many-at-once function takes only whole leaves with equal or consecutive counters. This module
//! hashes the rest: the short leaf at the end of nearly every chunk, and leaves whose counter has too few partners.
//!
//! With AVX2 all lanes run together ([`lanes_avx2`](super::lanes_avx2)). Without it, or for a single leaf, the crate
//! hashes one leaf after another.

use blake3::hazmat::HasherExt;

/// Leaves hashed side by side.
pub(super) const LANES: usize = 8;
/// Bytes of a full leaf.
pub(super) const LEAF_BYTES: usize = blake3::CHUNK_LEN;
/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = blake3::BLOCK_LEN;
/// Blocks of a full leaf.
pub(super) const LEAF_BLOCKS: usize = LEAF_BYTES / BLOCK_BYTES;

/// First block of a leaf.
pub(super) const CHUNK_START: u8 = 1 << 0;
/// Last block of a leaf.
pub(super) const CHUNK_END: u8 = 1 << 1;
/// An inner node.
pub(super) const PARENT: u8 = 1 << 2;
/// The last compression of a hash.
pub(super) const ROOT: u8 = 1 << 3;

/// The initial chaining value: SHA-256's.
pub(super) const IV: [u32; 8] =
    [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A, 0x510E_527F, 0x9B05_688C, 0x1F83_D9AB, 0x5BE0_CD19];

const _: () = assert!(LEAF_BYTES == 1024 && BLOCK_BYTES == 64);

/// A leaf to hash.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    /// 1 to [`LEAF_BYTES`] bytes.
    pub bytes: &'a [u8],
    /// Position in its chunk, in leaves.
    pub counter: u32,
    /// Whether it is the only leaf of its chunk.
    pub is_root: bool,
}

/// Returns the chaining values (or hashes, for roots) of at most [`LANES`] leaves. Fastest if all have about the same
/// length.
pub(super) fn hash_leaves(leaves: &[Leaf<'_>]) -> [[u8; 32]; LANES] {
    assert!(leaves.len() <= LANES && leaves.iter().all(|leaf| (1..=LEAF_BYTES).contains(&leaf.bytes.len())));
    #[cfg(target_arch = "x86_64")]
    if leaves.len() > 1 && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { super::lanes_avx2::hash_leaves(leaves) };
    }
    hash_leaves_portable(leaves)
}

/// [`hash_leaves`] one after another, with the crate's documented interface.
pub(super) fn hash_leaves_portable(leaves: &[Leaf<'_>]) -> [[u8; 32]; LANES] {
    let mut hashes = [[0; 32]; LANES];
    for (hash, leaf) in hashes.iter_mut().zip(leaves) {
        *hash = if leaf.is_root {
            *blake3::hash(leaf.bytes).as_bytes()
        } else {
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset(u64::from(leaf.counter) * LEAF_BYTES as u64);
            hasher.update(leaf.bytes).finalize_non_root()
        };
    }
    hashes
}
