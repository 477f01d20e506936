//! Checksums of the namespace store's blocks, kept beside it. They reveal blocks that the disk changed when these are
//! read.
//!
//! redb has a checksum for each page, but checks it only in a full repair. A flipped bit in a branch or a key would
//! silently make names vanish or lead elsewhere. So would a write that the disk lost. Therefore each block of 4096
//! bytes has a checksum here, in memory and in two small files. The file with the higher sequence counts:
//!
//! 1. It holds a *base* with all checksums, then *changes*: one frame for each sync of the store, each at a new block.
//! 2. The changes are durable before the sync of the store begins, so also before redb lets a commit count. After a
//!    crash every page that a commit refers to has its checksum. A block that differs belongs to no commit and is not
//!    read.
//! 3. When a file is half full of changes, a new base goes to the other file.
//!
//! The store's own header (block 0) is written in place. It has checksums of its own for everything except the choice
//! between its two commit slots. Therefore each frame names the last *synced* commit. A store older than that commit
//! has lost a write. A store newer by more than one commit was written by a program without these checksums, or the
//! checksums are from another time. A crash may keep a later frame and lose an earlier one, so nothing is appended to a
//! file from before: the first sync after opening writes a base.
//!
//! The checksums can be rebuilt. If they are missing, damaged or too old, the store is first read whole and verified by
//! redb's checksums ([`super::verified`]).
//!
//! Cost: 8 bytes of memory for each 4096 bytes of the store. Each commit writes a few KiB and syncs once more.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::BTreeSet;
use std::sync::Arc;

use dedupfs_store::codec::{ByteReader, ByteWriter, checksum_seeded};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::frame::{Expect, FRAME_HEADER_BYTES, FrameHeader, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, Result, StoreError};
use dedupfs_sync::RwLock;

/// Bytes that one checksum covers; also the alignment of frames.
pub(super) const BLOCK_BYTES: usize = 4096;
/// The two files on the meta root.
pub const SUMS_FILES: [&str; 2] = ["namespace.sums-a", "namespace.sums-b"];
/// Room for changes in one file. It is written as zeros with the base, so that a full disk does not stop a sync.
const CHANGES_BYTES: u64 = 256 * 1024;
/// Growth in blocks that is allowed since the base was written, for a store of any size. Changes have room for less.
const BLOCKS_MIN: usize = 1 << 20;
const VERSION: u16 = 1;
const BASE: u16 = 1;
const CHANGES: u16 = 2;
/// The frames belong to the store beside them, not to a pool: the namespace does not know its pool.
const NO_POOL: PoolId = PoolId([0; 16]);

/// The parts of the store's own header that are used here; see "Namespace" in `docs/format.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoreHeader {
    /// Page size and layout of the regions; never changes.
    pub(super) geometry: [u8; 12],
    /// Number of the commit that counts.
    pub(super) commit: u64,
    /// Whether the store was closed cleanly.
    pub(super) is_clean: bool,
}

impl StoreHeader {
    /// Bytes of redb's header: 64 and two commit slots of 128.
    pub(super) const BYTES: usize = 320;

    /// Parses the header; `None` if there are too few bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let god_byte = *bytes.get(9)?;
        let geometry = *bytes.get(12..)?.first_chunk::<12>()?;
        let slot = if god_byte & 1 == 0 { 64 } else { 192 };
        let commit = u64::from_le_bytes(*bytes.get(slot + 104..)?.first_chunk::<8>()?);
        Some(Self { geometry, commit, is_clean: god_byte & 2 == 0 })
    }
}

/// The content of one of the two files.
struct Loaded {
    sums: Vec<u64>,
    header: StoreHeader,
    sequence: u64,
}

/// The present checksum of each block; 0 if unknown. Locked for moments only, so that no reader of the store waits
/// while checksums are written and synced.
#[derive(Debug, Default)]
pub(super) struct BlockSums(RwLock<Vec<u64>>);

impl BlockSums {
    /// Returns the expected checksums of a range of blocks.
    pub(super) fn expected(&self, first_block: u64, blocks: usize) -> Vec<u64> {
        let first = usize::try_from(first_block).unwrap_or(usize::MAX);
        let sums = self.0.read();
        let sum = |at| first.checked_add(at).and_then(|block| sums.get(block)).copied().unwrap_or(0);
        (0..blocks).map(sum).collect()
    }
}

/// The checksums of one store.
#[derive(Debug)]
pub(super) struct PageSums {
    files: [Arc<dyn DeviceFile>; 2],
    /// Index of the file that counts.
    current: usize,
    /// Shared with the readers of the store.
    sums: Arc<BlockSums>,
    /// Blocks whose checksums are not in the file yet.
    changed: BTreeSet<u32>,
    /// The store's header as last written; `synced`: as last synced; `noted`: as recorded in the file.
    header: Option<StoreHeader>,
    synced: Option<StoreHeader>,
    noted: Option<StoreHeader>,
    /// Whether changes were written that are not durable yet.
    must_sync: bool,
    sequence: u64,
    base_bytes: u64,
    end_bytes: u64,
}

fn block_sum(block: u64, bytes: &[u8]) -> u64 {
    checksum_seeded(bytes, block).max(1)
}

fn frame_bytes_aligned(frame_bytes: usize) -> u64 {
    frame_bytes.next_multiple_of(BLOCK_BYTES) as u64
}

impl PageSums {
    /// Opens the files and creates missing ones.
    pub(super) fn open(device: &dyn Device) -> Result<Self> {
        let is_new = !(device.exists(SUMS_FILES[0])? && device.exists(SUMS_FILES[1])?);
        let [first, second] = SUMS_FILES;
        let open = |name| device.open_surely(name, OpenMode::CreateOrWrite);
        let files = [open(first)?, open(second)?];
        if is_new {
            device.sync_directory("")?;
        }
        Ok(Self {
            files,
            current: 0,
            sums: Arc::default(),
            changed: BTreeSet::new(),
            header: None,
            synced: None,
            noted: None,
            must_sync: false,
            sequence: 0,
            base_bytes: 0,
            end_bytes: 0,
        })
    }

    /// Reads the checksums of a store with this header. Returns whether they can be used.
    ///
    /// # Errors
    /// The store is older than its checksums, or has another geometry; I/O errors.
    pub(super) fn load(&mut self, store: &StoreHeader) -> Result<bool> {
        let mut best: Option<(usize, Loaded)> = None;
        for (number, file) in self.files.iter().enumerate() {
            match read_file(&**file) {
                Ok(Some(loaded)) if best.as_ref().is_none_or(|(_, other)| loaded.sequence > other.sequence) => {
                    best = Some((number, loaded));
                }
                Ok(_) => {}
                Err(error @ StoreError::Io { .. }) => return Err(error),
                Err(error) => tracing::warn!(%error, "checksums of the namespace cannot be used"),
            }
        }
        let Some((current, loaded)) = best else { return Ok(false) };
        self.sequence = loaded.sequence;
        let newest = loaded.header.commit.saturating_add(1);
        if store.commit > newest {
            let (store, noted) = (store.commit, loaded.header.commit);
            tracing::warn!(store, noted, "checksums of the namespace are from another time");
            return Ok(false);
        }
        if store.commit < loaded.header.commit || store.geometry != loaded.header.geometry {
            let expected = format!("commit {}", loaded.header.commit);
            return Err(damaged(
                "header of the namespace store".to_owned(),
                expected,
                format!("commit {}", store.commit),
            ));
        }
        self.current = current;
        *self.sums.0.write() = loaded.sums;
        self.synced = Some(loaded.header);
        self.header = Some(*store);
        Ok(true)
    }

    /// Returns the checksums, shared: they can be read while this object writes and syncs.
    pub(super) fn sums(&self) -> Arc<BlockSums> {
        self.sums.clone()
    }

    /// Checks whole blocks against their expected checksums.
    pub(super) fn check(first_block: u64, bytes: &[u8], expected: &[u64]) -> Result<()> {
        for ((block, bytes), &expected) in (first_block..).zip(bytes.chunks(BLOCK_BYTES)).zip(expected) {
            let found = block_sum(block, bytes);
            if expected != 0 && expected != found {
                let what = format!("block {block} of the namespace store");
                return Err(damaged(what, format!("checksum {expected:#018x}"), format!("{found:#018x}")));
            }
        }
        Ok(())
    }

    /// Records the checksums of written blocks; `None` if their content is unknown now.
    pub(super) fn note(&mut self, first_block: u64, blocks: usize, written: Option<&[u8]>) {
        let end = usize::try_from(first_block).unwrap_or(usize::MAX).saturating_add(blocks);
        if end > u32::MAX as usize {
            return;
        }
        let mut sums = self.sums.0.write();
        if sums.len() < end {
            sums.resize(end, 0);
        }
        for (at, block) in (first_block..).take(blocks).enumerate() {
            let bytes = written.and_then(|bytes| bytes.chunks(BLOCK_BYTES).nth(at));
            if let Some(sum) = sums.get_mut(block as usize) {
                *sum = bytes.map_or(0, |bytes| block_sum(block, bytes));
                self.changed.insert(block as u32);
            }
        }
    }

    /// Records the store's header as it was written.
    pub(super) fn note_header(&mut self, header: StoreHeader) {
        self.header = Some(header);
    }

    /// Records the store's header as it was synced elsewhere.
    pub(super) fn note_synced(&mut self, header: StoreHeader) {
        self.synced = Some(header);
    }

    /// Forgets all blocks from number `blocks` on.
    pub(super) fn cut(&mut self, blocks: u64) {
        self.sums.0.write().truncate(usize::try_from(blocks).unwrap_or(usize::MAX));
        self.changed.split_off(&u32::try_from(blocks).unwrap_or(u32::MAX));
    }

    /// Writes the changes since the last call. To be called before the store is synced. After an error the next call
    /// writes them.
    pub(super) fn write_changes(&mut self) -> Result<()> {
        let Some(header) = self.header.filter(|_| !self.changed.is_empty()) else { return Ok(()) };
        // The last durable commit; the store's header in memory is not durable yet.
        let durable = self.synced.unwrap_or(StoreHeader { commit: 0, ..header });
        let frame = self.encode_changes(durable);
        let limit = self.base_bytes + CHANGES_BYTES;
        let end = self.end_bytes + frame_bytes_aligned(frame.len());
        if self.base_bytes == 0 || end > limit - CHANGES_BYTES / 2 {
            match self.write_base(durable) {
                Ok(()) => return Ok(()),
                // The changes still have room in the present file.
                Err(error @ StoreError::NoSpace { .. }) if self.base_bytes != 0 && end <= limit => {
                    tracing::warn!(%error, "a new base of checksums has to wait");
                }
                Err(error) => return Err(error),
            }
        }
        self.append(&frame, durable)?;
        self.must_sync = true;
        self.changed.clear();
        Ok(())
    }

    /// Makes the written changes durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        if self.must_sync {
            self.current_file().sync()?;
            self.must_sync = false;
        }
        Ok(())
    }

    /// Records which commit counts. To be called after the store was synced. The record becomes durable with the next
    /// changes, or at once if the store is closed.
    pub(super) fn after_sync(&mut self) -> Result<()> {
        let Some(header) = self.header else { return Ok(()) };
        self.synced = Some(header);
        if self.noted == Some(header) || self.base_bytes == 0 {
            return Ok(());
        }
        let frame = encode_one(self.sequence + 1, CHANGES, header, 0, &[]);
        if let Err(error) = self.append(&frame, header) {
            // The next changes say it, too.
            tracing::warn!(%error, "the checksums of the namespace do not say yet which commit counts");
            return Ok(());
        }
        if header.is_clean { self.current_file().sync() } else { Ok(()) }
    }

    fn append(&mut self, frame: &[u8], noted: StoreHeader) -> Result<()> {
        self.current_file().write_at(frame, self.end_bytes)?;
        self.sequence += 1;
        self.end_bytes += frame_bytes_aligned(frame.len());
        self.noted = Some(noted);
        Ok(())
    }

    /// Writes all checksums to the other file, which counts from then on.
    pub(super) fn write_base(&mut self, header: StoreHeader) -> Result<()> {
        let frame = {
            let sums = self.sums.0.read();
            let mut payload = ByteWriter::with_capacity(sums.len() * 8);
            sums.iter().for_each(|&sum| payload.u64(sum));
            encode_one(self.sequence + 1, BASE, header, sums.len(), payload.as_slice())
        };
        let base_bytes = frame_bytes_aligned(frame.len());
        let other = 1 - self.current.min(1);
        let [first, second] = &self.files;
        let file = if other == 0 { first } else { second };
        // No frame of an earlier use may stand behind the new base.
        file.set_len(0)?;
        file.write_at(&frame, 0)?;
        let padding = base_bytes + CHANGES_BYTES - frame.len() as u64;
        file.write_at(&vec![0; padding as usize], frame.len() as u64)?;
        file.sync()?;
        self.must_sync = false;
        self.current = other;
        self.sequence += 1;
        self.base_bytes = base_bytes;
        self.end_bytes = base_bytes;
        self.noted = Some(header);
        self.changed.clear();
        Ok(())
    }

    fn current_file(&self) -> &Arc<dyn DeviceFile> {
        let [first, second] = &self.files;
        if self.current == 0 { first } else { second }
    }

    fn encode_changes(&self, header: StoreHeader) -> Vec<u8> {
        let sums = self.sums.0.read();
        let mut payload = ByteWriter::with_capacity(self.changed.len() * 12);
        for &block in &self.changed {
            payload.u32(block);
            payload.u64(sums.get(block as usize).copied().unwrap_or(0));
        }
        encode_one(self.sequence + 1, CHANGES, header, self.changed.len(), payload.as_slice())
    }
}

fn encode_one(sequence: u64, what: u16, header: StoreHeader, count: usize, payload: &[u8]) -> Vec<u8> {
    let mut meta = ByteWriter::new();
    meta.u16(VERSION);
    meta.u16(what);
    meta.u32(count as u32);
    meta.u64(header.commit);
    meta.bytes(&header.geometry);
    encode_frame(FrameKind::PageSums, &NO_POOL, sequence, meta.as_slice(), payload)
}

fn damaged(what: String, expected: String, found: String) -> StoreError {
    let found = format!(
        "{found}: the disk returned something else than was written. Where `dedupfs fsck` cannot work around that, \
         `dedupfs recover --force POOL` makes the namespace anew as it was at the last export"
    );
    StoreError::Corrupt { what, expected, found }
}

/// Reads one file; `None` if it is empty.
fn read_file(file: &dyn DeviceFile) -> Result<Option<Loaded>> {
    let len_bytes = file.len()?;
    if len_bytes == 0 {
        return Ok(None);
    }
    // The size of the file bounds a frame and the memory it needs: a block's checksum takes 8 bytes in the file, and a
    // base comes first.
    let limit = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    let blocks_max = limit.max(BLOCKS_MIN);
    let mut loaded: Option<Loaded> = None;
    let mut offset = 0;
    loop {
        let frame = match read_frame(file, offset, limit) {
            Ok(frame) => frame,
            // After the base, the first invalid frame is the end: changes are synced in order.
            Err(error @ StoreError::Io { .. }) => return Err(error),
            Err(_) if loaded.is_some() => break,
            Err(error) => return Err(error),
        };
        let end = offset + frame_bytes_aligned(frame.len());
        match decode(&frame, &mut loaded, blocks_max)? {
            true => offset = end,
            // Left by an earlier use of the file.
            false => break,
        }
    }
    Ok(loaded)
}

fn read_frame(file: &dyn DeviceFile, offset: u64, limit: usize) -> Result<Vec<u8>> {
    let expect = Expect { kind: FrameKind::PageSums, pool: Some(&NO_POOL), owner: None };
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    file.read_exact_at(&mut bytes, offset)?;
    let header = FrameHeader::decode("checksums of the namespace", &bytes)?;
    header.check("checksums of the namespace", &expect, limit)?;
    bytes.resize(header.frame_bytes() as usize, 0);
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Adds a frame to the loaded checksums; `false` if the frame does not continue them.
fn decode(bytes: &[u8], loaded: &mut Option<Loaded>, blocks_max: usize) -> Result<bool> {
    let what = "checksums of the namespace";
    let expect = Expect { kind: FrameKind::PageSums, pool: Some(&NO_POOL), owner: None };
    let frame = decode_frame(what, bytes, &expect, bytes.len())?;
    let mut meta = ByteReader::new(frame.meta, what);
    let version = meta.u16()?;
    if version != VERSION {
        return Err(meta.corrupt(format!("version {VERSION}"), version));
    }
    let (kind, count, commit, geometry) = (meta.u16()?, meta.u32()?, meta.u64()?, meta.array::<12>()?);
    meta.finish()?;
    let header = StoreHeader { geometry, commit, is_clean: false };
    let sequence = frame.header.owner;
    let mut payload = ByteReader::new(frame.payload, what);
    match (kind, loaded) {
        (BASE, none @ None) => {
            let mut sums = Vec::with_capacity(frame.payload.len() / 8);
            for _ in 0..count {
                sums.push(payload.u64()?);
            }
            *none = Some(Loaded { sums, header, sequence });
        }
        (CHANGES, Some(loaded)) if sequence == loaded.sequence + 1 => {
            for _ in 0..count {
                let (block, sum) = (payload.u32()? as usize, payload.u64()?);
                // The store may have shrunk since. A block that it cannot have had is invalid.
                if block >= blocks_max {
                    return Err(payload.corrupt(format!("a block below {blocks_max}"), block));
                }
                if block >= loaded.sums.len() {
                    loaded.sums.resize(block + 1, 0);
                }
                if let Some(place) = loaded.sums.get_mut(block) {
                    *place = sum;
                }
            }
            (loaded.header, loaded.sequence) = (header, sequence);
        }
        _ => return Ok(false),
    }
    payload.finish()?;
    Ok(true)
}
