//! The one seam that all durable bytes pass through.
//!
//! A [`Device`] is a small tree of files under one root; a [`DeviceFile`] is one of them. Paths are relative,
//! `/`-separated, without `..`. Nothing outside of this folder calls `std::fs` on a pool. The implementations:
//!
//! - [`FileDevice`]: a directory of the host's filesystem
//! - [`MemoryDevice`]: in memory, for crash tests
//! - [`faulty`]: injects faults
//! - [`observed`]: lets a test observe and control each operation
//! - [`seeking`]: counts what operations cost on a disk with one arm
//! - [`OverlayDevice`]: keeps all changes in memory
//! - [`Subdirectory`]: a directory of another device
//!
//! [`PoolLock`] keeps a second process out, [`owner`] keeps a pool's files with their owner, and [`AlignedBuffer`] is
//! the memory for direct I/O.
//!
//! The assumptions about a real disk are in `docs/format.md`.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::Result;

mod aligned;
pub mod faulty;
mod file;
mod lock;
mod memory;
pub mod observed;
mod overlay;
pub mod owner;
mod path;
mod removing;
pub mod seeking;
mod subdirectory;

pub use aligned::AlignedBuffer;
pub use file::FileDevice;
pub use lock::PoolLock;
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub(crate) use path::FILE_BYTES_MAX;
pub use removing::{remove_directories, remove_files_below};
pub use subdirectory::Subdirectory;

/// Alignment in bytes of offsets, lengths and buffers of direct I/O.
pub const DIRECT_ALIGNMENT_BYTES: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file must exist; only read.
    Read,
    /// The file must exist; read and written.
    Write,
    /// The file is created if absent; read and written.
    CreateOrWrite,
    /// The file must not exist; created, read and written.
    CreateNew,
}

/// One entry of [`Device::list`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name within the directory.
    pub name: String,
    /// Length in bytes (0 for directories).
    pub len_bytes: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// When its bytes were changed last, in seconds since 1970; `None` where the device does not tell.
    pub modified_secs: Option<u64>,
}

/// Space of the device, as `statfs` reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Size of the medium, without blocks that only root may use.
    pub total_bytes: u64,
    /// Free space for an unprivileged writer.
    pub available_bytes: u64,
}

/// A small tree of files under one root.
pub trait Device: Debug + Send + Sync {
    /// Opens the file at `path`.
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>>;
    /// As [`open`](Self::open), for a file that should exist. If the answer is "not found" but the name is there, it
    /// opens once more. Some filesystems occasionally give that answer, and the file may have been replaced in between.
    fn open_surely(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        match self.open(path, mode) {
            Err(crate::StoreError::NotFound { .. }) if self.exists(path)? => {
                tracing::warn!(path, "the filesystem reported an existing file as missing; opening it again");
                self.open(path, mode)
            }
            opened => opened,
        }
    }
    /// Removes the file (not a directory) at `path`. Open handles stay usable. Durable after
    /// [`sync_directory`](Self::sync_directory) of its parent.
    fn remove(&self, path: &str) -> Result<()>;
    /// Removes an empty directory; durable as [`remove`](Self::remove). The default does nothing: it suits devices
    /// whose directories are only parts of file names.
    fn remove_directory(&self, path: &str) -> Result<()> {
        let _nothing_to_remove = path;
        Ok(())
    }
    /// Atomically renames a file (not a directory) over another; durable after [`sync_directory`](Self::sync_directory)
    /// of its parent. Between two directories: sync the target's first.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Renames a file within one directory. Nothing may be at `to`: the error is then that of a file that exists. Durable as
    /// [`rename`](Self::rename) is. Where the filesystem cannot do it at once, a crash may leave the file under both names.
    fn rename_absent(&self, from: &str, to: &str) -> Result<()>;
    /// Creates a directory and its missing parents; no error if it exists. Each is durable after
    /// [`sync_directory`](Self::sync_directory) of its parent.
    fn create_directory(&self, path: &str) -> Result<()>;
    /// Returns the entries of the directory at `path` ("" is the root), sorted by name.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;
    /// Makes creations, renames and removals in the directory durable. If the directory exists and its sync fails, the
    /// error is [`SyncFailed`](crate::StoreError::SyncFailed).
    fn sync_directory(&self, path: &str) -> Result<()>;
    /// Whether a file or directory exists at `path`.
    fn exists(&self, path: &str) -> Result<bool>;
    /// Size and free space of the medium.
    fn space(&self) -> Result<Space>;
    /// Size and free space of the disk itself, for figures that users see. The default is [`space`](Self::space). A
    /// device that keeps changes elsewhere has room of its own on the same disk.
    fn disk_space(&self) -> Result<Space> {
        self.space()
    }
    /// An id of the filesystem below, if known: two devices on one filesystem share its space.
    fn filesystem_id(&self) -> Option<u64> {
        None
    }
    /// For messages: the place of this device.
    fn describe(&self) -> String;

    /// Reads a whole file of at most `limit_bytes`; a longer file is [`Corrupt`](crate::StoreError::Corrupt).
    fn read_file(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > limit_bytes {
            return Err(crate::StoreError::corrupt(path, format!("at most {limit_bytes} bytes"), len));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Replaces the file at `directory/name` by `bytes`, atomically and durably: writes a file beside it, syncs it,
    /// renames it over the old one, and syncs the directory.
    fn replace_file(&self, directory: &str, name: &str, bytes: &[u8]) -> Result<()> {
        let join = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        let (temporary, target) = (join(&format!("{name}.new")), join(name));
        let file = self.open(&temporary, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync()?;
        self.rename(&temporary, &target)?;
        self.sync_directory(directory)
    }
}

/// One open file of a [`Device`].
pub trait DeviceFile: Debug + Send + Sync {
    /// Reads at most `buffer.len()` bytes from `offset`; fewer only at the end of the file. A buffer aligned in address, length and
    /// offset to [`DIRECT_ALIGNMENT_BYTES`] may bypass the page cache.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// As [`read_at`](Self::read_at). If the bytes come from the medium, the system may read up to `along_bytes` behind them into its cache
    /// as well, for reads of this kind. For readers of a disk that seeks which go on there: the bytes read along are cheaper than another
    /// seek. The system gives their memory back when it is short. The default reads nothing along.
    fn read_along(&self, buffer: &mut [u8], offset: u64, along_bytes: u64) -> Result<usize> {
        let _nothing_to_keep_it_in = along_bytes;
        self.read_at(buffer, offset)
    }
    /// Writes all of `buffer` at `offset`, growing the file as needed (a gap becomes a hole). Durable only after
    /// [`sync`](Self::sync). A buffer aligned in address, length and offset to [`DIRECT_ALIGNMENT_BYTES`] may
    /// bypass the page cache.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;
    /// Makes everything written so far durable (data and length). After a failure, nothing written since the
    /// last successful sync may be believed durable (invariant I-7); every failure is
    /// [`SyncFailed`](crate::StoreError::SyncFailed).
    fn sync(&self) -> Result<()>;
    /// Syncs, and then drops the system's cached pages of the file, so that later reads come from the medium. After a
    /// failed sync, even one of an earlier process, the cache still holds bytes that a power loss would take away. The
    /// pages are dropped even if the sync fails (again). The default only syncs: it suits devices without a cache of
    /// their own.
    fn reread(&self) -> Result<()> {
        self.sync()
    }
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with a hole) to `len_bytes`.
    fn set_len(&self, len_bytes: u64) -> Result<()>;
    /// Gives the range's space back to the device; it reads as zeros afterwards. The length stays. A filesystem that
    /// cannot do this leaves everything unchanged: do not rely on the zeros.
    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()>;
    /// Physical bytes that the file occupies.
    fn allocated_bytes(&self) -> Result<u64>;

    /// For messages: the name of this file.
    fn describe(&self) -> String {
        "a file".to_owned()
    }

    /// Reads exactly `buffer.len()` bytes; a shorter file is [`Corrupt`](crate::StoreError::Corrupt).
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let found = self.read_at(buffer, offset)?;
        if found < buffer.len() {
            let what = format!("{} at offset {offset}", self.describe());
            return Err(crate::StoreError::corrupt(what, format!("{} bytes", buffer.len()), found));
        }
        Ok(())
    }
}
