//! Namespaces that contradict themselves, for tests: a bug, an attacker or bad memory could have made them.

use std::sync::Arc;

use dedupfs_service::{FileKind, Ino};

use super::Namespace;
use super::inode::{Entry, Inode};

impl Namespace {
    /// Makes the namespace one of a release without versions.
    pub fn force_no_versions(&self) {
        self.change_header(|header| header.has_versions = false).expect("applies");
    }

    /// Changes an inode, bypassing all rules.
    pub fn force(&self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let (_lock, mut draft) = self.begin().expect("applies");
        change(draft.inode(ino).expect("applies"));
        draft.apply();
    }

    /// Gives a directory a name, or an existing name another inode and kind, bypassing all rules. A new name counts as
    /// a link of the inode and as an entry of the directory. Without a kind, the entry has the kind of the inode.
    pub fn force_name(&self, directory: Ino, name: &[u8], ino: Ino, kind: Option<FileKind>) {
        let (_lock, mut draft) = self.begin().expect("applies");
        let old = self.entry(directory, name).expect("applies");
        if old.is_none() {
            let inode = draft.inode(ino).expect("applies");
            inode.nlink = inode.nlink.saturating_add(1);
            let above = draft.inode(directory).expect("applies");
            above.size_bytes = above.size_bytes.saturating_add(1);
        }
        let kind = kind.unwrap_or(draft.inode(ino).expect("applies").kind);
        let cookie = old.map_or_else(|| self.new_cookie(), |old| old.cookie);
        draft.name(directory, &Arc::from(name), old, Some(Entry { ino, kind, cookie }));
        draft.apply();
    }
}
