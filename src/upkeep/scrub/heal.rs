//! Healing: content that files need and no container has is stored again, from a copy of the pool elsewhere.
//!
//! The caller brings the bytes; each is compared with its fingerprint, so nobody is believed. Storing a chunk again heals all files that need
//! it. A recipe node is healed if its copy was quarantined: its children are counted then. One that a rebuilt index lacks is not, because
//! its children are not counted, and none is while counts are in doubt. New copies go where reclaiming puts content, apart from that of backups.

use dedupfs_base::{EngineError, Result};
use dedupfs_content::RECLAIM_STREAM;
use dedupfs_index::Cell;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, StoreError};

use crate::durability::space::Demand;
use crate::engine::Core;

/// A chunk or recipe node that files need and no container has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LostContent {
    /// Data for a chunk, recipe for a node.
    pub kind: ContainerKind,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
}

/// Entries of lost content that are told at once; 33 bytes each.
pub const LOST_AT_ONCE: usize = 1 << 20;
/// Bytes of encoded copies that are taken at once.
pub const COPIES_BYTES_MAX: usize = 64 << 20;
/// Bytes of encoded lost content.
const LOST_BYTES: usize = 33;

impl LostContent {
    fn encode(&self, writer: &mut ByteWriter) {
        writer.u8(self.kind as u8);
        writer.bytes(&self.fingerprint.0);
    }

    fn decode(reader: &mut ByteReader<'_>) -> std::result::Result<Self, StoreError> {
        let byte = reader.u8()?;
        let kind = ContainerKind::from_u8(byte).ok_or_else(|| reader.corrupt("a kind of container", byte))?;
        Ok(Self { kind, fingerprint: Fingerprint(reader.array()?) })
    }
}

/// Encodes lost content for another process.
#[must_use]
pub fn encode_lost(lost: &[LostContent]) -> Vec<u8> {
    let mut writer = ByteWriter::with_capacity(lost.len() * LOST_BYTES);
    lost.iter().for_each(|one| one.encode(&mut writer));
    writer.into_vec()
}

/// Decodes lost content of another process.
///
/// # Errors
/// `Corrupt`
pub fn decode_lost(bytes: &[u8]) -> Result<Vec<LostContent>> {
    let mut reader = ByteReader::new(bytes, WHAT);
    let mut lost = Vec::with_capacity(bytes.len() / LOST_BYTES);
    while reader.remaining() > 0 {
        lost.push(LostContent::decode(&mut reader)?);
    }
    Ok(lost)
}

/// Encodes copies for another process: lost content, length (4), bytes.
#[must_use]
pub fn encode_copies(copies: &[(LostContent, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    for (content, bytes) in copies {
        content.encode(&mut writer);
        writer.u32(bytes.len() as u32); // Shorter than a container.
        writer.bytes(bytes);
    }
    writer.into_vec()
}

/// Decodes copies of another process.
///
/// # Errors
/// `Corrupt`
pub fn decode_copies(bytes: &[u8]) -> Result<Vec<(LostContent, &[u8])>> {
    let mut reader = ByteReader::new(bytes, WHAT);
    let mut copies = Vec::new();
    while reader.remaining() > 0 {
        let content = LostContent::decode(&mut reader)?;
        let len = reader.u32()? as usize;
        copies.push((content, reader.bytes(len)?));
    }
    Ok(copies)
}

const WHAT: &str = "copies of lost content";

impl Core {
    /// Returns lost content, at most so much.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn lost_content(&self, max: usize) -> Result<Vec<LostContent>> {
        let mut lost = Vec::new();
        for (kind, index) in [(ContainerKind::Data, &self.indexes.chunks), (ContainerKind::Recipe, &self.indexes.nodes)]
        {
            index.for_each_lost(&mut |fingerprint: Fingerprint, _: Cell| {
                if lost.len() < max {
                    lost.push(LostContent { kind, fingerprint });
                }
                Ok(())
            })?;
        }
        Ok(lost)
    }

    /// Returns the bytes of a chunk or recipe node that the pool has.
    ///
    /// # Errors
    /// Index and container errors; damage.
    pub(crate) fn stored_content(&self, content: &LostContent) -> Result<Option<Vec<u8>>> {
        let (index, store) = match content.kind {
            ContainerKind::Data => (&self.indexes.chunks, &self.stores.data),
            ContainerKind::Recipe => (&self.indexes.nodes, &self.stores.recipes),
        };
        let Some(cell) = index.get(&content.fingerprint)?.filter(|cell| !cell.location.is_lost()) else {
            return Ok(None);
        };
        let read = store.read_chunk(cell.location.container(), &content.fingerprint, None)?;
        Ok(read.map(|bytes| bytes.to_vec()))
    }

    /// Stores content again if it is lost, durably; returns how much of it was. Bytes that are of another fingerprint are left out.
    ///
    /// # Errors
    /// No room; index and container errors; a commit failed.
    pub(crate) fn heal(&self, copies: &[(LostContent, &[u8])]) -> Result<u64> {
        let mut healed = 0;
        {
            // Nodes are not freed meanwhile.
            let _losses = self.committer.hold_losses();
            for (content, bytes) in copies {
                let of = |kind| if content.kind == kind { bytes.len() as u64 } else { 0 };
                let demand = Demand { data_bytes: of(ContainerKind::Data), meta_bytes: of(ContainerKind::Recipe) };
                let _room = self.admit(demand)?;
                self.dedup.wait_for_room()?;
                let replaced = match content.kind {
                    ContainerKind::Data => self.dedup.replace_chunk(RECLAIM_STREAM, content.fingerprint, bytes),
                    ContainerKind::Recipe if self.namespace.has_doubt() => Ok(false),
                    ContainerKind::Recipe => {
                        self.dedup.replace_node(RECLAIM_STREAM, content.fingerprint, ContainerId::NONE, bytes)
                    }
                };
                match replaced {
                    Ok(replaced) => healed += u64::from(replaced),
                    Err(EngineError::Store(error @ StoreError::Corrupt { .. })) => {
                        tracing::warn!(%error, "a copy of lost content is not what its name says: it is left out");
                    }
                    Err(error) => return Err(error),
                }
                self.committer.pace()?;
            }
        }
        if healed > 0 {
            tracing::warn!(healed, "lost chunks and recipe nodes were stored again");
            self.committer.settle()?;
            self.note_losses()?;
        }
        Ok(healed)
    }
}
