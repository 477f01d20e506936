//! The fingerprints that no container has: the exact set as long as they are few, so that a loss costs only those who need it.
//!
//! The set may name more than is lost, never less. Whatever it names is looked up, so it decides nothing by itself.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_store::{Fingerprint, Result};
use dedupfs_sync::{Mutex, RwLock};

use crate::cell::Cell;
use crate::index::Index;
use crate::open::{Held, SHARDS, Shard, shard_of};

/// Number of fingerprints in the set, some 3 MB. If more are lost, everything may be. Few in tests, so that they get there.
pub(crate) const KNOWN_MAX: usize = if cfg!(test) { 40 } else { 1 << 16 };

#[derive(Debug, Default)]
pub(crate) struct LostSet {
    /// Whether anything may be lost: without losses, nobody takes the lock.
    any: AtomicBool,
    /// Number of times that something was found lost.
    additions: AtomicU64,
    known: RwLock<Known>,
    /// Held while the set is gathered: a second one would empty it behind the first.
    gathering: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    fingerprints: HashSet<Fingerprint>,
    /// There were more than [`KNOWN_MAX`] since the set was emptied.
    is_full: bool,
    /// Sealed tankers have lost cells that are not in the set.
    lacks_sealed: bool,
}

impl LostSet {
    /// The set of an index that was just opened, with the lost cells of its open tanker.
    pub(crate) fn opened<'f>(open: impl Iterator<Item = &'f Fingerprint>, lacks_sealed: bool) -> Self {
        let set = Self { any: AtomicBool::new(lacks_sealed), ..Self::default() };
        set.known.write().lacks_sealed = lacks_sealed;
        open.for_each(|fingerprint| set.add(fingerprint, false));
        set
    }

    /// Adds a fingerprint. `is_found`: it was found lost just now, if the set does not have it.
    fn add(&self, fingerprint: &Fingerprint, is_found: bool) {
        let mut known = self.known.write();
        self.any.store(true, Ordering::Release);
        let is_new = known.is_full || known.fingerprints.insert(*fingerprint);
        if is_found && is_new {
            // Under the lock: a reader that misses the fingerprint sees the number change later.
            self.additions.fetch_add(1, Ordering::AcqRel);
        }
        if known.fingerprints.len() > KNOWN_MAX {
            *known = Known { is_full: true, lacks_sealed: known.lacks_sealed, ..Known::default() };
        }
    }

    /// Takes note of a changed fingerprint. The caller holds the lock of its shard.
    pub(crate) fn note(&self, shard: &Shard, fingerprint: &Fingerprint, is_lost: bool) {
        if is_lost {
            self.add(fingerprint, true);
        } else if self.any.load(Ordering::Acquire) && !shard.staged(fingerprint).is_some_and(|staged| staged.is_lost())
        {
            let mut known = self.known.write();
            known.fingerprints.remove(fingerprint);
            self.note_any(&known);
        }
    }

    /// Notes whether anything may be lost. The caller holds the lock of `known`.
    fn note_any(&self, known: &Known) {
        let may_be_lost = !known.fingerprints.is_empty() || known.is_full || known.lacks_sealed;
        self.any.store(may_be_lost, Ordering::Release);
    }

    fn may_have<'f>(&self, mut fingerprints: impl Iterator<Item = &'f Fingerprint>) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let known = self.known.read();
        known.is_full || known.lacks_sealed || fingerprints.any(|fingerprint| known.fingerprints.contains(fingerprint))
    }
}

impl Index {
    /// Whether any of the fingerprints may be [lost](crate::Location::Lost), staged losses included. Without I/O. Everything may be lost
    /// if more than 65,536 are, or until [`gather_lost`](Self::gather_lost) has found those of sealed tankers.
    pub fn may_have_lost<'f>(&self, fingerprints: impl IntoIterator<Item = &'f Fingerprint>) -> bool {
        self.lost_set.may_have(fingerprints.into_iter())
    }

    /// Whether anything may be lost. Without I/O.
    pub fn has_lost(&self) -> bool {
        self.lost_set.any.load(Ordering::Acquire)
    }

    /// A number that grows with each fingerprint that is found lost.
    pub fn times_lost(&self) -> u64 {
        self.lost_set.additions.load(Ordering::Acquire)
    }

    /// Makes the set of lost fingerprints exact, if there are few. Until that it is not believed. Asks `go_on` before each tanker, and ends
    /// when it says no.
    ///
    /// # Errors
    /// A tanker cannot be read: then everything may be lost.
    pub fn gather_lost(&self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let _one = self.lost_set.gathering.lock();
        // A chunk that is healed while the set is gathered may stay in it.
        let has_healed = |known: &Known| known.fingerprints.len() as u64 > self.lost();
        let is_wanted = |known: &Known| {
            (known.is_full || known.lacks_sealed || has_healed(known)) && self.lost() <= KNOWN_MAX as u64
        };
        {
            let mut known = self.lost_set.known.write();
            if !is_wanted(&known) {
                return Ok(());
            }
            *known = Known { lacks_sealed: true, ..Known::default() };
        }
        for number in 0..SHARDS {
            let shard = self.open.read(number);
            let staged = shard.recent.iter().filter(|(_, location)| location.is_lost());
            staged.for_each(|(fingerprint, _)| self.lost_set.add(fingerprint, false));
        }
        let mut add = |fingerprint: Fingerprint, _| {
            self.lost_set.add(&fingerprint, false);
            Ok(())
        };
        if self.visit_lost(&mut add, go_on)? {
            let mut known = self.lost_set.known.write();
            known.lacks_sealed = false;
            self.lost_set.note_any(&known);
        }
        Ok(())
    }

    /// Calls `each` for every committed cell that is lost. No lock is held meanwhile. A cell that changes during the call may be shown as
    /// before, or twice.
    ///
    /// Cost: those tankers are read, verified and past the cache, that have lost cells.
    ///
    /// # Errors
    /// A tanker cannot be read; errors of `each`.
    pub fn for_each_lost(&self, each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>) -> Result<()> {
        if self.lost() == 0 {
            return Ok(());
        }
        self.visit_lost(each, &mut || true).map(|_| ())
    }

    /// Returns whether it came to its end.
    fn visit_lost(
        &self,
        each: &mut dyn FnMut(Fingerprint, Cell) -> Result<()>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let mut in_memory = Vec::new();
        let set = {
            // Nothing moves between memory and tankers meanwhile.
            let _applier = self.applier.lock();
            for number in 0..SHARDS {
                let shard = self.open.read(number);
                in_memory.extend(shard.committed().filter(|(_, cell)| cell.location.is_lost()));
            }
            self.sealed_set()
        };
        in_memory.into_iter().try_for_each(|(fingerprint, cell)| each(fingerprint, cell))?;
        for tanker in set.tankers().iter().filter(|tanker| tanker.may_have_lost()) {
            if !go_on() {
                return Ok(false);
            }
            tanker.for_each(&mut |_, entry| {
                if !entry.cell.location.is_lost() {
                    return Ok(());
                }
                let held = self.open.read(shard_of(&entry.fingerprint)).held(&entry.fingerprint);
                match held {
                    // A cell in memory was shown, or was healed.
                    Held::Cell(_) | Held::Removed => Ok(()),
                    Held::Unknown => each(entry.fingerprint, entry.cell),
                }
            })?;
        }
        Ok(true)
    }
}
