//! The batch against the plain hash: every length near a limit, any mixture of lengths, every platform.

use proptest::prelude::*;

use super::lanes::{LANES, LEAF_BYTES, Leaf, hash_leaves, hash_leaves_portable};
use super::*;

fn pattern(len_bytes: usize, seed: u8) -> Vec<u8> {
    (0..len_bytes).map(|position| (position % 251) as u8 ^ seed).collect()
}

fn plain(chunk: &[u8]) -> Fingerprint {
    if chunk.iter().all(|byte| *byte == 0) { Fingerprint::ZERO } else { Fingerprint(*blake3::hash(chunk).as_bytes()) }
}

fn assert_batch_is_plain(chunks: &[&[u8]]) {
    for hasher in BatchHasher::all() {
        let mut found = vec![Fingerprint([7; 32])];
        hasher.hash_all(chunks, &mut found);
        assert_eq!(found[0], Fingerprint([7; 32]), "what was there stays");
        assert_eq!(found.len(), chunks.len() + 1);
        for (chunk, found) in chunks.iter().zip(&found[1..]) {
            assert_eq!(*found, plain(chunk), "{hasher:?}, {} bytes of {} chunks", chunk.len(), chunks.len());
        }
    }
}

#[test]
fn every_length_alone_up_to_three_leaves() {
    let data = pattern(3 * LEAF_BYTES + 2, 3);
    for len_bytes in 0..data.len() {
        assert_batch_is_plain(&[&data[..len_bytes]]);
    }
}

#[test]
fn every_length_together_up_to_eighteen_leaves() {
    let data = pattern(18 * LEAF_BYTES + 2, 5);
    for step in [1, 64, LEAF_BYTES] {
        let chunks: Vec<&[u8]> = (0..data.len()).step_by(step).map(|len_bytes| &data[..len_bytes]).collect();
        let mut found = Vec::new();
        BatchHasher::detect().hash_all(&chunks, &mut found);
        assert!(chunks.iter().zip(&found).all(|(chunk, found)| plain(chunk) == *found));
        if step > 1 {
            assert_batch_is_plain(&chunks);
        }
    }
}

#[test]
fn more_bytes_than_one_pass() {
    let data = pattern(1 << 20, 9);
    let chunks: Vec<&[u8]> = (0..20).map(|index| &data[index..data.len() - 17 * index]).collect();
    let mut found = Vec::new();
    BatchHasher::detect().hash_all(&chunks, &mut found);
    assert_eq!(found, chunks.iter().map(|chunk| plain(chunk)).collect::<Vec<_>>());
}

#[test]
fn a_pass_leaves_nothing_behind_for_the_next() {
    let (long, short) = (pattern(70_000, 1), pattern(9_000, 2));
    for _ in 0..2 {
        assert_batch_is_plain(&[&long, &short, &short[..100], &long[..1024]]);
        assert_batch_is_plain(&[&short]);
    }
}

#[test]
fn lanes_equal_the_plain_hash() {
    let data = pattern(LEAF_BYTES, 11);
    for len_bytes in 1..=LEAF_BYTES {
        let other = LEAF_BYTES + 1 - len_bytes;
        let leaves = [len_bytes, other].map(|len| Leaf { bytes: &data[..len], counter: 0, is_root: true });
        for hashes in [hash_leaves(&leaves), hash_leaves_portable(&leaves)] {
            assert_eq!(hashes[0], *blake3::hash(&data[..len_bytes]).as_bytes());
            assert_eq!(hashes[1], *blake3::hash(&data[..other]).as_bytes());
        }
    }
    assert_eq!(hash_leaves(&[]), hash_leaves_portable(&[]));
}

#[test]
fn lanes_have_counters_of_their_own() {
    use blake3::hazmat::HasherExt;
    let data = pattern(LEAF_BYTES, 13);
    let leaf = |lane: usize| Leaf { bytes: &data[..1 + lane * 100], counter: lane as u32 * 77, is_root: false };
    let leaves: [Leaf<'_>; LANES] = std::array::from_fn(leaf);
    for hashes in [hash_leaves(&leaves), hash_leaves_portable(&leaves)] {
        for (leaf, hash) in leaves.iter().zip(hashes) {
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset(u64::from(leaf.counter) * LEAF_BYTES as u64).update(leaf.bytes);
            assert_eq!(hasher.finalize_non_root(), hash);
        }
    }
}

#[test]
fn known_answers() {
    let blake3 = Fingerprinter::new(FingerprintAlgorithm::Blake3);
    let sha1 = Fingerprinter::new(FingerprintAlgorithm::Sha1);
    assert_eq!(blake3.of(b"abc").to_string(), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
    assert_eq!(sha1.of(b"abc").to_string(), "a9993e364706816aba3e25717850c26c9cd0d89d000000000000000000000000");
}

#[test]
fn zeros_of_any_length_are_the_built_in_fingerprint() {
    let mut data = [0; 200];
    for algorithm in [FingerprintAlgorithm::Blake3, FingerprintAlgorithm::Sha1] {
        let fingerprinter = Fingerprinter::new(algorithm);
        for len_bytes in 0..data.len() {
            assert!(fingerprinter.of(&data[..len_bytes]).is_zero());
            if len_bytes > 0 {
                data[len_bytes - 1] = 1;
                assert!(!fingerprinter.of(&data[..len_bytes]).is_zero(), "the last byte counts");
                data[len_bytes - 1] = 0;
            }
        }
    }
}

#[test]
fn a_single_set_bit_anywhere_is_seen() {
    for len_bytes in [1, 7, 63, 64, 65, 127, 128, 300] {
        let mut data = vec![0; len_bytes];
        assert!(is_all_zero(&data));
        for position in 0..len_bytes {
            data[position] = 0x80;
            assert!(!is_all_zero(&data), "byte {position} of {len_bytes}");
            data[position] = 0;
        }
    }
}

#[test]
fn sha1_batch_equals_one_at_a_time() {
    let data = pattern(10_000, 1);
    let sha1 = Fingerprinter::new(FingerprintAlgorithm::Sha1);
    let mut found = Vec::new();
    sha1.batch(&data, &[1, 4_000, 5_999], &mut found);
    assert_eq!(found, [sha1.of(&data[..1]), sha1.of(&data[1..4_001]), sha1.of(&data[4_001..])]);
}

#[test]
#[should_panic(expected = "mid")]
fn lengths_beyond_the_data_are_refused() {
    Fingerprinter::new(FingerprintAlgorithm::Blake3).batch(&[1; 10], &[5, 6], &mut Vec::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Any mixture of chunks, some of them zeros.
    #[test]
    fn batch_equals_plain_hash(
        chunks in prop::collection::vec((prop_oneof![1_usize..3_000, 1_usize..20_000, 1_usize..100_000], any::<u8>(), 0..8_u8), 0..60),
    ) {
        let chunks: Vec<Vec<u8>> = chunks
            .iter()
            .map(|(len_bytes, seed, kind)| if *kind == 0 { vec![0; *len_bytes] } else { pattern(*len_bytes, *seed) })
            .collect();
        let slices: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        assert_batch_is_plain(&slices);

        let mut found = Vec::new();
        let lens: Vec<u32> = chunks.iter().map(|chunk| chunk.len() as u32).collect();
        Fingerprinter::new(FingerprintAlgorithm::Blake3).batch(&chunks.concat(), &lens, &mut found);
        prop_assert_eq!(found, slices.iter().map(|chunk| plain(chunk)).collect::<Vec<_>>());
    }
}
