//! A device that keeps every change in memory and leaves the device below unchanged.
//!
//! A pool that is opened for reading only is recovered like any other (its log is replayed, its namespace raised to its
//! last commit), but on an overlay. So a mount with `-o ro`, `dedupfs-stats` and `dedupfs fsck` write nothing, and work
//! on a disk that cannot be written.
//!
//! A file of the overlay is a base (a file below, cut at some length) with pages of 4096 bytes laid over it. Names are
//! looked up here first: a file that was opened or changed, a new directory, or a mark that something is gone. The
//! device below must not change meanwhile: the opener of an overlay holds the pool's lock.
//!
//! Limits: pages take at most the given bytes. A change that does not fit is [`NoSpace`](StoreError::NoSpace) and
//! changes nothing. Punching does nothing, as [`DeviceFile::punch`] allows. Syncs do nothing: no change here survives.
//!
//! The pages of a removed file are given back when the overlay is dropped.
//!
//! Lock order: `names` -> one file's `content`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_sync::{Mutex, RwLock};

use super::path::{check_directory, check_file, check_writable, failure, prefixes, range_end, split};
use super::{Device, DeviceFile, Entry, OpenMode, Space};
use crate::error::{Result, StoreError};

const PAGE_BYTES: usize = 4096;

/// A device over another one, which it never changes.
#[derive(Debug)]
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    names: Mutex<BTreeMap<String, Name>>,
    room: Arc<Room>,
}

/// The overlay's answer for a path. For any other path the device below decides.
#[derive(Debug, Clone)]
enum Name {
    File(Arc<FileNode>),
    Directory,
    Gone,
}

/// Bytes of pages in use, and their limit.
#[derive(Debug)]
struct Room {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

#[derive(Debug)]
struct FileNode {
    /// The file below, if there is one.
    base_path: Option<String>,
    content: RwLock<Content>,
}

#[derive(Debug)]
struct Content {
    len_bytes: u64,
    /// Length of the part of the base that is still visible.
    base_bytes: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl OverlayDevice {
    /// Lays memory of at most `limit_bytes` over a device.
    pub fn new(inner: Arc<dyn Device>, limit_bytes: u64) -> Self {
        let room = Room { limit_bytes, used_bytes: AtomicU64::new(0) };
        Self { inner, names: Mutex::default(), room: Arc::new(room) }
    }

    /// Bytes of memory that changes take.
    fn used_bytes(&self) -> u64 {
        self.room.used_bytes.load(Ordering::Relaxed)
    }

    fn has_directory(&self, names: &BTreeMap<String, Name>, path: &str) -> Result<bool> {
        if path.is_empty() {
            return Ok(true);
        }
        match names.get(path) {
            Some(Name::Directory) => Ok(true),
            Some(_) => Ok(false),
            None => {
                let (parent, name) = split(path);
                if !self.inner.exists(path)? {
                    return Ok(false);
                }
                Ok(self.inner.list(parent)?.iter().any(|entry| entry.name == name && entry.is_directory))
            }
        }
    }

    /// Returns the file at `path` and takes it into the overlay.
    fn file(
        &self,
        names: &mut BTreeMap<String, Name>,
        operation: &'static str,
        path: &str,
    ) -> Result<Option<Arc<FileNode>>> {
        match names.get(path) {
            Some(Name::File(file)) => return Ok(Some(file.clone())),
            Some(Name::Directory) => return Err(failure(operation, path, io::ErrorKind::IsADirectory)),
            Some(Name::Gone) => return Ok(None),
            None => {}
        }
        let base = match self.inner.open(path, OpenMode::Read) {
            Ok(base) => base,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let len_bytes = base.len()?;
        let file = Arc::new(FileNode::new(Some(path.to_owned()), len_bytes));
        names.insert(path.to_owned(), Name::File(file.clone()));
        Ok(Some(file))
    }

    fn existing(
        &self,
        names: &mut BTreeMap<String, Name>,
        operation: &'static str,
        path: &str,
    ) -> Result<Arc<FileNode>> {
        self.file(names, operation, path)?.ok_or_else(|| StoreError::NotFound { path: path.to_owned() })
    }

    fn rename_if(&self, from: &str, to: &str, must_be_absent: bool) -> Result<()> {
        check_file(from)?;
        check_file(to)?;
        let mut names = self.names.lock();
        let file = self.existing(&mut names, "rename", from)?;
        if !self.has_directory(&names, split(to).0)? {
            return Err(StoreError::NotFound { path: from.to_owned() });
        }
        if self.has_directory(&names, to)? {
            return Err(failure("rename", from, io::ErrorKind::IsADirectory));
        }
        if must_be_absent && self.file(&mut names, "rename", to)?.is_some() {
            return Err(failure("rename", from, io::ErrorKind::AlreadyExists));
        }
        if from != to {
            names.insert(to.to_owned(), Name::File(file));
            names.insert(from.to_owned(), Name::Gone);
        }
        Ok(())
    }
}

impl Device for OverlayDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        check_file(path)?;
        let mut names = self.names.lock();
        let found = self.file(&mut names, "open", path)?;
        let node = match (found, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(failure("open", path, io::ErrorKind::AlreadyExists)),
            (Some(file), _) => file,
            (None, OpenMode::CreateNew | OpenMode::CreateOrWrite) => {
                if !self.has_directory(&names, split(path).0)? {
                    return Err(StoreError::NotFound { path: path.to_owned() });
                }
                let file = Arc::new(FileNode::new(None, 0));
                names.insert(path.to_owned(), Name::File(file.clone()));
                file
            }
            (None, OpenMode::Read | OpenMode::Write) => return Err(StoreError::NotFound { path: path.to_owned() }),
        };
        drop(names);
        let base = node.base_path.as_deref().map(|path| self.inner.open(path, OpenMode::Read)).transpose()?;
        Ok(Arc::new(OverlayFile { node, base, room: self.room.clone(), path: path.to_owned(), mode }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        check_file(path)?;
        let mut names = self.names.lock();
        self.existing(&mut names, "remove", path)?;
        names.insert(path.to_owned(), Name::Gone);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.rename_if(from, to, false)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.rename_if(from, to, true)
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        let mut names = self.names.lock();
        for prefix in prefixes(path) {
            if self.has_directory(&names, prefix)? {
                continue;
            }
            let is_taken = match names.get(prefix) {
                Some(Name::File(_)) => true,
                Some(_) => false,
                None => self.inner.exists(prefix)?,
            };
            if is_taken {
                return Err(failure("create", path, io::ErrorKind::AlreadyExists));
            }
            names.insert(prefix.to_owned(), Name::Directory);
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        check_directory(path)?;
        let names = self.names.lock();
        if !self.has_directory(&names, path)? {
            return Err(StoreError::NotFound { path: path.to_owned() });
        }
        let below = if path.is_empty() || self.inner.exists(path)? { self.inner.list(path)? } else { Vec::new() };
        let mut entries: BTreeMap<String, Entry> = below.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for (full, said) in names.iter().filter(|(full, _)| split(full).0 == path) {
            let name = split(full).1.to_owned();
            match said {
                Name::Gone => drop(entries.remove(&name)),
                Name::Directory => {
                    entries.insert(name.clone(), Entry { name, len_bytes: 0, is_directory: true, modified_secs: None });
                }
                Name::File(file) => {
                    let len_bytes = file.content.read().len_bytes;
                    entries.insert(name.clone(), Entry { name, len_bytes, is_directory: false, modified_secs: None });
                }
            }
        }
        Ok(entries.into_values().collect())
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        if self.has_directory(&self.names.lock(), path)? {
            return Ok(());
        }
        Err(StoreError::NotFound { path: path.to_owned() })
    }

    fn exists(&self, path: &str) -> Result<bool> {
        check_directory(path)?;
        match self.names.lock().get(path) {
            Some(said) => Ok(!matches!(said, Name::Gone)),
            None => self.inner.exists(path),
        }
    }

    fn space(&self) -> Result<Space> {
        let space = self.inner.space()?;
        let left_bytes = self.room.limit_bytes.saturating_sub(self.used_bytes());
        // Changes take no space of the disk, however full it is.
        Ok(Space { available_bytes: left_bytes, ..space })
    }

    fn disk_space(&self) -> Result<Space> {
        self.inner.disk_space()
    }

    fn filesystem_id(&self) -> Option<u64> {
        self.inner.filesystem_id()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl FileNode {
    fn new(base_path: Option<String>, base_bytes: u64) -> Self {
        let content = Content { len_bytes: base_bytes, base_bytes, pages: BTreeMap::new() };
        Self { base_path, content: RwLock::new(content) }
    }
}

#[derive(Debug)]
struct OverlayFile {
    node: Arc<FileNode>,
    base: Option<Arc<dyn DeviceFile>>,
    room: Arc<Room>,
    path: String,
    mode: OpenMode,
}

impl OverlayFile {
    /// Reads the bytes at `offset` of the base; zeros behind its visible part.
    fn read_base(&self, content: &Content, buffer: &mut [u8], offset: u64) -> Result<()> {
        let visible = usize::try_from(content.base_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (from_base, zeros) = buffer.split_at_mut(visible.min(buffer.len()));
        zeros.fill(0);
        match &self.base {
            Some(base) if !from_base.is_empty() => base.read_exact_at(from_base, offset),
            _ => Ok(()),
        }
    }

    /// Returns the page with that number; copies it from the base first if necessary.
    fn page<'a>(&self, content: &'a mut Content, number: u64) -> Result<&'a mut [u8; PAGE_BYTES]> {
        if !content.pages.contains_key(&number) {
            let mut page = Box::new([0; PAGE_BYTES]);
            self.read_base(content, &mut page[..], number * PAGE_BYTES as u64)?;
            content.pages.insert(number, page);
        }
        content
            .pages
            .get_mut(&number)
            .map(|page| &mut **page)
            .ok_or_else(|| StoreError::Usage("a page of an overlay went away".to_owned()))
    }
}

/// Calls `each` with page number, range in the page, and range in the buffer, for `len` bytes from `offset`.
fn for_each_page(
    offset: u64,
    len: usize,
    mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let count = (PAGE_BYTES - within).min(len - done);
        each(at / PAGE_BYTES as u64, within..within + count, done..done + count)?;
        done += count;
    }
    Ok(())
}

impl DeviceFile for OverlayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        range_end(&self.path, offset, buffer.len() as u64)?;
        let content = self.node.content.read();
        let left = usize::try_from(content.len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(buffer.len());
        let Some(buffer) = buffer.get_mut(..count) else { return Ok(0) };
        self.read_base(&content, buffer, offset)?;
        if content.pages.is_empty() {
            return Ok(count);
        }
        for_each_page(offset, count, |number, within, place| {
            if let Some(page) = content.pages.get(&number)
                && let (Some(from), Some(to)) = (page.get(within), buffer.get_mut(place))
            {
                to.copy_from_slice(from);
            }
            Ok(())
        })?;
        Ok(count)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        let end = range_end(&self.path, offset, buffer.len() as u64)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let mut content = self.node.content.write();
        let (first, last) = (offset / PAGE_BYTES as u64, (end - 1) / PAGE_BYTES as u64);
        let new_pages = (last - first + 1) - content.pages.range(first..=last).count() as u64;
        let bytes = new_pages * PAGE_BYTES as u64;
        let limit = self.room.limit_bytes;
        let take = |used: u64| used.checked_add(bytes).filter(|&sum| bytes == 0 || sum <= limit);
        if self.room.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(StoreError::NoSpace { operation: "keep in memory a change of", path: self.path.clone() });
        }
        for_each_page(offset, buffer.len(), |number, within, place| {
            let page = self.page(&mut content, number)?;
            if let (Some(to), Some(from)) = (page.get_mut(within), buffer.get(place)) {
                to.copy_from_slice(from);
            }
            Ok(())
        })?;
        content.len_bytes = content.len_bytes.max(end);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.node.content.read().len_bytes)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, len_bytes, 0)?;
        let mut content = self.node.content.write();
        if len_bytes < content.len_bytes {
            content.base_bytes = content.base_bytes.min(len_bytes);
            let cut = content.pages.split_off(&len_bytes.div_ceil(PAGE_BYTES as u64));
            self.room.used_bytes.fetch_sub((cut.len() * PAGE_BYTES) as u64, Ordering::Relaxed);
            // The part that was cut reads as zeros if the file grows again.
            if let Some(page) = content.pages.get_mut(&(len_bytes / PAGE_BYTES as u64))
                && let Some(tail) = page.get_mut((len_bytes % PAGE_BYTES as u64) as usize..)
            {
                tail.fill(0);
            }
        }
        content.len_bytes = len_bytes;
        Ok(())
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, offset, len_bytes).map(drop)
    }

    fn describe(&self) -> String {
        self.path.clone()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let base_bytes = self.base.as_ref().map_or(Ok(0), |base| base.allocated_bytes())?;
        let pages = self.node.content.read().pages.len();
        Ok(base_bytes.max((pages * PAGE_BYTES) as u64))
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
