//! Guides: each leads to the cells of many sealed tankers with one question, however many they are.
//!
//! The filter array asks every tanker, so its rate of false answers grows with their number. A guide's filter answers for all of its
//! tankers together: it is in memory, with as few bits for each cell as there is room for. If it says "perhaps", one page of the guide's
//! file names the tanker. So a new chunk costs 2^-bits reads for each guide, and a stored one costs one read more than its bucket.
//!
//! Nothing depends on guides but speed. A tanker never gets a cell that it did not have before, so a guide stays right while its tankers
//! are rewritten, dissolved and removed; cells that are gone only cost reads in vain. A damaged guide is given up, and its tankers are asked by
//! the array again.
//!
//! - `fuse`: the filter;
//! - `file`: the file of a guide;
//! - `plan`: which tankers and guides become the next guide, so that there are few;
//! - `check`: whether a guide leads to all cells of its tankers;
//! - `build`: making it beside lookups and checkpoints; the next checkpoint publishes it.

mod build;
mod check;
mod file;
mod fuse;
mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_store::{Result, StoreError};
use dedupfs_sync::RwLock;

pub(crate) use build::{Built, GuideWork};
pub(crate) use file::{GuideFile, GuideNames, Key, TANKERS_MAX};

use fuse::Packed;

use crate::bloom::Hashes;
use crate::sealed::{PageCache, SealedTanker, Writer};

/// Tankers that no guide leads to, until one is due.
pub(crate) const UNGUIDED_USUALLY: u64 = 2 * plan::GROUP as u64;
/// Most bits of a slot: so many are stored.
const BITS_MAX: u32 = 16;

/// The filters of a guide in memory, one for each part of its file. They get other bits part by part, while all are asked.
#[derive(Debug)]
struct Filters {
    parts: Vec<Packed>,
    /// All of them were loaded once.
    are_loaded: bool,
}

#[derive(Debug)]
pub(crate) struct Guide {
    pub(crate) file: GuideFile,
    filters: RwLock<Filters>,
    /// A part of the file cannot be read: the guide is to be made anew.
    is_damaged: AtomicBool,
}

impl Guide {
    pub(crate) fn new(file: GuideFile) -> Self {
        let parts = (0..file.parts()).map(|_| Packed::default()).collect();
        let filters = RwLock::new(Filters { parts, are_loaded: false });
        Self { file, filters, is_damaged: AtomicBool::new(false) }
    }

    /// Opens the guides that a manifest names, without their filters. One that cannot be opened is given up.
    pub(crate) fn open_all(writer: Writer<'_>, names: &[GuideNames]) -> Vec<Arc<Self>> {
        let open = |names: &GuideNames| match GuideFile::open(writer, names.clone()) {
            Ok(file) => Some(Arc::new(Self::new(file))),
            Err(error) => {
                tracing::warn!("a guide to {} tankers is given up, and made anew later: {error}", names.tankers.len());
                None
            }
        };
        names.iter().filter_map(open).collect()
    }

    pub(crate) fn id(&self) -> u64 {
        self.file.names.id
    }

    /// Calls `each` with the numbers of those keys of which there may be a cell. Needs no I/O.
    pub(crate) fn ask(&self, hashes: &[Hashes], mut each: impl FnMut(usize)) {
        let filters = self.filters.read();
        for (number, hashes) in hashes.iter().enumerate() {
            if self.file.may_have(hashes.key, &filters.parts) {
                each(number);
            }
        }
    }

    /// The bits of each slot in memory, of the coarsest part; `None` until all filters were loaded once.
    pub(crate) fn bits(&self) -> Option<u32> {
        let filters = self.filters.read();
        filters.are_loaded.then(|| filters.parts.iter().map(Packed::bits).min().unwrap_or(0))
    }

    pub(crate) fn filter_bytes(&self) -> u64 {
        self.filters.read().parts.iter().map(Packed::memory_bytes).sum()
    }

    /// Gives up bits of the filters that have more than so many. Returns `false` if `go_on`, which is asked before each part, ended it.
    fn coarsen(&self, bits: u32, go_on: &mut dyn FnMut() -> bool) -> bool {
        let coarser = |number: usize| Ok(self.file.coarser(number, &self.filters.read().parts[number], bits));
        self.change_parts(|now| now > bits, coarser, go_on)
    }

    /// Reads the filters that have fewer bits. Returns as `coarsen` does.
    fn load(&self, bits: u32, go_on: &mut dyn FnMut() -> bool) -> bool {
        let goes_on = self.change_parts(|now| now < bits, |number| self.file.read_filter(number, bits), go_on);
        if goes_on && !self.is_damaged.load(Ordering::Relaxed) {
            self.filters.write().are_loaded = true;
        }
        goes_on
    }

    /// Makes the filters of those parts anew whose bits `is_due` names.
    fn change_parts(
        &self,
        is_due: impl Fn(u32) -> bool,
        make: impl Fn(usize) -> Result<Packed>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        for number in 0..self.file.parts() {
            if !is_due(self.filters.read().parts[number].bits()) {
                continue;
            }
            if !go_on() {
                return false;
            }
            // Lookups do not wait for it.
            match make(number) {
                Ok(filter) => self.filters.write().parts[number] = filter,
                Err(error) => {
                    self.note_damage(&error);
                    return true;
                }
            }
        }
        true
    }

    fn note_damage(&self, error: &StoreError) {
        if !self.is_damaged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a guide is made anew, and until then its {} tankers are asked: {error}",
                self.file.names.tankers.len()
            );
        }
    }
}

/// A guide in a set of tankers, whose positions it knows.
#[derive(Debug)]
pub(crate) struct Guided {
    pub(crate) guide: Arc<Guide>,
    /// The position of each of its tankers in the set, [`GONE`] without one.
    positions: Vec<u32>,
}

const GONE: u32 = u32::MAX;

impl Guided {
    pub(crate) fn new(guide: Arc<Guide>, position_of: impl Fn(u64) -> Option<u32>) -> Self {
        let positions = guide.file.names.tankers.iter().map(|tanker| position_of(*tanker).unwrap_or(GONE)).collect();
        Self { guide, positions }
    }

    /// Appends the positions of the tankers that may have cells of a key: all of them if the guide cannot be read.
    pub(crate) fn positions_of(&self, cache: &PageCache, key: Key, found: &mut Vec<u32>) {
        let mut numbers = Vec::new();
        match self.guide.file.tankers_of(cache, key, &mut numbers) {
            Ok(()) => {
                let positions = numbers.iter().filter_map(|number| self.positions.get(usize::from(*number)).copied());
                found.extend(positions.filter(|position| *position != GONE));
            }
            Err(error) => {
                self.guide.note_damage(&error);
                found.extend(self.positions.iter().copied().filter(|position| *position != GONE));
            }
        }
    }

    pub(crate) fn leads_to(&self, position: u32) -> bool {
        self.positions.contains(&position)
    }

    /// The greatest number that one of its tankers has, given those of all positions.
    pub(crate) fn newest_of(&self, numbers: &[u64]) -> u64 {
        self.positions.iter().filter_map(|position| numbers.get(*position as usize)).copied().max().unwrap_or(0)
    }

    /// Cells of its tankers that are still there; none if it is damaged.
    fn living_cells(&self, tankers: &[Arc<SealedTanker>]) -> u64 {
        if self.guide.is_damaged.load(Ordering::Relaxed) {
            return 0;
        }
        let living = self.positions.iter().filter_map(|position| tankers.get(*position as usize));
        living.map(|tanker| u64::from(tanker.cells())).sum()
    }
}

/// The ids of all tankers that guides lead to.
pub(crate) fn guided_by<'g>(guides: impl Iterator<Item = &'g Arc<Guide>>) -> HashSet<u64> {
    guides.flat_map(|guide| guide.file.names.tankers.iter().copied()).collect()
}

/// The bits of each guide's slots, of which there are `slots`, within a limit: each further bit goes where it prevents the most false answers
/// for its bytes, so smaller guides have more (as in "Monkey"; Dayan et al., 2017). `bytes_of` tells the bytes of a guide's filters with so many.
fn bits_within(slots: &[u64], bytes_of: impl Fn(usize, u32) -> u64, limit_bytes: u64) -> Vec<u32> {
    let mut bits = vec![0; slots.len()];
    let mut left_bytes = limit_bytes;
    let mut open: Vec<usize> = (0..slots.len()).collect();
    let worth = |number: usize, bits: u32| 0.5_f64.powi(bits as i32) / slots[number].max(1) as f64;
    while let Some(&best) = open.iter().max_by(|a, b| worth(**a, bits[**a]).total_cmp(&worth(**b, bits[**b]))) {
        let more_bytes = bytes_of(best, bits[best] + 1) - bytes_of(best, bits[best]);
        match left_bytes.checked_sub(more_bytes) {
            Some(left) if bits[best] < BITS_MAX => (left_bytes, bits[best]) = (left, bits[best] + 1),
            _ => open.retain(|number| *number != best),
        }
    }
    bits
}

/// Loads filters, and gives them other bits, so that those of all guides fit into a limit, and are not far coarser than they could be. Part by
/// part, so that lookups are answered meanwhile. A part that cannot be read, and those behind it, stay as they are.
pub(crate) fn fit(guides: &[Arc<Guide>], limit_bytes: u64, go_on: &mut dyn FnMut() -> bool) {
    let slots: Vec<u64> = guides.iter().map(|guide| guide.file.slots()).collect();
    let bytes_of = |number: usize, bits: u32| guides[number].file.bytes_with(bits);
    let best = bits_within(&slots, bytes_of, limit_bytes);
    // A bit more or less is not worth a reading.
    let kept: Vec<u32> = guides.iter().zip(&best).map(|(guide, best)| guide.bits().unwrap_or(*best)).collect();
    let bytes = kept.iter().enumerate().map(|(number, bits)| bytes_of(number, *bits));
    let is_kept = bytes.sum::<u64>() <= limit_bytes && kept.iter().zip(&best).all(|(kept, best)| *best < kept + 2);
    let wanted = if is_kept { kept } else { best };
    // Those that become coarser make room first.
    for (guide, bits) in guides.iter().zip(&wanted) {
        if !guide.coarsen(*bits, go_on) {
            return;
        }
    }
    for (guide, bits) in guides.iter().zip(&wanted) {
        // A damaged one waits for its successor.
        if !guide.is_damaged.load(Ordering::Relaxed) && !guide.load(*bits, go_on) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_fall_with_the_limit_and_rise_with_the_rank() {
        let slots = [8000, 800_000, 80];
        let within =
            |limit_bytes| bits_within(&slots, |number, bits| Packed::bytes_of(slots[number], bits), limit_bytes);
        assert_eq!(within(u64::MAX), [16, 16, 16]);
        assert_eq!(within(820_000), [16, 8, 16]);
        assert_eq!(within(110_000), [9, 1, 16]);
        assert_eq!(within(100), [0, 0, 9]);
        assert_eq!(bits_within(&[], |_, _| 0, 0), Vec::<u32>::new());
    }
}
