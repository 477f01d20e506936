//! One file of a [`MemoryDevice`](super::MemoryDevice): its visible content, its durable content, and the changes in
//! between.

use std::sync::Arc;

use super::crash::Dice;
use super::pages::{Pages, SECTOR_BYTES};
use crate::device::path::FILE_BYTES_MAX;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    SetLen(u64),
    Punch { offset: u64, len_bytes: u64 },
}

/// Content of one file.
///
/// Invariant: applying `pending` in order to `durable` gives `volatile` (except for bytes that
/// [`lose_unsynced`](Self::lose_unsynced) gave up).
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    volatile: Pages,
    durable: Pages,
    pending: Vec<Change>,
}

impl Content {
    pub(super) fn synced(pages: Pages) -> Self {
        Self { volatile: pages.clone(), durable: pages, pending: Vec::new() }
    }

    pub(super) fn volatile(&self) -> &Pages {
        &self.volatile
    }

    #[cfg(test)]
    pub(super) fn is_synced(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        self.volatile.write(data, offset);
        self.pending.push(Change::Write { offset, data: data.into() });
    }

    pub(super) fn set_len(&mut self, len_bytes: u64) {
        self.volatile.set_len(len_bytes);
        self.pending.push(Change::SetLen(len_bytes));
    }

    pub(super) fn punch(&mut self, offset: u64, len_bytes: u64) {
        self.volatile.punch(offset, len_bytes);
        self.pending.push(Change::Punch { offset, len_bytes });
    }

    /// Makes everything so far durable: writes back every page that a change touched, as it is now.
    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            let (offset, len_bytes) = match change {
                Change::Write { offset, data } => (offset, data.len() as u64),
                Change::Punch { offset, len_bytes } => (offset, len_bytes),
                Change::SetLen(len_bytes) => (len_bytes, FILE_BYTES_MAX - len_bytes),
            };
            self.durable.take_over_pages(&self.volatile, offset, len_bytes);
        }
        self.durable.take_over_len(&self.volatile);
    }

    /// Does as Linux does when writing back fails: pages count as clean and still read as written, but no later sync
    /// brings them to the disk. Lengths and holes are metadata and survive.
    pub(super) fn lose_unsynced(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write { .. } => {}
                Change::SetLen(len_bytes) => self.durable.set_len(len_bytes),
                Change::Punch { offset, len_bytes } => self.durable.punch(offset, len_bytes),
            }
        }
        self.durable.set_len(self.volatile.len_bytes());
    }

    /// Syncs, and then drops the given-up bytes from the visible content.
    pub(super) fn reread(&mut self) {
        self.sync();
        self.volatile = self.durable.clone();
    }

    /// Drops the visible content of a file that nobody can read any more. Its durable content stays for a crash that
    /// brings its name back. Unsynced changes are lost then, which is legal.
    pub(super) fn forget_volatile(&mut self) {
        self.volatile = Pages::default();
        self.pending.clear();
    }

    /// Returns the content after a power loss. All, some or none of the unsynced changes survive: lengths and holes as
    /// a prefix in order (a journal), and any sectors of each write.
    pub(super) fn after_power_loss(&self, dice: &mut Dice) -> Pages {
        if self.pending.is_empty() || dice.keeps_nothing() {
            return self.durable.clone();
        }
        match dice.below(4) {
            0 => return self.durable.clone(),
            1 => return self.volatile.clone(),
            _ => {}
        }
        let kept_metadata = dice.below(self.pending.len() as u64 + 1) as usize;
        let mut pages = self.durable.clone();
        let mut len_bytes = pages.len_bytes();
        for (position, change) in self.pending.iter().enumerate() {
            let is_metadata_kept = position < kept_metadata;
            match change {
                Change::Write { offset, data } => {
                    write_some_sectors(&mut pages, data, *offset, dice);
                    if is_metadata_kept && !data.is_empty() {
                        len_bytes = len_bytes.max(offset + data.len() as u64);
                    }
                }
                Change::SetLen(new_len_bytes) if is_metadata_kept => {
                    pages.set_len(*new_len_bytes);
                    len_bytes = *new_len_bytes;
                }
                Change::Punch { offset, len_bytes } if is_metadata_kept => pages.punch(*offset, *len_bytes),
                Change::SetLen(_) | Change::Punch { .. } => {}
            }
        }
        pages.set_len(len_bytes);
        pages
    }
}

/// Writes a random selection of the sectors of `data`.
fn write_some_sectors(pages: &mut Pages, data: &[u8], offset: u64, dice: &mut Dice) {
    let mut start = 0;
    while start < data.len() {
        let at = offset + start as u64;
        let until_next_sector = (SECTOR_BYTES - at % SECTOR_BYTES) as usize;
        let end = data.len().min(start + until_next_sector);
        if dice.below(2) == 0 {
            pages.write(&data[start..end], at);
        }
        start = end;
    }
}
