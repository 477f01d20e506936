//! The tables of the namespace store, their keys, and the header record.
//!
//! `docs/format.md` has the byte maps. Keys that are compared as bytes are big-endian, so that their order is the order
//! of the numbers. Everything else is little-endian.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::StoreError;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::inode::{kind_from_u8, kind_to_u8};
use super::record;
use super::totals::Totals;

/// Version of the set of tables; checked before any other part is read (invariant I-8).
const FORMAT_VERSION: u16 = 1;
/// Key of the header in [`META`]; the export mark is the row behind it.
pub(super) const HEADER_KEY: u64 = 0;

/// The header: one row.
pub(super) const META: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("meta");
/// Inode number -> inode.
pub(super) const INODES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("inodes");
/// Directory and name -> entry.
pub(super) const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");
/// Directory and cookie -> inode number, kind and name; scanned to read a directory.
pub(super) const ORDER: TableDefinition<'_, &[u8; 16], &[u8]> = TableDefinition::new("order");
/// Inode number and attribute name -> value.
pub(super) const XATTRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("xattrs");
/// Inodes without a name that are still open, or were open at a crash.
pub(super) const ORPHANS: TableDefinition<'_, u64, ()> = TableDefinition::new("orphans");
/// Container id -> record.
pub(super) const CONTAINERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("containers");
/// Row and part -> operations.
pub(super) const LOG: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("log");

/// Row and part -> keys that the row changed, for the next export.
pub(super) const CHANGES: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("changes");
/// Container id -> its last record. The container is removed, but an export may still name its slot.
pub(super) const LEAVING: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("leaving");

/// Returns the key of a name: the directory's number, big-endian, then the name. Attributes use it, too: inode number,
/// then name.
pub(super) fn name_key(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + name.len());
    key.extend_from_slice(&ino.to_be_bytes());
    key.extend_from_slice(name);
    key
}

pub(super) fn split_name_key(key: &[u8]) -> Result<(Ino, &[u8])> {
    match key.split_first_chunk::<8>() {
        Some((ino, name)) => Ok((Ino::from_be_bytes(*ino), name)),
        None => Err(StoreError::corrupt("key of a name", "at least 8 bytes", key.len()).into()),
    }
}

/// Returns the key of a place in a directory's order.
pub(super) fn order_key(directory: Ino, cookie: u64) -> [u8; 16] {
    (u128::from(directory) << 64 | u128::from(cookie)).to_be_bytes()
}

pub(super) fn split_order_key(key: &[u8; 16]) -> (Ino, u64) {
    let number = u128::from_be_bytes(*key);
    ((number >> 64) as u64, number as u64)
}

/// Encodes a value of [`ORDER`].
pub(super) fn encode_order(key: &[u8; 16], ino: Ino, kind: FileKind, name: &[u8]) -> Vec<u8> {
    record::seal(key, |writer| {
        writer.u64(ino);
        writer.u8(kind_to_u8(kind));
        writer.bytes(name);
    })
}

/// Decodes a value of [`ORDER`].
pub(super) fn decode_order(key: &[u8; 16], bytes: &[u8]) -> Result<(Ino, FileKind, Vec<u8>)> {
    let what = || {
        let (directory, cookie) = split_order_key(key);
        format!("entry {cookie} of directory {directory}")
    };
    record::open(what, key, bytes, |reader| {
        let (ino, kind) = (reader.u64()?, kind_from_u8(reader.u8()?, what)?);
        let len = reader.remaining();
        Ok((ino, kind, reader.bytes(len)?.to_vec()))
    })
}

pub(super) fn encode_xattr(key: &[u8], value: &[u8]) -> Vec<u8> {
    record::seal(key, |writer| writer.bytes(value))
}

/// Decodes a value of [`XATTRS`].
pub(super) fn decode_xattr(key: &[u8], bytes: &[u8]) -> Result<Vec<u8>> {
    let what = || format!("extended attribute {}", key.escape_ascii());
    record::open(what, key, bytes, |reader| {
        let len = reader.remaining();
        Ok(reader.bytes(len)?.to_vec())
    })
}

/// Flag of the header: the indexes have cells of lost content.
const FLAG_LOSSES: u8 = 1;
/// Flag of the header: the indexes of side B count.
const FLAG_SIDE_B: u8 = 2;
/// Flag of the header: counts of the indexes are in doubt. Releases that do not know it refuse the pool; they would
/// free by these counts.
const FLAG_DOUBT: u8 = 4;

/// Flag of the header: the pool may have versions. Releases that do not know it refuse the pool.
const FLAG_VERSIONS: u8 = 8;

/// One of the two places for the indexes. A rebuild builds the indexes on the other side, then changes sides. One
/// transaction switches both indexes and the flag of losses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum IndexSide {
    /// The side of a new pool.
    #[default]
    A,
    /// The other side.
    B,
}

impl IndexSide {
    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Counters and totals as of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Number of the last commit, which is its row in the log.
    pub(super) row: u64,
    /// Log rows up to this one are trimmed: the indexes must hold their effects.
    pub(super) trimmed_through: u64,
    /// Whether the indexes have cells of lost content.
    pub(super) has_losses: bool,
    /// Whether counts of the indexes are in doubt: nothing is freed until the indexes are rebuilt.
    pub(super) has_doubt: bool,
    /// The side of the indexes that counts.
    pub(super) index_side: IndexSide,
    /// Whether roots may name tree nodes.
    pub(super) has_versions: bool,
    /// Next inode number to give.
    pub(super) next_ino: u64,
    /// Next directory cookie to give.
    pub(super) next_cookie: u64,
    /// Raised at every opening for writing; makes container ids unique.
    pub(super) writer_epoch: u32,
    /// Sums over all inodes.
    pub(super) totals: Totals,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        record::seal(&HEADER_KEY.to_le_bytes(), |writer| {
            writer.u16(FORMAT_VERSION);
            writer.u32(self.writer_epoch);
            let side = if self.index_side == IndexSide::B { FLAG_SIDE_B } else { 0 };
            let losses = if self.has_losses { FLAG_LOSSES } else { 0 };
            let doubt = if self.has_doubt { FLAG_DOUBT } else { 0 };
            let versions = if self.has_versions { FLAG_VERSIONS } else { 0 };
            writer.u8(losses | side | doubt | versions);
            for number in [self.row, self.trimmed_through, self.next_ino, self.next_cookie] {
                writer.u64(number);
            }
            self.totals.as_array().into_iter().for_each(|number| writer.i64(number));
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        record::open(
            || "header of the namespace".into(),
            &HEADER_KEY.to_le_bytes(),
            bytes,
            |reader| {
                let version = reader.u16()?;
                if version != FORMAT_VERSION {
                    return Err(StoreError::Unsupported {
                        what: "namespace".into(),
                        found: format!("format version {version}"),
                        advice: "use the release that wrote this pool, or a newer one".into(),
                    }
                    .into());
                }
                let writer_epoch = reader.u32()?;
                let flags = reader.u8()?;
                if flags & !(FLAG_LOSSES | FLAG_SIDE_B | FLAG_DOUBT | FLAG_VERSIONS) != 0 {
                    return Err(StoreError::Unsupported {
                        what: "namespace".into(),
                        found: format!("flags {flags:#x}"),
                        advice: "use the release that wrote this pool, or a newer one".into(),
                    }
                    .into());
                }
                let (row, trimmed_through) = (reader.u64()?, reader.u64()?);
                let (next_ino, next_cookie) = (reader.u64()?, reader.u64()?);
                let mut totals = [0; Totals::FIELDS];
                for number in &mut totals {
                    *number = reader.i64()?;
                }
                Ok(Self {
                    row,
                    trimmed_through,
                    has_losses: flags & FLAG_LOSSES != 0,
                    has_doubt: flags & FLAG_DOUBT != 0,
                    index_side: if flags & FLAG_SIDE_B == 0 { IndexSide::A } else { IndexSide::B },
                    has_versions: flags & FLAG_VERSIONS != 0,
                    next_ino,
                    next_cookie,
                    writer_epoch,
                    totals: Totals::from_array(totals),
                })
            },
        )
    }

    /// Checks that a decoded header encodes to the same bytes.
    #[cfg(feature = "fuzzing")]
    pub(super) fn fuzz(bytes: &[u8]) {
        if let Ok(header) = Self::decode(bytes) {
            assert_eq!(header.encode(), bytes);
        }
    }

    /// Reads the header. A store without one is no namespace.
    pub(super) fn read(transaction: &ReadTransaction) -> std::result::Result<Result<Self>, redb::Error> {
        let table = match transaction.open_table(META) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Err(Self::missing())),
            Err(error) => return Err(error.into()),
        };
        let value = ReadableTable::get(&table, HEADER_KEY)?;
        Ok(value.map_or_else(|| Err(Self::missing()), |value| Self::decode(value.value())))
    }

    fn missing() -> dedupfs_base::EngineError {
        StoreError::corrupt("namespace", "a header", "none (was formatting interrupted?)").into()
    }

    /// Writes the header within a transaction.
    pub(super) fn write(&self, transaction: &WriteTransaction) -> std::result::Result<(), redb::Error> {
        transaction.open_table(META)?.insert(HEADER_KEY, self.encode().as_slice())?;
        Ok(())
    }
}
