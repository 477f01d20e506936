//! The changes between commits and exports: the keys that each commit changed, and the progress of the last export.
//!
//! Each commit writes the keys that it changed into `CHANGES`, in the same transaction, so no crash can lose a key. An
//! export looks up their present values in one snapshot. A later commit trims the rows that a durable export covers.
//! Keys are stored instead of values: a change takes 10 to 30 bytes instead of 200, and a key that changes often is
//! exported once.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::{EngineError, Result};
use dedupfs_service::Ino;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::{ContainerId, StoreError};
use redb::{ReadTransaction, ReadableTable, WriteTransaction};

use super::overlay::Generation;
use super::{record, tables};

/// Approximate size of one part of a row's keys.
const PART_BYTES: usize = 64 << 10;
/// Key of the export mark in the table of the header.
const MARK_KEY: u64 = 1;
/// Largest key: an inode number and a name.
pub const KEY_BYTES_MAX: usize = 8 + super::NAME_BYTES_MAX;

/// Distinguishes the descendants of one meta root from those of another that was made from the same data root.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// Returns a new random lineage.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        dedupfs_sync::entropy::fill(&mut bytes).map_err(|error| StoreError::from_io("get", "random bytes", error))?;
        Ok(Self(bytes))
    }
}

/// The durable export that a commit knows of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Number of the base; 0: there is no export.
    pub generation: u64,
    /// Valid bytes of its log.
    pub log_bytes: u64,
    /// Number of groups in its log.
    pub group: u32,
    /// The commit whose state the export holds.
    pub row: u64,
    /// Time of the export, in seconds since 1970.
    pub time_secs: u64,
}

/// The state of exports, stored beside the header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExportMark {
    /// Lineage of this meta root.
    pub lineage: Lineage,
    /// The last commit whose changes were recorded. If it is older than the header, a release without exports wrote in
    /// between.
    pub tracked_row: u64,
    /// Changes of commits up to this one have been trimmed.
    pub trimmed_row: u64,
    /// The last durable export.
    pub exported: Exported,
}

impl ExportMark {
    pub(super) fn encode(&self) -> Vec<u8> {
        record::seal(&MARK_KEY.to_le_bytes(), |writer| {
            writer.bytes(&self.lineage.0);
            let Exported { generation, log_bytes, group, row, time_secs } = self.exported;
            [self.tracked_row, self.trimmed_row, generation, log_bytes, row, time_secs]
                .into_iter()
                .for_each(|n| writer.u64(n));
            writer.u32(group);
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        record::open(
            || "export mark".into(),
            &MARK_KEY.to_le_bytes(),
            bytes,
            |reader| {
                let lineage = Lineage(reader.array()?);
                let (tracked_row, trimmed_row) = (reader.u64()?, reader.u64()?);
                let (generation, log_bytes) = (reader.u64()?, reader.u64()?);
                let (row, time_secs) = (reader.u64()?, reader.u64()?);
                let exported = Exported { generation, log_bytes, group: reader.u32()?, row, time_secs };
                Ok(Self { lineage, tracked_row, trimmed_row, exported })
            },
        )
    }

    /// Reads the mark; `None` if a release without marks wrote the store.
    pub(super) fn read(transaction: &ReadTransaction) -> std::result::Result<Result<Option<Self>>, redb::Error> {
        let table = match transaction.open_table(tables::META) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Ok(None)),
            Err(error) => return Err(error.into()),
        };
        let value = ReadableTable::get(&table, MARK_KEY)?;
        Ok(value.map(|value| Self::decode(value.value())).transpose())
    }

    pub(super) fn write(&self, transaction: &WriteTransaction) -> std::result::Result<(), redb::Error> {
        transaction.open_table(tables::META)?.insert(MARK_KEY, self.encode().as_slice())?;
        Ok(())
    }
}

/// A key of the namespace that a commit changed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChangedKey {
    /// An inode.
    Inode(Ino),
    /// A name: the directory's number, big-endian, then the name.
    Name(Vec<u8>),
    /// An extended attribute: the inode's number, big-endian, then the name.
    Xattr(Vec<u8>),
    /// A container's record. An earlier commit recorded its bytes before `from_bytes`.
    Container {
        /// The container.
        id: ContainerId,
        /// Bytes that were recorded before.
        from_bytes: u32,
    },
}

/// Encodes the keys of one commit in parts of bounded size. `containers` pairs each id with the bytes that were
/// recorded before.
pub(super) fn encode_parts(frozen: Option<&Generation>, containers: &[(ContainerId, u32)]) -> Vec<Vec<u8>> {
    let mut parts = Parts::default();
    for &(id, from_bytes) in containers {
        parts.add(4, |writer| {
            writer.u64(id.0);
            writer.u32(from_bytes);
        });
    }
    let Some(frozen) = frozen else { return parts.finish() };
    for ino in frozen.inodes.keys() {
        parts.add(1, |writer| writer.u64(*ino));
    }
    let names =
        frozen.directories.iter().flat_map(|(ino, changes)| changes.by_name.keys().map(move |name| (ino, name)));
    let xattrs = frozen.xattrs.iter().flat_map(|(ino, changes)| changes.keys().map(move |name| (ino, name)));
    let named = names.map(|key| (2, key)).chain(xattrs.map(|key| (3, key)));
    for (tag, (ino, name)) in named {
        parts.add(tag, |writer| {
            writer.u16((8 + name.len()) as u16); // A name has at most 255 bytes.
            writer.bytes(&ino.to_be_bytes());
            writer.bytes(name);
        });
    }
    parts.finish()
}

#[derive(Default)]
struct Parts {
    done: Vec<Vec<u8>>,
    filling: ByteWriter,
}

impl Parts {
    fn add(&mut self, tag: u8, fill: impl FnOnce(&mut ByteWriter)) {
        self.filling.u8(tag);
        fill(&mut self.filling);
        if self.filling.as_slice().len() >= PART_BYTES {
            self.done.push(std::mem::take(&mut self.filling).into_vec());
        }
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.filling.as_slice().is_empty() {
            self.done.push(self.filling.into_vec());
        }
        self.done
    }
}

/// Encodes the value of a part.
pub(super) fn seal_part(row: u64, part: u32, keys: &[u8]) -> Vec<u8> {
    record::seal(&part_key(row, part), |writer| writer.bytes(keys))
}

pub(super) fn decode_part(row: u64, part: u32, bytes: &[u8]) -> Result<Vec<ChangedKey>> {
    let what = || format!("changes of commit {row}, part {part}");
    record::open(what, &part_key(row, part), bytes, |reader| {
        let mut keys = Vec::new();
        while reader.remaining() > 0 {
            keys.push(decode_key(reader)?);
        }
        Ok(keys)
    })
}

fn part_key(row: u64, part: u32) -> [u8; 12] {
    let mut key = [0; 12];
    let (head, tail) = key.split_at_mut(8);
    head.copy_from_slice(&row.to_le_bytes());
    tail.copy_from_slice(&part.to_le_bytes());
    key
}

fn decode_key(reader: &mut ByteReader<'_>) -> std::result::Result<ChangedKey, EngineError> {
    let named = |reader: &mut ByteReader<'_>| {
        let len = usize::from(reader.u16()?);
        if !(8..=KEY_BYTES_MAX).contains(&len) {
            return Err(reader.corrupt(format!("a key of 8 to {KEY_BYTES_MAX} bytes"), len));
        }
        Ok(reader.bytes(len)?.to_vec())
    };
    Ok(match reader.u8()? {
        1 => ChangedKey::Inode(reader.u64()?),
        2 => ChangedKey::Name(named(reader)?),
        3 => ChangedKey::Xattr(named(reader)?),
        4 => ChangedKey::Container { id: ContainerId(reader.u64()?), from_bytes: reader.u32()? },
        tag => return Err(reader.corrupt("a changed key of 1 to 4", tag).into()),
    })
}
