use proptest::prelude::*;

use super::super::testing::{Built, CONTAINER, KIND, POOL, chunk, listed, name_of, sample};
use super::super::{Compression, decode_region, encode_region};
use super::*;

/// Checks that every chunk of a container is found through `table` and has its bytes.
fn assert_complete(built: &Built, table: &Table) {
    for chunk in &built.chunks {
        let place = table.find(&name_of(chunk)).unwrap();
        assert_eq!(place.len_bytes as usize, chunk.len());
        let region = table.regions[place.region as usize];
        let frame = &built.bytes[region.offset_bytes as usize..region.end_bytes() as usize];
        let raw = decode_region(&POOL, CONTAINER, frame).unwrap().raw;
        let from = place.offset_in_region as usize;
        assert_eq!(raw[from..from + chunk.len()], chunk[..]);
    }
    assert_eq!(table.entries.len(), built.chunks.len());
    assert_eq!(table.chunk_bytes(), built.chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>());
}

/// A table of contents from its parts, in a sound frame.
fn toc(kind: u8, regions: &[[u32; 4]], region_count: u32, entries: &[u32], entry_count: u32) -> Vec<u8> {
    let mut meta = vec![kind, 0, 0, 0];
    meta.extend(region_count.to_le_bytes());
    meta.extend(entry_count.to_le_bytes());
    let mut payload: Vec<u8> = regions.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    payload.extend(entries.iter().flat_map(|_| [7; 32]));
    payload.extend(entries.iter().flat_map(|len| len.to_le_bytes()));
    encode_frame(FrameKind::Toc, &POOL, CONTAINER.0, &meta, &payload)
}

#[test]
fn finds_every_chunk_and_nothing_else() {
    let built = sample(CONTAINER);
    let table = built.builder.snapshot();
    assert_complete(&built, &table);
    assert!(table.find(&Fingerprint([0; 32])).is_none());
    assert!(table.find(&Fingerprint([0xff; 32])).is_none());
    assert!(table.find(&name_of(b"not there")).is_none());
    assert!(table.used_bytes() <= built.bytes.len() as u64);
    let listed: Vec<_> = table.regions.iter().flat_map(|region| table.region_entries(region)).copied().collect();
    assert_eq!(listed, table.entries);
    assert!(table.memory_bytes() >= 44 * table.entries.len());
    assert_eq!(built.builder.build(), table);
}

#[test]
fn an_empty_table_finds_nothing() {
    let builder = TableBuilder::new(CONTAINER, KIND);
    let table = decode_toc(&POOL, CONTAINER, &builder.encode_toc(&POOL)).unwrap();
    assert_eq!(table.find(&Fingerprint([1; 32])), None);
    assert_eq!((table.used_bytes(), table.chunk_bytes()), (0, 0));
}

#[test]
fn of_two_equal_fingerprints_the_first_is_found() {
    let mut built = Built::new(CONTAINER);
    let (same, other) = (chunk(1, 300, true), chunk(2, 300, true));
    built
        .region(CONTAINER, &[other.clone(), same.clone(), same.clone()])
        .region(CONTAINER, std::slice::from_ref(&same));
    let place = built.builder.snapshot().find(&name_of(&same)).unwrap();
    assert_eq!(place, ChunkPlace { region: 0, offset_in_region: 300, len_bytes: 300 });
}

#[test]
fn table_of_contents_byte_map_is_stable() {
    let mut built = Built::new(CONTAINER);
    built.region(CONTAINER, &[b"abc".to_vec()]);
    assert_eq!(built.bytes.len(), 128, "header 64, list 12 + 36 + 8, payload 3, padded");
    let expected = toc(KIND as u8, &[[0, 128, 3, 1]], 1, &[3], 1);
    let encoded = built.builder.encode_toc(&POOL);
    assert_eq!(encoded.len(), expected.len());
    assert_eq!(encoded.len(), toc_bytes_bound(1, 1));
    // The same except for the fingerprint and the checksums over it.
    assert_eq!(encoded[64..92], expected[64..92]);
    assert_eq!(encoded[92..124], name_of(b"abc").0);
    assert_eq!(encoded[124..], expected[124..]);
}

#[test]
fn damaged_tables_of_contents_are_found() {
    let encoded = sample(CONTAINER).builder.encode_toc(&POOL);
    decode_toc(&POOL, CONTAINER, &encoded).unwrap();
    for position in 0..encoded.len() {
        for mask in [0x01, 0xff] {
            let mut damaged = encoded.clone();
            damaged[position] ^= mask;
            assert!(decode_toc(&POOL, CONTAINER, &damaged).is_err(), "byte {position}");
        }
        assert!(decode_toc(&POOL, CONTAINER, &encoded[..position]).is_err(), "{position} bytes");
    }
    assert!(decode_toc(&POOL, ContainerId(9), &encoded).is_err());
}

#[test]
fn senseless_tables_with_good_checksums_are_refused() {
    let good = |frame: Vec<u8>| decode_toc(&POOL, CONTAINER, &frame).unwrap();
    let refused = |frame: Vec<u8>, reason: &str| {
        let message = decode_toc(&POOL, CONTAINER, &frame).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    good(toc(1, &[[0, 128, 3, 1], [4096, 128, 9, 2]], 2, &[3, 4, 5], 3));
    refused(toc(3, &[[0, 128, 3, 1]], 1, &[3], 1), "container kind");
    refused(toc(1, &[[0, 128, 3, 1]], 2, &[3], 1), "entries");
    refused(toc(1, &[[0, 128, 3, 1]], u32::MAX, &[3], 1), "bytes at offset");
    refused(toc(1, &[[0, 128, 3, 1]], 1, &[3], u32::MAX), "entries");
    refused(toc(1, &[[0, 128, 3, 1]], 1, &[3, 3], 2), "regions for 2 entries");
    refused(toc(1, &[[0, 128, 3, 2]], 1, &[3], 1), "entries for all regions");
    refused(toc(1, &[[0, 128, 4, 1]], 1, &[3], 1), "4 bytes in all");
    refused(toc(1, &[[0, 128, 0, 1]], 1, &[0], 1), "chunks with bytes");
    refused(toc(1, &[[0, 128, 0, 0]], 1, &[], 0), "aligned region");
    refused(toc(1, &[[32, 128, 3, 1]], 1, &[3], 1), "aligned region");
    refused(toc(1, &[[0, 100, 3, 1]], 1, &[3], 1), "aligned region");
    refused(toc(1, &[[0, 0, 3, 1]], 1, &[3], 1), "aligned region");
    refused(toc(1, &[[0, u32::MAX - 63, 3, 1]], 1, &[3], 1), "aligned region");
    refused(toc(1, &[[u32::MAX - 63, 128, 3, 1]], 1, &[3], 1), "aligned region");
    refused(toc(1, &[[0, 128, u32::MAX, 1]], 1, &[u32::MAX], 1), "aligned region");
    refused(toc(1, &[[64, 128, 3, 1], [128, 128, 3, 1]], 2, &[3, 3], 2), "behind 192");
    let mut reserved = vec![1, 0, 0, 1];
    reserved.extend([0; 8]);
    refused(encode_frame(FrameKind::Toc, &POOL, CONTAINER.0, &reserved, &[]), "reserved");
}

#[test]
fn misplaced_regions_are_refused() {
    let (entries, raw) = listed(&[b"abc".to_vec()]);
    let region = encode_region(&POOL, CONTAINER, KIND, entries, &raw, Compression::None).unwrap();
    let mut builder = TableBuilder::new(CONTAINER, KIND);
    builder.push_region(128, &region).unwrap();
    for offset in [0, 128, 192, 300] {
        assert!(matches!(builder.push_region(offset, &region), Err(StoreError::Usage(_))), "{offset}");
    }
    builder.push_region(256, &region).unwrap();
    assert_eq!((builder.regions.len(), builder.entries.len()), (2, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tables_of_contents_round_trip(
        regions in proptest::collection::vec((1_usize..8, any::<bool>()), 0..8),
        lens in proptest::collection::vec(1_usize..900, 64),
    ) {
        let mut built = Built::new(CONTAINER);
        let mut chunks = (0_u64..).zip(lens).map(|(seed, len)| chunk(seed, len, true));
        for (count, ends) in regions {
            let chunks: Vec<_> = chunks.by_ref().take(count).collect();
            built.region(CONTAINER, &chunks);
            if ends {
                built.end_write_out();
            }
        }
        let mut encoded = built.builder.encode_toc(&POOL);
        prop_assert!(encoded.len() <= toc_bytes_bound(built.builder.entries.len(), built.builder.regions.len()));
        encoded.extend([9; 100]);
        let table = decode_toc(&POOL, CONTAINER, &encoded).unwrap();
        prop_assert_eq!(&table, &built.builder.snapshot());
        assert_complete(&built, &table);
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        meta in proptest::collection::vec(any::<u8>(), 0..20),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        small in proptest::collection::vec(0_u32..300, 0..12),
    ) {
        let _ = decode_toc(&POOL, CONTAINER, &encode_frame(FrameKind::Toc, &POOL, CONTAINER.0, &meta, &payload));
        let regions: Vec<[u32; 4]> = small.chunks_exact(4).map(|four| [four[0] * 64, 128, four[2], four[3] % 3]).collect();
        if let Ok(table) = decode_toc(&POOL, CONTAINER, &toc(1, &regions, regions.len() as u32, &small, small.len() as u32)) {
            prop_assert!(table.used_bytes() <= u64::from(u32::MAX));
        }
    }
}
