//! Eight leaves in the eight 32-bit lanes of AVX2 registers.
//!
//! For each of the 16 blocks of a leaf, one block of every lane is read and transposed, so that a register holds the
//! same word of all lanes. Then one compression runs for all. A lane whose leaf has ended keeps its chaining value.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_blendv_epi8, _mm256_loadu_si256, _mm256_or_si256, _mm256_permute2x128_si256,
    _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::lanes::{BLOCK_BYTES, CHUNK_END, CHUNK_START, IV, LANES, LEAF_BYTES, Leaf, ROOT};

/// The inputs of one compression besides the message: a word of each lane.
struct Inputs {
    counter: [u32; LANES],
    len_bytes: [u32; LANES],
    flags: [u32; LANES],
    /// All ones where the lane's leaf has this block.
    active: [u32; LANES],
}

const _: () = assert!(LANES == 8 && size_of::<__m256i>() == 4 * LANES);

/// Returns the chaining values (or hashes, for roots) of at most eight leaves of 1 to 1,024 bytes.
#[target_feature(enable = "avx2")]
pub(super) fn hash_leaves(leaves: &[Leaf<'_>]) -> [[u8; 32]; LANES] {
    let mut values = IV.map(|word| _mm256_set1_epi32(word.cast_signed()));
    let mut inputs = Inputs { counter: [0; LANES], len_bytes: [0; LANES], flags: [0; LANES], active: [0; LANES] };
    for (counter, leaf) in inputs.counter.iter_mut().zip(leaves) {
        *counter = leaf.counter;
    }
    let longest_bytes = leaves.iter().map(|leaf| leaf.bytes.len()).max().unwrap_or(0);
    debug_assert!(longest_bytes <= LEAF_BYTES);
    for start_bytes in (0..longest_bytes).step_by(BLOCK_BYTES) {
        let mut padded = [[0; BLOCK_BYTES]; LANES];
        let mut blocks = [&[0; BLOCK_BYTES]; LANES];
        for (lane, (leaf, padded)) in leaves.iter().zip(&mut padded).enumerate() {
            let rest = leaf.bytes.get(start_bytes..).unwrap_or_default();
            blocks[lane] = rest.first_chunk().unwrap_or_else(|| {
                padded[..rest.len()].copy_from_slice(rest);
                padded
            });
            let start = if start_bytes == 0 { CHUNK_START } else { 0 };
            let end = match (rest.len() <= BLOCK_BYTES, leaf.is_root) {
                (false, _) => 0,
                (true, false) => CHUNK_END,
                (true, true) => CHUNK_END | ROOT,
            };
            inputs.flags[lane] = u32::from(start | end);
            inputs.len_bytes[lane] = rest.len().min(BLOCK_BYTES) as u32;
            inputs.active[lane] = if rest.is_empty() { 0 } else { u32::MAX };
        }
        compress(&mut values, &blocks, &inputs);
    }
    transpose(values).map(|words| {
        let mut hash = [0; 32];
        // SAFETY: `hash` has the 32 bytes that are written; the store needs no alignment.
        unsafe { _mm256_storeu_si256(hash.as_mut_ptr().cast(), words) };
        hash
    })
}

/// The compression function (section 2.2 of the BLAKE3 paper) in every lane.
#[target_feature(enable = "avx2")]
fn compress(values: &mut [__m256i; 8], blocks: &[&[u8; BLOCK_BYTES]; LANES], inputs: &Inputs) {
    let lower = transpose(blocks.map(|block| load(block.first_chunk().unwrap_or(&[0; 32]))));
    let upper = transpose(blocks.map(|block| load(block.last_chunk().unwrap_or(&[0; 32]))));
    let m = |word: usize| if word < 8 { lower[word] } else { upper[word - 8] };
    let [mut v0, mut v1, mut v2, mut v3, mut v4, mut v5, mut v6, mut v7] = *values;
    let iv = |word: usize| _mm256_set1_epi32(IV[word].cast_signed());
    let [mut v8, mut v9, mut v10, mut v11] = [iv(0), iv(1), iv(2), iv(3)];
    // The counter's upper half is zero: no chunk has 2^32 leaves.
    let [mut v12, mut v13] = [load_words(&inputs.counter), _mm256_setzero_si256()];
    let [mut v14, mut v15] = [load_words(&inputs.len_bytes), load_words(&inputs.flags)];
    macro_rules! mix {
        ($a:ident $b:ident $c:ident $d:ident, $x:literal $y:literal) => {
            $a = _mm256_add_epi32(_mm256_add_epi32($a, $b), m($x));
            $d = rotate_right_16(_mm256_xor_si256($d, $a));
            $c = _mm256_add_epi32($c, $d);
            $b = rotate_right::<12, 20>(_mm256_xor_si256($b, $c));
            $a = _mm256_add_epi32(_mm256_add_epi32($a, $b), m($y));
            $d = rotate_right_8(_mm256_xor_si256($d, $a));
            $c = _mm256_add_epi32($c, $d);
            $b = rotate_right::<7, 25>(_mm256_xor_si256($b, $c));
        };
    }
    macro_rules! round {
        ($a:literal $b:literal $c:literal $d:literal $e:literal $f:literal $g:literal $h:literal
         $i:literal $j:literal $k:literal $l:literal $m:literal $n:literal $o:literal $p:literal) => {
            mix!(v0 v4 v8 v12, $a $b);
            mix!(v1 v5 v9 v13, $c $d);
            mix!(v2 v6 v10 v14, $e $f);
            mix!(v3 v7 v11 v15, $g $h);
            mix!(v0 v5 v10 v15, $i $j);
            mix!(v1 v6 v11 v12, $k $l);
            mix!(v2 v7 v8 v13, $m $n);
            mix!(v3 v4 v9 v14, $o $p);
        };
    }
    round!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(2 6 3 10 7 0 4 13 1 11 12 5 9 14 15 8);
    round!(3 4 10 12 13 2 7 14 6 5 9 0 11 15 8 1);
    round!(10 7 12 9 14 3 13 15 4 0 11 2 5 8 1 6);
    round!(12 13 9 11 15 10 14 8 7 2 5 3 0 1 6 4);
    round!(9 14 11 5 8 12 15 1 13 3 0 10 2 6 4 7);
    round!(11 15 5 0 1 9 8 6 14 10 2 12 3 4 7 13);
    let active = load_words(&inputs.active);
    let pairs = [(v0, v8), (v1, v9), (v2, v10), (v3, v11), (v4, v12), (v5, v13), (v6, v14), (v7, v15)];
    for (value, (low, high)) in values.iter_mut().zip(pairs) {
        *value = _mm256_blendv_epi8(*value, _mm256_xor_si256(low, high), active);
    }
}

/// Turns eight registers of one lane each into eight registers of one word each, and back.
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d, e, f, g, h]: [__m256i; 8]) -> [__m256i; 8] {
    let [ab_low, ab_high] = [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
    let [cd_low, cd_high] = [_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d)];
    let [ef_low, ef_high] = [_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f)];
    let [gh_low, gh_high] = [_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h)];
    // Words 0 and 4, 1 and 5, 2 and 6, 3 and 7 of the first and of the last four lanes.
    let abcd = [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ];
    let efgh = [
        _mm256_unpacklo_epi64(ef_low, gh_low),
        _mm256_unpackhi_epi64(ef_low, gh_low),
        _mm256_unpacklo_epi64(ef_high, gh_high),
        _mm256_unpackhi_epi64(ef_high, gh_high),
    ];
    [
        _mm256_permute2x128_si256::<0x20>(abcd[0], efgh[0]),
        _mm256_permute2x128_si256::<0x20>(abcd[1], efgh[1]),
        _mm256_permute2x128_si256::<0x20>(abcd[2], efgh[2]),
        _mm256_permute2x128_si256::<0x20>(abcd[3], efgh[3]),
        _mm256_permute2x128_si256::<0x31>(abcd[0], efgh[0]),
        _mm256_permute2x128_si256::<0x31>(abcd[1], efgh[1]),
        _mm256_permute2x128_si256::<0x31>(abcd[2], efgh[2]),
        _mm256_permute2x128_si256::<0x31>(abcd[3], efgh[3]),
    ]
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: `bytes` has the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn load_words(words: &[u32; LANES]) -> __m256i {
    // SAFETY: `words` has the 32 bytes that are read; the load needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Rotates each word; `LEFT` is 32 less `RIGHT`.
#[target_feature(enable = "avx2")]
fn rotate_right<const RIGHT: i32, const LEFT: i32>(words: __m256i) -> __m256i {
    const { assert!(RIGHT + LEFT == 32) };
    _mm256_or_si256(_mm256_srli_epi32::<RIGHT>(words), _mm256_slli_epi32::<LEFT>(words))
}

#[target_feature(enable = "avx2")]
fn rotate_right_16(words: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
    );
    _mm256_shuffle_epi8(words, order)
}

#[target_feature(enable = "avx2")]
fn rotate_right_8(words: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12,
    );
    _mm256_shuffle_epi8(words, order)
}
