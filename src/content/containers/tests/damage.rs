//! Damaged disks: every error is found, and costs only the chunks it covers.

use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::{ContainerRecord, StoreError};

use super::{CONTAINER_BYTES, DIRECTORY, Harness, chunk, options, stream};

fn sealed(chunks: u64) -> Harness {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..chunks);
    harness.reopen(options());
    harness
}

fn flip(device: &Arc<dyn Device>, record: &ContainerRecord, offset_bytes: u32) {
    let path = format!("{DIRECTORY}/{:06}.slots", record.address.file);
    let file = device.open(&path, OpenMode::Write).expect("opens");
    let offset = u64::from(record.address.slot) * u64::from(CONTAINER_BYTES) + u64::from(offset_bytes);
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("reads");
    byte[0] ^= 0x40;
    file.write_at(&byte, offset).expect("writes");
}

fn is_corrupt<T>(result: Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::Store(StoreError::Corrupt { .. })))
}

#[test]
fn a_damaged_region_costs_its_own_chunks_only() {
    let mut harness = sealed(60);
    let record = harness.records()[0];
    let table = harness.store.table(record.id).expect("reads").expect("is there");
    let region = table.regions[1];
    flip(&harness.device, &record, region.offset_bytes + region.frame_bytes - 70);
    harness.open_again(options());
    let mut lost = 0;
    for (number, container) in &harness.placed {
        let (print, data) = chunk(*number);
        let is_hit = *container == record.id && table.find(&print).is_some_and(|place| place.region == 1);
        let read = harness.store.read_chunk(*container, &print, Some(data.len() as u32));
        if is_hit {
            lost += 1;
            assert!(is_corrupt(read));
        } else {
            assert_eq!(read.expect("reads").as_deref(), Some(&data[..]));
        }
    }
    assert_eq!(lost, region.entry_count);
    assert!(is_corrupt(harness.store.verify(record.id)));
    let mut seen = 0;
    let walked = harness.store.for_each_chunk(record.id, &mut |_, _| {
        seen += 1;
        Ok(())
    });
    assert!(is_corrupt(walked));
    assert_eq!(seen, table.regions[0].entry_count);
}

#[test]
fn a_damaged_table_is_replaced_by_a_scan() {
    let mut harness = sealed(60);
    let record = harness.records()[0];
    let (toc, _) = record.toc.expect("is sealed");
    flip(&harness.device, &record, toc + 100);
    harness.open_again(options());
    harness.check_all();
    assert!(is_corrupt(harness.store.verify(record.id)));
}

#[test]
fn any_flipped_byte_is_found_by_verify_and_never_read_as_data() {
    let mut harness = sealed(25);
    let record = harness.records()[0];
    let table = harness.store.table(record.id).expect("reads").expect("is there");
    let (toc, toc_bytes) = record.toc.expect("is sealed");
    let frames = table.regions.iter().map(|region| (region.offset_bytes, region.frame_bytes));
    let mut found = 0;
    for (offset, len) in frames.chain([(toc, toc_bytes)]) {
        for position in (0..len).step_by(37) {
            flip(&harness.device, &record, offset + position);
            harness.open_again(options());
            for (number, container) in &harness.placed {
                let (print, data) = chunk(*number);
                if let Ok(Some(read)) = harness.store.read_chunk(*container, &print, Some(data.len() as u32)) {
                    assert_eq!(&read[..], data);
                }
            }
            found += u32::from(harness.store.verify(record.id).is_err());
            // The padding behind a frame's body has no checksum and no content.
            assert!(harness.store.verify(record.id).is_err() || position + 64 >= len, "{offset} + {position} of {len}");
            flip(&harness.device, &record, offset + position);
        }
    }
    assert!(found > 100);
    harness.open_again(options());
    harness.store.verify(record.id).expect("sound again");
}

#[test]
fn an_unscannable_container_is_damaged_not_empty() {
    let mut harness = Harness::new(Arc::new(MemoryDevice::new()), options());
    harness.append_all(stream(0), 0..10);
    harness.commit().expect("commits");
    let record = harness.records()[0];
    flip(&harness.device, &record, 3);
    harness.open_again(options());
    let (print, data) = chunk(0);
    assert!(
        is_corrupt(harness.store.read_chunk(record.id, &print, Some(data.len() as u32))),
        "absence would hide the damage"
    );
}
