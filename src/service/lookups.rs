//! The kernel's references to inodes: how often it was told of each, until it forgets.
//!
//! Memory: some 24 bytes for each inode in a sorted map, which grows in small blocks. A hash table would take up to three times that
//! while it grows. The kernel bounds the number of inodes: it forgets some when it needs memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use dedupfs_service::Ino;
use dedupfs_sync::Mutex;

/// The number of references, doubled. Odd: the kernel knows only name and kind, because the rest could not be read.
#[derive(Clone, Copy)]
struct LookupCount(u32);

impl LookupCount {
    /// The saturated count: such an inode stays known.
    const TOO_OFTEN: u32 = u32::MAX >> 1;

    const fn new(references: u32, by_name_only: bool) -> Self {
        Self(references << 1 | by_name_only as u32)
    }

    const fn references(self) -> u32 {
        self.0 >> 1
    }

    const fn is_by_name_only(self) -> bool {
        self.0 & 1 == 1
    }

    const fn told_again(self, by_name_only: bool) -> Self {
        let more = self.references() + (self.references() < Self::TOO_OFTEN) as u32;
        Self::new(more, by_name_only)
    }
}

/// The kernel's references to inodes.
#[derive(Default)]
pub(super) struct Lookups {
    known: Mutex<BTreeMap<Ino, LookupCount>>,
}

impl Lookups {
    /// Counts a reply that gave the kernel the inode with its attributes.
    pub(super) fn count(&self, ino: Ino) {
        let mut known = self.known.lock();
        let of_inode = known.entry(ino).or_insert(LookupCount::new(0, false));
        *of_inode = of_inode.told_again(false);
    }

    /// Counts a reply that gave the kernel only name and kind. Returns `false` and counts nothing if the kernel knows more: such a
    /// reply must not be sent.
    pub(super) fn count_name(&self, ino: Ino) -> bool {
        let mut known = self.known.lock();
        let of_inode = known.entry(ino).or_insert(LookupCount::new(0, true));
        if of_inode.is_by_name_only() {
            *of_inode = of_inode.told_again(true);
        }
        of_inode.is_by_name_only()
    }

    /// Takes back `count` references; returns whether the kernel no longer knows the inode.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> bool {
        let mut known = self.known.lock();
        let Entry::Occupied(mut entry) = known.entry(ino) else { return false };
        let before = *entry.get();
        if before.references() == LookupCount::TOO_OFTEN {
            return false;
        }
        let left = before.references().saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        entry.insert(LookupCount::new(left, before.is_by_name_only()));
        if left == 0 {
            entry.remove();
        }
        left == 0
    }

    /// Whether the kernel knows the inode.
    pub(super) fn knows(&self, ino: Ino) -> bool {
        self.known.lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_given_back() {
        let lookups = Lookups::default();
        assert!(!lookups.forget(7, 1), "it was never told");
        lookups.count(7);
        lookups.count(7);
        assert!(!lookups.forget(7, 1) && lookups.knows(7));
        assert!(lookups.forget(7, 1) && !lookups.knows(7));
        lookups.count(7);
        assert!(lookups.forget(7, 100), "more than it has");
    }

    #[test]
    fn a_name_alone_never_replaces_attributes() {
        let lookups = Lookups::default();
        assert!(lookups.count_name(7) && lookups.count_name(7), "again the same is no harm");
        lookups.count(7);
        assert!(!lookups.count_name(7), "somebody may have it open");
        assert!(!lookups.forget(7, 2) && lookups.forget(7, 1), "three were counted");
        lookups.count(8);
        assert!(!lookups.count_name(8));
        assert!(lookups.forget(8, 1));
    }

    #[test]
    fn what_was_told_too_often_to_be_counted_stays_known() {
        let lookups = Lookups::default();
        lookups.known.lock().insert(7, LookupCount::new(LookupCount::TOO_OFTEN - 1, false));
        lookups.count(7);
        lookups.count(7);
        assert!(!lookups.forget(7, u64::from(LookupCount::TOO_OFTEN)) && lookups.knows(7));
    }
}
