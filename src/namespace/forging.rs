//! Namespaces that contradict themselves, for tests: a bug, an attacker or bad memory could have made them.

use std::sync::Arc;

use dedupfs_service::{FileKind, Ino};

use super::Namespace;
use super::inode::{Entry, Inode};

impl Namespace {
    /// Changes an inode, bypassing all rules.
    pub fn force(&self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let (_lock, mut draft) = self.begin().expect("applies");
        change(draft.inode(ino).expect("applies"));
        draft.apply();
    }

    /// Sets the kind in a directory entry, bypassing all rules.
    pub fn force_kind(&self, directory: Ino, name: &[u8], kind: FileKind) {
        let (_lock, mut draft) = self.begin().expect("applies");
        let old = self.entry(directory, name).expect("applies").expect("applies");
        draft.name(directory, &Arc::from(name), Some(old), Some(Entry { kind, ..old }));
        draft.apply();
    }

    /// Adds a name to a file, bypassing all rules.
    pub fn force_name(&self, directory: Ino, name: &[u8], ino: Ino) {
        let (_lock, mut draft) = self.begin().expect("applies");
        let inode = draft.inode(ino).expect("applies");
        inode.nlink = inode.nlink.saturating_add(1);
        let above = draft.inode(directory).expect("applies");
        above.size_bytes = above.size_bytes.saturating_add(1);
        let kind = draft.inode(ino).expect("applies").kind;
        let entry = Entry { ino, kind, cookie: self.new_cookie() };
        draft.name(directory, &Arc::from(name), None, Some(entry));
        draft.apply();
    }
}
