//! The operations log: the changes of references and containers by each commit (invariants I-2 and I-3).
//!
//! A commit writes one *row*, cut into parts of at most [`PART_OPS_MAX`] operations. The indexes count rows in order.
//! Each index stores its position, and the log is trimmed up to the older position.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::recipe::Root;
use dedupfs_store::{ContainerId, ContainerKind, LogOp, StoreError};

use super::record;

/// Largest number of operations in one part of a row. It bounds the size of a value (about 60 bytes each).
pub(super) const PART_OPS_MAX: usize = 4096;

/// Returns the key of a part, for its checksum.
fn part_key(row: u64, part: u32) -> [u8; 12] {
    let mut key = [0; 12];
    let (head, tail) = key.split_at_mut(8);
    head.copy_from_slice(&row.to_le_bytes());
    tail.copy_from_slice(&part.to_le_bytes());
    key
}

pub(super) fn encode_part(row: u64, part: u32, parts: u32, ops: &[LogOp]) -> Vec<u8> {
    record::seal(&part_key(row, part), |writer| {
        writer.u32(parts);
        writer.u32(ops.len() as u32);
        ops.iter().for_each(|op| encode_op(op, writer));
    })
}

/// Decodes a part. Returns the number of parts of the row, and the operations of this part.
pub(super) fn decode_part(row: u64, part: u32, bytes: &[u8]) -> Result<(u32, Vec<LogOp>)> {
    let what = || format!("part {part} of log row {row}");
    record::open(what, &part_key(row, part), bytes, |reader| {
        let (parts, count) = (reader.u32()?, reader.u32()? as usize);
        if part >= parts || count > PART_OPS_MAX {
            let expected = format!("a part of {parts} with at most {PART_OPS_MAX} operations");
            return Err(StoreError::corrupt(what(), expected, format!("{count} operations")).into());
        }
        let mut ops = Vec::with_capacity(count);
        for _ in 0..count {
            ops.push(decode_op(reader, &what)?);
        }
        Ok((parts, ops))
    })
}

fn encode_op(op: &LogOp, writer: &mut ByteWriter) {
    match *op {
        LogOp::Extend { container, kind, from_bytes, to_bytes } => {
            writer.u8(1);
            writer.u64(container.0);
            writer.u8(kind as u8);
            writer.u32(from_bytes);
            writer.u32(to_bytes);
        }
        LogOp::RootAdded(root) => {
            writer.u8(2);
            root.encode_into(writer);
        }
        LogOp::RootDropped(root) => {
            writer.u8(3);
            root.encode_into(writer);
        }
        LogOp::NodeStored { level, fingerprint, container, len_bytes } => {
            writer.u8(4);
            writer.u8(level);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
            writer.u32(len_bytes);
        }
        LogOp::NodeFreed { level, fingerprint, container } => {
            writer.u8(5);
            writer.u8(level);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
        }
        LogOp::ChunkRemoved { fingerprint, container } => {
            writer.u8(6);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
        }
        LogOp::NodeMoved { fingerprint, container, len_bytes } => {
            writer.u8(7);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
            writer.u32(len_bytes);
        }
        LogOp::ChunkLost { fingerprint, container } => {
            writer.u8(8);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
        }
        LogOp::NodeLost { fingerprint, container } => {
            writer.u8(9);
            writer.fingerprint(&fingerprint);
            writer.u64(container.0);
        }
    }
}

fn decode_op(reader: &mut ByteReader<'_>, what: &impl Fn() -> String) -> Result<LogOp> {
    Ok(match reader.u8()? {
        1 => LogOp::Extend {
            container: ContainerId(reader.u64()?),
            kind: container_kind(reader.u8()?, what)?,
            from_bytes: reader.u32()?,
            to_bytes: reader.u32()?,
        },
        2 => LogOp::RootAdded(Root::decode_from(reader)?),
        3 => LogOp::RootDropped(Root::decode_from(reader)?),
        4 => LogOp::NodeStored {
            level: reader.u8()?,
            fingerprint: reader.fingerprint()?,
            container: ContainerId(reader.u64()?),
            len_bytes: reader.u32()?,
        },
        5 => LogOp::NodeFreed {
            level: reader.u8()?,
            fingerprint: reader.fingerprint()?,
            container: ContainerId(reader.u64()?),
        },
        6 => LogOp::ChunkRemoved { fingerprint: reader.fingerprint()?, container: ContainerId(reader.u64()?) },
        7 => LogOp::NodeMoved {
            fingerprint: reader.fingerprint()?,
            container: ContainerId(reader.u64()?),
            len_bytes: reader.u32()?,
        },
        8 => LogOp::ChunkLost { fingerprint: reader.fingerprint()?, container: ContainerId(reader.u64()?) },
        9 => LogOp::NodeLost { fingerprint: reader.fingerprint()?, container: ContainerId(reader.u64()?) },
        tag => return Err(StoreError::corrupt(what(), "an operation of 1 to 9", tag).into()),
    })
}

/// Returns the container kind with this number in records.
pub(super) fn container_kind(byte: u8, what: &impl Fn() -> String) -> Result<ContainerKind> {
    ContainerKind::from_u8(byte).ok_or_else(|| StoreError::corrupt(what(), "a container kind of 1 or 2", byte).into())
}
