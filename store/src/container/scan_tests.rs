use proptest::prelude::*;

use super::super::testing::{Built, CONTAINER, KIND, POOL, chunk, region_of, sample};
use super::super::{align_to_write_out, decode_region};
use super::*;

/// Scans bytes in memory; also returns the number of reads and of bytes read.
fn scan_counted(bytes: &[u8], used_bytes: u64) -> (ScannedTable, usize, usize) {
    let (mut reads, mut read_bytes) = (0, 0);
    let scanned = scan_table(&POOL, CONTAINER, KIND, used_bytes, &mut |offset, len| {
        reads += 1;
        read_bytes += len;
        let offset = offset as usize;
        Ok(bytes[offset..offset + len].to_vec())
    });
    (scanned.unwrap(), reads, read_bytes)
}

fn scan(bytes: &[u8], used_bytes: u64) -> ScannedTable {
    scan_counted(bytes, used_bytes).0
}

/// Checks that the scan returns a part of the container, true to its bytes, however the headers were damaged.
fn assert_subset(built: &Built, scanned: &ScannedTable) {
    let whole = built.builder.snapshot();
    for region in &scanned.table.regions {
        let same = whole.regions.iter().find(|other| other.offset_bytes == region.offset_bytes).unwrap();
        assert_eq!((same.frame_bytes, same.raw_bytes), (region.frame_bytes, region.raw_bytes));
        assert_eq!(whole.region_entries(same), scanned.table.region_entries(region));
    }
}

#[test]
fn scan_equals_the_table_of_contents() {
    let mut built = sample(CONTAINER);
    let table = built.builder.snapshot();
    for used_bytes in [table.used_bytes(), built.bytes.len() as u64] {
        let scanned = scan(&built.bytes, used_bytes);
        assert!(scanned.damage.is_none(), "{:?}", scanned.damage);
        assert_eq!(scanned.table, table);
        assert_eq!(scanned.valid_bytes, table.used_bytes());
    }
    // Sealed: the table of contents ends the scan, whatever follows.
    built.bytes.extend(built.builder.encode_toc(&POOL));
    let end = built.bytes.len() as u64;
    built.end_write_out();
    built.bytes.extend([0xee; 5000]);
    let scanned = scan(&built.bytes, built.bytes.len() as u64);
    assert!(scanned.damage.is_none(), "{:?}", scanned.damage);
    assert_eq!((scanned.table, scanned.valid_bytes), (table, end));
}

#[test]
fn an_empty_container_is_no_damage() {
    let scanned = scan(&[], 0);
    assert!(scanned.damage.is_none());
    assert_eq!((scanned.table.entries.len(), scanned.valid_bytes), (0, 0));
}

#[test]
fn payloads_are_not_read() {
    let mut built = Built::new(CONTAINER);
    for seed in 0..10 {
        built.region(CONTAINER, &[chunk(seed, 100_000, false)]);
    }
    let (scanned, reads, read_bytes) = scan_counted(&built.bytes, built.bytes.len() as u64);
    assert_eq!(scanned.table.entries.len(), 10);
    assert!(reads <= 10 && read_bytes <= 10 * 8192, "{reads} reads of {read_bytes} bytes");
}

#[test]
fn a_list_longer_than_the_window_is_read() {
    let mut built = Built::new(CONTAINER);
    let tiny: Vec<_> = (0..1000).map(|seed| chunk(seed, 8, true)).collect();
    built.region(CONTAINER, &tiny).region(CONTAINER, &[chunk(1000, 50, true)]);
    assert_eq!(scan(&built.bytes, built.bytes.len() as u64).table, built.builder.snapshot());
}

#[test]
fn stale_frames_of_another_container_end_the_scan() {
    // A reused slot: two write-outs of the new container over the bytes of the old one, of which the rest is left.
    let mut old = Built::new(ContainerId(CONTAINER.0 - 1));
    for seed in 0..400 {
        old.region(ContainerId(CONTAINER.0 - 1), &[chunk(seed, 90, true)]);
    }
    let mut new = Built::new(CONTAINER);
    new.region(CONTAINER, &[chunk(1, 500, false)])
        .end_write_out()
        .region(CONTAINER, &[chunk(2, 500, false)])
        .end_write_out();
    let used_bytes = new.bytes.len();
    let slot = [&new.bytes[..], &old.bytes[used_bytes..]].concat();
    assert_eq!(used_bytes % old.builder.regions[0].frame_bytes as usize, 0, "a stale header stands at the end");
    let scanned = scan(&slot, used_bytes as u64);
    assert!(scanned.damage.is_none());
    assert_eq!(scanned.table, new.builder.snapshot());
    // Without the bound the scan ends there too, and reports why.
    let scanned = scan(&slot, slot.len() as u64);
    assert_eq!(scanned.table, new.builder.snapshot());
    let reason = scanned.damage.unwrap().to_string();
    assert!(reason.contains("owner"), "{reason}");
    // The same for a stale frame of the same kind right behind the last region, without a write-out in between.
    let stale = [&new.bytes[..scanned.valid_bytes as usize], &old.bytes[..128]].concat();
    let scanned = scan(&stale, stale.len() as u64);
    assert_eq!(scanned.table, new.builder.snapshot());
    assert!(scanned.damage.unwrap().to_string().contains("owner"));
}

#[test]
fn a_users_bytes_are_never_taken_for_a_frame() {
    // The uncompressed payload of the second region holds a perfect region of this very container, at a block's start.
    let mut built = Built::new(CONTAINER);
    built.region(CONTAINER, &[b"abc".to_vec()]);
    let second = built.bytes.len();
    let forged = region_of(CONTAINER, &[b"forged".to_vec()]);
    let mut payload = chunk(1, 12_288, false);
    let at = 4096 - second - FRAME_HEADER_BYTES - (12 + 36 + 8);
    payload[at..at + forged.len()].copy_from_slice(&forged);
    built.region(CONTAINER, &[payload]);
    assert_eq!(built.bytes[4096..4096 + forged.len()], forged);
    let used_bytes = built.bytes.len() as u64;
    assert!(scan(&built.bytes, used_bytes).damage.is_none());
    built.bytes[second + 20] ^= 1;
    let scanned = scan(&built.bytes, used_bytes);
    assert!(scanned.damage.is_some());
    assert_eq!((scanned.table.regions.len(), scanned.valid_bytes), (1, second as u64));
}

#[test]
fn every_flipped_byte_is_found_or_harmless() {
    let built = sample(CONTAINER);
    let table = built.builder.snapshot();
    let used_bytes = built.bytes.len() as u64;
    for position in 0..built.bytes.len() {
        let mut damaged = built.bytes.clone();
        damaged[position] ^= 0x40;
        let scanned = scan(&damaged, used_bytes);
        assert_subset(&built, &scanned);
        if scanned.damage.is_none() {
            // The change hit only payload, or padding within a frame: reading the region finds it.
            assert_eq!(scanned.table, table, "byte {position}");
            let hit = table.regions.iter().find(|region| (position as u64) < region.end_bytes()).unwrap();
            let frame = &damaged[hit.offset_bytes as usize..hit.end_bytes() as usize];
            assert!(decode_region(&POOL, CONTAINER, frame).is_err(), "byte {position}");
        }
    }
}

#[test]
fn a_damaged_list_costs_its_region_only() {
    let built = sample(CONTAINER);
    let table = built.builder.snapshot();
    let mut damaged = built.bytes.clone();
    damaged[table.regions[1].offset_bytes as usize + FRAME_HEADER_BYTES + 20] ^= 1;
    let scanned = scan(&damaged, damaged.len() as u64);
    assert!(scanned.damage.unwrap().to_string().contains("list checksum"));
    assert_eq!(scanned.table.regions.len(), table.regions.len() - 1);
    assert_eq!(scanned.valid_bytes, table.used_bytes());
    assert!(scanned.table.find(&table.region_entries(&table.regions[1])[0].fingerprint).is_none());
    assert!(scanned.table.find(&table.region_entries(&table.regions[2])[0].fingerprint).is_some());
}

#[test]
fn every_truncation_gives_what_is_left() {
    let built = sample(CONTAINER);
    let table = built.builder.snapshot();
    let ends: Vec<u64> = table.regions.iter().map(|region| region.end_bytes()).collect();
    for used_bytes in 0..=built.bytes.len() as u64 {
        let scanned = scan(&built.bytes, used_bytes);
        let whole = ends.iter().filter(|&&end| end <= used_bytes).count();
        assert_eq!(scanned.table.regions.len(), whole, "{used_bytes} bytes");
        assert_eq!(scanned.valid_bytes, if whole == 0 { 0 } else { ends[whole - 1] });
        // A cut within the zeros of a write-out does not look like damage.
        let is_clean = used_bytes <= align_to_write_out(scanned.valid_bytes)
            && built.bytes[scanned.valid_bytes as usize..used_bytes as usize].iter().all(|&byte| byte == 0);
        assert_eq!(scanned.damage.is_none(), is_clean, "{used_bytes} bytes");
    }
}

#[test]
fn regions_of_the_other_kind_are_damage() {
    let built = sample(CONTAINER);
    let read = &mut |offset: u64, len: usize| Ok(built.bytes[offset as usize..offset as usize + len].to_vec());
    let scanned = scan_table(&POOL, CONTAINER, ContainerKind::Recipe, built.bytes.len() as u64, read).unwrap();
    assert!(scanned.table.entries.is_empty());
    assert!(scanned.damage.unwrap().to_string().contains("Recipe region"));
}

#[test]
fn errors_of_reading_are_passed_on() {
    let failing = &mut |_: u64, _: usize| Err(StoreError::NotFound { path: "x".to_owned() });
    assert!(matches!(scan_table(&POOL, CONTAINER, KIND, 100, failing), Err(StoreError::NotFound { .. })));
    let short = &mut |_: u64, len: usize| Ok(vec![0; len - 1]);
    assert!(matches!(scan_table(&POOL, CONTAINER, KIND, 100, short), Err(StoreError::Corrupt { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn scans_equal_tables(
        regions in proptest::collection::vec((1_usize..6, 1_usize..3000, any::<bool>(), any::<bool>()), 0..10),
        sealed: bool,
    ) {
        let mut built = Built::new(CONTAINER);
        let mut seed = 0;
        for (count, len, compressible, ends) in regions {
            let chunks: Vec<_> = (0..count).map(|_| { seed += 1; chunk(seed, len, compressible) }).collect();
            built.region(CONTAINER, &chunks);
            if ends {
                built.end_write_out();
            }
        }
        let table = built.builder.snapshot();
        if sealed {
            built.bytes.extend(built.builder.encode_toc(&POOL));
        }
        built.end_write_out();
        let scanned = scan(&built.bytes, built.bytes.len() as u64);
        prop_assert!(scanned.damage.is_none());
        prop_assert_eq!(scanned.table, table);
    }

    #[test]
    fn arbitrary_damage_never_panics_and_never_lies(
        places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let built = sample(CONTAINER);
        let mut damaged = built.bytes.clone();
        for (place, value) in places {
            let position = place.index(damaged.len());
            damaged[position] = value;
        }
        assert_subset(&built, &scan(&damaged, damaged.len() as u64));
    }
}
