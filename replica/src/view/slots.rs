//! The slots of a state: where its containers lie, and the objects that have them. Kept on the reader's disk.

use dedupfs::export::slot_path;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::Device;
use dedupfs_store::frame::{Expect, FRAME_BODY_BYTES_MAX, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

use crate::commit::Commit;
use crate::error::{ReplicaError, Result};
use crate::state::State;
use crate::stored::{STORED_BYTES, Stored};

const VERSION: u16 = 1;
const WHAT: &str = "slots of a view";
const ROW_BYTES: usize = STORED_BYTES + 8;
/// Findings that are told one by one.
const TOLD_MAX: usize = 100;

/// Objects with the slots of their containers, in the order of the disk, as of a commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) commit: u64,
    /// When the commit was made, in seconds since 1970.
    pub(crate) written_secs: u64,
    rows: Vec<(Stored, SlotAddress)>,
}

impl Slots {
    /// Returns the slots of a state, and tells which containers have no object.
    pub(crate) fn of(state: &State, commit: &Commit) -> (Self, Vec<String>) {
        let (mut rows, mut findings) = (Vec::with_capacity(state.locals.by_id.len()), Vec::new());
        for local in state.locals.by_id.values() {
            match state.object_of(local) {
                Some(stored) => rows.push((*stored, local.address)),
                None if findings.len() < TOLD_MAX => {
                    findings.push(format!("no commit names an object for container {}", local.id));
                }
                None => {}
            }
        }
        rows.sort_unstable_by_key(|(stored, address)| (stored.kind as u8, *address));
        (Self { commit: commit.number, written_secs: commit.written_secs, rows }, findings)
    }

    /// The rows, each with the path of its slot file.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (Stored, SlotAddress, String)> {
        self.rows.into_iter().map(|(stored, address)| (stored, address, slot_path(stored.kind, address)))
    }

    pub(crate) fn encode(&self, pool: &PoolId) -> Vec<u8> {
        let (mut meta, mut payload) = (ByteWriter::new(), ByteWriter::with_capacity(self.rows.len() * ROW_BYTES));
        meta.u16(VERSION);
        meta.u64(self.commit);
        meta.u64(self.written_secs);
        for (stored, address) in &self.rows {
            stored.encode(&mut payload);
            payload.u32(address.file);
            payload.u32(address.slot);
        }
        encode_frame(FrameKind::ReplicaSlots, pool, 0, meta.as_slice(), payload.as_slice())
    }

    pub(crate) fn decode(pool: &PoolId, bytes: &[u8]) -> std::result::Result<Self, StoreError> {
        let expect = Expect { kind: FrameKind::ReplicaSlots, pool: Some(pool), owner: Some(0) };
        let frame = decode_frame(WHAT, bytes, &expect, FRAME_BODY_BYTES_MAX)?;
        if frame.header.frame_bytes() != bytes.len() as u64 {
            return Err(StoreError::corrupt(WHAT, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
        }
        let mut meta = ByteReader::new(frame.meta, WHAT);
        let version = meta.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(WHAT, format!("version {version}")));
        }
        let (commit, written_secs) = (meta.u64()?, meta.u64()?);
        meta.finish()?;
        let mut payload = ByteReader::new(frame.payload, WHAT);
        let mut rows = Vec::with_capacity(frame.payload.len() / ROW_BYTES);
        while payload.remaining() > 0 {
            let stored = Stored::decode(&mut payload)?;
            rows.push((stored, SlotAddress { file: payload.u32()?, slot: payload.u32()? }));
        }
        Ok(Self { commit, written_secs, rows })
    }

    pub(crate) fn save(&self, disk: &dyn Device, path: &str, pool: &PoolId) -> Result<()> {
        if self.rows.len() > FRAME_BODY_BYTES_MAX / ROW_BYTES - 1 {
            return Err(ReplicaError::Usage(format!("{} containers are too many for a view", self.rows.len())));
        }
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok(disk.replace_file(directory, name, &self.encode(pool))?)
    }

    pub(crate) fn load(disk: &dyn Device, path: &str, pool: &PoolId) -> Result<Self> {
        Ok(Self::decode(pool, &disk.read_file(path, 2 * FRAME_BODY_BYTES_MAX as u64)?)?)
    }
}
