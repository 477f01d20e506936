//! The states of slots and of their files, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::slots::SlotAddress;
use crate::device::DeviceFile;

/// Most files kept open while nobody uses them. Only files with unsynced writes may exceed it.
pub(super) const OPEN_FILES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct SlotFile {
    pub(super) len_bytes: u64,
    /// Whether the file exists; a record may name a lost one.
    pub(super) is_present: bool,
    pub(super) taken: BTreeSet<u32>,
    /// Physical bytes, unless they may have changed since the device was asked.
    allocated_bytes: Option<u64>,
    /// Changes of its content so far.
    changes: u64,
}

/// A file with unsynced writes stays open, so that its sync reports their errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writes {
    Synced,
    Unsynced,
}

#[derive(Debug)]
pub(super) struct OpenFile {
    handle: Arc<dyn DeviceFile>,
    writes: Writes,
    last_use: u64,
}

#[derive(Debug, Default)]
pub(super) struct SlotStates {
    pub(super) files: BTreeMap<u32, SlotFile>,
    /// Free slots of existing files.
    pub(super) free: BTreeSet<SlotAddress>,
    /// Taken slots that are being punched out on their way to `free`.
    pub(super) leaving: BTreeSet<SlotAddress>,
    /// Missing files with recorded containers.
    pub(super) missing: BTreeSet<u32>,
    /// Files whose slots were punched out or cut off since their last sync: a power loss may bring the content back.
    pub(super) given_back: BTreeSet<u32>,
    /// Files whose ends may be free since they were last cut.
    pub(super) cuttable: BTreeSet<u32>,
    pub(super) open: BTreeMap<u32, OpenFile>,
    uses: u64,
}

/// Slots of a row that is looked for.
const ROW_SLOTS: u32 = 16;
/// Free slots that are looked at for a row.
const LOOKED_AT_MAX: usize = 1 << 16;

/// Returns the first of the lowest free slots in a row.
pub(super) fn row_of(free: &BTreeSet<SlotAddress>) -> Option<SlotAddress> {
    let (mut first, mut len) = (None::<SlotAddress>, 0);
    for address in free.iter().take(LOOKED_AT_MAX) {
        let goes_on = first.is_some_and(|first| first.file == address.file && first.slot + len == address.slot);
        if !goes_on {
            (first, len) = (Some(*address), 0);
        }
        len += 1;
        if len == ROW_SLOTS {
            return first;
        }
    }
    None
}

impl SlotStates {
    /// Adds an existing file; all of its slots are free.
    pub(super) fn add_file(&mut self, number: u32, len_bytes: u64, slots: u32) {
        self.files.insert(number, SlotFile { len_bytes, is_present: true, ..SlotFile::default() });
        self.cuttable.insert(number);
        self.free.extend((0..slots).map(|slot| SlotAddress { file: number, slot }));
    }

    pub(super) fn remove_file(&mut self, number: u32) {
        self.files.remove(&number);
        self.open.remove(&number);
        self.given_back.remove(&number);
        self.cuttable.remove(&number);
        let slots = SlotAddress { file: number, slot: 0 }..=SlotAddress { file: number, slot: u32::MAX };
        while let Some(address) = self.free.range(slots.clone()).next().copied() {
            self.free.remove(&address);
        }
    }

    /// The lowest number that no file has.
    pub(super) fn unused_number(&self) -> u32 {
        let last = self.files.last_key_value().map_or(0, |(number, _)| *number);
        let has_all = self.files.len() as u64 == u64::from(last);
        let unused = || (1..=last).find(|number| !self.files.contains_key(number));
        if has_all { last.saturating_add(1) } else { unused().unwrap_or(last.saturating_add(1)) }
    }

    /// Notes that the content of a file has changed, so that its physical bytes are to be asked for again.
    pub(super) fn note_changed(&mut self, number: u32) {
        if let Some(file) = self.files.get_mut(&number) {
            file.allocated_bytes = None;
            file.changes += 1;
        }
    }

    /// Whether a file that is open has unsynced writes from now on.
    pub(super) fn note_writes(&mut self, number: u32, writes: Writes) {
        self.note_changed(number);
        if let Some(open) = self.open.get_mut(&number) {
            open.writes = writes;
        }
    }

    /// Returns the known physical bytes of all files, and the others with their changes so far.
    pub(super) fn allocated(&self) -> (u64, Vec<(u32, u64)>) {
        let (mut known, mut unknown) = (0_u64, Vec::new());
        for (number, file) in self.files.iter().filter(|(_, file)| file.is_present) {
            match file.allocated_bytes {
                Some(bytes) => known = known.saturating_add(bytes),
                None => unknown.push((*number, file.changes)),
            }
        }
        (known, unknown)
    }

    /// Notes the physical bytes of a file, unless it has changed while the device was asked.
    pub(super) fn note_allocated(&mut self, (number, changes): (u32, u64), bytes: u64) {
        if let Some(file) = self.files.get_mut(&number).filter(|file| file.changes == changes) {
            file.allocated_bytes = Some(bytes);
        }
    }

    /// Returns the ends of files that are free: number, length, new length, and whether the file goes. From now on these count as cut.
    pub(super) fn take_cuts(&mut self, slot_bytes: u32) -> Vec<(u32, u64, u64, bool)> {
        let last_taken = self.files.iter().rev().find(|(_, file)| !file.taken.is_empty()).map(|(number, _)| *number);
        let behind = self.files.range(last_taken.map_or(0, |last| last + 1)..).map(|(number, _)| *number);
        let mut numbers: BTreeSet<u32> = behind.collect();
        numbers.append(&mut self.cuttable);
        let cut = |number: u32| {
            let file = self.files.get(&number).filter(|file| file.is_present)?;
            let end_bytes = file.taken.last().map_or(0, |slot| u64::from(slot + 1) * u64::from(slot_bytes));
            let goes = Some(number) > last_taken;
            (goes || file.len_bytes > end_bytes).then_some((number, file.len_bytes, end_bytes, goes))
        };
        numbers.into_iter().filter_map(cut).collect()
    }

    pub(super) fn opened(&mut self, number: u32) -> Option<Arc<dyn DeviceFile>> {
        self.uses += 1;
        let open = self.open.get_mut(&number)?;
        open.last_use = self.uses;
        Some(Arc::clone(&open.handle))
    }

    /// Keeps a file open; closes the least recently used idle files if there are too many.
    pub(super) fn keep_open(&mut self, number: u32, handle: Arc<dyn DeviceFile>) {
        while self.open.len() >= OPEN_FILES_MAX {
            let idle = self
                .open
                .iter()
                .filter(|(_, file)| file.writes == Writes::Synced && Arc::strong_count(&file.handle) == 1);
            let Some(oldest) = idle.min_by_key(|(_, file)| file.last_use).map(|(number, _)| *number) else { break };
            self.open.remove(&oldest);
        }
        self.open.insert(number, OpenFile { handle, writes: Writes::Synced, last_use: self.uses });
    }
}
