//! The forwarding notes of both kinds of containers, in a file on the meta root; byte map in `docs/format.md`.
//!
//! A run writes the file when it ends, and a pool reads it when it opens. Nothing depends on it: without notes readers
//! ask the index ([`dedupfs_content::ForwardingNote`]).

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::Result;
use dedupfs_content::{FORWARDING_NOTES_MAX, ForwardingNote, Stores};
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{ContainerId, PoolId, StoreError};

/// Name of the file on the meta root.
pub const FILE_NAME: &str = "forwarding";
const VERSION: u16 = 1;
const NOTE_BYTES: usize = 24;
const FILE_BYTES_MAX: usize = FRAME_HEADER_BYTES + 64 + 2 * FORWARDING_NOTES_MAX * NOTE_BYTES;

/// The notes of data containers and of recipe containers, each in ascending order of the emptied container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForwardingNotes {
    /// Of data containers.
    pub data: Vec<ForwardingNote>,
    /// Of recipe containers.
    pub recipes: Vec<ForwardingNote>,
}

impl ForwardingNotes {
    /// Writes the notes durably. Some 18 MiB of memory at most meanwhile.
    ///
    /// # Errors
    /// The device's; the old file is kept then.
    pub fn write(&self, device: &dyn Device, pool: &PoolId) -> Result<()> {
        let count = self.data.len() + self.recipes.len();
        let mut body = ByteWriter::with_capacity(16 + count * NOTE_BYTES);
        body.u16(VERSION);
        for notes in [&self.data, &self.recipes] {
            body.u64(notes.len() as u64);
            for note in notes {
                body.u64(note.from.0);
                body.u64(note.first.0);
                body.u64(note.others);
            }
        }
        Ok(device.replace_file("", FILE_NAME, &encode_frame(FrameKind::Forwarding, pool, 0, body.as_slice(), &[]))?)
    }

    /// Reads the notes; none if there is no file.
    ///
    /// # Errors
    /// The file is damaged or of a newer version; the device's.
    pub fn read(device: &dyn Device, pool: &PoolId) -> Result<Self> {
        let bytes = match device.read_file(FILE_NAME, FILE_BYTES_MAX as u64) {
            Err(StoreError::NotFound { .. }) => return Ok(Self::default()),
            found => found?,
        };
        let what = "the forwarding notes";
        let expect = Expect { kind: FrameKind::Forwarding, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(what, &bytes, &expect, FILE_BYTES_MAX)?;
        let mut reader = ByteReader::new(frame.meta, what);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(what, format!("version {version}")).into());
        }
        let notes = Self { data: notes_of_a_kind(&mut reader)?, recipes: notes_of_a_kind(&mut reader)? };
        reader.finish()?;
        Ok(notes)
    }

    /// Writes the notes of these containers. A failure is logged: it costs readers time, later.
    pub(super) fn keep(stores: &Stores, device: &dyn Device, pool: &PoolId) {
        let notes = Self { data: stores.data.forwarding_notes(), recipes: stores.recipes.forwarding_notes() };
        let outcome = match notes == Self::default() {
            true => remove(device),
            false => notes.write(device, pool),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot write the forwarding notes; readers of moved chunks ask the index instead");
        }
    }

    /// Gives containers the notes of the file. A failure is logged.
    pub(crate) fn give(stores: &Stores, device: &dyn Device, pool: &PoolId) {
        match Self::read(device, pool) {
            Ok(notes) => {
                stores.data.add_forwarding_notes(notes.data);
                stores.recipes.add_forwarding_notes(notes.recipes);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the forwarding notes; readers of moved chunks ask the index instead");
            }
        }
    }
}

fn remove(device: &dyn Device) -> Result<()> {
    // A write that broke off may have left the second one.
    for name in [FILE_NAME, "forwarding.new"] {
        match device.remove(name) {
            Ok(()) => device.sync_directory("")?,
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn notes_of_a_kind(reader: &mut ByteReader<'_>) -> Result<Vec<ForwardingNote>> {
    let count = reader.u64()?;
    let count = usize::try_from(count).ok().filter(|&count| count <= FORWARDING_NOTES_MAX);
    // Each note takes bytes of the input: it bounds the allocation.
    let count = count.filter(|count| count * NOTE_BYTES <= reader.remaining());
    let count = count.ok_or_else(|| reader.corrupt("a number of notes that fits", "a greater one"))?;
    let mut notes = Vec::with_capacity(count);
    for _ in 0..count {
        let (from, first) = (ContainerId(reader.u64()?), ContainerId(reader.u64()?));
        notes.push(ForwardingNote { from, first, others: reader.u64()? });
    }
    if !notes.is_sorted_by(|one, next| one.from < next.from) {
        return Err(reader.corrupt("notes in ascending order", "others").into());
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    fn note(from: u64) -> ForwardingNote {
        ForwardingNote { from: ContainerId(from), first: ContainerId(from + 9), others: from << 20 }
    }

    #[test]
    fn they_round_trip_and_every_flipped_byte_is_found() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        assert_eq!(ForwardingNotes::read(&device, &pool).unwrap(), ForwardingNotes::default());
        let notes = ForwardingNotes { data: (1..4).map(note).collect(), recipes: vec![note(2)] };
        notes.write(&device, &pool).unwrap();
        assert_eq!(ForwardingNotes::read(&device, &pool).unwrap(), notes);
        let sound = device.read_file(FILE_NAME, 4096).unwrap();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            device.replace_file("", FILE_NAME, &bytes).unwrap();
            assert!(ForwardingNotes::read(&device, &pool).is_err(), "byte {at}");
        }
        assert!(ForwardingNotes::read(&device, &PoolId([4; 16])).is_err(), "another pool's");
    }

    #[test]
    fn as_many_as_memory_holds_are_kept() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        let all: Vec<_> = (1..=FORWARDING_NOTES_MAX as u64).map(note).collect();
        let notes = ForwardingNotes { data: all.clone(), recipes: all };
        notes.write(&device, &pool).unwrap();
        assert_eq!(ForwardingNotes::read(&device, &pool).unwrap(), notes);
    }

    #[test]
    fn lists_that_no_run_writes_are_refused() {
        let (device, pool) = (MemoryDevice::new(), PoolId([3; 16]));
        let refused = |notes: ForwardingNotes| {
            notes.write(&device, &pool).unwrap();
            ForwardingNotes::read(&device, &pool).is_err()
        };
        assert!(refused(ForwardingNotes { data: vec![note(2), note(1)], recipes: Vec::new() }));
        assert!(refused(ForwardingNotes { data: Vec::new(), recipes: vec![note(1), note(1)] }));
        let too_many = (0..=FORWARDING_NOTES_MAX as u64).map(note).collect();
        assert!(refused(ForwardingNotes { data: too_many, recipes: Vec::new() }));
    }
}
