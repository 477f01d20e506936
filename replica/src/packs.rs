//! Packs: the tables of contents of many containers in one object, for readers of a replica, which would ask once for each.
//!
//! Packs are hints. No commit names one; what no pack has is read from the containers. A reader checks each table as if it came from its
//! container.

use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::objects::{Class, Key};
use dedupfs_store::{ContainerKind, PoolId, StoreError};
use dedupfs_sync::Mutex;

use crate::error::Result;
use crate::local::Local;
use crate::place::Replica;
use crate::stored::{ContentHash, STORED_BYTES, Stored};

/// The beginning of the names of packs.
pub(crate) const PACKS: &str = "t/";
const VERSION: u16 = 1;
/// Bytes of tables from which on a pack is full, and its largest number of tables.
const PACK_BYTES: usize = if cfg!(test) { 2 << 10 } else { 8 << 20 };
const TABLES_MAX: usize = 1024;
/// Fewer tables are not worth an object: a commit takes few requests.
const TABLES_MIN: usize = if cfg!(test) { 4 } else { 16 };
const ROW_BYTES: usize = STORED_BYTES + 8;
const META_BYTES: usize = 8;
/// Bytes at the beginning of a pack that have all its rows.
pub(crate) const ROWS_WITHIN_BYTES: u64 = (FRAME_HEADER_BYTES + META_BYTES + TABLES_MAX * ROW_BYTES) as u64;
/// Longest pack that is believed: the table of one container may come behind the limit.
pub(crate) const PACK_BYTES_MAX: usize = 64 << 20;

/// A table in a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    /// The object whose table it is.
    pub(crate) stored: Stored,
    /// Where the table lies in the container.
    pub(crate) at: u32,
    pub(crate) len_bytes: u32,
}

/// Tables, gathered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pack {
    pub(crate) rows: Vec<Row>,
    bytes: Vec<u8>,
}

impl Pack {
    pub(crate) fn push(&mut self, stored: Stored, at: u32, table: &[u8]) {
        self.rows.push(Row { stored, at, len_bytes: table.len() as u32 }); // A part of a container.
        self.bytes.extend_from_slice(table);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_BYTES || self.rows.len() == TABLES_MAX
    }

    pub(crate) fn encode(&self, pool: &PoolId) -> Vec<u8> {
        let mut meta = ByteWriter::with_capacity(META_BYTES + self.rows.len() * ROW_BYTES);
        meta.u16(VERSION);
        meta.u16(0);
        meta.u32(self.rows.len() as u32); // At most `TABLES_MAX`.
        for row in &self.rows {
            row.stored.encode(&mut meta);
            meta.u32(row.at);
            meta.u32(row.len_bytes);
        }
        encode_frame(FrameKind::ReplicaPack, pool, 0, meta.as_slice(), &self.bytes)
    }

    pub(crate) fn decode(pool: &PoolId, bytes: &[u8]) -> std::result::Result<Self, StoreError> {
        let expect = Expect { kind: FrameKind::ReplicaPack, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(WHAT, bytes, &expect, PACK_BYTES_MAX)?;
        if frame.header.frame_bytes() != bytes.len() as u64 {
            return Err(StoreError::corrupt(WHAT, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
        }
        let rows = rows(ByteReader::new(frame.meta, WHAT))?;
        let sum: u64 = rows.iter().map(|row| u64::from(row.len_bytes)).sum();
        if sum != frame.payload.len() as u64 {
            return Err(StoreError::corrupt(WHAT, format!("{sum} bytes of tables"), frame.payload.len()));
        }
        Ok(Self { rows, bytes: frame.payload.to_vec() })
    }
}

const WHAT: &str = "tables of a replica";

/// Decodes the rows at the beginning of a pack, and where the first table lies. The rest is not looked at.
pub(crate) fn rows_of(pool: &PoolId, bytes: &[u8]) -> std::result::Result<(Vec<Row>, u64), StoreError> {
    let header = FrameHeader::decode(WHAT, bytes)?;
    header.check(WHAT, &Expect { kind: FrameKind::ReplicaPack, pool: Some(pool), owner: Some(0) }, PACK_BYTES_MAX)?;
    let first = FRAME_HEADER_BYTES + header.meta_bytes as usize;
    let meta = bytes.get(FRAME_HEADER_BYTES..first).unwrap_or_default();
    Ok((rows(ByteReader::new(meta, WHAT))?, first as u64))
}

fn rows(mut meta: ByteReader<'_>) -> std::result::Result<Vec<Row>, StoreError> {
    let (version, flags, count) = (meta.u16()?, meta.u16()?, meta.u32()? as usize);
    if (version, flags) != (VERSION, 0) {
        return Err(StoreError::newer(WHAT, format!("version {version}, flags {flags:#x}")));
    }
    if count > TABLES_MAX {
        return Err(meta.corrupt(format!("at most {TABLES_MAX} tables"), count));
    }
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let row = Row { stored: Stored::decode(&mut meta)?, at: meta.u32()?, len_bytes: meta.u32()? };
        if u64::from(row.at) + u64::from(row.len_bytes) > u64::from(row.stored.used_bytes) {
            return Err(meta.corrupt("a table in its container", row.at));
        }
        rows.push(row);
    }
    meta.finish()?;
    Ok(rows)
}

/// Gathers the tables of containers that are uploaded, and uploads them.
#[derive(Debug, Default)]
pub(crate) struct Packing(Mutex<Pack>);

impl Packing {
    /// Adds the table of a data container, if it has one. At most one pack is in memory besides those that are being uploaded.
    pub(crate) fn add(&self, replica: &Replica, local: &Local, stored: Stored, bytes: &[u8]) -> Result<()> {
        let Some((at, len)) = local.toc.filter(|_| local.kind == ContainerKind::Data) else { return Ok(()) };
        let Some(table) = bytes.get(at as usize..).and_then(|rest| rest.get(..len as usize)) else { return Ok(()) };
        let full = {
            let mut pack = self.0.lock();
            pack.push(stored, at, table);
            pack.is_full().then(|| std::mem::take(&mut *pack))
        };
        full.map_or(Ok(()), |pack| upload(replica, &pack))
    }

    /// Uploads the last pack, unless it has few tables.
    pub(crate) fn finish(&self, replica: &Replica) -> Result<()> {
        let pack = std::mem::take(&mut *self.0.lock());
        if pack.rows.len() < TABLES_MIN { Ok(()) } else { upload(replica, &pack) }
    }
}

fn upload(replica: &Replica, pack: &Pack) -> Result<()> {
    let bytes = pack.encode(&replica.format.pool);
    let key = Key::new(format!("{PACKS}{}", ContentHash::of(&replica.name_key, 0, &bytes).hex()))?;
    Ok(replica.objects.create(&key, &[&bytes], Class::Metadata).map(drop)?)
}

#[cfg(test)]
mod tests {
    use dedupfs_store::ContainerId;

    use super::*;

    const POOL: PoolId = PoolId([3; 16]);

    fn pack() -> Pack {
        let mut pack = Pack::default();
        for number in 0..5_u32 {
            let stored = Stored {
                id: ContainerId(number.into()),
                kind: ContainerKind::Data,
                used_bytes: 5000,
                reign: 1,
                hash: ContentHash([number as u8; 16]),
            };
            pack.push(stored, 100 * number, &vec![number as u8; 300 + number as usize]);
        }
        pack
    }

    #[test]
    fn a_pack_is_read_as_it_was_made() {
        let bytes = pack().encode(&POOL);
        assert_eq!(Pack::decode(&POOL, &bytes).expect("decodes"), pack());
        let (rows, first) = rows_of(&POOL, &bytes).expect("decodes");
        assert_eq!(rows, pack().rows);
        assert_eq!(bytes[first as usize + 300..][..301], [1; 301]);
    }

    #[test]
    fn no_changed_byte_of_a_pack_is_believed() {
        let bytes = pack().encode(&POOL);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            assert!(Pack::decode(&POOL, &changed).is_err(), "byte {at}");
            assert!(Pack::decode(&POOL, &bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(Pack::decode(&PoolId([4; 16]), &bytes).is_err());
        assert!(Pack::decode(&POOL, &[&bytes[..], &[0; 64]].concat()).is_err());
    }
}
