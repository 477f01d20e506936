//! A device in memory that knows the state after a power loss: the disk of the crash tests.
//!
//! Names and contents each exist twice: *volatile* (visible to every operation) and *durable* (synced), with the
//! changes in between. [`MemoryDevice::crash`] makes a new disk of the durable state and an arbitrary, legal part of
//! those changes. It is stricter than most filesystems: a file's sync does not make its name durable, a directory is
//! durable only with its own name in its parent, and a rename between directories is two independent changes (sync the
//! target's directory first).
//!
//! Handles are cheap clones of one disk. Space is counted in pages of 4096 bytes against an optional capacity; a write
//! that does not fit changes nothing. A removed file gives its space back with its last open handle.
//!
//! Lock order: `power` (shared by operations, exclusive for a crash) -> `tree` -> one file's `state`.
//!
//! Cost: every unsynced write is kept twice until it is synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use self::content::Content;
use self::pages::PAGE_BYTES;
use self::tree::{Directory, Item, NameChange, Tree, at};
use super::path::{check_directory, check_file, check_writable, failure, prefixes, range_end, split};
use super::{Device, DeviceFile, Entry, OpenMode, Space};
use crate::error::{Result, StoreError};

mod content;
mod crash;
mod pages;
mod tree;

const UNLIMITED_BYTES: u64 = 1 << 50;

/// A device in memory; clones are handles of the same disk.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    power: RwLock<()>,
    tree: Mutex<Tree>,
    space: SpaceCounter,
}

#[derive(Debug)]
struct FileNode {
    state: RwLock<FileState>,
}

#[derive(Debug)]
struct FileState {
    content: Content,
    /// Number of volatile names. Without names and handles the file takes no space.
    names: usize,
    handles: usize,
}

#[derive(Debug)]
struct SpaceCounter {
    capacity_bytes: AtomicU64,
    used_pages: AtomicU64,
}

impl Default for MemoryDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDevice {
    /// Returns an empty disk without a limit.
    pub fn new() -> Self {
        Self::with_capacity(UNLIMITED_BYTES)
    }

    /// Returns an empty disk that holds at most `capacity_bytes` of content (in pages of 4096).
    pub fn with_capacity(capacity_bytes: u64) -> Self {
        let tree = Tree { directories: BTreeMap::from([(String::new(), Directory::default())]) };
        let space = SpaceCounter { capacity_bytes: AtomicU64::new(capacity_bytes), used_pages: AtomicU64::new(0) };
        Self { shared: Arc::new(Shared { power: RwLock::new(()), tree: Mutex::new(tree), space }) }
    }

    /// Changes the capacity. Existing content stays, even beyond it.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.shared.space.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
    }

    /// The capacity.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.space.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in use, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        self.shared.space.used_bytes()
    }

    /// Whether the file's content (not its name) would survive a power loss as it is.
    #[cfg(test)]
    pub(super) fn is_synced(&self, path: &str) -> Result<bool> {
        let _power = self.shared.power.read();
        let file = self.shared.tree.lock().file("look up", path)?;
        let is_synced = file.state.read().content.is_synced();
        Ok(is_synced)
    }

    /// Gives up the directory's unsynced changes of names: operations still see them, but neither they nor later
    /// changes become durable, although later syncs succeed. This is stricter than a journaling filesystem, which then
    /// refuses everything.
    pub(super) fn lose_unsynced_names(&self, path: &str) -> Result<()> {
        let _power = self.shared.power.read();
        self.shared.tree.lock().directory("look up", path)?.lose_unsynced();
        Ok(())
    }

    /// Renames a file if `may` allows it, which gets what is at `to`.
    fn rename_if(&self, from: &str, to: &str, may: impl FnOnce(Option<&Item>) -> Result<()>) -> Result<()> {
        check_file(from)?;
        check_file(to)?;
        let _power = self.shared.power.read();
        let mut tree = self.shared.tree.lock();
        let source = tree.file("rename", from)?;
        let (from_parent, from_name) = split(from);
        let (to_parent, to_name) = split(to);
        let target = tree.directory("rename", to_parent).map_err(|error| at(error, from))?;
        let replaced = target.volatile.get(to_name).cloned();
        may(replaced.as_ref())?;
        match &replaced {
            Some(Item::Directory) => return Err(failure("rename", from, io::ErrorKind::IsADirectory)),
            // Two names of one file (only a crash makes them), or one name twice: as in rename(2), nothing happens.
            Some(Item::File(file)) if Arc::ptr_eq(file, &source) => return Ok(()),
            _ => {}
        }
        let item = Item::File(source);
        if from_parent == to_parent {
            target.change(NameChange::Rename(from_name.to_owned(), to_name.to_owned(), item));
        } else {
            target.change(NameChange::Insert(to_name.to_owned(), item));
            tree.directory("rename", from_parent)?.change(NameChange::Remove(from_name.to_owned()));
        }
        self.shared.drop_name(replaced);
        Ok(())
    }

    /// The unsynced writes of the file that is at `path` now. The handle follows the file through renames, and can give
    /// them up as Linux does after a failed sync: readers still see them, and no later sync makes them durable.
    pub(super) fn unsynced(&self, path: &str) -> Result<Unsynced> {
        let _power = self.shared.power.read();
        let file = self.shared.tree.lock().file("look up", path)?;
        Ok(Unsynced { shared: Arc::clone(&self.shared), file })
    }
}

impl FileNode {
    fn new(content: Content) -> Self {
        Self { state: RwLock::new(FileState { content, names: 0, handles: 0 }) }
    }
}

impl SpaceCounter {
    fn used_bytes(&self) -> u64 {
        self.used_pages.load(Ordering::Relaxed).saturating_mul(PAGE_BYTES as u64)
    }

    fn set_used(&self, pages: u64) {
        self.used_pages.store(pages, Ordering::Relaxed);
    }

    fn take(&self, pages: u64) -> bool {
        let capacity_pages = self.capacity_bytes.load(Ordering::Relaxed) / PAGE_BYTES as u64;
        let take = |used: u64| used.checked_add(pages).filter(|&sum| pages == 0 || sum <= capacity_pages);
        self.used_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes `pages` even if they do not fit.
    fn take_anyway(&self, pages: u64) {
        self.used_pages.fetch_add(pages, Ordering::Relaxed);
    }

    fn give_back(&self, pages: u64) {
        self.used_pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

impl Shared {
    /// Gives the space back when the last name or handle is gone.
    fn release_if_unused(&self, state: &mut FileState) {
        if state.names == 0 && state.handles == 0 {
            self.space.give_back(state.content.volatile().page_count());
            // Durable names may still refer to the file: its durable content stays for a crash.
            state.content.forget_volatile();
        }
    }

    fn drop_name(&self, item: Option<Item>) {
        if let Some(Item::File(file)) = item {
            let mut state = file.state.write();
            state.names -= 1;
            self.release_if_unused(&mut state);
        }
    }
}

impl Device for MemoryDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        check_file(path)?;
        let _power = self.shared.power.read();
        let mut tree = self.shared.tree.lock();
        let (parent, name) = split(path);
        let is_creating = matches!(mode, OpenMode::CreateOrWrite | OpenMode::CreateNew);
        let file = match tree.file("open", path) {
            Err(StoreError::NotFound { .. }) if is_creating => {
                let directory = tree.directory("open", parent).map_err(|error| at(error, path))?;
                let file = Arc::new(FileNode::new(Content::default()));
                file.state.write().names = 1;
                directory.change(NameChange::Insert(name.to_owned(), Item::File(Arc::clone(&file))));
                file
            }
            found if mode == OpenMode::CreateNew && tree.item(path).is_some() => {
                drop(found);
                return Err(failure("open", path, io::ErrorKind::AlreadyExists));
            }
            found => found?,
        };
        file.state.write().handles += 1;
        let shared = Arc::clone(&self.shared);
        Ok(Arc::new(OpenFile { shared, file, path: path.to_owned(), mode }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        check_file(path)?;
        let _power = self.shared.power.read();
        let mut tree = self.shared.tree.lock();
        tree.file("remove", path)?;
        let (parent, name) = split(path);
        let directory = tree.directory("remove", parent)?;
        let removed = directory.volatile.get(name).cloned();
        directory.change(NameChange::Remove(name.to_owned()));
        self.shared.drop_name(removed);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.rename_if(from, to, |_| Ok(()))
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        let exists = |_: &Item| failure("rename", from, io::ErrorKind::AlreadyExists);
        self.rename_if(from, to, |target| target.map_or(Ok(()), |target| Err(exists(target))))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        let _power = self.shared.power.read();
        let mut tree = self.shared.tree.lock();
        for prefix in prefixes(path) {
            match tree.item(prefix) {
                Some(Item::Directory) => {}
                Some(Item::File(_)) => return Err(failure("create", path, io::ErrorKind::AlreadyExists)),
                None => {
                    let (parent, name) = split(prefix);
                    let change = NameChange::Insert(name.to_owned(), Item::Directory);
                    tree.directory("create", parent)?.change(change);
                    tree.directories.insert(prefix.to_owned(), Directory::default());
                }
            }
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        check_directory(path)?;
        let _power = self.shared.power.read();
        let mut tree = self.shared.tree.lock();
        let directory = tree.directory("list", path)?;
        let entry = |(name, item): (&String, &Item)| match item {
            Item::Directory => Entry { name: name.clone(), len_bytes: 0, is_directory: true, modified_secs: None },
            Item::File(file) => {
                let len_bytes = file.state.read().content.volatile().len_bytes();
                Entry { name: name.clone(), len_bytes, is_directory: false, modified_secs: None }
            }
        };
        Ok(directory.volatile.iter().map(entry).collect())
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        let _power = self.shared.power.read();
        self.shared.tree.lock().directory("sync directory", path)?.sync();
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool> {
        check_directory(path)?;
        let _power = self.shared.power.read();
        Ok(path.is_empty() || self.shared.tree.lock().item(path).is_some())
    }

    fn space(&self) -> Result<Space> {
        let total_bytes = self.capacity_bytes();
        Ok(Space { total_bytes, available_bytes: total_bytes.saturating_sub(self.used_bytes()) })
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

#[derive(Debug)]
pub(super) struct Unsynced {
    shared: Arc<Shared>,
    file: Arc<FileNode>,
}

impl Unsynced {
    pub(super) fn lose(&self) {
        let _power = self.shared.power.read();
        self.file.state.write().content.lose_unsynced();
    }
}

#[derive(Debug)]
struct OpenFile {
    shared: Arc<Shared>,
    file: Arc<FileNode>,
    path: String,
    mode: OpenMode,
}

impl DeviceFile for OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        range_end(&self.path, offset, buffer.len() as u64)?;
        let _power = self.shared.power.read();
        Ok(self.file.state.read().content.volatile().read(buffer, offset))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, offset, buffer.len() as u64)?;
        let _power = self.shared.power.read();
        let mut state = self.file.state.write();
        let new_pages = state.content.volatile().missing_pages(offset, buffer.len() as u64);
        if !self.shared.space.take(new_pages) {
            return Err(StoreError::from_io("write", &*self.path, Errno::NOSPC.into()));
        }
        if !buffer.is_empty() {
            state.content.write(buffer, offset);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _power = self.shared.power.read();
        self.file.state.write().content.sync();
        Ok(())
    }

    fn reread(&self) -> Result<()> {
        let _power = self.shared.power.read();
        let mut state = self.file.state.write();
        let before = state.content.volatile().page_count();
        state.content.reread();
        let after = state.content.volatile().page_count();
        self.shared.space.give_back(before.saturating_sub(after));
        // Pages that a lost punch brings back already exist: take them beyond the capacity too.
        self.shared.space.take_anyway(after.saturating_sub(before));
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        let _power = self.shared.power.read();
        Ok(self.file.state.read().content.volatile().len_bytes())
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        range_end(&self.path, len_bytes, 0)?;
        self.shrink(|content| content.set_len(len_bytes))
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        range_end(&self.path, offset, len_bytes)?;
        self.shrink(|content| content.punch(offset, len_bytes))
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let _power = self.shared.power.read();
        Ok(self.file.state.read().content.volatile().page_count() * PAGE_BYTES as u64)
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}

impl OpenFile {
    /// Applies a change that may free pages and takes none.
    fn shrink(&self, change: impl FnOnce(&mut Content)) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        let _power = self.shared.power.read();
        let mut state = self.file.state.write();
        let before = state.content.volatile().page_count();
        change(&mut state.content);
        self.shared.space.give_back(before - state.content.volatile().page_count());
        Ok(())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let _power = self.shared.power.read();
        let mut state = self.file.state.write();
        state.handles -= 1;
        self.shared.release_if_unused(&mut state);
    }
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
