//! What an export needs to know of commits: which keys each one changed, and how far the last export has come.
//!
//! Each commit writes the keys that it changed into `CHANGES`, in the same transaction, so that no crash can lose one. An
//! export looks up what they are now, in one snapshot; rows that a durable export has are trimmed by a later commit. Keys
//! and not values: 10 to 30 bytes for each change instead of 200, and what changes often is exported once.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_fuse::service::Ino;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::{ContainerId, StoreError};
use redb::{ReadTransaction, ReadableTable, WriteTransaction};

use super::overlay::Generation;
use super::{record, tables};
use crate::error::{EngineError, Result};

/// Bytes of one part of a row's keys, about.
const PART_BYTES: usize = 64 << 10;
/// Key of the mark in the table of the header.
const MARK_KEY: u64 = 1;
/// A key has at most an inode number and a name.
const KEY_BYTES_MAX: usize = 8 + super::NAME_BYTES_MAX;

/// Tells descendants of one meta root from those of another that was made from the same data root.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// A new one, random.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| StoreError::from_io("get", "random bytes", error.into()))?;
        if got != bytes.len() {
            return Err(StoreError::Usage("the system gave too few random bytes: try again".to_owned()).into());
        }
        Ok(Self(bytes))
    }
}

/// Which durable export a commit knows of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Number of the base; 0: there is no export.
    pub generation: u64,
    /// Valid bytes of its log.
    pub log_bytes: u64,
    /// Groups of its log.
    pub group: u32,
    /// The commit whose state it holds.
    pub row: u64,
    /// When it was written, in seconds since 1970.
    pub time_secs: u64,
}

/// Beside the header: what is known of exports.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExportMark {
    /// Of this meta root.
    pub lineage: Lineage,
    /// The last commit whose changes were noted. Behind it a release wrote that knows nothing of exports.
    pub tracked_row: u64,
    /// Changes of commits up to this one are no longer there.
    pub trimmed_row: u64,
    /// The export.
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

    /// The mark, unless a release that knew none wrote the store.
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
    /// A name: directory, big-endian, and name.
    Name(Vec<u8>),
    /// An extended attribute: inode, big-endian, and name.
    Xattr(Vec<u8>),
    /// A container's record; bytes of it before `from_bytes` were recorded by an earlier commit.
    Container {
        /// Which.
        id: ContainerId,
        /// What was recorded before.
        from_bytes: u32,
    },
}

/// The keys of one commit in parts of bounded size. `containers` come with what was recorded of them before.
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
        if self.filling.len() >= PART_BYTES {
            self.done.push(std::mem::take(&mut self.filling).into_vec());
        }
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.filling.is_empty() {
            self.done.push(self.filling.into_vec());
        }
        self.done
    }
}

/// The value of a part.
pub(super) fn seal_part(row: u64, part: u32, keys: &[u8]) -> Vec<u8> {
    record::seal(&part_key(row, part), |writer| writer.bytes(keys))
}

/// Decodes a part.
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
