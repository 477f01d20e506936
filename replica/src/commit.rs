//! Commits: the states of a replica, in a row.

use dedupfs::export::ExportPosition;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::objects::{Key, OBJECT_BYTES_MAX};
use dedupfs_store::{PoolId, StoreError};

use crate::error::Result;
use crate::stream::Stream;

const VERSION: u16 = 1;
/// Longest superblock.
const SUPERBLOCK_BYTES_MAX: usize = 64 << 10;

/// The relation of a commit to those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommitKind {
    /// Everything.
    Base = 1,
    /// The changes since the commit before.
    Delta = 2,
    /// Nothing: it keeps the writers before it out, and begins a reign.
    Fence = 3,
}

/// The hash of a commit's bytes.
pub(crate) type CommitHash = [u8; 32];

/// A commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Commit {
    pub(crate) kind: CommitKind,
    pub(crate) number: u64,
    /// Hash of the commit before; zeros for the first.
    pub(crate) previous: CommitHash,
    /// The base that the state rests on: itself, or an earlier commit.
    pub(crate) base: u64,
    /// The fence that began the reign; 0 for the first reign.
    pub(crate) reign: u64,
    /// The run that made it: a random number.
    pub(crate) run: [u8; 16],
    /// Where the export ended. Of a fence: that of the writer.
    pub(crate) position: ExportPosition,
    /// Where its part of the export's log begins.
    pub(crate) log_from: u64,
    /// When it was made, by the writer's clock, in seconds since 1970.
    pub(crate) written_secs: u64,
    /// The superblock of the data root; a base has it.
    pub(crate) superblock: Vec<u8>,
    /// The base of the export; a base has it.
    pub(crate) export_base: Stream,
    /// A part of the export's log.
    pub(crate) export_log: Stream,
    /// Containers that this commit names (a base: all) and the one before does not.
    pub(crate) named: Stream,
    /// Objects that this commit names no more.
    pub(crate) retired: Stream,
}

/// The name of commit `number`.
pub(crate) fn commit_key(number: u64) -> Result<Key> {
    Ok(Key::new(format!("{COMMITS}{number:016x}"))?)
}

/// The beginning of the names of all commits.
pub(crate) const COMMITS: &str = "log/";

/// Returns the number in a commit's name.
pub(crate) fn number_of(key: &Key) -> Option<u64> {
    let hex = key.as_str().strip_prefix(COMMITS)?;
    (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten().filter(|number| *number < NUMBER_MAX)
}

/// Numbers of commits are below it; others in a store are nobody's.
pub(crate) const NUMBER_MAX: u64 = 1 << 48;

impl Commit {
    pub(crate) fn streams(&self) -> [&Stream; 4] {
        [&self.export_base, &self.export_log, &self.named, &self.retired]
    }

    pub(crate) fn encode(&self, pool: &PoolId) -> Vec<u8> {
        let (mut meta, mut payload) = (ByteWriter::new(), ByteWriter::new());
        meta.u16(VERSION);
        meta.u16(self.kind as u16);
        meta.bytes(&self.previous);
        [self.base, self.reign].into_iter().for_each(|number| meta.u64(number));
        meta.bytes(&self.run);
        let position = &self.position;
        meta.bytes(&position.lineage);
        meta.u32(position.epoch);
        let numbers = [
            position.generation,
            position.base_bytes,
            position.base_row,
            position.log_bytes,
            position.row,
            position.time_secs,
            self.log_from,
            self.written_secs,
        ];
        numbers.into_iter().for_each(|number| meta.u64(number));
        meta.u32(self.superblock.len() as u32); // A few KiB.
        payload.bytes(&self.superblock);
        self.streams().into_iter().for_each(|stream| stream.encode(&mut meta, &mut payload));
        encode_frame(FrameKind::ReplicaCommit, pool, self.number, meta.as_slice(), payload.as_slice())
    }

    pub(crate) fn decode(pool: &PoolId, number: u64, bytes: &[u8]) -> std::result::Result<Self, StoreError> {
        let what = format!("commit {number} of the replica");
        let expect = Expect { kind: FrameKind::ReplicaCommit, pool: Some(pool), owner: Some(number) };
        let frame = decode_frame(&what, bytes, &expect, OBJECT_BYTES_MAX as usize)?;
        if frame.header.frame_bytes() != bytes.len() as u64 {
            return Err(StoreError::corrupt(&what, format!("{} bytes", frame.header.frame_bytes()), bytes.len()));
        }
        let (mut meta, mut payload) = (ByteReader::new(frame.meta, &what), ByteReader::new(frame.payload, &what));
        let version = meta.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(&what, format!("version {version}")));
        }
        let kind = match meta.u16()? {
            1 => CommitKind::Base,
            2 => CommitKind::Delta,
            3 => CommitKind::Fence,
            other => return Err(meta.corrupt("a kind of commit", other)),
        };
        let previous = meta.array()?;
        let (base, reign, run) = (meta.u64()?, meta.u64()?, meta.array()?);
        let position = ExportPosition {
            lineage: meta.array()?,
            epoch: meta.u32()?,
            generation: meta.u64()?,
            base_bytes: meta.u64()?,
            base_row: meta.u64()?,
            log_bytes: meta.u64()?,
            row: meta.u64()?,
            time_secs: meta.u64()?,
        };
        let (log_from, written_secs) = (meta.u64()?, meta.u64()?);
        let superblock_bytes = meta.u32()? as usize;
        if superblock_bytes > SUPERBLOCK_BYTES_MAX {
            return Err(meta.corrupt(format!("a superblock of at most {SUPERBLOCK_BYTES_MAX} bytes"), superblock_bytes));
        }
        let superblock = payload.bytes(superblock_bytes)?.to_vec();
        let mut stream = || Stream::decode(&mut meta, &mut payload);
        let (export_base, export_log, named, retired) = (stream()?, stream()?, stream()?, stream()?);
        meta.finish()?;
        payload.finish()?;
        let commit = Self {
            kind,
            number,
            previous,
            base,
            reign,
            run,
            position,
            log_from,
            written_secs,
            superblock,
            export_base,
            export_log,
            named,
            retired,
        };
        commit.check(&what)?;
        Ok(commit)
    }

    /// Checks that the parts fit together: sound checksums do not tell.
    fn check(&self, what: &str) -> std::result::Result<(), StoreError> {
        let position = &self.position;
        let log = position.log_bytes.checked_sub(self.log_from);
        let (is_base, is_fence) = (self.kind == CommitKind::Base, self.kind == CommitKind::Fence);
        let fits = match self.kind {
            CommitKind::Base => self.base == self.number && self.log_from == 0,
            CommitKind::Delta | CommitKind::Fence => self.base < self.number,
        };
        let lengths = self.streams().map(|stream| stream.len_bytes);
        let has_streams = match self.kind {
            CommitKind::Fence => lengths == [0; 4],
            _ => lengths[1] == log.unwrap_or(u64::MAX) && lengths[0] == if is_base { position.base_bytes } else { 0 },
        };
        let is_sound = self.number > 0
            && self.base > 0
            && self.reign <= self.number
            && fits
            && has_streams
            && is_base != self.superblock.is_empty()
            && (is_fence || position.generation > 0 && log.is_some());
        if is_sound { Ok(()) } else { Err(StoreError::corrupt(what, "parts that fit together", "others")) }
    }
}
