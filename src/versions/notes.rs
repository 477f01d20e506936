//! Notes of a put: what the source said of each entry of a version, so that the next put need not read it again.
//!
//! One file for each version on the meta root, advisory: a put without notes reads everything. Records are in the order
//! of a walk, so the place of an entry in its tree is its place here.
//!
//! ```text
//! block* | trailer      each a frame; all blocks but the last have BLOCK_RECORDS records
//! ```
//!
//! A random number, the owner of all frames, ties the blocks to the trailer; the trailer names the tree, and a checksum
//! of source and host. A file is believed only as a whole of these, block by block as it is read.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::Ino;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{Fingerprint, PoolId, StoreError};
use dedupfs_sync::Mutex;

use super::list::superseded;
use super::name::Origin;
use crate::engine::Core;

/// Directory of the notes on the meta root.
pub(crate) const DIRECTORY: &str = "notes";
const NOTES: &str = "notes of a put";
/// Versions of each source in a directory whose notes are kept: the last ones. More than one, because the last may be forgotten.
const KEPT_VERSIONS: usize = 3;
const VERSION: u16 = 1;
/// Records of a block.
const BLOCK_RECORDS: usize = 4096;
const RECORD_BYTES: usize = 16;
/// Bytes of a frame's header, and of the meta of a block.
const HEADER_BYTES: usize = 64;
const BLOCK_META_BYTES: usize = 10;
/// Bytes of a whole block in the file.
const BLOCK_BYTES: u64 = (HEADER_BYTES + BLOCK_META_BYTES + BLOCK_RECORDS * RECORD_BYTES).next_multiple_of(64) as u64;
const TRAILER_META_BYTES: usize = 2 + 8 + 32 + 8;
const TRAILER_BYTES: u64 = (HEADER_BYTES + TRAILER_META_BYTES).next_multiple_of(64) as u64;

/// What the source said of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Noted {
    /// Last change of the inode, in nanoseconds since 1970.
    pub(crate) ctime_nanos: i64,
    /// Its number; 0: the entry must be read again.
    pub(crate) ino: u64,
}

/// The tree and the source that notes are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct About {
    /// Fingerprint of the tree's top.
    pub(crate) top: Fingerprint,
    source: u64,
}

impl About {
    pub(crate) fn new(top: Fingerprint, origin: &Origin) -> Self {
        Self { top, source: origin.checksum() }
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) const fn of(top: Fingerprint, source: u64) -> Self {
        Self { top, source }
    }
}

fn path_of(version: Ino) -> String {
    format!("{DIRECTORY}/{version:016x}")
}

/// Whether a file in [`DIRECTORY`] has a name that this module gives.
pub(crate) fn is_of_notes(name: &str) -> bool {
    let is_of_version = |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.starts_with("new-") || is_of_version(name.strip_suffix(".new").unwrap_or(name))
}

/// Notes being written.
pub(crate) struct NotesWriter {
    device: Arc<dyn Device>,
    file: Arc<dyn DeviceFile>,
    pool: PoolId,
    path: String,
    nonce: u64,
    records: ByteWriter,
    in_block: usize,
    blocks: u64,
    count: u64,
}

impl NotesWriter {
    /// Begins notes. `place` distinguishes the puts of one epoch.
    ///
    /// # Errors
    /// The file cannot be made; the system returns no random bytes.
    pub(crate) fn begin(device: Arc<dyn Device>, pool: PoolId, epoch: u32, place: Ino) -> Result<Self> {
        let mut nonce = [0; 8];
        dedupfs_sync::entropy::fill(&mut nonce).map_err(|error| StoreError::from_io("get", "random bytes", error))?;
        device.create_directory(DIRECTORY)?;
        let path = format!("{DIRECTORY}/new-{epoch}-{place}");
        let file = device.open(&path, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        let (nonce, records) = (u64::from_le_bytes(nonce), ByteWriter::new());
        Ok(Self { device, file, pool, path, nonce, records, in_block: 0, blocks: 0, count: 0 })
    }

    /// Adds the record of the next entry of the walk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add(&mut self, noted: Noted) -> Result<()> {
        self.records.i64(noted.ctime_nanos);
        self.records.u64(noted.ino);
        self.in_block += 1;
        self.count += 1;
        if self.in_block == BLOCK_RECORDS { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        self.file.write_at(&self.block(), self.blocks * BLOCK_BYTES)?;
        self.records = ByteWriter::new();
        self.blocks += 1;
        self.in_block = 0;
        Ok(())
    }

    /// Returns the frame of the block that is being filled.
    fn block(&self) -> Vec<u8> {
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u64(self.blocks);
        encode_frame(FrameKind::Notes, &self.pool, self.nonce, meta.as_slice(), self.records.as_slice())
    }

    fn trailer(&self, about: &About) -> Vec<u8> {
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u64(self.count);
        meta.fingerprint(&about.top);
        meta.u64(about.source);
        encode_frame(FrameKind::Notes, &self.pool, self.nonce, meta.as_slice(), &[])
    }

    /// Gives a copy of the notes so far to an incomplete version. It survives a power loss, because such a version is of
    /// no use without notes.
    ///
    /// # Errors
    /// The notes cannot be read, or the copy not written.
    pub(crate) fn copy_for(&self, version: Ino, about: &About) -> Result<()> {
        let path = format!("{}-so-far", self.path);
        let copied = self.copy_to(&path, about).and_then(|()| Ok(self.device.rename(&path, &path_of(version))?));
        if copied.is_err() {
            let _as_far_as_it_goes = self.device.remove(&path);
        }
        copied.and_then(|()| Ok(self.device.sync_directory(DIRECTORY)?))
    }

    fn copy_to(&self, path: &str, about: &About) -> Result<()> {
        let copy = self.device.open(path, OpenMode::CreateOrWrite)?;
        copy.set_len(0)?;
        for number in 0..self.blocks {
            let at = number * BLOCK_BYTES;
            copy.write_at(&read(&*self.file, at, BLOCK_BYTES)?, at)?;
        }
        if self.in_block > 0 {
            copy.write_at(&self.block(), self.blocks * BLOCK_BYTES)?;
        }
        copy.write_at(&self.trailer(about), copy.len()?)?;
        Ok(copy.sync()?)
    }

    /// Ends the notes and gives them to a version. They need not survive a power loss.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(mut self, version: Ino, about: &About) -> Result<()> {
        if self.in_block > 0 {
            self.end_block()?;
        }
        self.file.write_at(&self.trailer(about), self.file.len()?)?;
        Ok(self.device.rename(&self.path, &path_of(version))?)
    }

    /// Removes unfinished notes.
    pub(crate) fn discard(self) {
        if let Err(error) = self.device.remove(&self.path) {
            tracing::debug!(%error, "unfinished notes stay until the next put");
        }
    }
}

/// The notes of one version.
pub(crate) struct Notes {
    file: Arc<dyn DeviceFile>,
    pool: PoolId,
    nonce: u64,
    count: u64,
    /// The block read last: walks read neighbours.
    block: Mutex<Option<(u64, Vec<Noted>)>>,
}

impl Notes {
    /// Opens the notes of a version; `None` if there are none.
    ///
    /// # Errors
    /// They are damaged, of a newer version, or about another tree or source; I/O errors.
    pub(crate) fn open(device: &dyn Device, pool: &PoolId, version: Ino, about: &About) -> Result<Option<Self>> {
        let file = match device.open(&path_of(version), OpenMode::Read) {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            file => file?,
        };
        let len = file.len()?;
        let at = len.checked_sub(TRAILER_BYTES).ok_or_else(|| StoreError::corrupt(NOTES, "a trailer", len))?;
        let bytes = read(&*file, at, TRAILER_BYTES)?;
        let expect = Expect { kind: FrameKind::Notes, pool: Some(pool), owner: None };
        let frame = decode_frame(NOTES, &bytes, &expect, TRAILER_BYTES as usize)?;
        let mut reader = ByteReader::new(frame.meta, NOTES);
        check_version(&mut reader)?;
        let count = reader.u64()?;
        let found = About { top: reader.fingerprint()?, source: reader.u64()? };
        reader.finish()?;
        if found != *about {
            return Err(EngineError::Invalid("its notes are of another tree or source"));
        }
        // So offsets of blocks cannot overflow.
        if count > len / RECORD_BYTES as u64 {
            return Err(StoreError::corrupt(NOTES, "as many records as the file has room for", count).into());
        }
        let nonce = frame.header.owner;
        Ok(Some(Self { file, pool: *pool, nonce, count, block: Mutex::default() }))
    }

    /// Returns the record of an entry by its place in the walk, from 0; `None` if there is none.
    ///
    /// # Errors
    /// The block is damaged, or of other notes; I/O errors.
    pub(crate) fn get(&self, place: u64) -> Result<Option<Noted>> {
        if place >= self.count {
            return Ok(None);
        }
        let (number, at) = (place / BLOCK_RECORDS as u64, (place % BLOCK_RECORDS as u64) as usize);
        let mut block = self.block.lock();
        if block.as_ref().is_none_or(|(read, _)| *read != number) {
            *block = Some((number, self.read_block(number)?));
        }
        Ok(block.as_ref().and_then(|(_, records)| records.get(at)).copied())
    }

    fn read_block(&self, number: u64) -> Result<Vec<Noted>> {
        let records = (self.count - number * BLOCK_RECORDS as u64).min(BLOCK_RECORDS as u64) as usize;
        let len = (HEADER_BYTES + BLOCK_META_BYTES + records * RECORD_BYTES).next_multiple_of(64) as u64;
        let bytes = read(&*self.file, number * BLOCK_BYTES, len)?;
        let expect = Expect { kind: FrameKind::Notes, pool: Some(&self.pool), owner: Some(self.nonce) };
        let frame = decode_frame(NOTES, &bytes, &expect, BLOCK_BYTES as usize)?;
        let mut reader = ByteReader::new(frame.meta, NOTES);
        check_version(&mut reader)?;
        let found = reader.u64()?;
        reader.finish()?;
        if found != number || frame.payload.len() != records * RECORD_BYTES {
            return Err(StoreError::corrupt(NOTES, format!("block {number}"), found).into());
        }
        let mut reader = ByteReader::new(frame.payload, NOTES);
        let mut noted = Vec::with_capacity(records);
        for _ in 0..records {
            noted.push(Noted { ctime_nanos: reader.i64()?, ino: reader.u64()? });
        }
        Ok(noted)
    }
}

fn check_version(reader: &mut ByteReader<'_>) -> Result<()> {
    match reader.u16()? {
        VERSION => Ok(()),
        version => Err(StoreError::newer(NOTES, format!("version {version}")).into()),
    }
}

fn read(file: &dyn DeviceFile, offset: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or(0)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Removes the notes of versions that are gone, and those that other epochs left unfinished.
fn clean(device: &dyn Device, epoch: u32, exists: &dyn Fn(Ino) -> bool) -> Result<()> {
    let entries = match device.list(DIRECTORY) {
        Err(StoreError::NotFound { .. }) => return Ok(()),
        entries => entries?,
    };
    let own = format!("new-{epoch}-");
    for entry in entries.iter().filter(|entry| !entry.is_directory) {
        let is_needed = match Ino::from_str_radix(&entry.name, 16) {
            Ok(version) => exists(version),
            Err(_) => entry.name.starts_with(&own) || !entry.name.starts_with("new-"),
        };
        if !is_needed {
            match device.remove(&format!("{DIRECTORY}/{}", entry.name)) {
                // Another put cleans, too.
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Removes the notes that nobody needs any more: see [`clean`], and those of versions that have [`KEPT_VERSIONS`] newer ones of the
/// same source in the same directory. The last one is the usual base of a put.
///
/// # Errors
/// The versions cannot be listed; a file cannot be removed.
pub(crate) fn clean_pool(core: &Core) -> Result<()> {
    let superseded = superseded(&core.namespace.committed()?, KEPT_VERSIONS)?;
    let is_needed = |version| {
        !superseded.contains(&version) && core.namespace.inode_shared(version).is_ok_and(|inode| inode.is_some())
    };
    clean(&*core.meta_device, core.namespace.writer_epoch(), &is_needed)
}

/// Bytes of all notes.
pub(crate) fn bytes(device: &dyn Device) -> Result<u64> {
    match device.list(DIRECTORY) {
        Err(StoreError::NotFound { .. }) => Ok(0),
        entries => Ok(entries?.iter().map(|entry| entry.len_bytes).sum()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use dedupfs_store::device::MemoryDevice;

    use super::*;

    const POOL: PoolId = PoolId([3; 16]);

    fn noted(number: u64) -> Noted {
        Noted { ctime_nanos: number as i64 * 1_000_003 - 5, ino: number * 7 + 1 }
    }

    fn about() -> About {
        let origin = Origin { source: b"/srv".to_vec(), host: b"web1".to_vec() };
        About::new(Fingerprint([9; 32]), &origin)
    }

    fn written(device: &Arc<dyn Device>, count: u64, version: Ino) {
        let mut writer = NotesWriter::begin(device.clone(), POOL, 1, 5).unwrap();
        (0..count).for_each(|number| writer.add(noted(number)).unwrap());
        writer.finish(version, &about()).unwrap();
    }

    #[test]
    fn records_come_back_in_any_order() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        for count in [0, 1, 4095, 4096, 4097, 10_000] {
            written(&device, count, 77);
            let notes = Notes::open(&*device, &POOL, 77, &about()).unwrap().unwrap();
            for place in (0..count).rev().step_by(37).chain([0, count / 2]) {
                assert_eq!(notes.get(place).unwrap(), (place < count).then(|| noted(place)), "{place} of {count}");
            }
            assert_eq!(notes.get(count).unwrap(), None);
            assert_eq!(notes.get(u64::MAX).unwrap(), None);
        }
        assert!(Notes::open(&*device, &POOL, 78, &about()).unwrap().is_none());
    }

    #[test]
    fn notes_about_another_tree_source_or_pool_are_refused() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        written(&device, 10, 77);
        let other = Origin { source: b"/srv".to_vec(), host: b"web2".to_vec() };
        assert!(Notes::open(&*device, &POOL, 77, &About::new(Fingerprint([9; 32]), &other)).is_err());
        assert!(Notes::open(&*device, &POOL, 77, &About { top: Fingerprint([8; 32]), ..about() }).is_err());
        assert!(Notes::open(&*device, &PoolId([4; 16]), 77, &about()).is_err());
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_found_or_harmless() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        written(&device, 20, 77);
        let sound = device.read_file(&path_of(77), 1 << 20).unwrap();
        let check = |bytes: &[u8]| {
            device.replace_file(DIRECTORY, &format!("{:016x}", 77), bytes).unwrap();
            let Ok(Some(notes)) = Notes::open(&*device, &POOL, 77, &about()) else { return };
            for place in 0..20 {
                if let Ok(found) = notes.get(place) {
                    assert_eq!(found, Some(noted(place)));
                }
            }
        };
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x40;
            check(&bytes);
            check(&sound[..at]);
        }
    }

    /// The blocks of one put under the trailer of another.
    #[test]
    fn blocks_of_other_notes_are_refused() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        written(&device, 20, 1);
        written(&device, 20, 2);
        let [one, other] = [1, 2].map(|version| device.read_file(&path_of(version), 1 << 20).unwrap());
        let at = one.len() - TRAILER_BYTES as usize;
        device.replace_file(DIRECTORY, &format!("{:016x}", 1), &[&other[..at], &one[at..]].concat()).unwrap();
        let notes = Notes::open(&*device, &POOL, 1, &about()).unwrap().unwrap();
        assert!(notes.get(0).is_err());
    }

    #[test]
    fn leftovers_and_notes_of_versions_that_are_gone_are_removed() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        clean(&*device, 3, &|_| true).unwrap();
        [1, 2].into_iter().for_each(|version| written(&device, 3, version));
        for epoch in [2, 3] {
            drop(NotesWriter::begin(device.clone(), POOL, epoch, 9).unwrap());
        }
        NotesWriter::begin(device.clone(), POOL, 3, 10).unwrap().discard();
        clean(&*device, 3, &|version| version == 2).unwrap();
        let left: Vec<String> = device.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, [format!("{:016x}", 2), "new-3-9".to_owned()]);
        assert!(bytes(&*device).unwrap() > 0);
    }
}
