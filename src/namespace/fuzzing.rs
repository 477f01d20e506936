//! The decoders of namespace records, for the fuzz targets. The input bytes get the right checksum first. A decoded
//! record must encode to the same bytes.

use dedupfs_store::ContainerId;
use dedupfs_store::codec::ByteReader;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

use super::inode::{Entry, Inode};
use super::page_sums::{PageSums, SUMS_FILES, StoreHeader};
use super::tables::Header;
use super::{container_record, log, record, tables};

/// A decoder, with the part of its input that is not the record itself.
#[derive(Clone, Copy, Debug)]
pub enum Decoder<'a> {
    /// The frame of all records, with the bytes unchanged. Few inputs pass the checksum; none may panic.
    Raw(&'a [u8]),
    /// The inode of this number.
    Inode(u64),
    /// The name with this key.
    Entry(&'a [u8]),
    /// The place with this key in the order of a directory.
    Order(&'a [u8; 16]),
    /// The extended attribute with this key.
    Xattr(&'a [u8]),
    /// A part of a log row.
    LogPart(u64, u32),
    /// The record of the container of this number.
    Container(u64),
    /// The header of the namespace.
    Header,
    /// The two files of checksums beside the store; these are the second one and a header of the store.
    PageSums(&'a [u8], &'a [u8]),
}

/// Decodes `body`.
pub fn decode(decoder: Decoder<'_>, body: &[u8]) {
    match decoder {
        Decoder::Raw(key) => raw(key, body),
        Decoder::Inode(ino) => inode(ino, body),
        Decoder::Entry(key) => entry(key, body),
        Decoder::Order(key) => order(key, body),
        Decoder::Xattr(key) => xattr(key, body),
        Decoder::LogPart(row, part) => log_part(row, part, body),
        Decoder::Container(id) => container(id, body),
        Decoder::Header => Header::fuzz(&sealed(&0_u64.to_le_bytes(), body)),
        Decoder::PageSums(second, header) => page_sums(body, second, header),
    }
}

fn sealed(key: &[u8], body: &[u8]) -> Vec<u8> {
    record::seal(key, |writer| writer.bytes(body))
}

fn raw(key: &[u8], bytes: &[u8]) {
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

fn inode(ino: u64, body: &[u8]) {
    let bytes = sealed(&ino.to_le_bytes(), body);
    if let Ok(inode) = Inode::decode(ino, &bytes) {
        assert_eq!(inode.encode(), bytes);
    }
}

fn entry(key: &[u8], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok(entry) = Entry::decode(key, &bytes) {
        assert_eq!(entry.encode(key), bytes);
    }
    if let Ok((ino, name)) = tables::split_name_key(key) {
        assert_eq!(tables::name_key(ino, name), key);
    }
}

fn order(key: &[u8; 16], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok((ino, kind, name)) = tables::decode_order(key, &bytes) {
        assert_eq!(tables::encode_order(key, ino, kind, &name), bytes);
    }
}

fn xattr(key: &[u8], body: &[u8]) {
    let bytes = sealed(key, body);
    if let Ok(value) = tables::decode_xattr(key, &bytes) {
        assert_eq!(tables::encode_xattr(key, &value), bytes);
    }
}

fn log_part(row: u64, part: u32, body: &[u8]) {
    let mut key = row.to_le_bytes().to_vec();
    key.extend_from_slice(&part.to_le_bytes());
    let bytes = sealed(&key, body);
    if let Ok((parts, ops)) = log::decode_part(row, part, &bytes) {
        assert_eq!(log::encode_part(row, part, parts, &ops), bytes);
    }
}

fn container(id: u64, body: &[u8]) {
    let bytes = sealed(&id.to_le_bytes(), body);
    if let Ok(record) = container_record::decode(ContainerId(id), &bytes) {
        assert_eq!(
            container_record::decode(record.id, &container_record::encode(&record)).expect("decodes again"),
            record
        );
    }
}

fn page_sums(first: &[u8], second: &[u8], header: &[u8]) {
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
