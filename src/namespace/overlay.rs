//! The changes since the last commit, in memory.
//!
//! A [`Generation`] holds final states, not steps: for each touched inode, name, attribute and orphan its present value
//! or its absence. Only the operations log is a sequence. Two generations may lie over the committed base: the *active*
//! one, which mutators fill, and the *frozen* one, which a commit is writing. The newest layer that knows an object
//! decides.
//!
//! ```text
//! reader -> active -> frozen -> base (a snapshot of the store)
//!           freeze: active becomes frozen        commit: frozen becomes part of base
//! ```
//!
//! One lock guards [`Generations`]. It is held for a few hash table operations, never across I/O.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use dedupfs_service::{FileKind, Ino};
use dedupfs_store::LogOp;

use super::base::Snapshot;
use super::inode::{Entry, Inode};
use super::totals::Totals;

/// Hashes inode numbers. The namespace gives them consecutively, so one multiplication spreads them well enough.
#[derive(Default, Clone, Copy)]
pub(super) struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A table by inode number.
pub(super) type InoMap<V> = HashMap<Ino, V, BuildHasherDefault<InoHasher>>;
/// Changed attributes of one inode; `None`: removed.
pub(super) type XattrChanges = BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>;

/// An entry in a directory's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ordered {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) name: Arc<[u8]>,
}

/// Changes in one directory; `None`: removed.
#[derive(Clone, Default, Debug)]
pub(super) struct DirectoryChanges {
    pub(super) by_name: HashMap<Arc<[u8]>, Option<Entry>>,
    pub(super) by_cookie: BTreeMap<u64, Option<Ordered>>,
}

/// The changes between two freezes.
#[derive(Clone, Default, Debug)]
pub(super) struct Generation {
    /// `None`: removed.
    pub(super) inodes: InoMap<Option<Arc<Inode>>>,
    pub(super) directories: InoMap<DirectoryChanges>,
    pub(super) xattrs: InoMap<XattrChanges>,
    /// Whether the inode is an orphan now.
    pub(super) orphans: InoMap<bool>,
    pub(super) log: Vec<LogOp>,
    /// Difference of the sums.
    pub(super) totals: Totals,
    /// Number of changed names and attributes (counted, because they lie in nested tables).
    pub(super) nested_changes: usize,
    /// Bytes of attributes and link targets that were set.
    pub(super) value_bytes: u64,
}

impl Generation {
    /// Whether there is anything to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.log.is_empty() && self.nested_changes == 0 && self.orphans.is_empty()
    }

    /// The approximate number of changes that a commit has to write.
    pub(super) fn pending(&self) -> usize {
        self.inodes.len() + self.nested_changes + self.log.len()
    }

    /// Sets or removes a name. `old` is its former entry. Its place in the order is given up unless `new` keeps it.
    pub(super) fn set_entry(&mut self, directory: Ino, name: Arc<[u8]>, old: Option<Entry>, new: Option<Entry>) {
        let changes = self.directories.entry(directory).or_default();
        if let Some(old) = old
            && new.is_none_or(|new| new.cookie != old.cookie)
        {
            changes.by_cookie.insert(old.cookie, None);
        }
        if let Some(new) = new {
            let ordered = Ordered { ino: new.ino, kind: new.kind, name: name.clone() };
            changes.by_cookie.insert(new.cookie, Some(ordered));
        }
        changes.by_name.insert(name, new);
        self.nested_changes += 1;
    }

    /// Sets or removes an attribute.
    pub(super) fn set_xattr(&mut self, ino: Ino, name: Arc<[u8]>, value: Option<Arc<[u8]>>) {
        self.value_bytes += value.as_ref().map_or(0, |value| value.len() as u64);
        self.xattrs.entry(ino).or_default().insert(name, value);
        self.nested_changes += 1;
    }

    /// Lays a newer generation over this one, so that one commit writes both.
    pub(super) fn absorb(&mut self, newer: Self) {
        self.inodes.extend(newer.inodes);
        for (directory, changes) in newer.directories {
            let target = self.directories.entry(directory).or_default();
            target.by_name.extend(changes.by_name);
            target.by_cookie.extend(changes.by_cookie);
        }
        for (ino, changes) in newer.xattrs {
            self.xattrs.entry(ino).or_default().extend(changes);
        }
        self.orphans.extend(newer.orphans);
        self.log.extend(newer.log);
        self.totals = self.totals.plus(&newer.totals);
        self.nested_changes += newer.nested_changes;
        self.value_bytes += newer.value_bytes;
    }
}

/// All layers of the namespace.
#[derive(Debug, Default)]
pub(super) struct Generations {
    pub(super) active: Generation,
    pub(super) frozen: Option<Arc<Generation>>,
    /// The committed state; `None` while the store is being reopened or compacted.
    pub(super) base: Option<Arc<Snapshot>>,
    /// Sums of the committed state.
    pub(super) totals: Totals,
}

impl Generations {
    /// Both generations, newest first.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&self.active).chain(self.frozen.as_deref())
    }

    /// The state of an inode in the generations: `None` if they do not know it, `Some(None)` if it is removed.
    pub(super) fn inode(&self, ino: Ino) -> Option<Option<Arc<Inode>>> {
        self.layers().find_map(|layer| layer.inodes.get(&ino)).cloned()
    }

    /// The state of a name in the generations.
    pub(super) fn entry(&self, directory: Ino, name: &[u8]) -> Option<Option<Entry>> {
        self.layers().find_map(|layer| layer.directories.get(&directory)?.by_name.get(name)).copied()
    }

    /// The state of an attribute in the generations.
    pub(super) fn xattr(&self, ino: Ino, name: &[u8]) -> Option<Option<Arc<[u8]>>> {
        self.layers().find_map(|layer| layer.xattrs.get(&ino)?.get(name)).cloned()
    }

    /// Returns all changes of an inode's attributes. The newest decides.
    pub(super) fn xattr_changes(&self, ino: Ino) -> XattrChanges {
        let mut changes = XattrChanges::new();
        for layer in self.frozen.as_deref().into_iter().chain([&self.active]) {
            changes.extend(
                layer.xattrs.get(&ino).into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
            );
        }
        changes
    }

    /// Sums over all inodes, now.
    pub(super) fn totals_now(&self) -> Totals {
        self.layers().fold(self.totals, |sum, layer| sum.plus(&layer.totals))
    }

    /// Whether `snapshot` is still the base.
    pub(super) fn is_base(&self, snapshot: &Arc<Snapshot>) -> bool {
        self.base.as_ref().is_some_and(|base| Arc::ptr_eq(base, snapshot))
    }
}
