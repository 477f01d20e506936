//! The progress of building an index, as notes of the builder.
//!
//! It has a file of its own, written before the manifest that refers to it. The manifest of an unfinished index has no
//! position in the operations log and names the number of this file instead. So the files and the notes about them
//! change together, in the one atomic replacement of the manifest.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, Result, StoreError};

use crate::names::{join, progress_name, progress_number};
use crate::options::PROGRESS_BYTES_MAX;

const VERSION: u16 = 1;

/// Writes `notes` durably as number `number` of the index in `directory`.
pub(crate) fn write(device: &dyn Device, directory: &str, pool: &PoolId, number: u64, notes: &[u8]) -> Result<()> {
    if notes.len() as u64 > PROGRESS_BYTES_MAX / 2 {
        return Err(StoreError::Usage(format!("notes of {} bytes on the progress of an index", notes.len())));
    }
    let mut meta = ByteWriter::new();
    meta.u16(VERSION);
    meta.u16(0);
    meta.u64(checksum(directory.as_bytes()));
    meta.u64(number);
    let frame = encode_frame(FrameKind::Progress, pool, 0, meta.as_slice(), notes);
    device.replace_file(directory, &progress_name(number), &frame)
}

/// Reads the notes of number `number`.
pub(crate) fn read(device: &dyn Device, directory: &str, pool: &PoolId, number: u64) -> Result<Vec<u8>> {
    let path = join(directory, &progress_name(number));
    let bytes = device.read_file(&path, PROGRESS_BYTES_MAX)?;
    let expect = Expect { kind: FrameKind::Progress, pool: Some(pool), owner: Some(0) };
    let frame = decode_frame(&path, &bytes, &expect, PROGRESS_BYTES_MAX as usize)?;
    if frame.header.frame_bytes() != bytes.len() as u64 {
        return Err(StoreError::corrupt(path, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
    }
    let mut meta = ByteReader::new(frame.meta, &path);
    let version = meta.u16()?;
    if version != VERSION {
        return Err(StoreError::newer(&path, format!("progress version {version}")));
    }
    let found = (meta.u16()?, meta.u64()?, meta.u64()?);
    let expected = (0, checksum(directory.as_bytes()), number);
    meta.finish()?;
    if found != expected {
        return Err(StoreError::corrupt(path, format!("{expected:?}"), format!("{found:?}")));
    }
    Ok(frame.payload.to_vec())
}

/// The highest number with a file.
pub(crate) fn newest(device: &dyn Device, directory: &str) -> Result<Option<u64>> {
    Ok(device.list(directory)?.iter().filter_map(|entry| progress_number(&entry.name)).max())
}

/// Removes all progress files except number `kept`.
pub(crate) fn remove_others(device: &dyn Device, directory: &str, kept: Option<u64>) -> Result<()> {
    for entry in device.list(directory)? {
        let complete = entry.name.strip_suffix(".new").unwrap_or(&entry.name);
        let is_other = progress_number(complete).is_some_and(|number| Some(number) != kept || complete != entry.name);
        if is_other && !entry.is_directory {
            device.remove(&join(directory, &entry.name))?;
        }
    }
    Ok(())
}
