//! Notes on the pool's meta root: how far a replica is, so that a run asks the store for nothing that is known.
//!
//! A note is believed if its checksums are right, and only as far as the store agrees: the next commit is created, never overwritten. Without a
//! note a run reads the newest commit, and compares the content of all containers with it. Each replica has a folder with two files, each
//! replaced as a whole: `commit` has the containers of the last commit, `run` whether a run ended.

use std::collections::{BTreeMap, BTreeSet};

use dedupfs::export::ExportPosition;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{ContainerId, PoolId, StoreError};
use dedupfs_sync::{clock, entropy};

use crate::chain::StoredById;
use crate::commit::CommitHash;
use crate::error::Result;
use crate::local::Local;
use crate::place::Replica;
use crate::stored::{ContentHash, STORED_BYTES, Stored};

/// Directory of the notes on a meta root.
pub const NOTES_DIRECTORY: &str = "replicas";
const COMMIT: &str = "commit";
const RUN: &str = "run";
const VERSION: u16 = 1;
/// Rows of one frame.
const ROWS_AT_ONCE: usize = 1 << 16;
/// Runs without an end that are remembered.
const RUNS_MAX: usize = 64;
const ROW_BYTES: usize = STORED_BYTES + 8;
/// Longest text: a place, an error.
const TEXT_BYTES_MAX: usize = 2048;
/// Longest first frame of a note.
const HEAD_BYTES_MAX: u64 = 8192;
/// Longest file: 90 TiB of containers of 4 MiB.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// How far a replica is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) hash: CommitHash,
    /// The base below it.
    pub(crate) base: u64,
    /// Commits and their bytes since that base.
    pub(crate) deltas: u32,
    pub(crate) delta_bytes: u64,
    pub(crate) reign: u64,
    pub(crate) position: ExportPosition,
    /// Tells that export from others of its number.
    pub(crate) mark: CommitHash,
    pub(crate) written_secs: u64,
}

/// The containers of the last commit, and their places in the pool.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) done: Done,
    pub(crate) stored: StoredById,
    pub(crate) locals: BTreeMap<ContainerId, Local>,
}

/// A run: its number is in the commit that it makes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Run {
    pub(crate) id: [u8; 16],
    /// Those before it that did not succeed: a commit of theirs may come late. The newest first.
    pub(crate) before: Vec<[u8; 16]>,
    /// It succeeded: none of its requests can still come.
    pub(crate) is_ended: bool,
    pub(crate) begun_secs: u64,
    /// Why it ended without a commit.
    pub(crate) error: String,
}

impl Run {
    /// Whether this run, or one before it that did not end, has this number.
    pub(crate) fn has_made(&self, id: &[u8; 16]) -> bool {
        self.id == *id || self.before.contains(id)
    }
}

/// A replica as its notes tell, for statistics.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Noted {
    /// Where it is.
    pub place: String,
    /// Directory of its notes on the meta root.
    pub directory: String,
    /// The newest commit that this pool made; 0 if there is none.
    pub commit: u64,
    /// The commit of the pool's namespace that it holds.
    pub row: u64,
    /// The time of that state, in seconds since 1970.
    pub time_secs: u64,
    /// When the last run began that had work, in seconds since 1970.
    pub begun_secs: u64,
    /// Whether that run made no commit: it goes on, failed, or was killed.
    pub is_unfinished: bool,
    /// Why the last run made no commit; empty if it did.
    pub error: String,
}

/// The notes of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Notes<'a> {
    device: &'a dyn Device,
    directory: String,
    pool: PoolId,
    place: String,
}

impl<'a> Notes<'a> {
    pub(crate) fn of(device: &'a dyn Device, replica: &Replica) -> Self {
        let directory = replica.notes_directory();
        Self { device, directory, pool: replica.format.pool, place: replica.place.clone() }
    }

    /// Reads the note. One that is missing or damaged is none.
    pub(crate) fn load(&self) -> Option<Note> {
        let path = format!("{}/{COMMIT}", self.directory);
        told(
            &path,
            self.device.read_file(&path, FILE_BYTES_MAX).and_then(|bytes| decode_note(&path, &self.pool, &bytes)),
        )
    }

    /// Notes a commit, and its containers but those that are left out.
    pub(crate) fn save(
        &self,
        done: &Done,
        stored: &StoredById,
        locals: &BTreeMap<ContainerId, Local>,
        left_out: &BTreeSet<ContainerId>,
    ) -> Result<()> {
        // Without its object a container is read again; without its place the pool would seem to have lost it.
        let row = |local: &Local| {
            let Local { id, kind, used_bytes, .. } = *local;
            let nothing = Stored { id, kind, used_bytes, reign: 0, hash: ContentHash::default() };
            stored.get(&id).filter(|_| !left_out.contains(&id)).copied().unwrap_or(nothing)
        };
        let rows: Vec<(Stored, Local)> = locals.values().map(|local| (row(local), *local)).collect();
        let bytes = encode_note(&self.pool, &self.place, done, &rows);
        if bytes.len() as u64 > FILE_BYTES_MAX {
            tracing::warn!("too many containers for a note: each run compares all of them");
            return match self.device.remove(&format!("{}/{COMMIT}", self.directory)) {
                Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        Ok(self.device.replace_file(&self.directory, COMMIT, &bytes)?)
    }

    /// Reads which run was the last.
    pub(crate) fn last_run(&self) -> Option<Run> {
        let path = format!("{}/{RUN}", self.directory);
        told(&path, self.device.read_file(&path, 8192).and_then(|bytes| decode_run(&path, &self.pool, &bytes)))
            .map(|(_, run)| run)
    }

    /// Notes, durably, that a run has begun.
    pub(crate) fn begin(&self, last: Option<&Run>) -> Result<Run> {
        self.device.create_directory(NOTES_DIRECTORY)?;
        self.device.create_directory(&self.directory)?;
        self.device.sync_directory(NOTES_DIRECTORY)?;
        self.device.sync_directory("")?;
        let unended = last.filter(|last| !last.is_ended);
        let before =
            unended.map(|last| std::iter::once(last.id).chain(last.before.iter().copied()).take(RUNS_MAX).collect());
        let before = before.unwrap_or_default();
        let mut run = Run { begun_secs: clock::since_epoch().as_secs(), before, ..Run::default() };
        entropy::fill(&mut run.id).map_err(|error| StoreError::from_io("read", "random bytes", error))?;
        self.write_run(&run)?;
        Ok(run)
    }

    /// Notes how a run ended. After one that did not succeed, the next asks the store for each object before it uploads it.
    pub(crate) fn end(&self, run: &Run, is_ended: bool, error: &str) {
        let run = Run { is_ended, error: error.to_owned(), ..run.clone() };
        if let Err(error) = self.write_run(&run) {
            tracing::warn!(%error, "how the run ended cannot be noted");
        }
    }

    fn write_run(&self, run: &Run) -> Result<()> {
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u16(2);
        meta.bytes(&run.id);
        meta.u8(u8::from(run.is_ended));
        meta.u64(run.begun_secs);
        meta.u16(run.before.len() as u16); // At most `RUNS_MAX`.
        run.before.iter().for_each(|id| meta.bytes(id));
        [&self.place, &run.error].into_iter().for_each(|text| write_text(&mut meta, text));
        let bytes = encode_frame(FrameKind::ReplicaNote, &self.pool, 0, meta.as_slice(), &[]);
        Ok(self.device.replace_file(&self.directory, RUN, &bytes)?)
    }
}

/// Tells the replicas of a pool, from the notes on its meta root.
///
/// # Errors
/// The directory of notes cannot be read.
pub fn noted(meta: &dyn Device, pool: &PoolId) -> Result<Vec<Noted>> {
    let mut all = Vec::new();
    if !meta.exists(NOTES_DIRECTORY)? {
        return Ok(all);
    }
    for entry in meta.list(NOTES_DIRECTORY)?.into_iter().filter(|entry| entry.is_directory) {
        let path = |name: &str| format!("{NOTES_DIRECTORY}/{}/{name}", entry.name);
        let read = |name: &str, limit_bytes| meta.read_file(&path(name), limit_bytes);
        let Some((place, run)) =
            told(&path(RUN), read(RUN, 8192).and_then(|bytes| decode_run(&path(RUN), pool, &bytes)))
        else {
            continue;
        };
        let head = read_head(meta, &path(COMMIT));
        let done =
            told(&path(COMMIT), head.and_then(|bytes| decode_done(&path(COMMIT), pool, &bytes).map(|(done, ..)| done)));
        let (commit, position) = done.map_or_else(Default::default, |done| (done.number, done.position));
        let Run { is_ended, begun_secs, error, .. } = run;
        let (row, time_secs) = (position.row, position.time_secs);
        let directory = format!("{NOTES_DIRECTORY}/{}", entry.name);
        all.push(Noted { place, directory, commit, row, time_secs, begun_secs, is_unfinished: !is_ended, error });
    }
    all.sort_unstable_by(|left, right| left.place.cmp(&right.place));
    Ok(all)
}

/// Reads the beginning of a note, which has all but the rows.
fn read_head(meta: &dyn Device, path: &str) -> std::result::Result<Vec<u8>, StoreError> {
    let file = meta.open(path, OpenMode::Read)?;
    let mut head = vec![0; file.len()?.min(HEAD_BYTES_MAX) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(head)
}

fn told<T>(path: &str, read: std::result::Result<T, StoreError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => {
            tracing::warn!(%error, path, "a note of a replica cannot be read: the next run compares all containers");
            None
        }
    }
}

fn write_text(writer: &mut ByteWriter, text: &str) {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let text = text.get(..end).unwrap_or_default();
    writer.u16(text.len() as u16); // At most `TEXT_BYTES_MAX`.
    writer.bytes(text.as_bytes());
}

fn read_text(reader: &mut ByteReader<'_>) -> std::result::Result<String, StoreError> {
    let len = usize::from(reader.u16()?);
    let text = std::str::from_utf8(reader.bytes(len)?).map(str::to_owned);
    text.map_err(|error| reader.corrupt("text", error))
}

/// Reads the frame at the start of `bytes`; returns it and the bytes behind it.
fn frame<'a>(path: &str, pool: &PoolId, bytes: &'a [u8]) -> std::result::Result<(Frame<'a>, &'a [u8]), StoreError> {
    let expect = Expect { kind: FrameKind::ReplicaNote, pool: Some(pool), owner: Some(0) };
    let frame = decode_frame(path, bytes, &expect, FILE_BYTES_MAX as usize)?;
    let end = usize::try_from(frame.header.frame_bytes()).unwrap_or(usize::MAX);
    Ok((frame, bytes.get(end..).unwrap_or_default()))
}

fn meta_of<'a>(path: &'a str, frame: &Frame<'a>, part: u16) -> std::result::Result<ByteReader<'a>, StoreError> {
    let mut meta = ByteReader::new(frame.meta, path);
    let (version, found) = (meta.u16()?, meta.u16()?);
    if version != VERSION {
        return Err(StoreError::newer(path, format!("version {version}")));
    }
    if found == part { Ok(meta) } else { Err(meta.corrupt(format!("part {part}"), found)) }
}

fn encode_note(pool: &PoolId, place: &str, done: &Done, rows: &[(Stored, Local)]) -> Vec<u8> {
    let mut meta = ByteWriter::new();
    meta.u16(VERSION);
    meta.u16(1);
    let position = &done.position;
    meta.bytes(&done.hash);
    meta.bytes(&done.mark);
    meta.bytes(&position.lineage);
    [position.epoch, done.deltas].into_iter().for_each(|number| meta.u32(number));
    let numbers = [
        done.number,
        done.base,
        done.delta_bytes,
        done.reign,
        done.written_secs,
        position.generation,
        position.base_bytes,
        position.base_row,
        position.log_bytes,
        position.row,
        position.time_secs,
    ];
    numbers.into_iter().for_each(|number| meta.u64(number));
    meta.u64(rows.len() as u64);
    write_text(&mut meta, place);
    let mut bytes = encode_frame(FrameKind::ReplicaNote, pool, 0, meta.as_slice(), &[]);
    for rows in rows.chunks(ROWS_AT_ONCE) {
        let mut payload = ByteWriter::with_capacity(rows.len() * ROW_BYTES);
        for (row, local) in rows {
            row.encode(&mut payload);
            payload.u32(local.address.file);
            payload.u32(local.address.slot);
        }
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u16(3);
        bytes.extend(encode_frame(FrameKind::ReplicaNote, pool, 0, meta.as_slice(), payload.as_slice()));
    }
    bytes
}

fn decode_done<'a>(
    path: &str,
    pool: &PoolId,
    bytes: &'a [u8],
) -> std::result::Result<(Done, u64, &'a [u8]), StoreError> {
    let (frame, rest) = frame(path, pool, bytes)?;
    let mut meta = meta_of(path, &frame, 1)?;
    let (hash, mark, lineage) = (meta.array()?, meta.array()?, meta.array()?);
    let (epoch, deltas) = (meta.u32()?, meta.u32()?);
    let mut number = || meta.u64();
    let (commit, base, delta_bytes, reign, written_secs) = (number()?, number()?, number()?, number()?, number()?);
    let position = ExportPosition {
        lineage,
        epoch,
        generation: number()?,
        base_bytes: number()?,
        base_row: number()?,
        log_bytes: number()?,
        row: number()?,
        time_secs: number()?,
    };
    let rows = number()?;
    read_text(&mut meta)?;
    meta.finish()?;
    let done = Done { number: commit, hash, base, deltas, delta_bytes, reign, position, mark, written_secs };
    Ok((done, rows, rest))
}

pub(crate) fn decode_note(path: &str, pool: &PoolId, bytes: &[u8]) -> std::result::Result<Note, StoreError> {
    let (done, count, mut rest) = decode_done(path, pool, bytes)?;
    let mut note = Note { done, stored: StoredById::new(), locals: BTreeMap::new() };
    while rest.len() >= FRAME_HEADER_BYTES {
        FrameHeader::decode(path, rest)?;
        let (frame, behind) = frame(path, pool, rest)?;
        meta_of(path, &frame, 3)?.finish()?;
        let mut payload = ByteReader::new(frame.payload, path);
        while payload.remaining() > 0 {
            let row = Stored::decode(&mut payload)?;
            let address = SlotAddress { file: payload.u32()?, slot: payload.u32()? };
            let Stored { id, kind, used_bytes, .. } = row;
            note.locals.insert(id, Local { id, kind, address, used_bytes, toc: None });
            if row.hash != ContentHash::default() {
                note.stored.insert(id, row);
            }
        }
        rest = behind;
    }
    let found = note.locals.len() as u64;
    if found == count && rest.is_empty() {
        Ok(note)
    } else {
        Err(StoreError::corrupt(path, format!("{count} rows"), found))
    }
}

pub(crate) fn decode_run(path: &str, pool: &PoolId, bytes: &[u8]) -> std::result::Result<(String, Run), StoreError> {
    let (frame, _) = frame(path, pool, bytes)?;
    let mut meta = meta_of(path, &frame, 2)?;
    let (id, is_ended, begun_secs) = (meta.array()?, meta.u8()? != 0, meta.u64()?);
    let count = meta.u16()?;
    let before = (0..count).map(|_| meta.array()).collect::<std::result::Result<_, StoreError>>()?;
    let (place, error) = (read_text(&mut meta)?, read_text(&mut meta)?);
    meta.finish()?;
    Ok((place, Run { id, before, is_ended, begun_secs, error }))
}
