//! What the kernel knows of inodes: how often it was told of each, until it forgets.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use dedupfs_fuse::service::Ino;
use parking_lot::Mutex;

#[derive(Clone, Copy)]
struct Known {
    references: u64,
    /// Nothing but its name and kind: the rest could not be read.
    by_name_only: bool,
}

/// The kernel's references to inodes.
#[derive(Default)]
pub(super) struct Lookups {
    known: Mutex<HashMap<Ino, Known>>,
}

impl Lookups {
    /// The kernel is told of the inode, and of its attributes.
    pub(super) fn count(&self, ino: Ino) {
        let mut known = self.known.lock();
        let of_inode = known.entry(ino).or_insert(Known { references: 0, by_name_only: false });
        *of_inode = Known { references: of_inode.references + 1, by_name_only: false };
    }

    /// The kernel is told of no more than the inode's name and kind; `false` if it knows more: it must not be told then, and nothing
    /// is counted.
    pub(super) fn count_name(&self, ino: Ino) -> bool {
        let mut known = self.known.lock();
        let of_inode = known.entry(ino).or_insert(Known { references: 0, by_name_only: true });
        of_inode.references += u64::from(of_inode.by_name_only);
        of_inode.by_name_only
    }

    /// The kernel gives so many references back; whether it knows the inode no more.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> bool {
        let mut known = self.known.lock();
        let Entry::Occupied(mut entry) = known.entry(ino) else { return false };
        let left = entry.get().references.saturating_sub(count);
        entry.get_mut().references = left;
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
}
