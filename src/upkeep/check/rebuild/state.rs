//! The progress of a rebuild, stored in the notes of the index being built; byte map in `docs/format.md`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::Result;
use dedupfs_content::Stores;
use dedupfs_namespace::Namespace;
use dedupfs_store::codec::{ByteReader, ByteWriter, checksum};
use dedupfs_store::{ContainerId, StoreError};

/// Version of these notes.
const VERSION: u16 = 2;

/// Number of given-up containers that are remembered. They are read again before a rebuild resumes.
const GIVEN_UP_MAX: usize = 1000;

/// The state of the pool that a rebuild rests on. If any of it changes, the unfinished rebuild is discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Basis {
    /// Last row of the namespace. Every change of files and containers makes a new row.
    pub row: u64,
    /// xxh3 of the container records, so that a copy from another time is not taken for the pool.
    pub records: u64,
    /// Whether all content is read and checked.
    pub read_data: bool,
}

impl Basis {
    /// Returns the present basis.
    pub(super) fn new(namespace: &Namespace, stores: &Stores, read_data: bool) -> Self {
        let mut records = ByteWriter::new();
        for record in [stores.data.containers(), stores.recipes.containers()].iter().flatten() {
            records.u64(record.id.0);
            records.u32(record.address.file);
            records.u32(record.address.slot);
            records.u32(record.used_bytes);
        }
        Self { row: namespace.last_row(), records: checksum(records.as_slice()), read_data }
    }
}

/// The parts of a rebuild, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    /// Tables of data containers, up to the container `through`.
    Tables = 1,
    /// Counting the chunks that are the roots of inodes, up to the inode `through`.
    Inodes = 2,
    /// Counting the chunks of nodes, up to the recipe container `through`.
    Nodes = 3,
    /// Both indexes are complete and not yet in use.
    Done = 4,
}

/// The progress of a rebuild.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Notes {
    pub basis: Basis,
    pub phase: Phase,
    /// Progress within the phase: containers or inodes up to this one are done.
    pub through: u64,
    /// From [`Phase::Nodes`] on: number of nodes with references that were passed, those included that marking gave up or did not find.
    pub nodes_passed: u64,
    /// Nodes that name nodes: number of those that marking read, less those that were passed, modulo 2^64.
    pub lists_left: u64,
    /// Nodes that are named by a wrong level, as far as marking met them so.
    pub misnamed: u64,
    /// Data containers whose tables cannot be read.
    pub unread_data: Unread,
    /// Recipe containers whose tables cannot be read.
    pub unread_recipes: Unread,
}

/// Containers whose tables were given up.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Unread {
    containers: u64,
    /// At most [`GIVEN_UP_MAX`] of them.
    first: Vec<ContainerId>,
}

impl Unread {
    /// Number of these containers.
    pub(super) const fn containers(&self) -> u64 {
        self.containers
    }

    /// Some of them, which are read again before a rebuild goes on.
    pub(super) fn first(&self) -> &[ContainerId] {
        &self.first
    }

    pub(super) fn add(&mut self, container: ContainerId) {
        self.containers += 1;
        if self.first.len() < GIVEN_UP_MAX {
            self.first.push(container);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn encode(&self, writer: &mut ByteWriter) {
        writer.u64(self.containers);
        writer.u32(self.first.len() as u32);
        self.first.iter().for_each(|container| writer.u64(container.0));
    }

    fn decode(reader: &mut ByteReader<'_>) -> Result<Self> {
        let (containers, count) = (reader.u64()?, reader.u32()? as usize);
        if count > GIVEN_UP_MAX || count as u64 > containers {
            return Err(reader.corrupt(format!("at most {GIVEN_UP_MAX} of {containers} containers"), count).into());
        }
        let first = (0..count).map(|_| reader.u64().map(ContainerId)).collect::<dedupfs_store::Result<_>>()?;
        Ok(Self { containers, first })
    }
}

impl Notes {
    /// Returns the state before any work.
    pub(super) fn new(basis: Basis) -> Self {
        Self {
            basis,
            phase: Phase::Tables,
            through: 0,
            nodes_passed: 0,
            lists_left: 0,
            misnamed: 0,
            unread_data: Unread::default(),
            unread_recipes: Unread::default(),
        }
    }

    /// Enters the next phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        (self.phase, self.through) = (phase, 0);
    }

    /// Encodes the notes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u16(VERSION);
        writer.u8(self.phase as u8);
        writer.u8(u8::from(self.basis.read_data));
        let Self { basis, through, nodes_passed, lists_left, misnamed, .. } = *self;
        for number in [basis.row, basis.records, through, nodes_passed, lists_left, misnamed] {
            writer.u64(number);
        }
        self.unread_data.encode(&mut writer);
        self.unread_recipes.encode(&mut writer);
        writer.into_vec()
    }

    pub(super) fn decode(notes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(notes, "notes of a rebuild");
        let version = reader.u16()?;
        if version != VERSION {
            return Err(StoreError::Unsupported {
                what: "notes of a rebuild".to_owned(),
                found: format!("version {version}"),
                advice: "they are of another version of dedupfs: the rebuild starts over".to_owned(),
            }
            .into());
        }
        let phase = match reader.u8()? {
            1 => Phase::Tables,
            2 => Phase::Inodes,
            3 => Phase::Nodes,
            4 => Phase::Done,
            other => return Err(reader.corrupt("a phase of 1 to 4", other).into()),
        };
        let read_data = match reader.u8()? {
            flag @ (0 | 1) => flag == 1,
            other => return Err(reader.corrupt("a flag of 0 or 1", other).into()),
        };
        let basis = Basis { row: reader.u64()?, records: reader.u64()?, read_data };
        let (through, nodes_passed) = (reader.u64()?, reader.u64()?);
        let (lists_left, misnamed) = (reader.u64()?, reader.u64()?);
        let (unread_data, unread_recipes) = (Unread::decode(&mut reader)?, Unread::decode(&mut reader)?);
        reader.finish()?;
        Ok(Self { basis, phase, through, nodes_passed, lists_left, misnamed, unread_data, unread_recipes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_and_nonsense_is_refused() {
        let basis = Basis { row: 7, records: 0x0123_4567_89ab_cdef, read_data: true };
        let mut state = Notes {
            phase: Phase::Nodes,
            through: 5,
            nodes_passed: 6,
            lists_left: u64::MAX,
            misnamed: 1,
            ..Notes::new(basis)
        };
        [3, 1 << 40].into_iter().for_each(|container| state.unread_data.add(ContainerId(container)));
        state.unread_recipes.add(ContainerId(4));
        let notes = state.encode();
        assert_eq!(notes.len(), 2 + 1 + 1 + 6 * 8 + 12 + 2 * 8 + 12 + 8);
        assert_eq!(Notes::decode(&notes).unwrap(), state);
        for (place, value) in
            [(0, 1), (2, 0), (2, 5), (3, 2), (52, 1), (60, 9), (62, 0xff), (80, 0), (88, 2), (90, 0xff)]
        {
            let mut damaged = notes.clone();
            damaged[place] = value;
            assert!(Notes::decode(&damaged).is_err(), "byte {place}");
        }
        assert!((0..notes.len()).all(|len| Notes::decode(&notes[..len]).is_err()));
    }
}
