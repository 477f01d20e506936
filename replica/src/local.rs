//! Containers of the pool, as its export names them, and their bytes on the data root.

use std::collections::BTreeMap;

use dedupfs::EngineError;
use dedupfs::export::{ExportFiles, ExportPosition, slot_path};
use dedupfs_store::container::{SlotAddress, scan_table};
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::frame::{Expect, FrameKind, decode_frame};
use dedupfs_store::{ContainerId, ContainerKind, PoolId, StoreError};

use crate::error::{ReplicaError, Result};
use crate::stored::Stored;

/// Bytes that are given up together if the disk does not return them.
const UNREADABLE_BYTES: usize = 64 << 10;

/// A container on the data root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Local {
    pub(crate) id: ContainerId,
    pub(crate) kind: ContainerKind,
    pub(crate) address: SlotAddress,
    pub(crate) used_bytes: u32,
    /// Offset and length of its table of contents, if it has one. Notes leave it out.
    pub(crate) toc: Option<(u32, u32)>,
}

/// The containers that an export names.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    pub(crate) by_id: BTreeMap<ContainerId, Local>,
    /// The export that they are of.
    position: ExportPosition,
}

impl Locals {
    /// Takes the containers of an export that was looked at before.
    pub(crate) fn of(by_id: BTreeMap<ContainerId, Local>, position: ExportPosition) -> Self {
        Self { by_id, position }
    }

    /// Reads the export up to a later position: only the new part of its log, unless its base is another one.
    pub(crate) fn advance(&mut self, pool: &PoolId, files: &ExportFiles) -> Result<()> {
        let goes_on = self.position.generation > 0 && self.position.is_continued_by(files.position());
        let log_from = goes_on.then_some(self.position.log_bytes);
        if log_from.is_none() {
            self.by_id.clear();
        }
        // Until it is whole, it is of no export.
        self.position = ExportPosition::default();
        files.visit_containers(pool, log_from, &mut |id, record| {
            // A container without bytes needs no object.
            match record.filter(|record| record.used_bytes > 0) {
                Some(record) => {
                    let (kind, address, used_bytes) = (record.kind, record.address, record.used_bytes);
                    self.by_id.insert(id, Local { id, kind, address, used_bytes, toc: record.toc });
                }
                None => drop(self.by_id.remove(&id)),
            }
            Ok(())
        })?;
        self.position = *files.position();
        Ok(())
    }
}

/// The bytes of a container.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) bytes: Vec<u8>,
    /// Why some of them are zeros, if the disk did not return them.
    pub(crate) error: Option<StoreError>,
}

/// The data root that containers are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataRoot<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) pool: PoolId,
    pub(crate) slot_bytes: u32,
}

impl DataRoot<'_> {
    /// Reads the bytes of a container. Bytes that the disk does not return are zeros.
    pub(crate) fn read(&self, local: &Local) -> Result<Read> {
        let mut bytes = vec![0; local.used_bytes.min(self.slot_bytes) as usize];
        let file = match self.device.open(&slot_path(local.kind, local.address), OpenMode::Read) {
            Err(error @ StoreError::NotFound { .. }) => return Ok(Read { bytes, error: Some(error) }),
            file => file?,
        };
        let start = u64::from(local.address.slot) * u64::from(self.slot_bytes);
        let there = file.len()?.saturating_sub(start).min(bytes.len() as u64) as usize;
        let whole = bytes.get_mut(..there).unwrap_or_default();
        let mut first = None;
        if file.read_exact_at(whole, start).is_err() {
            let mut at = start;
            for part in whole.chunks_mut(UNREADABLE_BYTES) {
                if let Err(error) = file.read_exact_at(part, at) {
                    part.fill(0);
                    first.get_or_insert(error);
                }
                at += part.len() as u64;
            }
        }
        Ok(Read { bytes, error: first })
    }

    /// Whether a container has the content of an object. One that cannot be read has not.
    pub(crate) fn has_content(&self, local: &Local, stored: &Stored, name_key: &[u8; 32]) -> Result<bool> {
        if (local.kind, local.used_bytes) != (stored.kind, stored.used_bytes) {
            return Ok(false);
        }
        match self.read(local) {
            Ok(read) => Ok(stored.has_content(name_key, &read.bytes)),
            Err(ReplicaError::Pool(EngineError::Store(StoreError::Io { .. }))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether these bytes are a container's, and every frame in them is sound.
    pub(crate) fn is_sound(&self, local: &Local, bytes: &[u8]) -> bool {
        let mut read = |offset: u64, len: usize| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            Ok(bytes.get(from..).and_then(|rest| rest.get(..len)).unwrap_or_default().to_vec())
        };
        let Ok(scanned) = scan_table(&self.pool, local.id, local.kind, bytes.len() as u64, &mut read) else {
            return false;
        };
        let expect = Expect { kind: FrameKind::Region, pool: Some(&self.pool), owner: Some(local.id.0) };
        scanned.damage.is_none()
            && bytes.len() == local.used_bytes as usize
            && scanned.table.regions.iter().all(|region| {
                let frame = bytes.get(region.offset_bytes as usize..).unwrap_or_default();
                decode_frame("region", frame, &expect, bytes.len()).is_ok()
            })
    }
}
