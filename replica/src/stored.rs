//! Containers as objects: their names.

use std::fmt::Write as _;

use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::objects::Key;
use dedupfs_store::{ContainerId, ContainerKind, StoreError};

use crate::error::Result;

/// The part of a name that stands for content: 128 bits of BLAKE3, keyed so that nobody without the key can tell content by its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct ContentHash(pub(crate) [u8; 16]);

impl ContentHash {
    /// Hashes content for a name. `salt`: the reign of a container, the commit of a piece.
    pub(crate) fn of(name_key: &[u8; 32], salt: u64, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(name_key);
        hasher.update(&salt.to_le_bytes()).update(bytes);
        let mut hash = [0; 16];
        hasher.finalize_xof().fill(&mut hash);
        Self(hash)
    }

    pub(crate) fn hex(self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The name of a piece of a stream.
    pub(crate) fn piece_key(self) -> Result<Key> {
        let hex = self.hex();
        Ok(Key::new(format!("n/{:02x}/{hex}", self.0.first().copied().unwrap_or_default()))?)
    }
}

/// A container in the store, as far as its bytes were valid at some commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Stored {
    pub(crate) id: ContainerId,
    pub(crate) kind: ContainerKind,
    /// Bytes of the object.
    pub(crate) used_bytes: u32,
    /// The reign in which it was uploaded.
    pub(crate) reign: u64,
    pub(crate) hash: ContentHash,
}

/// Bytes of an encoded row.
pub(crate) const STORED_BYTES: usize = 37;

impl Stored {
    /// The name of the object. Names begin with the lowest byte of the container's number, so that a store spreads them.
    pub(crate) fn key(&self) -> Result<Key> {
        let folder = match self.kind {
            ContainerKind::Data => 'c',
            ContainerKind::Recipe => 'r',
        };
        Ok(Key::new(format!("{folder}/{:02x}/{:016x}-{}", self.id.0 & 0xff, self.id.0, self.hash.hex()))?)
    }

    /// Whether these bytes are the content that the object is named after.
    pub(crate) fn has_content(&self, name_key: &[u8; 32], bytes: &[u8]) -> bool {
        bytes.len() == self.used_bytes as usize && ContentHash::of(name_key, self.reign, bytes) == self.hash
    }

    pub(crate) fn encode(&self, writer: &mut ByteWriter) {
        writer.u64(self.id.0);
        writer.u8(self.kind as u8);
        writer.u32(self.used_bytes);
        writer.u64(self.reign);
        writer.bytes(&self.hash.0);
    }

    pub(crate) fn decode(reader: &mut ByteReader<'_>) -> std::result::Result<Self, StoreError> {
        let id = ContainerId(reader.u64()?);
        let byte = reader.u8()?;
        let kind = ContainerKind::from_u8(byte).ok_or_else(|| reader.corrupt("a kind of container", byte))?;
        let (used_bytes, reign, hash) = (reader.u32()?, reader.u64()?, ContentHash(reader.array()?));
        Ok(Self { id, kind, used_bytes, reign, hash })
    }

    /// Encodes rows one behind the other.
    pub(crate) fn encode_all<'a>(rows: impl ExactSizeIterator<Item = &'a Self>) -> Vec<u8> {
        let mut writer = ByteWriter::with_capacity(rows.len() * STORED_BYTES);
        rows.for_each(|row| row.encode(&mut writer));
        writer.into_vec()
    }

    /// Decodes rows.
    pub(crate) fn decode_all(what: &str, bytes: &[u8]) -> std::result::Result<Vec<Self>, StoreError> {
        let mut reader = ByteReader::new(bytes, what);
        let mut rows = Vec::with_capacity(bytes.len() / STORED_BYTES);
        while reader.remaining() > 0 {
            rows.push(Self::decode(&mut reader)?);
        }
        Ok(rows)
    }
}
