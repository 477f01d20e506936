//! The record of the last run, in a small file on the meta root; byte map in `docs/format.md`.
//!
//! Nothing depends on it: a run works from the garbage map and the counts alone, and continues wherever the last one
//! ended. It tells administrators whether a run was interrupted, and its speed, which the next estimate uses.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::Result;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};
use serde::{Deserialize, Serialize};

/// Name of the file on the meta root.
pub const FILE_NAME: &str = "reclaim";
const VERSION: u16 = 1;
const FILE_BYTES_MAX: u64 = 4096;

/// The record of the last run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LastRun {
    /// Start, in seconds since 1970.
    pub started_secs: u64,
    /// End, in seconds since 1970; 0 if it has not ended or was interrupted.
    pub ended_secs: u64,
    /// Whether it ended with everything done.
    pub is_complete: bool,
    /// Time it took, without pauses.
    pub worked_ms: u64,
    /// Bytes of containers read and written.
    pub io_bytes: u64,
    /// Uncompressed bytes copied forward.
    pub moved_bytes: u64,
    /// Containers freed.
    pub containers_freed: u64,
    /// Recipe nodes freed.
    pub nodes_freed: u64,
    /// Physical bytes that its plan expected to free.
    pub expected_bytes: u64,
    /// Physical bytes that it freed; known at its end.
    pub freed_bytes: u64,
}

impl LastRun {
    /// Writes the record durably.
    ///
    /// # Errors
    /// The device's; the old record is kept then.
    pub fn write(&self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        let mut body = ByteWriter::new();
        body.u16(VERSION);
        body.u8(u8::from(self.is_complete));
        for number in [
            self.started_secs,
            self.ended_secs,
            self.worked_ms,
            self.io_bytes,
            self.moved_bytes,
            self.containers_freed,
            self.nodes_freed,
            self.expected_bytes,
            self.freed_bytes,
        ] {
            body.u64(number);
        }
        Ok(device.replace_file("", FILE_NAME, &encode_frame(FrameKind::Reclaim, pool, 0, body.as_slice(), &[]))?)
    }

    /// Reads the record; `None` if there is none.
    ///
    /// # Errors
    /// The record is damaged or of a newer version; the device's.
    pub fn read(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        let bytes = match device.read_file(FILE_NAME, FILE_BYTES_MAX) {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let what = "the record of the last reclaiming";
        let expect = Expect { kind: FrameKind::Reclaim, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(what, &bytes, &expect, FILE_BYTES_MAX as usize)?;
        let mut reader = ByteReader::new(frame.meta, what);
        let version = reader.u16()?;
        if version != VERSION {
            let advice = "it is of a newer version of dedupfs; the next run replaces it".to_owned();
            let found = format!("version {version}");
            return Err(StoreError::Unsupported { what: what.to_owned(), found, advice }.into());
        }
        let is_complete = match reader.u8()? {
            flag @ (0 | 1) => flag == 1,
            other => return Err(reader.corrupt("a flag of 0 or 1", other).into()),
        };
        let run = Self {
            is_complete,
            started_secs: reader.u64()?,
            ended_secs: reader.u64()?,
            worked_ms: reader.u64()?,
            io_bytes: reader.u64()?,
            moved_bytes: reader.u64()?,
            containers_freed: reader.u64()?,
            nodes_freed: reader.u64()?,
            expected_bytes: reader.u64()?,
            freed_bytes: reader.u64()?,
        };
        reader.finish()?;
        Ok(Some(run))
    }

    /// Like [`read`](Self::read), but logs an unreadable record and returns `None`.
    pub(crate) fn read_or_none(device: &dyn Device, pool: &PoolId) -> Option<Self> {
        Self::read(device, pool).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the record of the last reclaiming; the next one replaces it");
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    #[test]
    fn it_round_trips_and_every_flipped_byte_is_found() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        assert_eq!(LastRun::read(&device, &pool).unwrap(), None);
        let run = LastRun {
            started_secs: 1,
            ended_secs: 2,
            is_complete: true,
            worked_ms: 3,
            io_bytes: 4,
            moved_bytes: 5,
            containers_freed: 6,
            nodes_freed: 7,
            expected_bytes: 8,
            freed_bytes: 9,
        };
        run.write(&device, &pool).unwrap();
        assert_eq!(LastRun::read(&device, &pool).unwrap(), Some(run));
        let sound = device.read_file(FILE_NAME, FILE_BYTES_MAX).unwrap();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            device.replace_file("", FILE_NAME, &bytes).unwrap();
            assert!(LastRun::read(&device, &pool).is_err(), "byte {at}");
            assert_eq!(LastRun::read_or_none(&device, &pool), None);
        }
        assert!(LastRun::read(&device, &PoolId([4; 16])).is_err(), "another pool's");
    }
}
