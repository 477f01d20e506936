//! Golden boundaries, the definition of `MinCDC`, and independence from how the bytes arrive.

use proptest::prelude::*;

use super::*;

const KINDS: [ChunkerKind; 2] = [ChunkerKind::MinCdc, ChunkerKind::FastCdc];

/// `SplitMix64` (Steele et al., 2014), written out so that the golden buffer depends on no crate.
fn random_bytes(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Random bytes, then bytes of a small alphabet, zeros, one repeated line, and random bytes again: 6 MiB and a bit.
fn golden_buffer() -> Vec<u8> {
    const MIB: usize = 1 << 20;
    let mut buffer = random_bytes(1, 2 * MIB);
    buffer.extend(random_bytes(2, MIB).iter().map(|byte| b"etaoin shrdlu\n{}"[usize::from(byte >> 4)]));
    buffer.resize(4 * MIB + 333, 0);
    buffer.extend(b"2024-05-01T00:00:00Z host daemon[17]: nothing happened\n".iter().cycle().take(MIB));
    buffer.extend(random_bytes(3, MIB + 77));
    buffer
}

fn cut_all(chunker: &dyn Chunker, mut data: &[u8]) -> Vec<u32> {
    let mut lens = Vec::new();
    while let Some(len) = chunker.next_cut(data, true) {
        lens.push(u32::try_from(len).unwrap());
        data = &data[len..];
    }
    assert!(data.is_empty());
    lens
}

/// Cuts the same bytes as they arrive in `pieces`.
fn cut_streaming(chunker: &dyn Chunker, data: &[u8], mut pieces: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut lens = Vec::new();
    let (mut start, mut end) = (0, 0);
    loop {
        let at_end = end == data.len();
        match chunker.next_cut(&data[start..end], at_end) {
            Some(len) => {
                lens.push(u32::try_from(len).unwrap());
                start += len;
            }
            None if at_end => return lens,
            None => end = data.len().min(end + pieces.next().unwrap().max(1)),
        }
    }
}

fn digest(lens: &[u32]) -> String {
    let bytes: Vec<u8> = lens.iter().flat_map(|len| len.to_le_bytes()).collect();
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}

#[test]
fn golden_boundaries() {
    let buffer = golden_buffer();
    let golden = [
        (ChunkerKind::MinCdc, 4 * 1024, 2010, "3ed0b134c208f0c3f479abec184a79fa"),
        (ChunkerKind::MinCdc, 8 * 1024, 1019, "8ff59f00c1ffc5162661282a3519a629"),
        (ChunkerKind::MinCdc, 64 * 1024, 126, "fa181358a9acb09bbdd6d0a259577b6d"),
        (ChunkerKind::FastCdc, 4 * 1024, 1162, "77f3a06c677cd7716c0cbc5a92f25cdc"),
        (ChunkerKind::FastCdc, 8 * 1024, 586, "4c1e40242eeb47d93624ef1c12b03a04"),
        (ChunkerKind::FastCdc, 64 * 1024, 75, "0791dde6a33e247dac6873e6c7ccceb5"),
    ];
    let found = golden.map(|(kind, average_bytes, _, _)| {
        let lens = cut_all(&*chunker(kind, average_bytes), &buffer);
        (kind, average_bytes, lens.len(), digest(&lens))
    });
    assert_eq!(
        found,
        golden.map(|(kind, average_bytes, count, digest)| (kind, average_bytes, count, digest.to_owned()))
    );
}

#[test]
fn golden_first_cuts() {
    let buffer = golden_buffer();
    let first = |kind| cut_all(&*chunker(kind, 8 * 1024), &buffer[..64 * 1024]);
    assert_eq!(first(ChunkerKind::MinCdc), [5920, 6395, 8015, 5148, 7747, 4750, 7844, 7256, 8936, 3525]);
    assert_eq!(first(ChunkerKind::FastCdc), [7814, 8780, 7479, 4055, 7484, 8134, 9156, 7755, 4879]);
}

/// The crate has four implementations (scalar and three of SIMD) and picks one by the processor; this one is the definition.
#[test]
fn mincdc_follows_its_definition() {
    let buffer = golden_buffer();
    let mincdc = MinCdc::new(4096);
    let (mut start, mut cuts) = (0, 0);
    while start < buffer.len() {
        let rest = &buffer[start..];
        let expected = if rest.len() <= mincdc.min_bytes() {
            rest.len()
        } else {
            (mincdc.min_bytes()..=mincdc.max_bytes().min(rest.len()))
                .min_by_key(|&end| {
                    let window = u32::from_le_bytes(rest[end - 4..end].try_into().unwrap());
                    window.wrapping_mul(0x915f_77f5).wrapping_add(0x3463_6463)
                })
                .unwrap()
        };
        assert_eq!(mincdc.next_cut(rest, true), Some(expected), "chunk at {start}");
        start += expected;
        cuts += 1;
    }
    assert!(cuts > 1000);
}

#[test]
fn lengths_stay_within_limits_and_near_the_average() {
    let buffer = random_bytes(7, 12 << 20);
    for kind in KINDS {
        for average_bytes in [4 * 1024, 6_000, 8 * 1024, 10_001, 64 * 1024] {
            let chunker = chunker(kind, average_bytes);
            let lens = cut_all(&*chunker, &buffer);
            let (last, others) = lens.split_last().unwrap();
            assert!(*last as usize <= chunker.max_bytes());
            for len in others {
                assert!((chunker.min_bytes()..=chunker.max_bytes()).contains(&(*len as usize)), "{kind:?}: {len}");
            }
            let mean = buffer.len() / lens.len();
            let tolerance_percent = if average_bytes.is_power_of_two() { 4 } else { 8 };
            let off = mean.abs_diff(average_bytes as usize) * 100 / average_bytes as usize;
            assert!(off <= tolerance_percent, "{kind:?} of {average_bytes}: mean {mean}");
        }
    }
}

#[test]
fn too_little_data_asks_for_more() {
    let buffer = random_bytes(9, 1 << 20);
    for kind in KINDS {
        let chunker = chunker(kind, 8 * 1024);
        let max_bytes = chunker.max_bytes();
        assert_eq!(chunker.next_cut(&[], false), None);
        assert_eq!(chunker.next_cut(&[], true), None);
        assert_eq!(chunker.next_cut(&buffer[..max_bytes - 1], false), None);
        assert_eq!(chunker.next_cut(&buffer[..1], true), Some(1));
        assert_eq!(chunker.next_cut(&buffer[..chunker.min_bytes()], true), Some(chunker.min_bytes()));
        let cut = chunker.next_cut(&buffer[..max_bytes], false);
        assert!(cut.is_some());
        assert_eq!(chunker.next_cut(&buffer, false), cut);
        assert_eq!(chunker.next_cut(&buffer[..max_bytes], true), cut);
    }
}

#[test]
fn zeros_are_cut_at_a_fixed_length() {
    let zeros = vec![0; 1 << 20];
    for (kind, expected) in [(ChunkerKind::MinCdc, 4096), (ChunkerKind::FastCdc, 32 * 1024)] {
        assert!(cut_all(&*chunker(kind, 8 * 1024), &zeros).iter().all(|len| *len == expected), "{kind:?}");
    }
}

#[test]
fn cuts_fall_back_into_step_after_an_insertion() {
    let buffer = random_bytes(11, 4 << 20);
    let mut changed = buffer.clone();
    changed.splice(1 << 20..1 << 20, *b"inserted");
    for kind in KINDS {
        let chunker = chunker(kind, 8 * 1024);
        let ends_from_the_back = |data: &[u8]| {
            let mut left = data.len();
            cut_all(&*chunker, data)
                .iter()
                .map(|len| {
                    left -= *len as usize;
                    left
                })
                .collect::<std::collections::BTreeSet<_>>()
        };
        let (before, after) = (ends_from_the_back(&buffer), ends_from_the_back(&changed));
        let lost = before.difference(&after).filter(|left| **left < 3 << 20).count();
        assert!(lost <= 8, "{kind:?}: {lost} boundaries moved behind the insertion");
    }
}

#[test]
#[should_panic(expected = "average chunk size of 1000 bytes")]
fn an_average_out_of_range_is_refused() {
    let _ = chunker(ChunkerKind::MinCdc, 1000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The cuts are those of the whole buffer, for any pieces in which the bytes arrive.
    #[test]
    fn streaming_equals_whole_buffer(
        seed in any::<u64>(),
        len_bytes in 0_usize..400_000,
        zero_from in 0_usize..400_000,
        zero_bytes in 0_usize..100_000,
        average_bytes in CHUNK_SIZE_BYTES,
        pieces in prop::collection::vec(1_usize..80_000, 1..20),
    ) {
        let mut data = random_bytes(seed, len_bytes);
        let zeros = zero_from.min(len_bytes)..(zero_from + zero_bytes).min(len_bytes);
        data[zeros].fill(0);
        for kind in KINDS {
            let chunker = chunker(kind, average_bytes);
            let whole = cut_all(&*chunker, &data);
            prop_assert_eq!(whole.iter().map(|len| *len as usize).sum::<usize>(), data.len());
            prop_assert_eq!(&whole, &cut_streaming(&*chunker, &data, pieces.iter().copied().cycle()));
        }
    }
}
