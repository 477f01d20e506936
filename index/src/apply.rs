//! Applying rows of the operations log (invariant I-3).
//!
//! 1. Group the changes by shard, keeping their order, and ask the shards which fingerprints they do not know.
//! 2. Look those up in the sealed tankers, in the order of the files, without any lock. This is all of the I/O. If it
//!    fails, nothing has changed and the caller can repeat the call.
//! 3. Change shard by shard, each under its lock. The order of shards does not matter, because a change concerns one
//!    fingerprint only.
//! 4. Add up the changes for each container, and change the garbage map.
//!
//! A changed cell of a sealed tanker becomes a patch that holds its whole new value.

use std::fmt;
use std::sync::atomic::Ordering;

use dedupfs_store::{ContainerId, Fingerprint, Result, StoreError};

use crate::cell::{Cell, Location};
use crate::index::{Applier, Index};
use crate::occupancy::Tally;
use crate::open::{Grouped, Patch, Shard, shard_of};
use crate::options::INCONSISTENCIES_MAX;

/// One change of the committed state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are the fingerprint and the parts of its cell")]
pub enum Change {
    /// The fingerprint is in this location now. References are kept, or start at 0.
    Insert { fingerprint: Fingerprint, location: Location },
    /// The number of references changes. The hint is a container that may have the fingerprint, or `NONE`: it spares reads if it is right.
    Count { fingerprint: Fingerprint, delta: i64, hint: ContainerId },
    /// The fingerprint was removed from this container. Ignored if its cell names another container by now.
    Remove { fingerprint: Fingerprint, container: ContainerId },
    /// The copy in this container is bad: the cell is [quarantined](Location::Quarantined) and keeps its references.
    /// Ignored if its cell names another container by now.
    Lose { fingerprint: Fingerprint, container: ContainerId },
    /// The cell takes this value (rebuilding).
    Set { fingerprint: Fingerprint, cell: Cell },
}

impl Change {
    pub(crate) const fn fingerprint(&self) -> &Fingerprint {
        match self {
            Self::Insert { fingerprint, .. }
            | Self::Count { fingerprint, .. }
            | Self::Remove { fingerprint, .. }
            | Self::Lose { fingerprint, .. }
            | Self::Set { fingerprint, .. } => fingerprint,
        }
    }

    /// The container in which the cell is likely to be found before the change; `NONE` if that is unknown.
    const fn hint(&self) -> ContainerId {
        match self {
            Self::Count { hint, .. } => *hint,
            Self::Remove { container, .. } | Self::Lose { container, .. } => *container,
            Self::Insert { .. } | Self::Set { .. } => ContainerId::NONE,
        }
    }
}

/// A change that contradicts the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inconsistency {
    /// The log row.
    pub row: u64,
    /// The cell's fingerprint.
    pub fingerprint: Fingerprint,
    /// The contradiction.
    pub kind: InconsistencyKind,
}

/// The kinds of contradictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are the references before and the requested change")]
pub enum InconsistencyKind {
    /// A count for a fingerprint that the index does not have. Above 0 it makes a cell without a container; otherwise
    /// it is ignored.
    Unknown { delta: i64 },
    /// A count that would become negative. The true number is unknown: the count becomes `u32::MAX` and stays there.
    Negative { references: u32, delta: i64 },
    /// A removal of a fingerprint that still has references; ignored.
    Referenced { references: u32 },
    /// The built-in fingerprint of zeros is never stored; ignored.
    BuiltIn,
}

impl InconsistencyKind {
    /// Whether a count is wrong, so that others may be wrong too. Nothing may be freed then until the index is rebuilt.
    ///
    /// A count below 0, or one for a missing cell, shows that references were lost before. A refused removal leaves a
    /// right count unchanged, and the built-in fingerprint has no count.
    const fn is_doubt(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Negative { .. } => true,
            Self::Referenced { .. } | Self::BuiltIn => false,
        }
    }
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log row {}, fingerprint {}: ", self.row, self.fingerprint)?;
        match self.kind {
            InconsistencyKind::Unknown { delta } => write!(f, "a count of {delta:+} for an unknown fingerprint"),
            InconsistencyKind::Negative { references, delta } => {
                write!(f, "a count of {delta:+} for {references} references")
            }
            InconsistencyKind::Referenced { references } => {
                write!(f, "a removal of a fingerprint with {references} references")
            }
            InconsistencyKind::BuiltIn => f.write_str("a change of the built-in fingerprint of zeros"),
        }
    }
}

/// The findings of applying.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ApplyReport {
    /// The first ten inconsistencies.
    pub inconsistencies: Vec<Inconsistency>,
    /// Number of inconsistencies.
    pub count: u64,
    /// The part of them that puts counts in doubt: `Unknown` and `Negative`.
    pub doubts: u64,
    /// The part of them that are counts above 0 for fingerprints that the index does not have. If the cause is known,
    /// they are no doubt: counts from here on are right.
    pub needed: u64,
}

impl ApplyReport {
    fn add(&mut self, inconsistency: Inconsistency) {
        self.count += 1;
        self.doubts += u64::from(inconsistency.kind.is_doubt());
        self.needed += u64::from(matches!(inconsistency.kind, InconsistencyKind::Unknown { delta: 1.. }));
        if self.inconsistencies.len() < INCONSISTENCIES_MAX {
            // Row 0 is never in the log: an index is being built, and its builder reports.
            if inconsistency.row > 0 {
                tracing::error!("the index and the operations log disagree: {inconsistency}");
            }
            self.inconsistencies.push(inconsistency);
        }
    }
}

/// The sealed tankers' answer about a change's fingerprint.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// They were not asked, or do not have it.
    None,
    Sealed {
        tanker: u64,
        index: u32,
        cell: Cell,
    },
}

/// The place where a cell is to be changed.
enum Place {
    Open,
    Sealed { tanker: u64, index: u32, relocated: bool },
}

impl Index {
    /// Applies the changes of a row: all of them or (on an error) none. A row may come in several calls; rows come in
    /// order. Rows up to [`position`](Self::position) and rows frozen for a checkpoint are refused: the index already
    /// holds their effects.
    pub fn apply(&self, row: u64, changes: &[Change]) -> Result<ApplyReport> {
        let mut applier = self.applier.lock();
        if row < applier.applied || row <= applier.frozen {
            return Err(StoreError::Usage(format!(
                "log row {row} was applied already (applied up to {}, complete up to {})",
                applier.applied, applier.frozen
            )));
        }
        let report = self.apply_changes(&mut applier, row, changes)?;
        applier.applied = row;
        Ok(report)
    }

    pub(crate) fn apply_changes(&self, applier: &mut Applier, row: u64, changes: &[Change]) -> Result<ApplyReport> {
        let grouped = Grouped::new(changes.len(), |item| shard_of(changes[item].fingerprint()));
        let homes = self.find_homes(changes, &grouped)?;
        let mut report = ApplyReport::default();
        let (mut tally, mut cells, mut lost) = (Tally::default(), 0, 0);
        for (shard, items) in grouped.iter() {
            let mut shard = self.open.write(shard);
            let staged = shard.recent.len() as u64;
            for &item in items {
                let home = homes.get(item as usize).copied().unwrap_or(Home::None);
                let (before, after) = shard.change(row, &changes[item as usize], home, applier, &mut report);
                cells += i64::from(after.is_some()) - i64::from(before.is_some());
                lost += i64::from(Cell::is_lost(after)) - i64::from(Cell::is_lost(before));
                tally.change(before, after);
                self.lost_set.note(&shard, changes[item as usize].fingerprint(), Cell::is_lost(after));
            }
            self.staged.fetch_sub(staged - shard.recent.len() as u64, Ordering::Relaxed);
        }
        // Wrapping addition subtracts.
        self.cells.fetch_add(cells.cast_unsigned(), Ordering::Relaxed);
        self.lost.fetch_add(lost.cast_unsigned(), Ordering::Relaxed);
        self.occupancy.add(tally.iter());
        if report.count > INCONSISTENCIES_MAX as u64 && row > 0 {
            tracing::error!("the index and the operations log disagree {} times in row {row}", report.count);
        }
        Ok(report)
    }

    /// Looks up the fingerprints that memory does not know. Empty if there are no sealed tankers. No set can be
    /// published meanwhile: the caller holds the applier's lock.
    fn find_homes(&self, changes: &[Change], grouped: &Grouped) -> Result<Vec<Home>> {
        let set = self.sealed_set();
        if set.tankers().is_empty() {
            return Ok(Vec::new());
        }
        let mut homes = vec![Home::None; changes.len()];
        let fingerprint = |item: u32| changes[item as usize].fingerprint();
        let hint = |item: u32| changes[item as usize].hint();
        self.find_cells(&set, grouped, fingerprint, hint, |item, cell, found| {
            if let Some(found) = found {
                homes[item as usize] = Home::Sealed { tanker: found.tanker, index: found.index, cell };
            }
        })?;
        Ok(homes)
    }
}

/// Returns the count after a change, and whether it would be negative. A negative count becomes `u32::MAX` (unknown): 0
/// would be garbage.
fn counted(references: u32, delta: i64) -> (u32, bool) {
    if references == u32::MAX {
        return (u32::MAX, false);
    }
    let sum = i64::from(references).saturating_add(delta);
    (u32::try_from(sum).unwrap_or(u32::MAX), sum < 0)
}

impl Shard {
    /// Applies one change; returns the cell before and after.
    fn change(
        &mut self,
        row: u64,
        change: &Change,
        home: Home,
        applier: &mut Applier,
        report: &mut ApplyReport,
    ) -> (Option<Cell>, Option<Cell>) {
        let fingerprint = *change.fingerprint();
        let mut wrong = |kind| report.add(Inconsistency { row, fingerprint, kind });
        if fingerprint.is_zero() {
            wrong(InconsistencyKind::BuiltIn);
            return (None, None);
        }
        let (current, place) = self.place(&fingerprint, home);
        let next = match (*change, current) {
            (Change::Insert { location, .. }, current) => {
                if self.staged(&fingerprint) == Some(location) {
                    self.recent.remove(&fingerprint);
                }
                Some(Cell { location, references: current.map_or(0, |cell| cell.references) })
            }
            (Change::Count { delta, .. }, Some(cell)) => {
                let (references, negative) = counted(cell.references, delta);
                if negative {
                    wrong(InconsistencyKind::Negative { references: cell.references, delta });
                }
                Some(Cell { references, ..cell })
            }
            // Something needs it, and no container has it. The count must be right when it is stored again.
            (Change::Count { delta, .. }, None) => {
                wrong(InconsistencyKind::Unknown { delta });
                let references = counted(0, delta.max(0)).0;
                (references > 0).then_some(Cell { location: Location::Lost, references })
            }
            (Change::Remove { container, .. }, current) => {
                // The container's space is given back: a staged location in it would dangle too.
                if self.staged(&fingerprint).is_some_and(|location| location.container() == container) {
                    self.recent.remove(&fingerprint);
                }
                match current {
                    // The caller of a removal has seen no references. If that was wrong, refusing loses nothing.
                    Some(cell) if cell.location.container() == container && cell.references > 0 => {
                        wrong(InconsistencyKind::Referenced { references: cell.references });
                        current
                    }
                    current => current.filter(|cell| cell.location.container() != container),
                }
            }
            (Change::Lose { container, .. }, current) => {
                if self.staged(&fingerprint).is_some_and(|location| location.is_lost()) {
                    self.recent.remove(&fingerprint);
                }
                current.map(|cell| match cell.location {
                    Location::Stored { container: found, len_bytes } if found == container => {
                        Cell { location: Location::quarantined(len_bytes), ..cell }
                    }
                    _ => cell,
                })
            }
            (Change::Set { cell, .. }, _) => Some(cell),
        };
        if next != current {
            self.put(fingerprint, current, next, place, applier);
        }
        (current, next)
    }

    fn place(&self, fingerprint: &Fingerprint, home: Home) -> (Option<Cell>, Place) {
        if let Some(cell) = self.cells.get(fingerprint) {
            return (Some(*cell), Place::Open);
        }
        if let Some(&Patch { tanker, index, cell, relocated }) = self.patches.get(fingerprint) {
            return (cell, Place::Sealed { tanker, index, relocated });
        }
        match home {
            Home::Sealed { tanker, index, cell } => (Some(cell), Place::Sealed { tanker, index, relocated: false }),
            Home::None => (None, Place::Open),
        }
    }

    fn put(
        &mut self,
        fingerprint: Fingerprint,
        current: Option<Cell>,
        next: Option<Cell>,
        place: Place,
        applier: &mut Applier,
    ) {
        match place {
            Place::Open => {
                applier.open_version += 1;
                match next {
                    Some(cell) => self.cells.insert(fingerprint, cell),
                    None => drop(self.cells.remove(&fingerprint)),
                }
            }
            Place::Sealed { tanker, index, relocated } => {
                let relocated = relocated || next.map(|cell| cell.location) != current.map(|cell| cell.location);
                self.patches.insert(fingerprint, Patch { tanker, index, cell: next, relocated });
            }
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn counts_saturate_and_stick() {
        assert_eq!(counted(1, 2), (3, false));
        assert_eq!(counted(1, -1), (0, false));
        assert_eq!(counted(1, -2), (u32::MAX, true), "0 would be garbage");
        assert_eq!(counted(1, i64::MIN), (u32::MAX, true));
        assert_eq!(counted(1, i64::MAX), (u32::MAX, false));
        assert_eq!(counted(u32::MAX - 1, 1), (u32::MAX, false));
        assert_eq!(counted(u32::MAX, -1), (u32::MAX, false), "nobody knows any more how many there are");
    }
}
