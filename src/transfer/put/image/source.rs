//! The source of an image: a regular file, a block device, or the export of an NBD server.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupfs_base::EngineError;
use dedupfs_content::{Change, Changes, DeltaSource};
use dedupfs_nbd::{Agreed, BASE_ALLOCATION, Connection, Extent, STATE_ZERO};
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

/// Mode of the image of a device or an export: the mode of its node or socket says nothing about its content.
const MODE_OF_DEVICE: u16 = 0o600;

/// Extents of a file that are told apart at most; behind them everything is read.
const EXTENTS_MAX: usize = 1 << 20;

/// Where the content comes from.
enum Medium {
    File(OwnedFd),
    Device(OwnedFd),
    Export(Box<Connection>),
}

/// The source.
pub(super) struct Source<'a> {
    from: Medium,
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
    /// Opens a file, a device, or the socket of a server with which another process agreed on an export.
    pub(super) fn open(
        (from, agreed, path): (OwnedFd, Option<&Agreed>, PathBuf),
        (core, service): (&'a Core, &'a Service),
        tally: &'a Tally<'a>,
    ) -> Result<Self> {
        let cannot =
            |errno: Errno| TransferError::Disk { what: "cannot look at the image".to_owned(), error: errno.into() };
        let stat = rustix::fs::fstat(&from).map_err(cannot)?;
        let (from, size_bytes) = match (disk::kind_of(&stat), agreed) {
            (Some(FileKind::Socket), Some(agreed)) => {
                let export = Connection::resume(from, agreed.clone()).map_err(|error| unreadable(&error))?;
                (Medium::Export(Box::new(export)), agreed.size_bytes)
            }
            (Some(FileKind::Regular), None) => {
                let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
                // A file of the kernel.
                if size_bytes == 0 && rustix::io::pread(&from, &mut [0; 1], 0).map_err(cannot)? > 0 {
                    return Err(TransferError::Top("the image has no size: it is a file of the kernel".to_owned()));
                }
                (Medium::File(from), size_bytes)
            }
            (Some(FileKind::BlockDevice), None) => {
                let size_bytes = rustix::fs::seek(&from, SeekFrom::End(0)).map_err(cannot)?;
                (Medium::Device(from), size_bytes)
            }
            _ => return Err(TransferError::Top("the image is neither a regular file nor a block device".to_owned())),
        };
        if size_bytes == 0 && !matches!(from, Medium::File(_)) {
            return Err(TransferError::Top("the image has no size: is the device connected?".to_owned()));
        }
        let (read_bytes, failure) = (AtomicU64::new(0), Mutex::new(None));
        Ok(Self { from, path, stat, size_bytes, core, service, tally, read_bytes, failure })
    }

    /// Whether it is an export of an NBD server.
    pub(super) fn is_export(&self) -> bool {
        matches!(self.from, Medium::Export(_))
    }

    /// Returns the bytes that were read since the last call.
    pub(super) fn take_read_bytes(&self) -> u64 {
        self.read_bytes.swap(0, Ordering::Relaxed)
    }

    /// Waits, unless the put is to end.
    pub(super) fn wait(&self, time: Duration) -> Result<()> {
        dedupfs_sync::thread::sleep(time);
        match self.tally.go_on() {
            Err(Trouble::All(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the reason of a failure: the source's, if it has one.
    pub(super) fn reason(&self, error: EngineError) -> TransferError {
        self.failure.lock().take().unwrap_or_else(|| error.into())
    }

    /// Whether the source was changed since it was opened, as far as it shows. Changes of a device or an export do not.
    pub(super) fn has_changed(&self) -> bool {
        let Medium::File(file) = &self.from else { return false };
        !rustix::fs::fstat(file).is_ok_and(|now| version(&now) == version(&self.stat))
    }

    /// Owner, mode and time. An export has the owner of the socket.
    pub(super) fn attributes(&self, owner: Option<&Owner>) -> EntryAttributes {
        let is_file = matches!(self.from, Medium::File(_));
        let mode = if is_file { (self.stat.st_mode & 0o7777) as u16 } else { MODE_OF_DEVICE };
        let (uid, gid) = (self.stat.st_uid, self.stat.st_gid);
        let (uid, gid, mode) = owner.map_or((uid, gid, mode), |owner| owner.of_copy(uid, gid, mode));
        let (mtime_secs, mtime_nanos) = match is_file {
            true => (self.stat.st_mtime, u32::try_from(self.stat.st_mtime_nsec).unwrap_or(0)),
            false => (now().secs, now().nanos),
        };
        EntryAttributes { mode, uid, gid, mtime_secs, mtime_nanos, flags: 0, attributes: Attributes::default() }
    }

    /// The extended attributes of a file.
    pub(super) fn xattrs(&self, mode: u16, without_optional: bool) -> Result<Vec<Attribute>> {
        let Medium::File(file) = &self.from else { return Ok(Vec::new()) };
        let mut problem = |what| self.tally.problem(&self.path, what);
        let place = Place::Open(file.as_fd());
        let copied = xattrs::copied(place, (mode, without_optional), &mut XattrSpace::default(), &mut problem);
        copied.map_err(|trouble| match trouble {
            Trouble::All(error) => error,
            Trouble::One(what) | Trouble::Unreadable(what) => TransferError::Top(what),
        })
    }

    /// All of it counts as changed; its holes as zeros.
    pub(super) fn everything(&self) -> Changes {
        let mut changes = match &self.from {
            Medium::File(file) => self.extents_of(file),
            Medium::Device(_) => Vec::new(),
            Medium::Export(export) => self.extents_told_by(export),
        };
        // Without an answer the rest is read.
        let at = changes.last().map_or(0, |last| last.to);
        if at < self.size_bytes {
            changes.push(Change { from: at, to: self.size_bytes, is_zero: false });
        }
        Changes::new(changes).unwrap_or_else(|_| Changes::all(self.size_bytes))
    }

    fn extents_of(&self, file: &OwnedFd) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut at = 0;
        while at < self.size_bytes && changes.len() < EXTENTS_MAX {
            let Ok(data) = next_data(file.as_fd(), at) else { break };
            let data = data.map_or(self.size_bytes..self.size_bytes, |data| data.start..data.end.min(self.size_bytes));
            for (from, to, is_zero) in [(at, data.start, true), (data.start, data.end, false)] {
                if from < to {
                    changes.push(Change { from, to, is_zero });
                }
            }
            at = data.end;
        }
        changes
    }

    fn extents_told_by(&self, export: &Connection) -> Vec<Change> {
        let Some(context) = export.agreed().context(BASE_ALLOCATION) else { return Vec::new() };
        let told = export.extents(context, 0..self.size_bytes, EXTENTS_MAX, &|| self.tally.go_on().is_ok());
        let told = told.inspect_err(|error| tracing::warn!(%error, "the server does not tell holes: all is read"));
        let change =
            |extent: Extent| Change { from: extent.from, to: extent.to, is_zero: extent.flags & STATE_ZERO != 0 };
        told.unwrap_or_default().into_iter().map(change).collect()
    }

    fn read_disk(&self, disk: &OwnedFd, offset: u64, into: &mut [u8]) -> dedupfs_base::Result<()> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(disk, &mut *rest, offset + done as u64) {
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
        Ok(())
    }

    fn fail<T>(&self, error: TransferError) -> dedupfs_base::Result<T> {
        self.failure.lock().get_or_insert(error);
        Err(EngineError::Internal("the source of an image cannot be read"))
    }
}

fn unreadable(error: &dedupfs_nbd::Error) -> TransferError {
    TransferError::Top(format!("cannot read the image: {error}"))
}

impl DeltaSource for Source<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> dedupfs_base::Result<()> {
        if let Err(Trouble::All(error)) = self.tally.go_on() {
            return self.fail(error);
        }
        match &self.from {
            Medium::File(disk) | Medium::Device(disk) => self.read_disk(disk, offset, into)?,
            Medium::Export(export) => {
                let read = export.read(offset, into, &|| self.tally.go_on().is_ok());
                read.or_else(|error| match self.tally.go_on() {
                    Err(Trouble::All(interrupted)) => self.fail(interrupted),
                    _ => self.fail(unreadable(&error)),
                })?;
            }
        }
        self.read_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.tally.content(into.len());
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
