//! Trees built inside the service, hidden from the kernel until they are whole.
//!
//! The kernel caches names and attributes for long, because all changes pass through it. Changes by [`crate::transfer`] do not, so it
//! builds its tree in a directory for which the kernel gets EBUSY instead of names and listings.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{Errno, FileKind, Ino};
use dedupfs_store::StoreError;
use dedupfs_sync::Mutex;

use super::Service;

/// Directory entries read at once.
const PAGE_ENTRIES: usize = 256;

/// Directories whose entries are hidden from the kernel.
#[derive(Default)]
pub(super) struct HiddenDirectories {
    directories: Mutex<HashSet<Ino>>,
    /// Number of directories: lets lookups skip the lock when there are none.
    count: AtomicUsize,
}

impl HiddenDirectories {
    /// Returns EBUSY for a hidden directory. Cost: one atomic load.
    pub(super) fn check(&self, directory: Ino) -> std::result::Result<(), Errno> {
        match self.count.load(Ordering::Acquire) > 0 && self.directories.lock().contains(&directory) {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }
}

/// A directory whose entries are hidden from the kernel until this is dropped.
pub(crate) struct HiddenDirectory<'a> {
    service: &'a Service,
    /// The directory.
    pub(crate) ino: Ino,
}

impl Drop for HiddenDirectory<'_> {
    fn drop(&mut self) {
        let hidden = &self.service.hidden;
        let mut directories = hidden.directories.lock();
        directories.remove(&self.ino);
        hidden.count.store(directories.len(), Ordering::Release);
    }
}

impl Service {
    /// Whether the entries of this directory are hidden from the kernel.
    pub(crate) fn is_hidden(&self, ino: Ino) -> bool {
        self.hidden.check(ino).is_err()
    }

    /// Hides the present and future entries of an empty directory from the kernel.
    ///
    /// # Errors
    /// `NotDirectory`; `NotEmpty` if it has entries or is hidden already.
    pub(crate) fn hide(&self, ino: Ino) -> Result<HiddenDirectory<'_>> {
        {
            let mut directories = self.hidden.directories.lock();
            if !directories.insert(ino) {
                return Err(EngineError::NotEmpty);
            }
            self.hidden.count.store(directories.len(), Ordering::Release);
        }
        // Checked after hiding, and without the lock: lookups wait for the lock, and this may read from the disk.
        let directory = HiddenDirectory { service: self, ino };
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        if !inode.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        match self.core.namespace.read_directory(ino, 0, 1)?.is_empty() {
            true => Ok(directory),
            false => Err(EngineError::NotEmpty),
        }
    }

    /// Removes a name and everything below it. The kernel must know none of it.
    pub(crate) fn remove_tree(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let namespace = &self.core.namespace;
        let Some((top, kind)) = namespace.lookup(parent, name)? else { return Ok(()) };
        if kind != FileKind::Directory {
            return self.remove_name(parent, name);
        }
        struct Way {
            above: Ino,
            name: Vec<u8>,
            ino: Ino,
            /// Entries up to this cookie are removed, or pushed.
            after: u64,
        }
        let mut ways = vec![Way { above: parent, name: name.to_vec(), ino: top, after: 0 }];
        let mut on_way = HashSet::from([top]);
        while let Some(way) = ways.last_mut() {
            let (ino, items) = (way.ino, namespace.read_directory(way.ino, way.after, PAGE_ENTRIES)?);
            way.after = items.last().map_or(way.after, |item| item.cookie);
            if items.is_empty() {
                self.remove_empty_directory(way.above, &way.name)?;
                ways.pop();
                on_way.remove(&ino);
            }
            for item in items {
                if item.kind == FileKind::Directory && !on_way.insert(item.ino) {
                    let found = "one that contains itself";
                    return Err(StoreError::corrupt(format!("directory {}", item.ino), "a tree", found).into());
                }
                match item.kind {
                    FileKind::Directory => ways.push(Way { above: ino, name: item.name, ino: item.ino, after: 0 }),
                    _ => self.remove_name(ino, &item.name)?,
                }
            }
        }
        Ok(())
    }
}
