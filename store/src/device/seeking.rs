//! A disk that seeks: counts what the operations of a device would cost on a disk with one arm. Nothing waits; the time
//! is a number.
//!
//! 1. A file has extents of [`EXTENT_BYTES`]. Each gets the next free place of one imaginary disk when it is first written
//!    or read, so slots that are filled one after the other lie in a row. Places are never used again. A renamed file
//!    keeps its places; a handle that was opened under the old name does not know them.
//! 2. A request that begins where the arm stands costs its transfer.
//! 3. A gap ahead is passed over if that takes no longer than a seek. The disk remembers what it has read and passed
//!    over since the last seek or write, up to [`REMEMBERED_BYTES`]: reading it costs nothing. So threads that read pieces of one
//!    stretch may do so in any order.
//! 4. Any other request costs a seek, as the square root of the distance, and half a turn.
//!
//! Bytes that are read along cost with the read before them; a later read of this kind has them for nothing, once.
//! Writes cost at once, in the order in which they come; syncs cost nothing. The same requests in the same order always
//! cost the same. `dedupfs-bench seeking` does the same in real time, with a cache of writes. Each request takes one lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dedupfs_sync::Mutex;

use super::Device;
use super::observed::{Call, ObservedDevice, Observer};
use crate::error::Result;

/// Bytes of a file that lie together on the disk.
pub const EXTENT_BYTES: u64 = 1 << 20;
/// Bytes behind the arm that the disk remembers.
pub const REMEMBERED_BYTES: u64 = 16 << 20;

const BLOCK_BYTES: u64 = super::DIRECT_ALIGNMENT_BYTES as u64;

/// Figures of a disk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Length of the disk. A seek over all of it, and over more, takes longest.
    pub len_bytes: u64,
    /// Nanoseconds of the shortest seek.
    pub seek_min_ns: u64,
    /// Nanoseconds of the longest seek.
    pub seek_max_ns: u64,
    /// Nanoseconds of half a turn, for which each seek waits.
    pub half_turn_ns: u64,
    /// Bytes that pass below the arm in a second.
    pub bytes_per_second: u64,
}

impl Default for Figures {
    /// A disk of 1 TiB with 7,200 turns a minute.
    fn default() -> Self {
        Self {
            len_bytes: 1 << 40,
            seek_min_ns: 800_000,
            seek_max_ns: 16_000_000,
            half_turn_ns: 4_170_000,
            bytes_per_second: 180_000_000,
        }
    }
}

impl Figures {
    /// Returns the nanoseconds of a transfer.
    pub fn transfer_ns(&self, len_bytes: u64) -> u64 {
        let ns = u128::from(len_bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the nanoseconds of a seek and half a turn.
    pub fn seek_ns(&self, distance_bytes: u64) -> u64 {
        let share = (distance_bytes as f64 / self.len_bytes.max(1) as f64).min(1.0);
        let range_ns = self.seek_max_ns.saturating_sub(self.seek_min_ns);
        self.seek_min_ns + (range_ns as f64 * share.sqrt()) as u64 + self.half_turn_ns
    }
}

/// Work of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spent {
    /// Requests for which the arm had to move away.
    pub seeks: u64,
    /// Bytes asked for, those that the disk remembered included.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Nanoseconds of seeks, gaps and transfers.
    pub time_ns: u64,
}

impl Spent {
    /// Returns the work since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            seeks: self.seeks - earlier.seeks,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            time_ns: self.time_ns - earlier.time_ns,
        }
    }
}

/// A disk with one arm, below the operations of devices.
#[derive(Debug)]
pub struct SeekingDisk {
    figures: Figures,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Places of the extents of each file, by number of the extent.
    files: HashMap<String, HashMap<u64, u64>>,
    /// Where the next extent begins.
    free_from: u64,
    arm: u64,
    remembered_from: u64,
    spent: Spent,
    /// Stretches of each file that were read along, from their begin.
    along: HashMap<String, BTreeMap<u64, u64>>,
}

impl SeekingDisk {
    /// Makes an empty disk.
    pub fn new(figures: Figures) -> Arc<Self> {
        Arc::new(Self { figures, state: Mutex::default() })
    }

    /// Returns a device that does as `inner` does, and costs work of this disk.
    pub fn below(self: &Arc<Self>, inner: Arc<dyn Device>) -> ObservedDevice {
        ObservedDevice::new(inner, Arc::clone(self) as Arc<dyn Observer>)
    }

    /// Returns the work so far.
    pub fn spent(&self) -> Spent {
        self.state.lock().spent
    }

    /// Charges a request of `len_bytes` at `offset` of a file, extent by extent.
    fn charge(&self, path: &str, mut offset: u64, mut len_bytes: u64, is_read: bool) {
        let mut state = self.state.lock();
        while len_bytes > 0 {
            let (extent, within) = (offset / EXTENT_BYTES, offset % EXTENT_BYTES);
            let piece = len_bytes.min(EXTENT_BYTES - within);
            let begin = state.place(path, extent) + within;
            state.access(&self.figures, begin, piece, is_read);
            (offset, len_bytes) = (offset + piece, len_bytes - piece);
        }
    }
}

impl State {
    fn place(&mut self, path: &str, extent: u64) -> u64 {
        let next = self.free_from;
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), HashMap::new());
        }
        let place = self.files.get_mut(path).map_or(next, |file| *file.entry(extent).or_insert(next));
        if place == next {
            self.free_from += EXTENT_BYTES;
        }
        place
    }

    /// Returns the range that must come from the disk for a read that begins at or within a stretch.
    fn read_along(&mut self, path: &str, offset: u64, end: u64, along_bytes: u64) -> (u64, u64) {
        let stretches = self.along.entry(path.to_owned()).or_default();
        let known =
            stretches.range(..=offset).next_back().map(|(from, to)| (*from, *to)).filter(|(_, to)| *to > offset);
        let known_until = known.map_or(offset, |(_, to)| to);
        let (from, to) = if known_until >= end { (end, end) } else { (known_until, end + along_bytes) };
        // The last block is kept. What lies in the new stretch is a part of it.
        let begin = end.saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES;
        let until = to.max(known_until);
        stretches
            .retain(|first, last| known.is_none_or(|known| known.0 != *first) && !(begin <= *first && *last <= until));
        stretches.insert(begin, until);
        (from, to)
    }

    fn access(&mut self, figures: &Figures, begin: u64, len_bytes: u64, is_read: bool) {
        let end = begin + len_bytes;
        let bytes = if is_read { &mut self.spent.read_bytes } else { &mut self.spent.written_bytes };
        *bytes += len_bytes;
        let is_remembered = is_read && (self.remembered_from..self.arm).contains(&begin);
        let begin = if is_remembered { self.arm.min(end) } else { begin };
        if begin == end {
            return;
        }
        let pass_ns = figures.transfer_ns(begin.saturating_sub(self.arm));
        let seek_ns = figures.seek_ns(begin.abs_diff(self.arm));
        if begin >= self.arm && pass_ns <= seek_ns {
            self.spent.time_ns += pass_ns;
        } else {
            self.spent.time_ns += seek_ns;
            self.spent.seeks += 1;
            self.remembered_from = begin;
        }
        self.spent.time_ns += figures.transfer_ns(end - begin);
        self.arm = end;
        let remembered_bytes = if is_read { REMEMBERED_BYTES } else { 0 };
        self.remembered_from = self.remembered_from.max(end.saturating_sub(remembered_bytes));
    }
}

impl Observer for SeekingDisk {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        perform()?;
        match *call {
            Call::Read { path, offset, len_bytes } => self.charge(path, offset, len_bytes as u64, true),
            Call::ReadAlong { path, offset, len_bytes, along_bytes } => {
                let end = offset + len_bytes as u64;
                let (from, to) = self.state.lock().read_along(path, offset, end, along_bytes);
                self.charge(path, from, to - from, true);
            }
            Call::Write { path, offset, len_bytes } => {
                self.state.lock().along.remove(path);
                self.charge(path, offset, len_bytes as u64, false);
            }
            Call::Punch { path, .. } => drop(self.state.lock().along.remove(path)),
            Call::Remove { path } => {
                let mut state = self.state.lock();
                state.files.remove(path);
                state.along.remove(path);
            }
            Call::Rename { from, to } => {
                let mut state = self.state.lock();
                [from, to].iter().for_each(|path| drop(state.along.remove(*path)));
                if let Some(file) = state.files.remove(from) {
                    state.files.insert(to.to_owned(), file);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "seeking_tests.rs"]
mod tests;
