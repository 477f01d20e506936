//! Paths of an export on the data root, and its two small files.
//!
//! - `current` names the base that counts, with its log. Replacing it is the only switch between two bases.
//! - `owner` names the lineage and writer epoch of the meta root that may write here. It is raised at every opening for writing, before
//!   a container id of that epoch is given. So a meta root older than the data root is recognized, and a recovery knows an epoch that
//!   was never used.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{Ancestry, Lineage};
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

/// Directory of the export.
pub(super) const DIRECTORY: &str = "export";
const CURRENT: &str = "current";
const OWNER: &str = "owner";
const VERSION: u16 = 1;
/// Version of an owner whose data root has kept slots (see [`mod@super::kept`]). Releases that would reuse those slots refuse it.
const VERSION_KEEPS: u16 = 2;
/// Each of the two files is one small frame.
const SMALL_BYTES_MAX: usize = 4096;

pub(super) fn base_path(generation: u64) -> String {
    format!("{DIRECTORY}/base-{generation}")
}

pub(super) fn log_path(generation: u64) -> String {
    format!("{DIRECTORY}/log-{generation}")
}

/// Creates the directory, durably.
pub(super) fn create(device: &dyn Device) -> Result<()> {
    if !device.exists(DIRECTORY)? {
        device.create_directory(DIRECTORY)?;
    }
    Ok(device.sync_directory("")?)
}

/// The base that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Current {
    pub(super) generation: u64,
    /// Bytes of its file.
    pub(super) base_bytes: u64,
    /// The commit whose state it is.
    pub(super) row: u64,
}

impl Current {
    /// Reads the file; `None` if there is none.
    pub(super) fn read(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        read_small(device, CURRENT, pool, FrameKind::ExportCurrent, VERSION, |_, reader| {
            Ok(Self { generation: reader.u64()?, base_bytes: reader.u64()?, row: reader.u64()? })
        })
    }

    /// Makes this base count.
    pub(super) fn write(&self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        write_small(device, CURRENT, pool, FrameKind::ExportCurrent, VERSION, |writer| {
            [self.generation, self.base_bytes, self.row].into_iter().for_each(|number| writer.u64(number));
        })
    }

    /// Makes no base count; durable on return.
    pub(super) fn remove(device: &dyn Device) -> Result<()> {
        match device.remove(&format!("{DIRECTORY}/{CURRENT}")) {
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(device.sync_directory(DIRECTORY)?)
    }
}

/// The owner of the data root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) lineage: Lineage,
    pub(super) epoch: u32,
    /// Whether slots or files that a recovery could not name are kept.
    pub(super) keeps: bool,
}

impl Owner {
    /// Reads the file; `None` if there is none.
    pub(super) fn read(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        let read = read_small(device, OWNER, pool, FrameKind::ExportOwner, VERSION_KEEPS, |version, reader| {
            let keeps = version == VERSION_KEEPS;
            Ok(Self { lineage: Lineage(reader.array()?), epoch: reader.u32()?, keeps })
        });
        read.map_err(|error| match error {
            EngineError::Store(StoreError::Io { operation, path, source }) => {
                let path = format!(
                    "{path} (if that stays so, move this file away: it is made anew, and until `dedupfs fsck --repair \
                     --give-up-unnamed` the pool keeps all content that nothing names)"
                );
                StoreError::Io { operation, path, source }.into()
            }
            other => other,
        })
    }

    pub(super) fn write(&self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        create(device)?;
        let version = if self.keeps { VERSION_KEEPS } else { VERSION };
        write_small(device, OWNER, pool, FrameKind::ExportOwner, version, |writer| {
            writer.bytes(&self.lineage.0);
            writer.u32(self.epoch);
        })
    }
}

/// Checks that a meta root may write to the data root: it is the last writer, in the state of that time or a later one.
///
/// # Errors
/// The data root has another owner, or is newer than the meta root.
pub(crate) fn check_owner(device: &dyn Device, pool: &PoolId, ancestry: &Ancestry) -> Result<()> {
    let owner = match Owner::read(device, pool) {
        Ok(Some(owner)) => owner,
        Ok(None) => return Ok(()),
        Err(error @ EngineError::Store(StoreError::Corrupt { .. })) => {
            tracing::warn!(%error, "which meta root wrote the data root last cannot be told; it is noted anew");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let advice = "put the newest meta root back; if it is lost, `dedupfs recover --force POOL` (with `--data DIR` if the content lies elsewhere) \
                  makes a new one in this one's place, from what the data root has. Remove nothing";
    if ancestry.lineage != Some(owner.lineage) {
        let problem = "the data root was written by another meta root since this one (the pool was recovered, or this is an old \
                       copy)";
        return Err(StoreError::Usage(format!("{problem}: {advice}")).into());
    }
    // This also catches a copy taken while the pool was mounted that was not opened since.
    if let Some(row) =
        super::open::exported_row(device, pool, &ancestry.exported)?.filter(|row| *row > ancestry.last_row)
    {
        let problem = format!(
            "the meta root is an older copy: its last commit is number {}, and the data root has an export of number {row}",
            ancestry.last_row
        );
        return Err(StoreError::Usage(format!("{problem}: {advice}")).into());
    }
    if owner.epoch > ancestry.writer_epoch {
        let problem = format!(
            "the meta root is an older copy: it was opened {} times when the data root had been opened {} times",
            ancestry.writer_epoch, owner.epoch
        );
        return Err(StoreError::Usage(format!("{problem}: {advice}")).into());
    }
    Ok(())
}

fn read_small<T>(
    device: &dyn Device,
    name: &str,
    pool: &PoolId,
    kind: FrameKind,
    version_max: u16,
    decode: impl FnOnce(u16, &mut ByteReader<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let path = format!("{DIRECTORY}/{name}");
    let expect = Expect { kind, pool: Some(pool), owner: Some(0) };
    let read = || {
        let bytes = device.read_file(&path, SMALL_BYTES_MAX as u64)?;
        match decode_frame(&path, &bytes, &expect, SMALL_BYTES_MAX) {
            Err(error) => Err(of_another_pool(device, &path, &bytes, pool).unwrap_or(error)),
            Ok(_) => Ok(bytes),
        }
    };
    // What follows from a damaged file lasts: the disk is asked again.
    let bytes =
        match read().or_else(|error| if matches!(error, StoreError::Corrupt { .. }) { read() } else { Err(error) }) {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            bytes => bytes?,
        };
    let frame = decode_frame(&path, &bytes, &expect, SMALL_BYTES_MAX)?;
    let mut reader = ByteReader::new(frame.meta, &path);
    let version = reader.u16()?;
    if !(VERSION..=version_max).contains(&version) {
        let advice = "use the release that wrote it, or a newer one".to_owned();
        return Err(StoreError::Unsupported { what: path.clone(), found: format!("version {version}"), advice }.into());
    }
    let value = decode(version, &mut reader)?;
    reader.finish()?;
    Ok(Some(value))
}

/// Returns the error of a sound file of another pool: this is not the pool's data root, and nothing here may be changed.
fn of_another_pool(device: &dyn Device, path: &str, bytes: &[u8], pool: &PoolId) -> Option<StoreError> {
    let other = FrameHeader::decode(path, bytes).ok()?.pool;
    let place = device.describe();
    (other != *pool).then(|| {
        StoreError::Usage(format!(
            "{place} seems to be the data root of another pool: {path} there is of pool {other}, and not of {pool}; nothing was \
             changed; use the pool's own data root, or, if only this file came from there, move it away"
        ))
    })
}

/// Refuses a data root whose export is of another pool.
///
/// # Errors
/// The data root is refused.
pub(crate) fn check_pool(device: &dyn Device, pool: &PoolId) -> Result<()> {
    for read in [Owner::read(device, pool).map(drop), Current::read(device, pool).map(drop)] {
        // Damage is found later.
        if let Err(error @ EngineError::Store(StoreError::Usage(_))) = read {
            return Err(error);
        }
    }
    Ok(())
}

fn write_small(
    device: &dyn Device,
    name: &str,
    pool: &PoolId,
    kind: FrameKind,
    version: u16,
    fill: impl FnOnce(&mut ByteWriter),
) -> Result<()> {
    let mut meta = ByteWriter::new();
    meta.u16(version);
    fill(&mut meta);
    let mut bytes = encode_frame(kind, pool, 0, meta.as_slice(), &[]);
    bytes.resize(SMALL_BYTES_MAX, 0);
    Ok(device.replace_file(DIRECTORY, name, &bytes)?)
}
