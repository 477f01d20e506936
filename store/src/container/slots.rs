//! Slots: the places of containers in large files.
//!
//! A slot is `slot_bytes` of a large file; `directory/000001.slots` holds the first `slots_per_file` slots, and so on.
//! Aligned writes to slots of large files are three to ten times faster than one synced file per container.
//!
//! This module does not record which slots are taken. At mount the container records of the namespace
//! [`occupy`](SlotFiles::occupy) their slots, and all others are free. So the slot of a container that was never
//! committed is free by itself. Bytes in a free slot are never read: frames carry their container's id.
//!
//! States of a slot: free -> ([`allocate`](SlotFiles::allocate) or `occupy`) taken -> ([`free`](SlotFiles::free))
//! punched out, then free. It stays taken during the punch, so that a new user's bytes cannot be punched away.
//!
//! Invariants: a slot is free or taken, never both. [`allocate`](SlotFiles::allocate) takes the lowest free slot, which
//! keeps free space at the end, where [`trim`](SlotFiles::trim) gives it back.
//! [`allocate_in_row`](SlotFiles::allocate_in_row) prefers the slot behind the last one, then the lowest row of 16, so it
//! may leave holes. A file's name is durable before one of its slots is handed
//! out. Freeing before the transaction that forgot the container is durable would break I-4: the caller must prevent
//! it.
//!
//! Lock order: `layout`, then `state`. `layout` is held across the I/O that creates, cuts or removes files; `state`
//! never across any I/O. Reads, writes and syncs hold neither.
//!
//! Cost: a file is opened at its first use; at most 256 unused files stay open. Some ten bytes of memory
//! for a slot.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};

use super::WRITE_OUT_ALIGNMENT_BYTES;
use super::slot_states::{SlotStates, Writes, row_of};
use crate::device::{Device, DeviceFile, OpenMode};
use crate::error::{Result, StoreError};
use crate::waiting;

/// Highest file number; with the default sizes a petabyte.
const FILE_NUMBER_MAX: u32 = 999_999;

const SUFFIX: &str = ".slots";

/// The address of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotAddress {
    /// Number of the file, from 1.
    pub file: u32,
    /// Number of the slot in the file, from 0.
    pub slot: u32,
}

impl fmt::Display for SlotAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}:{}", self.file, self.slot)
    }
}

/// The slot files of one root and kind. Thread-safe.
#[derive(Debug)]
pub struct SlotFiles {
    device: Arc<dyn Device>,
    directory: String,
    slot_bytes: u32,
    slots_per_file: u32,
    /// Serialises creating, extending, cutting and removing files. Taken before `state`.
    layout: Mutex<()>,
    state: Mutex<SlotStates>,
}

impl SlotFiles {
    /// Opens the files in `directory` (created durably if absent). All slots are free until they are occupied.
    pub fn open(device: Arc<dyn Device>, directory: &str, slot_bytes: u32, slots_per_file: u32) -> Result<Self> {
        device.create_directory(directory)?;
        // Sync all names down to the files: an earlier process may have created them and ended before syncing.
        for (end, _) in directory.match_indices('/') {
            device.sync_directory(directory.get(..end).unwrap_or_default())?;
        }
        device.sync_directory("")?;
        device.sync_directory(directory)?;
        if slot_bytes == 0 || !(slot_bytes as usize).is_multiple_of(WRITE_OUT_ALIGNMENT_BYTES) || slots_per_file == 0 {
            return Err(StoreError::Usage(format!(
                "containers of {slot_bytes} bytes, {slots_per_file} in a file: the size must be a multiple of \
                 {WRITE_OUT_ALIGNMENT_BYTES} and neither may be 0"
            )));
        }
        let mut state = SlotStates::default();
        for entry in device.list(directory)? {
            let Some(number) = parse_name(&entry.name).filter(|_| !entry.is_directory) else {
                tracing::warn!("{directory}/{} is not a file of containers: left alone", entry.name);
                continue;
            };
            state.add_file(number, entry.len_bytes, slots_per_file);
        }
        let directory = directory.to_owned();
        let (layout, state) = (Mutex::new(()), Mutex::new(state));
        Ok(Self { device, directory, slot_bytes, slots_per_file, layout, state })
    }

    /// Number of taken slots.
    pub fn taken_slots(&self) -> u64 {
        self.state.lock().files.values().map(|file| file.taken.len() as u64).sum()
    }

    /// Takes the slot that a container record names.
    ///
    /// A slot in a missing file is taken too: reading it gives [`NotFound`](StoreError::NotFound), and only its data is
    /// lost.
    ///
    /// # Errors
    /// The slot is taken, or the address is invalid.
    pub fn occupy(&self, address: SlotAddress) -> Result<()> {
        self.take(address)?;
        let mut state = self.state.lock();
        let is_missing = state.files.get(&address.file).is_none_or(|file| !file.is_present);
        if is_missing && state.missing.insert(address.file) {
            tracing::error!("{} is missing, but containers are recorded in it", self.path(address.file));
        }
        Ok(())
    }

    /// Takes a slot again that was about to be freed. Its file may be gone already: a crash came before that was noted.
    ///
    /// # Errors
    /// The slot is taken, or the address is invalid.
    pub fn keep(&self, address: SlotAddress) -> Result<()> {
        self.take(address)
    }

    fn take(&self, address: SlotAddress) -> Result<()> {
        self.check_address(address)?;
        let mut state = self.state.lock();
        let file = state.files.entry(address.file).or_default();
        if !file.taken.insert(address.slot) {
            let what = format!("container record of slot {address} in {}", self.directory);
            return Err(StoreError::corrupt(what, "a slot of its own", "one that another container has"));
        }
        state.free.remove(&address);
        Ok(())
    }

    /// Takes a slot that no record names, to protect it from writes. `false` if it does not exist or is taken.
    pub fn hold(&self, address: SlotAddress) -> bool {
        let mut state = self.state.lock();
        if self.check_address(address).is_err() || !state.free.remove(&address) {
            return false;
        }
        state.files.get_mut(&address.file).is_some_and(|file| file.taken.insert(address.slot))
    }

    /// Free slots that begin within their file.
    pub fn free_in_files(&self) -> Vec<SlotAddress> {
        let state = self.state.lock();
        let is_within = |address: &&SlotAddress| {
            state.files.get(&address.file).is_some_and(|file| file.len_bytes > self.offset(**address))
        };
        state.free.iter().filter(is_within).copied().collect()
    }

    /// Missing files with recorded containers.
    pub fn missing_files(&self) -> Vec<String> {
        self.state.lock().missing.iter().map(|file| self.path(*file)).collect()
    }

    /// Whether the file of this address is missing, with recorded containers.
    pub fn is_missing(&self, address: SlotAddress) -> bool {
        self.state.lock().missing.contains(&address.file)
    }

    /// Takes the lowest free slot; creates a file if there is none.
    pub fn allocate(&self) -> Result<SlotAddress> {
        self.allocate_chosen(&|free| free.first().copied())
    }

    /// Takes the slot behind `last`, or, without that, the lowest slot with 16 free ones in a row, or the lowest one; creates a file
    /// if there is none. What is read together then lies together, also among the holes of an old pool.
    pub fn allocate_in_row(&self, last: Option<SlotAddress>) -> Result<SlotAddress> {
        let next = last.and_then(|last| Some(SlotAddress { slot: last.slot.checked_add(1)?, ..last }));
        self.allocate_chosen(&|free| {
            let next = next.filter(|next| free.contains(next));
            next.or_else(|| row_of(free)).or_else(|| free.first().copied())
        })
    }

    fn allocate_chosen(&self, choose: &dyn Fn(&BTreeSet<SlotAddress>) -> Option<SlotAddress>) -> Result<SlotAddress> {
        let _layout = waiting::lock(&self.layout);
        if self.state.lock().free.is_empty() {
            self.create_file()?;
        }
        let mut state = self.state.lock();
        let Some(address) = choose(&state.free) else {
            return Err(StoreError::NoSpace { operation: "allocate a container in", path: self.directory.clone() });
        };
        state.free.remove(&address);
        let end_bytes = self.offset(address) + u64::from(self.slot_bytes);
        let file = state.files.entry(address.file).or_default();
        file.taken.insert(address.slot);
        let grows = file.len_bytes < end_bytes;
        drop(state);
        // The file grows by a whole slot before the slot is written: writes that do not change the length run
        // concurrently.
        let grown = if grows { self.handle(address.file).and_then(|file| file.set_len(end_bytes)) } else { Ok(()) };
        let mut state = self.state.lock();
        let file = state.files.entry(address.file).or_default();
        match grown {
            Ok(()) => {
                file.len_bytes = file.len_bytes.max(end_bytes);
                state.note_changed(address.file);
                Ok(address)
            }
            Err(error) => {
                file.taken.remove(&address.slot);
                state.free.insert(address);
                Err(error)
            }
        }
    }

    /// Creates the file with the lowest unused number and makes its name durable. The caller holds `layout`.
    fn create_file(&self) -> Result<()> {
        let number = self.state.lock().unused_number();
        if number > FILE_NUMBER_MAX {
            return Err(StoreError::NoSpace { operation: "create another file in", path: self.directory.clone() });
        }
        // A failed earlier attempt may have left the file.
        let handle = self.device.open(&self.path(number), OpenMode::CreateOrWrite)?;
        if !is_planted(Canary::SlotNameNotSynced) {
            self.device.sync_directory(&self.directory)?;
        }
        let len_bytes = handle.len()?;
        let mut state = self.state.lock();
        state.add_file(number, len_bytes, self.slots_per_file);
        state.keep_open(number, handle);
        Ok(())
    }

    /// Writes into a taken slot; durable after [`sync`](Self::sync).
    pub fn write(&self, address: SlotAddress, offset_bytes: u32, data: &[u8]) -> Result<()> {
        self.check_range(address, offset_bytes, data.len())?;
        self.check_taken(address)?;
        let file = self.handle(address.file)?;
        let written = file.write_at(data, self.offset(address) + u64::from(offset_bytes));
        // Marked after the write: a sync that began before it must not leave the file marked clean. `file` keeps it
        // open until then.
        self.note(address.file, Writes::Unsynced);
        written
    }

    /// Makes all writes into these slots durable; syncs each file once.
    ///
    /// After a failure, writes since the last success are not durable (I-7): write them again elsewhere.
    pub fn sync(&self, touched: &[SlotAddress]) -> Result<()> {
        let numbers: BTreeSet<u32> = touched.iter().map(|address| address.file).collect();
        for number in numbers {
            let file = self.handle(number)?;
            self.note(number, Writes::Synced);
            if let Err(error) = file.sync() {
                self.note(number, Writes::Unsynced);
                return Err(error);
            }
            // Some filesystems know only now how many blocks it has.
            self.state.lock().note_changed(number);
        }
        Ok(())
    }

    /// Makes it durable that slots were given back; syncs each file at most once.
    ///
    /// After a failure, a power loss may bring content of free slots back.
    pub fn sync_given_back(&self) -> Result<()> {
        if is_planted(Canary::GivenBackNotSynced) {
            return Ok(());
        }
        let numbers = std::mem::take(&mut self.state.lock().given_back);
        let mut outcome = Ok(());
        for number in numbers {
            // The others are worth syncing all the same.
            let synced = match self.handle(number).and_then(|file| file.sync()) {
                // Trimmed meanwhile, durably.
                Err(StoreError::NotFound { .. }) => Ok(()),
                synced => synced,
            };
            let mut state = self.state.lock();
            state.note_changed(number);
            if synced.is_err() {
                state.given_back.insert(number);
            }
            outcome = outcome.and(synced);
        }
        outcome
    }

    fn note(&self, number: u32, writes: Writes) {
        self.state.lock().note_writes(number, writes);
    }

    /// Reads exactly `len_bytes` from a slot.
    pub fn read(&self, address: SlotAddress, offset_bytes: u32, len_bytes: usize) -> Result<Vec<u8>> {
        self.check_range(address, offset_bytes, len_bytes)?; // Bounds the allocation by the slot's size.
        let mut bytes = vec![0; len_bytes];
        self.read_into(address, offset_bytes, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` from a slot. A file that ends too early is [`Corrupt`](StoreError::Corrupt).
    pub fn read_into(&self, address: SlotAddress, offset_bytes: u32, buffer: &mut [u8]) -> Result<()> {
        self.read_along(address, offset_bytes, buffer, None)
    }

    /// As [`read_into`](Self::read_into). With `along_bytes` it reads as [`DeviceFile::read_along`] does.
    pub fn read_along(
        &self,
        address: SlotAddress,
        offset_bytes: u32,
        buffer: &mut [u8],
        along_bytes: Option<u32>,
    ) -> Result<()> {
        self.check_range(address, offset_bytes, buffer.len())?;
        let (file, offset) = (self.handle(address.file)?, self.offset(address) + u64::from(offset_bytes));
        let found = match along_bytes {
            None => file.read_at(buffer, offset)?,
            Some(along_bytes) => file.read_along(buffer, offset, along_bytes.into())?,
        };
        if found < buffer.len() {
            let what = format!("{} at {offset_bytes} of slot {}", self.path(address.file), address.slot);
            let expected = format!("{} bytes", buffer.len());
            return Err(StoreError::corrupt(what, expected, format!("{found} (the file ends)")));
        }
        Ok(())
    }

    /// Gives a slot's space back and frees the slot. After an error the slot is free too, but keeps its space until it
    /// is used again.
    pub fn free(&self, address: SlotAddress) -> Result<()> {
        self.check_taken(address)?;
        if !self.state.lock().leaving.insert(address) {
            return Err(StoreError::Usage(format!("slot {address} of {} is being freed already", self.directory)));
        }
        let is_present = self.state.lock().files.get(&address.file).is_some_and(|file| file.is_present);
        let punched = match is_present {
            true => self.handle(address.file).and_then(|file| file.punch(self.offset(address), self.slot_bytes.into())),
            // Its space went with its file.
            false => Ok(()),
        };
        let mut state = self.state.lock();
        state.leaving.remove(&address);
        let was_taken = state.files.get_mut(&address.file).is_some_and(|file| file.taken.remove(&address.slot));
        if is_present {
            state.note_changed(address.file);
            state.given_back.insert(address.file);
            state.cuttable.insert(address.file);
            if was_taken {
                state.free.insert(address);
            }
        }
        punched
    }

    /// Cuts free slots off the ends of the files and removes empty files at the end. Returns the total of bytes cut
    /// off.
    pub fn trim(&self) -> Result<u64> {
        let _layout = waiting::lock(&self.layout);
        // While `layout` is held no slot becomes taken, so the plan stays right: at worst it cuts too little.
        let plan = self.state.lock().take_cuts(self.slot_bytes);
        let removes_any = plan.iter().any(|(_, _, _, removes)| *removes);
        let mut bytes = 0;
        let outcome = plan.iter().copied().try_for_each(|(number, len_bytes, end_bytes, removes)| {
            if removes {
                self.state.lock().remove_file(number);
                self.device.remove(&self.path(number))?;
                bytes += len_bytes;
            } else {
                self.handle(number)?.set_len(end_bytes)?;
                let mut state = self.state.lock();
                state.note_changed(number);
                state.given_back.insert(number);
                if let Some(file) = state.files.get_mut(&number) {
                    file.len_bytes = end_bytes;
                }
                bytes += len_bytes.saturating_sub(end_bytes);
            }
            Ok(())
        });
        if outcome.is_err() {
            self.state.lock().cuttable.extend(plan.iter().map(|(number, ..)| *number));
        }
        // Also behind an error: a power loss would bring the files back that were removed before it.
        if removes_any {
            outcome.and(self.device.sync_directory(&self.directory))?;
        } else {
            outcome?;
        }
        Ok(bytes)
    }

    /// Physical bytes that all files occupy. It asks the device for each file whose content has changed since it was asked last.
    pub fn allocated_bytes(&self) -> Result<u64> {
        let _layout = waiting::lock(&self.layout); // No file goes away meanwhile.
        let (mut sum, unknown) = self.state.lock().allocated();
        for (number, changes) in unknown {
            let bytes = self.handle(number)?.allocated_bytes()?;
            self.state.lock().note_allocated((number, changes), bytes);
            sum = sum.saturating_add(bytes);
        }
        Ok(sum)
    }

    fn path(&self, number: u32) -> String {
        format!("{}/{number:06}{SUFFIX}", self.directory)
    }

    fn offset(&self, address: SlotAddress) -> u64 {
        u64::from(address.slot) * u64::from(self.slot_bytes)
    }

    /// Returns the open file `number`; opens it if necessary.
    fn handle(&self, number: u32) -> Result<Arc<dyn DeviceFile>> {
        if let Some(handle) = self.state.lock().opened(number) {
            return Ok(handle);
        }
        let handle = self.device.open(&self.path(number), OpenMode::Write)?;
        let mut state = self.state.lock();
        // Another thread may have been faster: use its handle, because it may have unsynced writes.
        if let Some(handle) = state.opened(number) {
            return Ok(handle);
        }
        state.keep_open(number, Arc::clone(&handle));
        Ok(handle)
    }

    fn check_address(&self, address: SlotAddress) -> Result<()> {
        if !(1..=FILE_NUMBER_MAX).contains(&address.file) || address.slot >= self.slots_per_file {
            let expected = format!("a file of 1 to {FILE_NUMBER_MAX} and a slot below {}", self.slots_per_file);
            return Err(StoreError::corrupt(format!("slot address in {}", self.directory), expected, address));
        }
        Ok(())
    }

    fn check_range(&self, address: SlotAddress, offset_bytes: u32, len: usize) -> Result<()> {
        self.check_address(address)?;
        if u64::from(offset_bytes).saturating_add(len as u64) > u64::from(self.slot_bytes) {
            let what = format!("range in slot {address} of {}", self.directory);
            let expected = format!("an end of at most {} bytes", self.slot_bytes);
            return Err(StoreError::corrupt(what, expected, format!("{len} bytes at {offset_bytes}")));
        }
        Ok(())
    }

    fn check_taken(&self, address: SlotAddress) -> Result<()> {
        self.check_address(address)?;
        if self.state.lock().files.get(&address.file).is_some_and(|file| file.taken.contains(&address.slot)) {
            return Ok(());
        }
        Err(StoreError::Usage(format!("slot {address} of {} is not in use", self.directory)))
    }
}

/// Parses a file name of this module into its number.
fn parse_name(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(SUFFIX)?;
    let number = digits.parse().ok().filter(|number| (1..=FILE_NUMBER_MAX).contains(number))?;
    (format!("{number:06}") == digits).then_some(number)
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
