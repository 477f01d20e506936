//! The one seam through which every byte passes that must survive.
//!
//! A [`Device`] is a small tree of files under one root; a [`DeviceFile`] is one of them. Paths are relative,
//! `/`-separated, without `..`. There are a real ([`mod@file`]), an in-memory ([`memory`]), a fault-injecting
//! ([`faulty`]) and an observed ([`observed`]) implementation, and one that keeps changes to itself ([`overlay`]); nothing outside
//! of this folder calls `std::fs` on a pool. [`lock`] keeps a second process out, [`owner`] leaves a pool whose it is, and [`aligned`] has the buffers that direct I/O
//! wants.
//!
//! What is assumed of a real disk stands in `docs/format.md`.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::Result;

pub mod aligned;
pub mod faulty;
pub mod file;
pub mod lock;
pub mod memory;
pub mod observed;
pub mod overlay;
pub mod owner;
mod path;
pub mod subdirectory;

pub use aligned::AlignedBuffer;
pub use file::FileDevice;
pub use lock::PoolLock;
pub use memory::MemoryDevice;
pub use observed::ObservedDevice;
pub use overlay::OverlayDevice;
pub use path::{FILE_BYTES_MAX, PATH_BYTES_MAX};
pub use subdirectory::Subdirectory;

/// Alignment in bytes of offsets, lengths and buffers of direct I/O.
pub const DIRECT_ALIGNMENT_BYTES: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// It must exist; only read.
    Read,
    /// It must exist; read and written.
    Write,
    /// Created if absent; read and written.
    CreateOrWrite,
    /// Must not exist; created, read and written.
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
}

/// Space of the device, as `statfs` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Size of the whole medium.
    pub total_bytes: u64,
    /// What an unprivileged writer can still use.
    pub available_bytes: u64,
}

/// A small tree of files under one root.
pub trait Device: Debug + Send + Sync {
    /// Opens the file at `path`.
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>>;
    /// As [`open`](Self::open), of a file that should be there: whoever says that it is not is asked once more if the name is there. Some
    /// filesystems answer so once in a while, and a file that was replaced meanwhile is there under its name.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn open_surely(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        match self.open(path, mode) {
            Err(crate::StoreError::NotFound { .. }) if self.exists(path)? => {
                tracing::warn!(path, "the filesystem said that a file is not there that is; it is asked again");
                self.open(path, mode)
            }
            opened => opened,
        }
    }
    /// Removes the file (no directory) at `path`; what has it open goes on using it. Durable after [`sync_directory`](Self::sync_directory) of its parent.
    fn remove(&self, path: &str) -> Result<()>;
    /// Removes an empty directory; durable as [`remove`](Self::remove). A device whose directories are nothing but parts of its
    /// files' names leaves it, which is the default.
    fn remove_directory(&self, path: &str) -> Result<()> {
        let _nothing_to_remove = path;
        Ok(())
    }
    /// Atomically renames a file (no directory) over another; durable after [`sync_directory`](Self::sync_directory)
    /// of its parent. Between two directories: sync the target's first.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Creates a directory and its missing parents; no error if it exists. Each is durable after
    /// [`sync_directory`](Self::sync_directory) of its parent.
    fn create_directory(&self, path: &str) -> Result<()>;
    /// The entries of the directory at `path` ("" is the root), sorted by name.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;
    /// Makes creations, renames and removals in the directory durable. A directory that is there and cannot be made durable is
    /// [`SyncFailed`](crate::StoreError::SyncFailed).
    fn sync_directory(&self, path: &str) -> Result<()>;
    /// Whether a file or directory is there.
    fn exists(&self, path: &str) -> Result<bool>;
    /// Size and free space of the medium.
    fn space(&self) -> Result<Space>;
    /// Size and free space of the disk itself, for figures that users see: the default is [`space`](Self::space). A device that
    /// keeps what is written elsewhere has room of its own, and the same disk.
    fn disk_space(&self) -> Result<Space> {
        self.space()
    }
    /// What filesystem it lies on, if that can be told: two devices of one filesystem share its space.
    fn filesystem_id(&self) -> Option<u64> {
        None
    }
    /// For messages: where this device is.
    fn describe(&self) -> String;

    /// Reads a whole file of at most `limit_bytes`; longer ones are [`Corrupt`](crate::StoreError::Corrupt).
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

    /// Replaces the file at `directory/name` by `bytes`, atomically and durably: written beside it, synced,
    /// renamed over it, directory synced.
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
    /// Writes all of `buffer` at `offset`, growing the file as needed (a gap becomes a hole). Durable only after
    /// [`sync`](Self::sync). A buffer aligned in address, length and offset to [`DIRECT_ALIGNMENT_BYTES`] may
    /// bypass the page cache.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;
    /// Makes everything written so far durable (data and length). After a failure, nothing written since the
    /// last successful sync may be believed durable (invariant I-7); every failure is
    /// [`SyncFailed`](crate::StoreError::SyncFailed).
    fn sync(&self) -> Result<()>;
    /// Syncs, and then forgets what the system keeps of the file in memory, so that it is read from the medium from here on.
    /// What a failed sync, also of an earlier process, left there would still be read, and be gone after a power loss. It is
    /// forgotten even if the sync fails (again). The default, for devices that keep nothing besides another one, only syncs.
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
    /// cannot do this leaves everything as it is: do not rely on the zeros.
    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()>;
    /// Physical bytes that the file occupies.
    fn allocated_bytes(&self) -> Result<u64>;

    /// For messages: which file this is.
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
