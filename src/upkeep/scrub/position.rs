//! The position of a scrub, in a small file on the meta root; byte map in `docs/format.md`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::{EngineError, Result};
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{ContainerKind, PoolId, StoreError};
use serde::{Deserialize, Serialize};

/// Name of the file on the meta root.
pub const FILE_NAME: &str = "scrub";
const VERSION: u16 = 1;
const FILE_BYTES_MAX: u64 = 4096;

/// The progress of a scrub. All containers before it were read, and their bad copies are quarantined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubPosition {
    /// Start of this pass over the pool, in seconds since 1970.
    pub started_secs: u64,
    /// End of this pass, in seconds since 1970; 0 if it has not ended.
    pub finished_secs: u64,
    /// Whether data containers are read; recipe containers come first.
    pub in_data: bool,
    /// File of the last container read; 0 if none was.
    pub file: u32,
    /// Its slot.
    pub slot: u32,
    /// Containers read in this pass.
    pub containers: u64,
    /// Bytes read in this pass.
    pub disk_bytes: u64,
    /// Chunks and nodes found bad in this pass.
    pub bad: u64,
}

impl ScrubPosition {
    /// Whether a container at this place was already read.
    pub(crate) fn is_behind(&self, kind: ContainerKind, address: SlotAddress) -> bool {
        let key = |in_data: bool, file: u32, slot: u32| (in_data, file, slot);
        let done = key(self.in_data, self.file, self.slot);
        self.file > 0 && key(kind == ContainerKind::Data, address.file, address.slot) <= done
            || (self.in_data && kind == ContainerKind::Recipe)
    }

    /// Writes the position durably.
    ///
    /// # Errors
    /// Errors of the device; the old position stays then.
    pub fn write(&self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        let mut body = ByteWriter::new();
        body.u16(VERSION);
        body.u8(u8::from(self.in_data));
        for number in [self.started_secs, self.finished_secs, self.containers, self.disk_bytes, self.bad] {
            body.u64(number);
        }
        body.u32(self.file);
        body.u32(self.slot);
        Ok(device.replace_file("", FILE_NAME, &encode_frame(FrameKind::Scrub, pool, 0, body.as_slice(), &[]))?)
    }

    /// Reads the position as [`read`](Self::read) does. A damaged position counts as none: the only cost is that the
    /// scrub starts over.
    ///
    /// # Errors
    /// The position is of a newer version; errors of the device.
    pub(crate) fn last(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        match Self::read(device, pool) {
            Err(EngineError::Store(error @ StoreError::Corrupt { .. })) => {
                tracing::warn!(%error, "how far the last scrub came is not known: the next one starts over");
                Ok(None)
            }
            read => read,
        }
    }

    /// Reads the position; `None` if there is none.
    ///
    /// # Errors
    /// The position is damaged, or of a newer version; errors of the device.
    pub fn read(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        let bytes = match device.read_file(FILE_NAME, FILE_BYTES_MAX) {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let what = "position of a scrub";
        let expect = Expect { kind: FrameKind::Scrub, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(what, &bytes, &expect, FILE_BYTES_MAX as usize)?;
        let mut reader = ByteReader::new(frame.meta, what);
        let version = reader.u16()?;
        if version != VERSION {
            let advice = "it is of a newer version of dedupfs: use `dedupfs scrub --restart`".to_owned();
            let found = format!("version {version}");
            return Err(StoreError::Unsupported { what: what.to_owned(), found, advice }.into());
        }
        let in_data = match reader.u8()? {
            flag @ (0 | 1) => flag == 1,
            other => return Err(reader.corrupt("a flag of 0 or 1", other).into()),
        };
        let position = Self {
            in_data,
            started_secs: reader.u64()?,
            finished_secs: reader.u64()?,
            containers: reader.u64()?,
            disk_bytes: reader.u64()?,
            bad: reader.u64()?,
            file: reader.u32()?,
            slot: reader.u32()?,
        };
        reader.finish()?;
        Ok(Some(position))
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    #[test]
    fn it_round_trips_and_every_flipped_byte_is_found() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        assert_eq!(ScrubPosition::read(&device, &pool).unwrap(), None);
        let position = ScrubPosition {
            started_secs: 1,
            finished_secs: 2,
            in_data: true,
            file: 3,
            slot: 4,
            containers: 5,
            disk_bytes: 1 << 40,
            bad: 6,
        };
        position.write(&device, &pool).unwrap();
        assert_eq!(ScrubPosition::read(&device, &pool).unwrap(), Some(position));
        let good = device.read_file(FILE_NAME, 4096).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x40;
            device.replace_file("", FILE_NAME, &bytes).unwrap();
            assert!(ScrubPosition::read(&device, &pool).is_err(), "byte {at}");
            assert_eq!(ScrubPosition::last(&device, &pool).unwrap(), None, "byte {at}");
        }
        assert!(ScrubPosition::read(&device, &PoolId([4; 16])).is_err(), "another pool's");
    }

    #[test]
    fn recipes_come_before_data_and_slots_in_order() {
        let at = |file, slot| SlotAddress { file, slot };
        let none = ScrubPosition::default();
        assert!(!none.is_behind(ContainerKind::Recipe, at(1, 0)) && !none.is_behind(ContainerKind::Data, at(1, 0)));
        let position = ScrubPosition { file: 2, slot: 5, ..none };
        assert!(
            position.is_behind(ContainerKind::Recipe, at(2, 5)) && position.is_behind(ContainerKind::Recipe, at(1, 9))
        );
        assert!(
            !position.is_behind(ContainerKind::Recipe, at(2, 6)) && !position.is_behind(ContainerKind::Data, at(1, 0))
        );
        let position = ScrubPosition { in_data: true, ..position };
        assert!(
            position.is_behind(ContainerKind::Recipe, at(9, 9)) && position.is_behind(ContainerKind::Data, at(2, 4))
        );
        assert!(!position.is_behind(ContainerKind::Data, at(3, 0)));
        let position = ScrubPosition { in_data: true, ..none };
        assert!(
            position.is_behind(ContainerKind::Recipe, at(9, 9)) && !position.is_behind(ContainerKind::Data, at(1, 0))
        );
    }
}
