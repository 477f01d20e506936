//! The namespace store's file, read and written through [`PageSums`]: a block that differs from its last write is an
//! error.

use std::sync::Arc;

use dedupfs_store::device::{Device, DeviceFile};
use dedupfs_store::{Result, StoreError};
use dedupfs_sync::Mutex;

use super::page_sums::{BLOCK_BYTES, BlockSums, PageSums, StoreHeader};

/// Blocks that are read at once to recompute checksums.
const BLOCKS_AT_ONCE: usize = 256;

/// A file whose blocks are verified when they are read. It verifies nothing before it has checksums.
#[derive(Debug)]
pub(super) struct VerifiedFile {
    file: Arc<dyn DeviceFile>,
    /// Held across writing and syncing. Readers do not take it.
    sums: Mutex<PageSums>,
    expected: Arc<BlockSums>,
    is_on: std::sync::atomic::AtomicBool,
}

/// The checksums that are known when a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownSums {
    /// The checksums of all blocks that count.
    All,
    /// None: the store must be verified as a whole, then [`VerifiedFile::learn`] reads it.
    Nothing,
}

impl VerifiedFile {
    /// Wraps the file of a new, empty store.
    pub(super) fn fresh(device: &dyn Device, file: Arc<dyn DeviceFile>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::with(file, PageSums::open(device)?, true)))
    }

    /// Wraps the file of an existing store.
    pub(super) fn open(device: &dyn Device, file: Arc<dyn DeviceFile>) -> Result<(Arc<Self>, KnownSums)> {
        let mut sums = PageSums::open(device)?;
        let mut bytes = [0; StoreHeader::BYTES];
        let found = file.read_at(&mut bytes, 0)?;
        // The caller refuses a file that is no store.
        let header = bytes.get(..found).and_then(StoreHeader::parse);
        let is_known = match header {
            Some(header) => sums.load(&header)?,
            None => false,
        };
        let verified = Self::with(file, sums, is_known);
        Ok((Arc::new(verified), if is_known { KnownSums::All } else { KnownSums::Nothing }))
    }

    fn with(file: Arc<dyn DeviceFile>, sums: PageSums, is_on: bool) -> Self {
        let expected = sums.sums();
        Self { file, sums: Mutex::new(sums), expected, is_on: is_on.into() }
    }

    /// Computes checksums of the present content, which was verified by other means, and verifies from then on. No
    /// other thread may write meanwhile.
    pub(super) fn learn(&self) -> Result<()> {
        // The header is about to be recorded as synced, so sync it first.
        self.file.sync()?;
        let mut header = [0; StoreHeader::BYTES];
        self.file.read_exact_at(&mut header, 0)?;
        let header = StoreHeader::parse(&header)
            .ok_or_else(|| StoreError::corrupt("namespace store", "a header", "fewer bytes"))?;
        let len_bytes = self.file.len()?;
        let mut buffer = vec![0; BLOCKS_AT_ONCE * BLOCK_BYTES];
        let mut sums = self.sums.lock();
        sums.cut(0);
        let mut offset = BLOCK_BYTES as u64;
        while offset < len_bytes {
            let found = self.file.read_at(&mut buffer, offset)? / BLOCK_BYTES;
            let Some(bytes) = buffer.get(..found * BLOCK_BYTES).filter(|bytes| !bytes.is_empty()) else { break };
            sums.note(offset / BLOCK_BYTES as u64, found, Some(bytes));
            offset += bytes.len() as u64;
        }
        sums.note_header(header);
        sums.note_synced(header);
        sums.write_base(header)?;
        self.is_on.store(true, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Writes the checksums of the blocks to be synced. A failure is a write error: it loses nothing.
    pub(super) fn prepare_sync(&self) -> Result<()> {
        if self.is_verified() { self.sums.lock().write_changes() } else { Ok(()) }
    }

    /// Stops verifying until [`learn`](Self::learn).
    pub(super) fn distrust(&self) {
        self.is_on.store(false, std::sync::atomic::Ordering::Release);
    }

    /// Whether what is read is verified.
    pub(super) fn is_verified(&self) -> bool {
        self.is_on.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// Returns the blocks of a range, if it consists of whole blocks.
fn blocks(offset: u64, len: usize) -> Option<(u64, usize)> {
    let is_whole = offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES) && offset > 0;
    is_whole.then_some((offset / BLOCK_BYTES as u64, len / BLOCK_BYTES))
}

impl DeviceFile for VerifiedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let found = self.file.read_at(buffer, offset)?;
        if self.is_verified()
            && let Some((first, count)) = blocks(offset, buffer.len())
            && found == buffer.len()
        {
            PageSums::check(first, buffer, &self.expected.expected(first, count))?;
        }
        Ok(found)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let outcome = self.file.write_at(buffer, offset);
        if self.is_verified() {
            match blocks(offset, buffer.len()) {
                Some((first, count)) => {
                    self.sums.lock().note(first, count, outcome.is_ok().then_some(buffer));
                }
                // A header whose write failed may be on the disk or not. The one before it stays the last certain one:
                // the recorded header must never be ahead of the store.
                None if offset == 0 => {
                    if let Some(header) = outcome.is_ok().then(|| StoreHeader::parse(buffer)).flatten() {
                        self.sums.lock().note_header(header);
                    }
                }
                // The store writes whole pages. After any other write the content of these blocks is unknown.
                None => {
                    let (first, end) = (offset / BLOCK_BYTES as u64, offset + buffer.len() as u64);
                    let count = end.div_ceil(BLOCK_BYTES as u64) - first;
                    self.sums.lock().note(first, count as usize, None);
                }
            }
        }
        outcome
    }

    fn sync(&self) -> Result<()> {
        if !self.is_verified() {
            return self.file.sync();
        }
        let mut sums = self.sums.lock();
        if let Err(error) = sums.write_changes() {
            // This follows a failure that ended a session: no commit rests on these checksums.
            tracing::warn!(%error, "checksums of the namespace have to wait");
        }
        sums.sync()?;
        self.file.sync()?;
        sums.after_sync()
    }

    fn reread(&self) -> Result<()> {
        self.file.reread()
    }

    fn describe(&self) -> String {
        self.file.describe()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.file.set_len(len_bytes)?;
        if self.is_verified() {
            self.sums.lock().cut(len_bytes.div_ceil(BLOCK_BYTES as u64));
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.file.punch(offset, len_bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.file.allocated_bytes()
    }
}
