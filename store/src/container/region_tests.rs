use std::slice::from_ref;

use proptest::prelude::*;

use super::super::testing::{CONTAINER, KIND, POOL, chunk, listed, name_of, region_of};
use super::*;
use crate::fingerprint::Fingerprint;
use crate::frame::{FRAME_VERSION, FrameHeader};

fn decode(frame: &[u8]) -> Result<DecodedRegion> {
    decode_region(&POOL, CONTAINER, frame)
}

/// A region frame around a hand-made meta and payload. Adds the list's checksum.
fn framed(meta: &[u8], payload: &[u8]) -> Vec<u8> {
    let meta = [meta, &checksum_seeded(meta, CONTAINER.0).to_le_bytes()].concat();
    encode_frame(FrameKind::Region, &POOL, CONTAINER.0, &meta, payload)
}

/// A meta that lists one chunk of three bytes, for tests to change.
fn small_meta(codec: u8, kind: u8, count: u32, raw_bytes: u32) -> Vec<u8> {
    let mut meta = vec![codec, kind, 0, 0];
    meta.extend(count.to_le_bytes());
    meta.extend(raw_bytes.to_le_bytes());
    meta.extend([7; 32]);
    meta.extend(3_u32.to_le_bytes());
    meta
}

#[test]
fn byte_map_is_stable() {
    assert_eq!(FRAME_VERSION, 1);
    let entries = vec![TableEntry { fingerprint: Fingerprint([7; 32]), len_bytes: 3 }];
    let region = encode_region(&POOL, CONTAINER, ContainerKind::Recipe, entries, b"abc", Compression::Zstd(3)).unwrap();
    let frame = region.frame(b"abc");
    assert_eq!(frame, framed(&small_meta(0, 2, 1, 3), b"abc"));
    assert_eq!(decode(&frame).unwrap().kind, ContainerKind::Recipe);
}

/// Found by fuzzing: such a region was decoded, although the format has none.
#[test]
fn regression_a_region_without_chunks_is_refused() {
    let meta = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(decode(&framed(&meta, &[])).is_err());
}

#[test]
fn compresses_only_if_it_saves_a_sixteenth() {
    let stored = |chunks: &[Vec<u8>], compression| {
        let (entries, raw) = listed(chunks);
        let frame = encode_region(&POOL, CONTAINER, KIND, entries, &raw, compression).unwrap().frame(&raw);
        assert_eq!(decode(&frame).unwrap().raw, raw);
        FrameHeader::decode("region", &frame).unwrap().payload_bytes as usize
    };
    let (dull, noise) = (chunk(1, 100_000, true), chunk(2, 100_000, false));
    assert!(stored(from_ref(&dull), Compression::Zstd(1)) < 2000);
    assert!(stored(from_ref(&dull), Compression::Zstd(19)) < 2000, "the level may change within a thread");
    assert_eq!(stored(from_ref(&dull), Compression::None), 100_000);
    assert_eq!(stored(from_ref(&noise), Compression::Zstd(1)), 100_000);
    // Saves 5,000 of 105,000 bytes, less than a sixteenth; then 10,000 of 110,000, which is more.
    assert_eq!(stored(&[dull[..5000].to_vec(), noise.clone()], Compression::Zstd(1)), 105_000);
    assert!(stored(&[dull[..10_000].to_vec(), noise], Compression::Zstd(1)) < 101_000);
    assert_eq!(stored(&[vec![1]], Compression::Zstd(1)), 1);
}

#[test]
fn a_large_region_round_trips_and_its_buffer_is_not_kept() {
    let (entries, raw) = listed(&[vec![7; REGION_RAW_BYTES_MAX]]);
    let frame = encode_region(&POOL, CONTAINER, KIND, entries, &raw, Compression::Zstd(1)).unwrap().frame(&raw);
    assert!(frame.len() <= region_frame_bytes_bound(1, raw.len()));
    assert!(decode(&frame).unwrap().raw == raw);
    assert!(COMPRESSED.with_borrow(Vec::capacity) <= KEPT_BYTES_MAX);
}

#[test]
fn large_incompressible_chunks_are_not_copied_and_round_trip() {
    for len in [AROUND_BYTES_MIN - 1, AROUND_BYTES_MIN, 100_000, 262_144, 300_001] {
        let (entries, raw) = listed(&[chunk(1, len / 2, false), chunk(2, len - len / 2, false)]);
        for compression in [Compression::None, Compression::Zstd(1), Compression::Zstd(9)] {
            let region = encode_region(&POOL, CONTAINER, KIND, entries.clone(), &raw, compression).unwrap();
            assert_eq!(region.raw_follows, len >= AROUND_BYTES_MIN);
            assert!(!region.raw_follows || region.head.len() < 1000);
            let frame = region.frame(&raw);
            assert_eq!(frame.len(), region.frame_bytes as usize);
            assert!(decode(&frame).unwrap().raw == raw);
        }
    }
}

/// Evenly spread bytes that repeat are compressed, if the repeat is within the trial.
#[test]
fn repeated_random_bytes_are_compressed() {
    let raw: Vec<u8> = chunk(1, 20_000, false).into_iter().cycle().take(256 << 10).collect();
    assert!(is_evenly_spread(&raw));
    let entries = vec![TableEntry { fingerprint: name_of(&raw), len_bytes: raw.len() as u32 }];
    let region = encode_region(&POOL, CONTAINER, KIND, entries, &raw, Compression::Zstd(1)).unwrap();
    assert!(!region.raw_follows && region.frame_bytes < 30_000);
    assert!(decode(&region.frame(&raw)).unwrap().raw == raw);
}

#[test]
fn damage_is_an_error_never_wrong_data() {
    for compressible in [true, false] {
        let chunks: Vec<_> = (0..4).map(|seed| chunk(seed, 150, compressible)).collect();
        let frame = region_of(CONTAINER, &chunks);
        decode(&frame).unwrap();
        for position in 0..frame.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut damaged = frame.clone();
                damaged[position] ^= mask;
                assert!(decode(&damaged).is_err(), "byte {position} ^ {mask:#x}");
            }
            assert!(decode(&frame[..position]).is_err(), "{position} bytes");
        }
    }
}

#[test]
fn regions_of_others_are_refused() {
    let frame = region_of(CONTAINER, &[b"abc".to_vec()]);
    let error = decode_region(&POOL, ContainerId(CONTAINER.0 + 1), &frame).unwrap_err().to_string();
    assert!(error.contains("region of container 3.13") && error.contains("owner"), "{error}");
    assert!(decode_region(&PoolId([1; 16]), CONTAINER, &frame).is_err());
    let toc = encode_frame(FrameKind::Toc, &POOL, CONTAINER.0, b"", b"");
    assert!(decode(&toc).is_err());
}

#[test]
fn senseless_regions_with_good_checksums_are_refused() {
    let refused = |meta: &[u8], payload: &[u8], reason: &str| {
        let message = decode(&framed(meta, payload)).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    assert!(decode(&framed(&small_meta(0, 1, 1, 3), b"abc")).is_ok(), "the pattern of the cases below is sound");
    refused(&small_meta(0, 1, 1, 3), b"ab", "3 uncompressed bytes");
    refused(&small_meta(0, 1, 1, 3), b"abcd", "3 uncompressed bytes");
    refused(&small_meta(1, 1, 1, 3), b"abc", "zstd");
    refused(&small_meta(2, 1, 1, 3), b"abc", "newer version");
    refused(&small_meta(0, 3, 1, 3), b"abc", "container kind");
    refused(&small_meta(0, 1, 2, 3), b"abc", "2 entries");
    refused(&small_meta(0, 1, 0, 3), b"abc", "bytes");
    refused(&small_meta(0, 1, 1, 4), b"abcd", "4 bytes in all");
    refused(&small_meta(0, 1, u32::MAX, 3), b"abc", "at most 65536 chunks");
    refused(&small_meta(0, 1, 1, u32::MAX), b"abc", "at most 65536 chunks");
    let zeros = [&small_meta(0, 1, 1, 3)[..12], &[0; 32], &[3, 0, 0, 0]].concat();
    refused(&zeros, b"abc", "fingerprint");
    let empty = [&small_meta(0, 1, 1, 0)[..44], &[0; 4]].concat();
    refused(&empty, b"", "chunks with bytes");
}

#[test]
fn a_decompression_bomb_is_refused_within_its_claimed_size() {
    let bomb = zstd::bulk::compress(&vec![0; 50 << 20], 1).unwrap();
    let error = decode(&framed(&small_meta(1, 1, 1, 3), &bomb)).unwrap_err().to_string();
    assert!(error.contains("zstd data of 3 bytes"), "{error}");
    // Data for fewer bytes than the list says is refused too.
    let short = zstd::bulk::compress(b"ab", 1).unwrap();
    let error = decode(&framed(&small_meta(1, 1, 1, 3), &short)).unwrap_err().to_string();
    assert!(error.contains("3 uncompressed bytes"), "{error}");
}

#[test]
fn senseless_requests_are_refused() {
    let refused = |entries: Vec<TableEntry>, raw: &[u8]| {
        let error = encode_region(&POOL, CONTAINER, KIND, entries, raw, Compression::None).unwrap_err();
        assert!(matches!(error, StoreError::Usage(_)), "{error}");
    };
    let entry = |len_bytes| TableEntry { fingerprint: Fingerprint([1; 32]), len_bytes };
    refused(vec![], b"");
    refused(vec![entry(4)], b"abc");
    refused(vec![entry(3), entry(0)], b"abc");
    refused(vec![TableEntry { fingerprint: Fingerprint::ZERO, len_bytes: 3 }], b"abc");
    refused(vec![entry(1); REGION_ENTRIES_MAX + 1], &vec![0; REGION_ENTRIES_MAX + 1]);
    refused(vec![entry(REGION_RAW_BYTES_MAX as u32 + 1)], &vec![0; REGION_RAW_BYTES_MAX + 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn regions_round_trip(
        chunks in proptest::collection::vec((1_usize..5000, any::<bool>()), 1..30),
        level in 0_i32..4,
        after in proptest::collection::vec(any::<u8>(), 0..70),
    ) {
        let chunks: Vec<_> = (0_u64..).zip(chunks).map(|(seed, (len, dull))| chunk(seed, len, dull)).collect();
        let compression = if level == 0 { Compression::None } else { Compression::Zstd(level) };
        let (entries, raw) = listed(&chunks);
        let region = encode_region(&POOL, CONTAINER, KIND, entries.clone(), &raw, compression).unwrap();
        prop_assert_eq!(region.raw_bytes as usize, raw.len());
        prop_assert_eq!(&region.entries, &entries);
        let mut bytes = region.frame(&raw);
        prop_assert_eq!(region.frame_bytes as usize, bytes.len());
        prop_assert!(bytes.len() <= region_frame_bytes_bound(entries.len(), raw.len()));
        bytes.extend(after);
        let decoded = decode(&bytes).unwrap();
        prop_assert_eq!(&decoded.entries, &entries);
        prop_assert_eq!(name_of(&decoded.raw), name_of(&raw));
        prop_assert_eq!(decoded.raw, raw);
        prop_assert_eq!(decoded.kind, KIND);
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        meta in proptest::collection::vec(any::<u8>(), 0..100),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let _ = decode(&framed(&meta, &payload));
        let _ = decode(&encode_frame(FrameKind::Region, &POOL, CONTAINER.0, &meta, &payload));
        let _ = decode(&framed(&small_meta(1, 1, 1, 3), &payload));
    }
}
