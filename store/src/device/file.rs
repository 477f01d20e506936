//! The real device: a directory of the host's filesystem.
//!
//! Each open file has a buffered descriptor. The first read or write that qualifies opens a second one with O_DIRECT. A
//! read or write is direct if its address, offset and length are multiples of 4096 bytes and it is at least 64 KiB
//! long. Direct writes run at 3 to 10 times the rate of buffered writes with a later sync. Direct reads need no copy
//! and no fresh pages of the page cache, which cost a virtual machine more than the disk does. Everything else goes
//! through the page cache, which the kernel keeps coherent with direct writes. After a filesystem has refused direct
//! I/O (EINVAL), it is not tried again.
//!
//! Invariants: `sync` is fdatasync on the buffered descriptor. It also covers direct writes: they leave no dirty pages,
//! and the call writes the metadata and the disk's cache. After a failed sync every later sync through the same handle
//! fails with the same error (I-7), because the kernel reports a lost page only once. The root is made absolute when it
//! is opened, so a daemon may change its directory.
//!
//! An operation that may wait for the disk announces it first ([`waiting`]). A read does so only if the kernel does not
//! have the bytes in memory.
//!
//! Cost: one system call per operation; two for the first direct access to a file, and for a read from the disk on a
//! thread that watches for waits.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::num::NonZero;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_sync::OnceLock;
use rustix::fs::{Advice, CWD, FallocateFlags, OFlags, RenameFlags, fadvise, fallocate, renameat_with};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::path::{FILE_BYTES_MAX, check_directory, check_file, check_writable, range_end};
use super::{DIRECT_ALIGNMENT_BYTES, Device, DeviceFile, Entry, OpenMode, Space, owner};
use crate::error::{Result, StoreError};
use crate::waiting;

/// Shortest direct read or write in bytes. For shorter ones the extra wait for the disk costs more than the copy.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// Bytes that the kernel is asked at once to read along. It would take the first ones only of more than its disk reads in one go.
const ADVISED_BYTES: u64 = 128 << 10;

/// Features that the filesystem was found to lack. All files of a device share it.
#[derive(Debug, Default)]
struct Refusals {
    direct: AtomicBool,
    punch: AtomicBool,
    /// Reading no more than is in memory.
    nowait: AtomicBool,
}

/// A directory of the host's filesystem.
#[derive(Debug, Clone)]
pub struct FileDevice {
    root: PathBuf,
    refusals: Arc<Refusals>,
}

impl FileDevice {
    /// Opens the device at an existing directory.
    pub fn open(root: &Path) -> Result<Self> {
        let fail = |error| StoreError::from_io("open", root.display().to_string(), error);
        let root = root.canonicalize().map_err(fail)?;
        if !root.is_dir() {
            return Err(fail(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { root, refusals: Arc::default() })
    }

    /// Creates the directory (mode 0700) and its missing parents, durably, and opens the device. An existing directory
    /// is used as it is.
    pub fn create(root: &Path) -> Result<Self> {
        let fail = |error| StoreError::from_io("create", root.display().to_string(), error);
        let absolute = std::path::absolute(root).map_err(fail)?;
        let missing: Vec<&Path> = absolute.ancestors().take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev() {
            // The root's mode decides who can reach the pool; parents get the user's usual mode.
            let mode = if path == absolute { 0o700 } else { 0o777 };
            make_directory(path, mode).map_err(fail)?;
            if let Some(parent) = path.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(fail)?;
            }
        }
        Self::open(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Device for FileDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        check_file(path)?;
        waiting::announce();
        let fail = |error| StoreError::from_io("open", path, owner::explain(&self.root, path, error));
        let at = self.at(path);
        let opened = match mode {
            OpenMode::Read => File::open(at),
            OpenMode::Write => OpenOptions::new().read(true).write(true).open(at),
            OpenMode::CreateOrWrite => owner::open_or_create_file(&at, OFlags::RDWR),
            OpenMode::CreateNew => owner::create_file(&at, OFlags::RDWR),
        };
        let file = opened.map_err(fail)?;
        // Linux opens directories for reading; no caller wants that.
        if mode == OpenMode::Read && file.metadata().map_err(fail)?.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        Ok(Arc::new(OpenFile {
            path: path.to_owned(),
            mode,
            buffered: file,
            direct: OnceLock::new(),
            along: OnceLock::new(),
            failed_sync: OnceLock::new(),
            refusals: Arc::clone(&self.refusals),
        }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        check_file(path)?;
        waiting::announce();
        std::fs::remove_file(self.at(path)).map_err(|error| StoreError::from_io("remove", path, error))
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        waiting::announce();
        std::fs::remove_dir(self.at(path)).map_err(|error| StoreError::from_io("remove", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_file(from)?;
        check_file(to)?;
        waiting::announce();
        let fail = |error| StoreError::from_io("rename", from, error);
        let (source, target) = (self.at(from), self.at(to));
        let is_directory = |path: &Path| path.symlink_metadata().map(|found| found.is_dir());
        // The target is checked too because the kernel's answers differ (ENOTEMPTY for an ancestor of the source).
        if is_directory(&source).map_err(fail)? || is_directory(&target).unwrap_or(false) {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        std::fs::rename(source, target).map_err(fail)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        check_file(from)?;
        check_file(to)?;
        waiting::announce();
        let (source, target) = (self.at(from), self.at(to));
        match renameat_with(CWD, &source, CWD, &target, RenameFlags::NOREPLACE) {
            // Network filesystems know no such flag, but links.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                std::fs::hard_link(&source, &target).and_then(|()| std::fs::remove_file(&source))
            }
            renamed => renamed.map_err(io::Error::from),
        }
        .map_err(|error| StoreError::from_io("rename", from, error))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        waiting::announce();
        let mut directory = self.root.clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            directory.push(part);
            let made = owner::create_directory(&directory, 0o700);
            made.map_err(|error| StoreError::from_io("create", path, owner::explain(&self.root, path, error)))?;
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        check_directory(path)?;
        waiting::announce();
        let fail = |error| StoreError::from_io("list", path, owner::explain(&self.root, path, error));
        let mut entries = Vec::new();
        for item in std::fs::read_dir(self.at(path)).map_err(fail)? {
            let item = item.map_err(fail)?;
            // The pool has no names that are not UTF-8.
            let Ok(name) = item.file_name().into_string() else { continue };
            let metadata = match item.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
                Err(error) => return Err(fail(error)),
            };
            let is_directory = metadata.is_dir();
            let len_bytes = if is_directory { 0 } else { metadata.len() };
            let modified_secs = u64::try_from(metadata.mtime()).ok();
            entries.push(Entry { name, len_bytes, is_directory, modified_secs });
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        check_directory(path)?;
        waiting::announce();
        let fail = |error| StoreError::from_io("sync directory", path, error);
        let directory = File::open(self.at(path)).map_err(fail)?;
        if !directory.metadata().map_err(fail)?.is_dir() {
            return Err(fail(io::ErrorKind::NotADirectory.into()));
        }
        directory.sync_all().map_err(|error| StoreError::from_sync(path, error))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        check_directory(path)?;
        waiting::announce();
        match self.at(path).symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(StoreError::from_io("look up", path, error)),
        }
    }

    fn space(&self) -> Result<Space> {
        waiting::announce();
        let found = rustix::fs::statvfs(&self.root)
            .map_err(|error| StoreError::from_io("ask the space of", self.describe(), error.into()))?;
        // Blocks that only root may use are neither used nor available.
        let blocks = found.f_blocks.saturating_sub(found.f_bfree.saturating_sub(found.f_bavail));
        Ok(Space {
            total_bytes: blocks.saturating_mul(found.f_frsize),
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    fn filesystem_id(&self) -> Option<u64> {
        std::fs::metadata(&self.root).ok().map(|metadata| metadata.dev())
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

#[derive(Debug)]
struct OpenFile {
    path: String,
    mode: OpenMode,
    buffered: File,
    /// Opened at the first access that qualifies; `None` if opening failed.
    direct: OnceLock<Option<File>>,
    /// For reads that read along: the kernel reads nothing ahead by itself there. Opened likewise.
    along: OnceLock<Option<File>>,
    failed_sync: OnceLock<StoreError>,
    refusals: Arc<Refusals>,
}

impl OpenFile {
    fn error(&self, operation: &'static str, error: impl Into<io::Error>) -> StoreError {
        StoreError::from_io(operation, &*self.path, error.into())
    }

    /// Returns the descriptor for direct access, or `None` if the filesystem has no direct I/O.
    fn direct(&self) -> Option<&File> {
        if self.refusals.direct.load(Ordering::Relaxed) {
            return None;
        }
        let open = || {
            let flags = OFlags::DIRECT.bits().cast_signed();
            match self.open_again(OpenOptions::new().write(self.mode != OpenMode::Read).custom_flags(flags)) {
                Ok(file) => Some(file),
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidInput {
                        self.refuse_direct();
                    } else {
                        tracing::debug!(path = self.path, %error, "no direct I/O for this file");
                    }
                    None
                }
            }
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// Returns the descriptor for reads that read along, or `None` if it cannot be opened, or the kernel lacks them.
    fn along(&self) -> Option<&File> {
        if self.refusals.nowait.load(Ordering::Relaxed) {
            return None;
        }
        let open = || {
            let file = self.open_again(&mut OpenOptions::new()).ok()?;
            fadvise(&file, 0, None, Advice::Random).ok()?;
            Some(file)
        };
        self.along.get_or_init(open).as_ref()
    }

    /// Opens the file once more for reading: through the descriptor and not by name, since it may have been renamed.
    fn open_again(&self, how: &mut OpenOptions) -> io::Result<File> {
        use std::os::fd::AsRawFd;
        how.read(true).open(format!("/proc/self/fd/{}", self.buffered.as_raw_fd()))
    }

    /// Reads the bytes that the kernel has in memory from the start of the range, if this thread watches for waits.
    /// Returns their number.
    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> usize {
        if !waiting::is_concerned() {
            return 0;
        }
        // The read that may wait handles EAGAIN and every other failure.
        preadv2(&self.buffered, &mut [io::IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    fn refuse_direct(&self) {
        if !self.refusals.direct.swap(true, Ordering::Relaxed) {
            tracing::info!(path = self.path, "the filesystem lacks direct I/O: everything goes through the page cache");
        }
    }

    /// Calls `part` with a descriptor and the number of bytes done until all `len` bytes at `address` are done, or a
    /// call does none. Returns the bytes done.
    fn in_parts(
        &self,
        operation: &'static str,
        (address, len): (usize, usize),
        offset: u64,
        mut done: usize,
        mut part: impl FnMut(&File, usize) -> io::Result<usize>,
    ) -> Result<usize> {
        let is_aligned = |bytes: usize| bytes.is_multiple_of(DIRECT_ALIGNMENT_BYTES);
        let mut want_direct = len >= DIRECT_BYTES_MIN;
        while done < len {
            // Checked again after each part: a short one may leave an unaligned rest.
            want_direct &= is_aligned(address + done) && is_aligned(len - done) && is_aligned(offset as usize + done);
            let direct = if want_direct { self.direct() } else { None };
            match part(direct.unwrap_or(&self.buffered), done) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if direct.is_some() && error.kind() == io::ErrorKind::InvalidInput => {
                    want_direct = false;
                    self.refuse_direct();
                }
                Err(error) => return Err(self.error(operation, error)),
            }
        }
        Ok(done)
    }
}

impl DeviceFile for OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        range_end(&self.path, offset, buffer.len() as u64)?;
        let done = self.read_in_memory(buffer, offset);
        if done < buffer.len() {
            waiting::announce();
        }
        let range = (buffer.as_ptr().addr(), buffer.len());
        self.in_parts("read", range, offset, done, |file, done| file.read_at(&mut buffer[done..], offset + done as u64))
    }

    fn read_along(&self, buffer: &mut [u8], offset: u64, along_bytes: u64) -> Result<usize> {
        let end = range_end(&self.path, offset, buffer.len() as u64)?;
        let Some(file) = self.along() else { return self.read_at(buffer, offset) };
        let mut done = match preadv2(file, &mut [io::IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => count,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.refusals.nowait.store(true, Ordering::Relaxed);
                return self.read_at(buffer, offset);
            }
            // The read below tells other failures.
            Err(_) => 0,
        };
        if done < buffer.len() {
            waiting::announce();
            let (from, until) = (offset + done as u64, end.saturating_add(along_bytes).min(FILE_BYTES_MAX));
            for at in (from..until).step_by(ADVISED_BYTES as usize) {
                // Without it the read below takes longer, no more.
                let _ignored = fadvise(file, at, NonZero::new(ADVISED_BYTES.min(until - at)), Advice::WillNeed);
            }
        }
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error("read", error)),
            }
        }
        // The caller keeps these bytes. The last block stays: the bytes behind them may begin in it.
        let last_block = end.saturating_sub(1) - end.saturating_sub(1) % DIRECT_ALIGNMENT_BYTES as u64;
        if let Some(len) = NonZero::new(last_block.saturating_sub(offset)) {
            let _ignored = fadvise(file, offset, Some(len), Advice::DontNeed);
        }
        Ok(done)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, offset, buffer.len() as u64)?;
        waiting::announce();
        let range = (buffer.as_ptr().addr(), buffer.len());
        let write = |file: &File, done: usize| file.write_at(&buffer[done..], offset + done as u64);
        if self.in_parts("write", range, offset, 0, write)? < buffer.len() {
            return Err(self.error("write", io::ErrorKind::WriteZero));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if let Some(error) = self.failed_sync.get() {
            return Err(error.clone());
        }
        waiting::announce();
        self.buffered.sync_data().map_err(|error| {
            let error = StoreError::from_sync(&*self.path, error);
            self.failed_sync.get_or_init(|| error).clone()
        })
    }

    fn reread(&self) -> Result<()> {
        // The kernel forgets only clean pages. Pages that could not be written are clean as well.
        let synced = self.sync();
        fadvise(&self.buffered, 0, None, Advice::DontNeed).map_err(|error| self.error("read anew", error))?;
        synced
    }

    fn len(&self) -> Result<u64> {
        self.buffered.metadata().map(|found| found.len()).map_err(|error| self.error("look up", error))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, len_bytes, 0)?;
        waiting::announce();
        self.buffered.set_len(len_bytes).map_err(|error| self.error("set the length of", error))
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_writable(&self.path, self.mode)?;
        range_end(&self.path, offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        waiting::announce();
        loop {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&self.buffered, flags, offset, len_bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    if !self.refusals.punch.swap(true, Ordering::Relaxed) {
                        tracing::warn!(path = self.path, "the filesystem cannot punch holes: freed space stays taken");
                    }
                    return Ok(());
                }
                Err(error) => return Err(self.error("punch", error)),
            }
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let found = self.buffered.metadata().map_err(|error| self.error("look up", error))?;
        Ok(found.blocks().saturating_mul(512))
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
