//! The decoders of namespace records, for the fuzz targets. The input bytes get the right checksum first. A decoded
//! record must encode to the same bytes.

use dedupfs_store::ContainerId;
use dedupfs_store::codec::ByteReader;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use super::inode::{Entry, Inode};
use super::page_sums::{PageSums, SUMS_FILES, StoreHeader};
use super::tables::Header;
use super::{container_record, log, record, tables};

fn sealed(key: &[u8], body: &[u8]) -> Vec<u8> {
    record::seal(key, |writer| writer.bytes(body))
}

/// Decodes the bytes unchanged. Few inputs pass the checksum; none may panic.
pub fn raw(key: &[u8], bytes: &[u8]) {
    let _ = record::open(
        || "fuzzed".to_owned(),
        key,
        bytes,
        |reader: &mut ByteReader<'_>| {
            let all = reader.remaining();
            Ok(reader.bytes(all)?.len())
        },
    );
}

/// Decodes an inode.
pub fn inode(ino: u64, body: &[u8]) {
    let bytes = sealed(&ino.to_le_bytes(), body);
    if let Ok(inode) = Inode::decode(ino, &bytes) {
        assert_eq!(inode.encode(), bytes);
    }
}

/// Decodes a name.
pub fn entry(key: &[u8], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok(entry) = Entry::decode(key, &bytes) {
        assert_eq!(entry.encode(key), bytes);
    }
    if let Ok((ino, name)) = tables::split_name_key(key) {
        assert_eq!(tables::name_key(ino, name), key);
    }
}

/// Decodes a place in the order of a directory.
pub fn order(key: &[u8; 16], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok((ino, kind, name)) = tables::decode_order(key, &bytes) {
        assert_eq!(tables::encode_order(key, ino, kind, &name), bytes);
    }
}

/// Decodes an extended attribute.
pub fn xattr(key: &[u8], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok(value) = tables::decode_xattr(key, &bytes) {
        assert_eq!(tables::encode_xattr(key, &value), bytes);
    }
}

/// Decodes a part of a log row.
pub fn log_part(row: u64, part: u32, body: &[u8]) {
    let mut key = row.to_le_bytes().to_vec();
    key.extend_from_slice(&part.to_le_bytes());
    let bytes = sealed(&key, body);
    if let Ok((parts, ops)) = log::decode_part(row, part, &bytes) {
        assert_eq!(log::encode_part(row, part, parts, &ops), bytes);
    }
}

/// Decodes the record of a container.
pub fn container(id: u64, body: &[u8]) {
    let bytes = sealed(&id.to_le_bytes(), body);
    if let Ok(record) = container_record::decode(ContainerId(id), &bytes) {
        assert_eq!(
            container_record::decode(record.id, &container_record::encode(&record)).expect("decodes again"),
            record
        );
    }
}

/// Decodes the header.
pub fn header(body: &[u8]) {
    Header::fuzz(&sealed(&0_u64.to_le_bytes(), body));
}

/// Loads the two files of checksums beside the store, with a header of the store.
pub fn page_sums(first: &[u8], second: &[u8], header: &[u8]) {
    let Some(header) = StoreHeader::parse(header) else { return };
    let disk = MemoryDevice::new();
    for (name, bytes) in SUMS_FILES.into_iter().zip([first, second]) {
        let file = disk.open(name, OpenMode::CreateNew).expect("creates");
        file.write_at(bytes, 0).expect("writes");
    }
    let mut sums = PageSums::open(&disk).expect("opens");
    if sums.load(&header).is_ok_and(|usable| usable) {
        sums.note(1, 1, Some(&[1; 4096]));
        sums.write_changes().expect("writes to memory");
        sums.sync().expect("syncs memory");
        sums.after_sync().expect("writes to memory");
    }
}
