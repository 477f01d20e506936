//! The record of a container: its place and the length of its valid part. The namespace keeps it.

use super::{ENTRY_BYTES, SlotAddress};
use crate::{ContainerId, ContainerKind};

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
