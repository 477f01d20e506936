//! A note on the data root of the export's progress. A recovery learns from it how far the export should reach, and tells a log damaged
//! at its end from one that simply ends.
//!
//! The note has two places, written in turns, each after a durable export. It is synced only at close: a power loss may take the note,
//! and then a recovery expects less; a torn place leaves the other one. A release that does not know the file leaves it alone: it then
//! names an older export, which is never more than there is.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_namespace::Exported;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

use super::files::DIRECTORY;

const NAME: &str = "reached";
const VERSION: u16 = 1;
/// Bytes of one of the two places.
const PLACE_BYTES: usize = 4096;
const PLACES: u64 = 2;

/// An export that was complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reached {
    pub(super) generation: u64,
    pub(super) log_bytes: u64,
    /// The commit whose state it holds.
    pub(super) row: u64,
    /// Inodes in that state.
    pub(super) inodes: u64,
}

impl Reached {
    pub(super) fn of(exported: &Exported, inodes: u64) -> Self {
        let Exported { generation, log_bytes, row, .. } = *exported;
        Self { generation, log_bytes, row, inodes }
    }

    /// Returns the newest note, if there is any.
    pub(super) fn read(device: &dyn Device, pool: &PoolId) -> Result<Option<Self>> {
        Ok(places(device, pool)?.into_iter().flatten().max_by_key(|reached| (reached.generation, reached.row)))
    }

    /// Whether an export that ends there includes all of the noted one.
    pub(super) fn is_within(&self, generation: u64, log_bytes: u64) -> bool {
        (generation, log_bytes) >= (self.generation, self.log_bytes)
    }
}

fn path() -> String {
    format!("{DIRECTORY}/{NAME}")
}

fn places(device: &dyn Device, pool: &PoolId) -> Result<[Option<Reached>; PLACES as usize]> {
    let path = path();
    let bytes = match device.read_file(&path, PLACES * PLACE_BYTES as u64) {
        Err(StoreError::NotFound { .. } | StoreError::Corrupt { .. }) => return Ok([None; PLACES as usize]),
        bytes => bytes?,
    };
    let mut places = bytes.chunks(PLACE_BYTES).map(|bytes| decode(&path, bytes, pool).ok());
    Ok([(); PLACES as usize].map(|()| places.next().flatten()))
}

fn decode(path: &str, bytes: &[u8], pool: &PoolId) -> Result<Reached> {
    let expect = Expect { kind: FrameKind::ExportReached, pool: Some(pool), owner: Some(0) };
    let frame = decode_frame(path, bytes, &expect, PLACE_BYTES)?;
    let mut reader = ByteReader::new(frame.meta, path);
    let version = reader.u16()?;
    if version != VERSION {
        return Err(reader.corrupt("version 1", version).into());
    }
    let (generation, log_bytes, row, inodes) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
    reader.finish()?;
    Ok(Reached { generation, log_bytes, row, inodes })
}

/// Writes the note.
#[derive(Default)]
pub(super) struct ReachedNote {
    file: Option<Arc<dyn DeviceFile>>,
    next: u64,
}

impl ReachedNote {
    /// Notes a durable export. Without the note, a recovery just expects less.
    pub(super) fn write(&mut self, device: &dyn Device, pool: &PoolId, reached: &Reached) {
        if let Err(error) = self.try_write(device, pool, reached) {
            tracing::warn!(%error, "how far the export has come is not noted");
            self.file = None;
        }
    }

    fn try_write(&mut self, device: &dyn Device, pool: &PoolId, reached: &Reached) -> Result<()> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                // Overwrites the older of the two places.
                let [first, second] = places(device, pool)?;
                let key = |reached: Option<Reached>| reached.map(|reached| (reached.generation, reached.row));
                self.next = u64::from(key(first) > key(second));
                let is_new = !device.exists(&path())?;
                let file = device.open(&path(), OpenMode::CreateOrWrite)?;
                if is_new {
                    device.sync_directory(DIRECTORY)?;
                }
                self.file.insert(file).clone()
            }
        };
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        [reached.generation, reached.log_bytes, reached.row, reached.inodes].into_iter().for_each(|n| meta.u64(n));
        let mut bytes = encode_frame(FrameKind::ExportReached, pool, 0, meta.as_slice(), &[]);
        bytes.resize(PLACE_BYTES, 0);
        file.write_at(&bytes, self.next * PLACE_BYTES as u64)?;
        self.next = (self.next + 1) % PLACES;
        Ok(())
    }

    /// Makes the note durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| Ok(file.sync()?))
    }

    /// Removes the note, durably: nothing is expected any more.
    pub(super) fn remove(&mut self, device: &dyn Device) -> Result<()> {
        self.file = None;
        match device.remove(&path()) {
            Ok(()) => Ok(device.sync_directory(DIRECTORY)?),
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    const POOL: PoolId = PoolId([7; 16]);

    fn of_row(row: u64) -> Reached {
        Reached { generation: 1, log_bytes: row * 4096, row, inodes: 1 }
    }

    fn rows(device: &MemoryDevice) -> [Option<u64>; 2] {
        places(device, &POOL).unwrap().map(|reached| reached.map(|reached| reached.row))
    }

    /// A power loss may tear the place that is written: the other one has the newest older note.
    #[test]
    fn the_older_of_both_places_is_written_also_behind_an_opening() {
        let device = MemoryDevice::new();
        super::super::files::create(&device).unwrap();
        let mut note = ReachedNote::default();
        for row in 1..=5 {
            note.write(&device, &POOL, &of_row(row));
            let written = rows(&device);
            assert!(written.contains(&Some(row)), "{written:?}");
            assert!(row == 1 || written.contains(&Some(row - 1)), "{written:?}");
        }
        for row in 6..=9 {
            ReachedNote::default().write(&device, &POOL, &of_row(row));
            let written = rows(&device);
            assert!(written.contains(&Some(row)) && written.contains(&Some(row - 1)), "{written:?}");
            assert_eq!(Reached::read(&device, &POOL).unwrap(), Some(of_row(row)));
        }
    }
}
