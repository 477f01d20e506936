//! The decoders of records of versions and of notes, for the fuzz targets.

use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::frame::{FrameKind, encode_frame};
use dedupfs_store::{Fingerprint, PoolId};

use super::notes::{About, DIRECTORY, Notes};
use super::record::VersionRecord;

/// Decodes a record of a version. One that is accepted encodes equally.
pub fn version_record(bytes: &[u8]) {
    if let Ok(record) = VersionRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
}

/// Opens and reads notes of a put: these bytes as a file, and as block and trailer with checksums that fit. The first byte
/// is the length of the block's payload, in records.
pub fn put_notes(bytes: &[u8]) {
    let pool = PoolId([7; 16]);
    let about = About::of(Fingerprint([1; 32]), 9);
    read(bytes, &pool, &about);
    let Some((&records, rest)) = bytes.split_first() else { return };
    let (payload, meta) = rest.split_at(rest.len().min(usize::from(records) * 16));
    let (count, meta) = meta.split_at(meta.len().min(8));
    let block = encode_frame(FrameKind::Notes, &pool, 3, &[&[1, 0][..], &[0; 8]].concat(), payload);
    // Version, number of records, tree, source.
    let trailer = [&[1, 0][..], count, &[1; 32], &9_u64.to_le_bytes()].concat();
    for trailer in [trailer, meta.to_vec()] {
        read(&[&block[..], &encode_frame(FrameKind::Notes, &pool, 3, &trailer, &[])].concat(), &pool, &about);
    }
}

fn read(bytes: &[u8], pool: &PoolId, about: &About) {
    let device = MemoryDevice::new();
    let write = || {
        device.create_directory(DIRECTORY)?;
        device.open(&format!("{DIRECTORY}/{:016x}", 1), OpenMode::CreateOrWrite)?.write_at(bytes, 0)
    };
    write().unwrap_or_else(|error| panic!("memory takes all writes: {error}"));
    if let Ok(Some(notes)) = Notes::open(&device, pool, 1, about) {
        for place in [0, 1, 4095, 4096, u64::MAX / 2, u64::MAX] {
            let _ = notes.get(place);
        }
    }
}
