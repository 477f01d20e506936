//! What arranging may move: a multiple of what was stored for new versions, kept in a small file on the meta root; byte map in
//! `docs/format.md`.
//!
//! Nothing depends on it. Without the file the versions of the pool are credited once more, within the bound.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::Result;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{ContainerId, PoolId, StoreError};

/// Name of the file on the meta root.
pub const FILE_NAME: &str = "arranging";
const VERSION: u16 = 1;
const FILE_BYTES_MAX: u64 = 4096;

/// How far versions were credited, and the bytes that are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credit {
    /// The last version that was credited: later ones have higher numbers.
    pub until_ino: u64,
    /// The last data container that was credited: what is stored later lies in containers with higher numbers.
    pub until_container: ContainerId,
    /// Uncompressed bytes that may be moved yet.
    pub bytes: u64,
    /// Uncompressed bytes of the newest versions that runs copied since then: these lie in younger containers, but are not new.
    pub copied_bytes: u64,
}

impl Credit {
    /// Writes it durably.
    ///
    /// # Errors
    /// The device's; the old file is kept then.
    pub fn write(self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        let mut body = ByteWriter::new();
        body.u16(VERSION);
        body.u64(self.until_ino);
        body.u64(self.until_container.0);
        body.u64(self.bytes);
        body.u64(self.copied_bytes);
        Ok(device.replace_file("", FILE_NAME, &encode_frame(FrameKind::Arranging, pool, 0, body.as_slice(), &[]))?)
    }

    /// Reads it; nothing is credited yet if there is no file.
    ///
    /// # Errors
    /// The file is damaged or of a newer version; the device's.
    pub fn read(device: &dyn Device, pool: &PoolId) -> Result<Self> {
        let bytes = match device.read_file(FILE_NAME, FILE_BYTES_MAX) {
            Err(StoreError::NotFound { .. }) => return Ok(Self::default()),
            found => found?,
        };
        let what = "the credit of arranging";
        let expect = Expect { kind: FrameKind::Arranging, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(what, &bytes, &expect, FILE_BYTES_MAX as usize)?;
        let mut reader = ByteReader::new(frame.meta, what);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(what, format!("version {version}")).into());
        }
        let until_ino = reader.u64()?;
        let until_container = ContainerId(reader.u64()?);
        let credit = Self { until_ino, until_container, bytes: reader.u64()?, copied_bytes: reader.u64()? };
        reader.finish()?;
        Ok(credit)
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    #[test]
    fn it_round_trips_and_every_flipped_byte_is_found() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        assert_eq!(Credit::read(&device, &pool).unwrap(), Credit::default());
        let credit = Credit { until_ino: 7, until_container: ContainerId(9), bytes: u64::MAX, copied_bytes: 5 };
        credit.write(&device, &pool).unwrap();
        assert_eq!(Credit::read(&device, &pool).unwrap(), credit);
        let sound = device.read_file(FILE_NAME, FILE_BYTES_MAX).unwrap();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            device.replace_file("", FILE_NAME, &bytes).unwrap();
            assert!(Credit::read(&device, &pool).is_err(), "byte {at}");
        }
        assert!(Credit::read(&device, &PoolId([4; 16])).is_err(), "another pool's");
    }
}
