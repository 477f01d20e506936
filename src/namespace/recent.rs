//! Inodes that lately changed, for whoever compares two commits.
//!
//! An inode has changed if its record, an attribute of it, a name in it or a name of it was written. Nothing is recorded before
//! [`Namespace::record_changes`]. A commit notes its inodes before any view shows it, so a view never shows a change that is
//! not noted.
//!
//! Memory: up to 3 MiB, once changes are recorded. With more changed inodes than that, all are forgotten, and it begins anew.

use std::collections::hash_map::Entry;

use dedupfs_service::Ino;

use super::Namespace;
use super::overlay::{Generation, InoMap};

/// Most inodes that are noted.
pub(super) const RECENT_MAX: usize = 1 << 16;

/// The last commits that changed an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Last {
    row: u64,
    /// The last one that gave it a name; 0: none.
    named: u64,
}

/// The last commits that changed each of some inodes.
#[derive(Default)]
pub(super) struct Recent {
    last_row: InoMap<Last>,
    /// All changes of later commits are noted; `None`: nothing is recorded.
    complete_behind: Option<u64>,
}

impl Recent {
    /// Notes a commit.
    pub(super) fn note(&mut self, row: u64, generation: &Generation) {
        if self.complete_behind.is_none() {
            return;
        }
        let named = || generation.directories.values().flat_map(|changes| changes.by_name.values().flatten());
        let inos =
            generation.inodes.keys().chain(generation.directories.keys()).chain(generation.xattrs.keys()).copied();
        for ino in inos.chain(named().map(|entry| entry.ino)) {
            let has_room = self.last_row.len() < RECENT_MAX;
            match self.last_row.entry(ino) {
                Entry::Occupied(mut known) => known.get_mut().row = row,
                Entry::Vacant(new) if has_room => drop(new.insert(Last { row, named: 0 })),
                Entry::Vacant(_) => {
                    (self.last_row, self.complete_behind) = (InoMap::default(), Some(row));
                    return;
                }
            }
        }
        for entry in named() {
            if let Some(last) = self.last_row.get_mut(&entry.ino) {
                last.named = row;
            }
        }
    }
}

/// Inodes that changed.
#[derive(Debug)]
pub struct ChangedInodes(InoMap<bool>);

impl ChangedInodes {
    /// Whether the inode may have changed.
    #[must_use]
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// Whether the inode may have got a name. If not, a directory has the name that it had.
    #[must_use]
    pub fn is_named(&self, ino: Ino) -> bool {
        self.0.get(&ino).copied().unwrap_or(false)
    }
}

impl Namespace {
    /// Records changes of inodes from now on.
    pub fn record_changes(&self) {
        let store = self.store.lock();
        let mut recent = self.recent.lock();
        recent.complete_behind.get_or_insert(store.header.row);
    }

    /// Returns the inodes that commits after `row` have changed; `None` if not all of them are known. Take a view first: then
    /// each change between `row` and that view is in it.
    pub fn changed_behind(&self, row: u64) -> Option<ChangedInodes> {
        let recent = self.recent.lock();
        if recent.complete_behind.is_none_or(|complete_behind| complete_behind > row) {
            return None;
        }
        let changed = recent.last_row.iter().filter(|(_, last)| last.row > row);
        Some(ChangedInodes(changed.map(|(&ino, last)| (ino, last.named > row)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(inos: impl IntoIterator<Item = Ino>) -> Generation {
        Generation { inodes: inos.into_iter().map(|ino| (ino, None)).collect(), ..Generation::default() }
    }

    #[test]
    fn with_too_many_changes_none_is_known_and_recording_begins_anew() {
        let mut recent = Recent { complete_behind: Some(3), ..Recent::default() };
        recent.note(4, &generation(10..10 + RECENT_MAX as u64));
        assert_eq!((recent.last_row.len(), recent.complete_behind), (RECENT_MAX, Some(3)));
        recent.note(5, &generation([10, 11]));
        assert_eq!((recent.last_row[&10].row, recent.complete_behind), (5, Some(3)), "known ones have room");
        recent.note(6, &generation([1]));
        assert_eq!((recent.last_row.len(), recent.complete_behind), (0, Some(6)));
        recent.note(7, &generation([1]));
        assert_eq!((recent.last_row.get(&1).map(|last| last.row), recent.complete_behind), (Some(7), Some(6)));
    }
}
