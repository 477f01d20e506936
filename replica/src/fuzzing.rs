//! The decoders of bytes from stores, disks and users, for the fuzz targets.

use std::sync::Arc;

use dedupfs_store::PoolId;
use dedupfs_store::codec::ByteWriter;
use dedupfs_store::frame::{FrameKind, encode_frame};
use dedupfs_store::objects::{Key, MemoryObjects, Objects as _};

use crate::commit::Commit;
use crate::encrypted::{EncryptedObjects, Secret};
use crate::format::Format;
use crate::key_file::KeyFile;
use crate::note::{decode_note, decode_run};
use crate::packs::{Pack, rows_of};
use crate::stored::Stored;
use crate::view::Slots;

const POOL: PoolId = PoolId([7; 16]);

/// Divides bytes into meta and payload of a frame whose checksums fit. The first two bytes are the length of the meta.
fn framed(kind: FrameKind, owner: u64, bytes: &[u8]) -> Vec<u8> {
    let (len, rest) = bytes.split_at(bytes.len().min(2));
    let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
    let (meta, payload) = rest.split_at(rest.len().min(len));
    encode_frame(kind, &POOL, owner, meta, payload)
}

/// A commit. One that is accepted encodes equally.
pub fn commit(bytes: &[u8]) {
    for bytes in [bytes, &framed(FrameKind::ReplicaCommit, 3, bytes)] {
        if let Ok(commit) = Commit::decode(&POOL, 3, bytes) {
            assert_eq!(commit.encode(&POOL), bytes);
        }
    }
}

/// The object `format`, and rows of containers. Accepted bytes encode equally.
pub fn format(bytes: &[u8]) {
    let framed = framed(FrameKind::ReplicaFormat, 0, bytes);
    if let Ok(format) = Format::decode(&framed) {
        // Without a key its place in the frame means nothing.
        assert!(format.key.is_none() || format.encode() == framed);
    }
    let _any = Format::decode(bytes);
    if let Ok(rows) = Stored::decode_all("rows", bytes) {
        assert_eq!(Stored::encode_all(rows.iter()), bytes);
    }
}

/// Tables of a replica.
pub fn pack(bytes: &[u8]) {
    let framed = framed(FrameKind::ReplicaPack, 0, bytes);
    for bytes in [bytes, &framed] {
        let _any = rows_of(&POOL, bytes);
        if let Ok(pack) = Pack::decode(&POOL, bytes) {
            assert_eq!(Pack::decode(&POOL, &pack.encode(&POOL)).ok(), Some(pack));
        }
    }
}

/// Slots of a view.
pub fn slots(bytes: &[u8]) {
    let framed = framed(FrameKind::ReplicaSlots, 0, bytes);
    for bytes in [bytes, &framed] {
        if let Ok(slots) = Slots::decode(&POOL, bytes) {
            assert_eq!(slots.encode(&POOL), bytes);
        }
    }
}

/// Notes of a replica.
pub fn note(bytes: &[u8]) {
    let framed = framed(FrameKind::ReplicaNote, 0, bytes);
    for bytes in [bytes, &framed] {
        let _any = decode_note("note", &POOL, bytes);
        let _any = decode_run("note", &POOL, bytes);
    }
    // A first part without rows, and one more frame.
    let mut meta = ByteWriter::new();
    [1, 1].into_iter().for_each(|number| meta.u16(number));
    meta.bytes(&[0; 88 + 11 * 8]);
    meta.u64(1);
    meta.u16(0);
    let head = encode_frame(FrameKind::ReplicaNote, &POOL, 0, meta.as_slice(), &[]);
    let _any = decode_note("note", &POOL, &[head, framed].concat());
}

/// A key file. One that is accepted is written and read again. It is not opened: that may take as long as it says.
pub fn key_file(bytes: &[u8]) {
    if let Ok(file) = KeyFile::parse(bytes) {
        let text = file.to_text().unwrap_or_default();
        assert_eq!(KeyFile::parse(text.as_bytes()).ok(), Some(file));
    }
}

/// An encrypted object: whatever is put in its place, nothing is read of it.
pub fn encrypted(bytes: &[u8]) {
    let (Ok(key), store) = (Key::new("c/00/1"), MemoryObjects::new()) else { return };
    store.replace(&key, bytes);
    let objects = EncryptedObjects::new(Arc::new(store), Secret::new(&[7; 32]));
    let _any = objects.head(&key);
    for range in [None, Some(0..10), Some(70_000..80_000)] {
        let mut read = Vec::new();
        assert!(objects.read(&key, range, &mut read).is_err() && read.is_empty());
    }
}
