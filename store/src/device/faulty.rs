//! A device that fails where a test says, around any other device.
//!
//! Every operation that can fail on a real disk is counted, per kind. A [`FaultPlan`] picks one of them (or all from a
//! position on) and says how it fails. To try every position: run once without a plan, read
//! [`FaultyDevice::operations_of`], then run once per position with `FaultPlan::new(fault, position)`.
//!
//! Queries (length, space, existence, allocated bytes) are not counted and never fail. A fault takes the place of the
//! operation: nothing of it reaches the device below, except half of a short write or read. A failed sync over a
//! [`MemoryDevice`] also gives up the unsynced writes, as Linux does: a later sync that succeeds proves nothing (I-7).
//! Opening with [`OpenMode::CreateOrWrite`] counts as a creation even if the file exists.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::memory::{MemoryDevice, Unsynced};
use super::{Device, DeviceFile, Entry, OpenMode, Space};
use crate::error::{Result, StoreError};

/// The kinds of operations that are counted and can fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "named after the operations of Device and DeviceFile")]
pub enum Operation {
    Open,
    Create,
    Remove,
    Rename,
    CreateDirectory,
    List,
    SyncDirectory,
    Read,
    Write,
    Sync,
    SetLen,
    Punch,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Self; 12] = {
        use Operation::*;
        [Open, Create, Remove, Rename, CreateDirectory, List, SyncDirectory, Read, Write, Sync, SetLen, Punch]
    };

    /// Kinds that change the device or make changes durable.
    pub const CHANGING: [Self; 9] = {
        use Operation::*;
        [Create, Remove, Rename, CreateDirectory, SyncDirectory, Write, Sync, SetLen, Punch]
    };

    const fn verb(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Create | Self::CreateDirectory => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::List => "list",
            Self::SyncDirectory => "sync directory",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::SetLen => "set the length of",
            Self::Punch => "punch",
        }
    }
}

/// How an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// EIO. Default: any operation.
    Io,
    /// The disk is full. Default: operations that may need space (creations and writes). Network filesystems and thinly
    /// provisioned disks may report this only at a sync.
    NoSpace,
    /// Half of a write is done, then EIO.
    ShortWrite,
    /// Half of a write is done, then the disk is full.
    ShortWriteNoSpace,
    /// A read ends after half of the requested bytes, as if the file ended there.
    ShortRead,
    /// A file is reported missing, whether it exists or not. Default: when it is opened.
    NotFound,
}

/// Which operations fail, and how.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    fault: Fault,
    operations: Vec<Operation>,
    path_part: String,
    position: u64,
    is_lasting: bool,
    seen: u64,
}

impl FaultPlan {
    /// Makes one operation fail: the one at `position` among those that the plan concerns. Positions start at 0 and are
    /// counted from the moment when the plan is added.
    pub fn new(fault: Fault, position: u64) -> Self {
        let operations = match fault {
            Fault::Io => Operation::ALL.to_vec(),
            Fault::NoSpace => vec![Operation::Create, Operation::CreateDirectory, Operation::Write],
            Fault::ShortWrite | Fault::ShortWriteNoSpace => vec![Operation::Write],
            Fault::ShortRead => vec![Operation::Read],
            Fault::NotFound => vec![Operation::Open, Operation::Create],
        };
        Self { fault, operations, path_part: String::new(), position, is_lasting: false, seen: 0 }
    }

    /// Restricts the plan to operations of these kinds.
    #[must_use]
    pub fn on(mut self, operations: &[Operation]) -> Self {
        self.operations = operations.to_vec();
        self
    }

    /// Restricts the plan to paths that contain `part` (for a rename: the source or the target).
    #[must_use]
    pub fn path_contains(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path_part);
        self
    }

    /// Makes every later operation that the plan concerns fail as well.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.is_lasting = true;
        self
    }

    /// Counts the operation if the plan concerns it. Returns whether it fails.
    fn strikes(&mut self, operation: Operation, path: &str) -> bool {
        if !self.operations.contains(&operation) || !path.contains(&self.path_part) {
            return false;
        }
        let position = self.seen;
        self.seen += 1;
        position == self.position || (self.is_lasting && position > self.position)
    }
}

/// A device that fails where a test says; clones share counters and plans.
#[derive(Debug, Clone)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    memory: Option<MemoryDevice>,
    loses_names: bool,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    plans: Vec<FaultPlan>,
    counts: [u64; Operation::ALL.len()],
    injected: u64,
}

impl FaultyDevice {
    /// Wraps any device. For memory prefer [`over_memory`](Self::over_memory), which models failed syncs better.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, memory: None, loses_names: false, faults: Arc::default() }
    }

    /// Wraps a disk in memory. Keep a clone of it for [`MemoryDevice::crash`].
    pub fn over_memory(memory: &MemoryDevice) -> Self {
        Self { memory: Some(memory.clone()), ..Self::new(Arc::new(memory.clone())) }
    }

    /// For a disk in memory: after a failed sync of a directory, no change of its names becomes durable any more. A
    /// filesystem behaves like this when its journal has ended and later syncs do not report it.
    #[must_use]
    pub fn losing_names(mut self) -> Self {
        self.loses_names = true;
        self
    }

    /// Adds a plan. Several can be active; the first that strikes decides.
    pub fn add(&self, plan: FaultPlan) {
        self.faults.lock().plans.push(plan);
    }

    /// Removes all plans: the device works again.
    pub fn heal(&self) {
        self.faults.lock().plans.clear();
    }

    /// Operations so far, including failed ones.
    pub fn operations(&self) -> u64 {
        self.faults.lock().counts.iter().sum()
    }

    /// Operations of some kinds so far.
    pub fn operations_of(&self, operations: &[Operation]) -> u64 {
        let faults = self.faults.lock();
        let is_asked = |kind: &Operation| operations.contains(kind);
        Operation::ALL.iter().zip(faults.counts).filter(|(kind, _)| is_asked(kind)).map(|(_, count)| count).sum()
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        self.faults.lock().injected
    }

    /// Counts an operation and returns the fault if it fails. Every plan counts it, even after another one has struck.
    fn count(&self, operation: Operation, path: &str) -> Option<Fault> {
        let mut faults = self.faults.lock();
        faults.counts[operation as usize] += 1;
        let mut struck = None;
        for plan in &mut faults.plans {
            if plan.strikes(operation, path) {
                struck = struck.or(Some(plan.fault));
            }
        }
        faults.injected += u64::from(struck.is_some());
        struck
    }

    fn check(&self, operation: Operation, path: &str) -> Result<()> {
        match self.count(operation, path) {
            None => Ok(()),
            Some(fault) => Err(error(fault, operation, path)),
        }
    }
}

fn error(fault: Fault, operation: Operation, path: &str) -> StoreError {
    let errno = match fault {
        Fault::Io | Fault::ShortWrite | Fault::ShortRead => Errno::IO,
        Fault::NoSpace | Fault::ShortWriteNoSpace => Errno::NOSPC,
        Fault::NotFound => Errno::NOENT,
    };
    if matches!(operation, Operation::Sync | Operation::SyncDirectory) {
        return StoreError::from_sync(path, io::Error::from(errno));
    }
    StoreError::from_io(operation.verb(), path, io::Error::from(errno))
}

impl Device for FaultyDevice {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        let is_creating = matches!(mode, OpenMode::CreateOrWrite | OpenMode::CreateNew);
        self.check(if is_creating { Operation::Create } else { Operation::Open }, path)?;
        let inner = self.inner.open(path, mode)?;
        let unsynced = self.memory.as_ref().map(|memory| memory.unsynced(path)).transpose()?;
        Ok(Arc::new(FaultyFile { device: self.clone(), inner, unsynced, path: path.to_owned() }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.check(Operation::Remove, path)?;
        self.inner.remove(path)
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        self.inner.remove_directory(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        // A newline, so that a plan cannot match across the two names.
        self.check(Operation::Rename, &format!("{from}\n{to}"))?;
        self.inner.rename(from, to)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.check(Operation::Rename, &format!("{from}\n{to}"))?;
        self.inner.rename_absent(from, to)
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.check(Operation::CreateDirectory, path)?;
        self.inner.create_directory(path)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.check(Operation::List, path)?;
        self.inner.list(path)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        let Some(fault) = self.count(Operation::SyncDirectory, path) else {
            return self.inner.sync_directory(path);
        };
        if let Some(memory) = self.memory.as_ref().filter(|_| self.loses_names) {
            memory.lose_unsynced_names(path)?;
        }
        Err(error(fault, Operation::SyncDirectory, path))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.inner.exists(path)
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
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

#[derive(Debug)]
struct FaultyFile {
    device: FaultyDevice,
    inner: Arc<dyn DeviceFile>,
    unsynced: Option<Unsynced>,
    /// The name at opening. Plans use this name, even after a rename.
    path: String,
}

impl DeviceFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self.device.count(Operation::Read, &self.path) {
            None => self.inner.read_at(buffer, offset),
            Some(Fault::ShortRead) => {
                let half = buffer.len() / 2;
                self.inner.read_at(&mut buffer[..half], offset)
            }
            Some(fault) => Err(error(fault, Operation::Read, &self.path)),
        }
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let Some(fault) = self.device.count(Operation::Write, &self.path) else {
            return self.inner.write_at(buffer, offset);
        };
        if matches!(fault, Fault::ShortWrite | Fault::ShortWriteNoSpace) {
            self.inner.write_at(&buffer[..buffer.len() / 2], offset)?;
        }
        Err(error(fault, Operation::Write, &self.path))
    }

    fn sync(&self) -> Result<()> {
        let Some(fault) = self.device.count(Operation::Sync, &self.path) else {
            return self.inner.sync();
        };
        if let Some(unsynced) = &self.unsynced {
            unsynced.lose();
        }
        Err(error(fault, Operation::Sync, &self.path))
    }

    fn reread(&self) -> Result<()> {
        let synced = self.sync();
        self.inner.reread()?;
        synced
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.device.check(Operation::SetLen, &self.path)?;
        self.inner.set_len(len_bytes)
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.device.check(Operation::Punch, &self.path)?;
        self.inner.punch(offset, len_bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.inner.allocated_bytes()
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}

#[cfg(test)]
#[path = "faulty_tests.rs"]
mod tests;
