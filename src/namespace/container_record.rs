//! The record of a container: its place and the length of its valid part.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_store::container::{ENTRY_BYTES, SlotAddress};
use dedupfs_store::{ContainerId, ContainerKind, StoreError};

use super::{log, record};
use crate::error::Result;

/// One container, as of the last commit that changed it. Slots without a record are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerRecord {
    /// Its identity.
    pub id: ContainerId,
    /// Kind of its content.
    pub kind: ContainerKind,
    /// Its place.
    pub address: SlotAddress,
    /// Valid bytes of the slot.
    pub used_bytes: u32,
    /// Offset and length of its table, once it has one.
    pub toc: Option<(u32, u32)>,
    /// Total size of its chunks before compression.
    pub chunk_bytes: u64,
    /// Number of its chunks.
    pub chunks: u32,
    /// Whether it is complete: nothing is appended any more.
    pub sealed: bool,
    /// Whether damage was found in it. Its content is then trusted only where the index places it there.
    pub damaged: bool,
}

impl ContainerRecord {
    /// Returns the number of chunks, or less if the record claims more than the container has room to list. Buffers are
    /// sized by the result.
    pub fn believable_chunks(&self) -> usize {
        (self.chunks as usize).min(self.used_bytes as usize / ENTRY_BYTES)
    }

    /// Encodes the record under key `id`.
    pub(super) fn encode(&self) -> Vec<u8> {
        record::seal(&self.id.0.to_le_bytes(), |writer| {
            writer.u8(self.kind as u8);
            writer.u8(u8::from(self.sealed) | u8::from(self.toc.is_some()) << 1 | u8::from(self.damaged) << 2);
            let (toc_offset, toc_len) = self.toc.unwrap_or_default();
            for number in [self.address.file, self.address.slot, self.used_bytes, self.chunks, toc_offset, toc_len] {
                writer.u32(number);
            }
            writer.u64(self.chunk_bytes);
        })
    }

    /// Decodes the record found under key `id`.
    pub(super) fn decode(id: ContainerId, bytes: &[u8]) -> Result<Self> {
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
            Ok(Self {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `fsck --rebuild-index` reserved 196 GiB for the nodes of a forged record, and was aborted.
    #[test]
    fn regression_no_buffer_is_as_large_as_a_forged_record_claims() {
        let record = ContainerRecord {
            id: ContainerId(1),
            kind: ContainerKind::Recipe,
            address: SlotAddress { file: 0, slot: 0 },
            used_bytes: 8192,
            toc: None,
            chunk_bytes: 0,
            chunks: 3,
            sealed: true,
            damaged: false,
        };
        assert_eq!(record.believable_chunks(), 3);
        assert_eq!(ContainerRecord { chunks: u32::MAX, ..record }.believable_chunks(), 8192 / ENTRY_BYTES);
    }
}
