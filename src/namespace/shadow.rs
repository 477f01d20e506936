//! A file as it is on the disk, under changes that never reach it.
//!
//! After a failed sync nothing may be written to the namespace's file any more, but earlier commits are sound and must
//! stay readable. The embedded store cannot be opened without writing: it records that it is open, and tidies up after
//! an unclean end. So it is opened over this file.
//!
//! Cost: memory for each written block. For a store that is only read, these are the blocks of its header and of its
//! allocator's state.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::device::DeviceFile;
use dedupfs_sync::Mutex;

const BLOCK_BYTES: usize = 4096;

#[derive(Debug)]
struct Changes {
    len_bytes: u64,
    /// The file counts up to here. Behind it, blocks that are not in `blocks` are zero.
    file_bytes: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shadow {
    file: Arc<dyn DeviceFile>,
    changes: Mutex<Changes>,
}

impl Shadow {
    pub(super) fn of(file: Arc<dyn DeviceFile>) -> Result<Self> {
        let len_bytes = file.len()?;
        Ok(Self { file, changes: Mutex::new(Changes { len_bytes, file_bytes: len_bytes, blocks: BTreeMap::new() }) })
    }

    /// Returns one block as it is now.
    fn block(&self, changes: &Changes, number: u64) -> Result<Box<[u8]>> {
        if let Some(block) = changes.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
        let offset = number.saturating_mul(BLOCK_BYTES as u64);
        let there = changes.file_bytes.saturating_sub(offset).min(BLOCK_BYTES as u64) as usize;
        if let Some(part) = block.get_mut(..there).filter(|part| !part.is_empty()) {
            self.file.read_exact_at(part, offset)?;
        }
        Ok(block)
    }
}

/// Calls `each(block, offset within it, range of the buffer)` for the blocks that a range touches.
fn for_each_block(
    offset: u64,
    len: usize,
    each: &mut dyn FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let count = (BLOCK_BYTES - within).min(len - done);
        each(at / BLOCK_BYTES as u64, within, done..done + count)?;
        done += count;
    }
    Ok(())
}

impl DeviceFile for Shadow {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let changes = self.changes.lock();
        let len = changes.len_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        for_each_block(offset, len, &mut |number, within, range| {
            let block = self.block(&changes, number)?;
            if let (Some(part), Some(bytes)) = (block.get(within..within + range.len()), buffer.get_mut(range)) {
                bytes.copy_from_slice(part);
            }
            Ok(())
        })?;
        Ok(len)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let mut changes = self.changes.lock();
        for_each_block(offset, buffer.len(), &mut |number, within, range| {
            let mut block = self.block(&changes, number)?;
            if let (Some(part), Some(bytes)) = (block.get_mut(within..within + range.len()), buffer.get(range)) {
                part.copy_from_slice(bytes);
            }
            changes.blocks.insert(number, block);
            Ok(())
        })?;
        changes.len_bytes = changes.len_bytes.max(offset + buffer.len() as u64);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.changes.lock().len_bytes)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let mut changes = self.changes.lock();
        if len_bytes < changes.len_bytes {
            let end = len_bytes.div_ceil(BLOCK_BYTES as u64);
            changes.blocks.split_off(&end);
            let within = (len_bytes % BLOCK_BYTES as u64) as usize;
            if let Some(rest) = changes.blocks.get_mut(&(end.wrapping_sub(1))).and_then(|block| block.get_mut(within..))
                && within > 0
            {
                rest.fill(0);
            }
            changes.file_bytes = changes.file_bytes.min(len_bytes);
        }
        changes.len_bytes = len_bytes;
        Ok(())
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let end = offset.saturating_add(len_bytes).min(self.len()?);
        let len = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
        let before = self.len()?;
        self.write_at(&vec![0; len], offset)?;
        self.set_len(before)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.file.allocated_bytes()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use dedupfs_store::device::{Device, MemoryDevice, OpenMode};

    use super::*;

    #[test]
    fn reads_what_was_written_and_leaves_the_file_as_it_is() {
        let disk = MemoryDevice::new();
        let model = disk.open("model", OpenMode::CreateNew).unwrap();
        let file = disk.open("file", OpenMode::CreateNew).unwrap();
        let first: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        [&model, &file].into_iter().for_each(|file| file.write_at(&first, 0).unwrap());
        let shadow = Shadow::of(file).unwrap();
        let both: [&dyn DeviceFile; 2] = [&*model, &shadow];
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for round in 0..400 {
            let (offset, len) = (below(40_000), below(10_000) as usize);
            for file in both {
                match round % 4 {
                    0 => file.set_len(offset).unwrap(),
                    1 => file.punch(offset, len as u64).unwrap(),
                    _ => file.write_at(&vec![round as u8; len + 1], offset).unwrap(),
                }
            }
            let [expected, found] = both.map(|file| {
                let mut bytes = vec![0xee; 50_000];
                let read = file.read_at(&mut bytes, offset / 2).unwrap();
                (file.len().unwrap(), read, bytes)
            });
            assert!(expected == found, "round {round}");
        }
        assert_eq!(disk.read_file("file", 1 << 20).unwrap(), first);
    }
}
