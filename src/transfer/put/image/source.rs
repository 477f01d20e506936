//! The source of an image: a regular file or a block device.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_base::EngineError;
use dedupfs_content::{Change, Changes, DeltaSource};
use dedupfs_service::FileKind;
use dedupfs_store::tree::{Attribute, Attributes};
use dedupfs_sync::Mutex;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;

use super::super::super::disk::{self, Place, XattrSpace};
use super::super::super::tally::{Tally, Trouble};
use super::super::super::{Result, TransferError};
use super::super::content::next_data;
use super::super::options::Owner;
use super::super::{version, xattrs};
use crate::engine::Core;
use crate::service::{Service, now};
use crate::versions::build::EntryAttributes;

/// Mode of the image of a device: the mode of its node says nothing about its content.
const MODE_OF_DEVICE: u16 = 0o600;

/// Extents of a file that are told apart at most; behind them everything is read.
const EXTENTS_MAX: usize = 1 << 20;

/// The source.
pub(super) struct Source<'a> {
    from: OwnedFd,
    /// For messages.
    path: PathBuf,
    stat: Stat,
    pub(super) size_bytes: u64,
    core: &'a Core,
    service: &'a Service,
    tally: &'a Tally<'a>,
    read_bytes: AtomicU64,
    /// Why it could not be read.
    failure: Mutex<Option<TransferError>>,
}

impl<'a> Source<'a> {
    pub(super) fn open(
        (from, path): (OwnedFd, PathBuf),
        (core, service): (&'a Core, &'a Service),
        tally: &'a Tally<'a>,
    ) -> Result<Self> {
        let cannot =
            |errno: Errno| TransferError::Disk { what: "cannot look at the image".to_owned(), error: errno.into() };
        let stat = rustix::fs::fstat(&from).map_err(cannot)?;
        let size_bytes = match disk::kind_of(&stat) {
            Some(FileKind::Regular) => u64::try_from(stat.st_size).unwrap_or(0),
            Some(FileKind::BlockDevice) => rustix::fs::seek(&from, SeekFrom::End(0)).map_err(cannot)?,
            _ => return Err(TransferError::Top("the image is neither a regular file nor a block device".to_owned())),
        };
        // A device that is not connected, or a file of the kernel.
        let is_device = disk::kind_of(&stat) == Some(FileKind::BlockDevice);
        if size_bytes == 0 && (is_device || rustix::io::pread(&from, &mut [0; 1], 0).map_err(cannot)? > 0) {
            return Err(TransferError::Top("the image has no size: is the device connected?".to_owned()));
        }
        let (read_bytes, failure) = (AtomicU64::new(0), Mutex::new(None));
        Ok(Self { from, path, stat, size_bytes, core, service, tally, read_bytes, failure })
    }

    /// Returns the bytes that were read since the last call.
    pub(super) fn take_read_bytes(&self) -> u64 {
        self.read_bytes.swap(0, Ordering::Relaxed)
    }

    /// Returns the reason of a failure: the source's, if it has one.
    pub(super) fn reason(&self, error: EngineError) -> TransferError {
        self.failure.lock().take().unwrap_or_else(|| error.into())
    }

    /// Whether the source was changed since it was opened, as far as it shows. Changes of a device do not.
    pub(super) fn has_changed(&self) -> bool {
        disk::kind_of(&self.stat) == Some(FileKind::Regular)
            && !rustix::fs::fstat(&self.from).is_ok_and(|now| version(&now) == version(&self.stat))
    }

    /// Owner, mode and time.
    pub(super) fn attributes(&self, owner: Option<&Owner>) -> EntryAttributes {
        let is_device = disk::kind_of(&self.stat) == Some(FileKind::BlockDevice);
        let mode = if is_device { MODE_OF_DEVICE } else { (self.stat.st_mode & 0o7777) as u16 };
        let (uid, gid) = (self.stat.st_uid, self.stat.st_gid);
        let (uid, gid, mode) = owner.map_or((uid, gid, mode), |owner| owner.of_copy(uid, gid, mode));
        let (mtime_secs, mtime_nanos) = match is_device {
            true => (now().secs, now().nanos),
            false => (self.stat.st_mtime, u32::try_from(self.stat.st_mtime_nsec).unwrap_or(0)),
        };
        EntryAttributes { mode, uid, gid, mtime_secs, mtime_nanos, flags: 0, attributes: Attributes::default() }
    }

    /// The extended attributes of a file.
    pub(super) fn xattrs(&self, mode: u16, without_optional: bool) -> Result<Vec<Attribute>> {
        if disk::kind_of(&self.stat) != Some(FileKind::Regular) {
            return Ok(Vec::new());
        }
        let mut problem = |what| self.tally.problem(&self.path, what);
        let place = Place::Open(self.from.as_fd());
        let copied = xattrs::copied(place, (mode, without_optional), &mut XattrSpace::default(), &mut problem);
        copied.map_err(|trouble| match trouble {
            Trouble::All(error) => error,
            Trouble::One(what) | Trouble::Unreadable(what) => TransferError::Top(what),
        })
    }

    /// All of it counts as changed; its holes as zeros.
    pub(super) fn everything(&self) -> Changes {
        let mut changes = Vec::new();
        let mut at = 0;
        let is_file = disk::kind_of(&self.stat) == Some(FileKind::Regular);
        while is_file && at < self.size_bytes && changes.len() < EXTENTS_MAX {
            // Without an answer the rest is read.
            let Ok(data) = next_data(self.from.as_fd(), at) else { break };
            let data = data.map_or(self.size_bytes..self.size_bytes, |data| data.start..data.end.min(self.size_bytes));
            for (from, to, is_zero) in [(at, data.start, true), (data.start, data.end, false)] {
                if from < to {
                    changes.push(Change { from, to, is_zero });
                }
            }
            at = data.end;
        }
        if at < self.size_bytes {
            changes.push(Change { from: at, to: self.size_bytes, is_zero: false });
        }
        Changes::new(changes).unwrap_or_else(|_| Changes::all(self.size_bytes))
    }

    fn fail<T>(&self, error: TransferError) -> dedupfs_base::Result<T> {
        self.failure.lock().get_or_insert(error);
        Err(EngineError::Internal("the source of an image cannot be read"))
    }
}

impl DeltaSource for Source<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> dedupfs_base::Result<()> {
        if let Err(Trouble::All(error)) = self.tally.go_on() {
            return self.fail(error);
        }
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.from, &mut *rest, offset + done as u64) {
                Ok(0) => {
                    let (end, size_bytes) = (offset + done as u64, self.size_bytes);
                    return self.fail(TransferError::Top(format!(
                        "the image ends at {end}, and had {size_bytes} bytes when it was opened: it was cut while it was read"
                    )));
                }
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let what = format!("cannot read the image at {}", offset + done as u64);
                    return self.fail(TransferError::Disk { what, error: errno.into() });
                }
            }
        }
        self.read_bytes.fetch_add(done as u64, Ordering::Relaxed);
        self.tally.content(done);
        Ok(())
    }

    fn store(&self, len_bytes: u64, push: &mut dyn FnMut() -> dedupfs_base::Result<()>) -> dedupfs_base::Result<()> {
        if let Err(Trouble::All(error)) = self.tally.go_on() {
            return self.fail(error);
        }
        let _pass = self.core.begin_change()?;
        let room = self.service.admit_write(len_bytes)?;
        push()?;
        drop(room);
        self.service.relieve_memory();
        self.core.relieve()
    }
}
