//! The bytes of a container's record.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::container::SlotAddress;
use dedupfs_store::{ContainerId, ContainerRecord, StoreError};

use super::{log, record};

/// Encodes the record under key `id`.
pub(super) fn encode(container: &ContainerRecord) -> Vec<u8> {
    record::seal(&container.id.0.to_le_bytes(), |writer| {
        writer.u8(container.kind as u8);
        writer
            .u8(u8::from(container.sealed) | u8::from(container.toc.is_some()) << 1 | u8::from(container.damaged) << 2);
        let (toc_offset, toc_len) = container.toc.unwrap_or_default();
        for number in [
            container.address.file,
            container.address.slot,
            container.used_bytes,
            container.chunks,
            toc_offset,
            toc_len,
        ] {
            writer.u32(number);
        }
        writer.u64(container.chunk_bytes);
    })
}

/// Decodes the record found under key `id`.
pub(super) fn decode(id: ContainerId, bytes: &[u8]) -> Result<ContainerRecord> {
    let what = || format!("record of container {id}");
    record::open(what, &id.0.to_le_bytes(), bytes, |reader| {
        let kind = log::container_kind(reader.u8()?, &what)?;
        let flags = reader.u8()?;
        if flags > 7 {
            return Err(StoreError::corrupt(what(), "flags of at most 7", flags).into());
        }
        let address = SlotAddress { file: reader.u32()?, slot: reader.u32()? };
        let (used_bytes, chunks) = (reader.u32()?, reader.u32()?);
        let toc = (reader.u32()?, reader.u32()?);
        Ok(ContainerRecord {
            id,
            kind,
            address,
            used_bytes,
            toc: (flags & 2 != 0).then_some(toc),
            chunk_bytes: reader.u64()?,
            chunks,
            sealed: flags & 1 != 0,
            damaged: flags & 4 != 0,
        })
    })
}
