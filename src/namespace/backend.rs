//! The storage of the embedded store on a [`DeviceFile`], and the memory of failures.
//!
//! redb latches: after one failed read or write it refuses every request until it is opened again. So one opened
//! database is one [`Session`]. When it has failed, the namespace opens a new session over the same file. [`Health`]
//! outlives sessions: after a failed *sync* the content of the disk is unknown, so nothing is written until the pool is
//! mounted again (invariant I-7). Earlier commits stay readable.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_store::StoreError;
use dedupfs_store::device::DeviceFile;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::{Mutex, atomically};
use redb::StorageBackend;

use super::verified::VerifiedFile;

/// Remembers the failure after which nothing counts as durable.
#[derive(Debug, Default)]
pub(super) struct Health {
    poisoned: AtomicBool,
    cause: Mutex<Option<StoreError>>,
}

impl Health {
    /// Records a failure; the first one stays.
    pub(super) fn poison(&self, cause: StoreError) {
        self.cause.lock().get_or_insert(cause);
        self.poisoned.store(true, Ordering::Release);
    }

    /// Fails for ever after [`poison`](Self::poison).
    pub(super) fn check(&self) -> Result<()> {
        if !self.poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.cause.lock().clone().map_or_else(|| EngineError::database("it failed before"), Into::into))
    }
}

/// The failures of one opened database.
#[derive(Debug, Default)]
pub(super) struct Session {
    failed: AtomicBool,
    fenced: AtomicBool,
    cause: Mutex<Option<StoreError>>,
}

impl Session {
    /// Whether the database must be opened anew.
    pub(super) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) || self.fenced.load(Ordering::Acquire)
    }

    /// Marks the session failed for a reason other than the device's: a panic on damaged pages.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Cuts the old database off from the file, before a new one is opened over the file.
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    /// Returns the error of the device behind an error of redb, or else that error.
    pub(super) fn explain(&self, error: impl Into<redb::Error>) -> EngineError {
        self.cause.lock().clone().map_or_else(|| EngineError::database(error.into()), EngineError::Store)
    }
}

/// redb's storage on a file of a device.
#[derive(Debug)]
pub(super) struct DeviceBackend {
    file: Arc<dyn DeviceFile>,
    /// Its checksums are written before each sync; `None` for a file in memory.
    verified: Option<Arc<VerifiedFile>>,
    session: Arc<Session>,
    health: Arc<Health>,
}

impl DeviceBackend {
    pub(super) fn new(file: Arc<VerifiedFile>, session: Arc<Session>, health: Arc<Health>) -> Self {
        Self { file: file.clone(), verified: Some(file), session, health }
    }

    /// A backend on a file that never reaches a disk.
    pub(super) fn in_memory(file: Arc<dyn DeviceFile>, session: Arc<Session>) -> Self {
        Self { file, verified: None, session, health: Arc::default() }
    }

    /// Runs an operation. redb holds locks of its own meanwhile.
    fn run<T>(&self, operation: impl FnOnce(&dyn DeviceFile) -> dedupfs_store::Result<T>) -> io::Result<T> {
        atomically(|| self.run_unwatched(operation))
    }

    fn run_unwatched<T>(&self, operation: impl FnOnce(&dyn DeviceFile) -> dedupfs_store::Result<T>) -> io::Result<T> {
        if self.session.fenced.load(Ordering::Acquire) {
            return Err(io::Error::other("this session of the namespace store has ended"));
        }
        if self.health.check().is_err() {
            return Err(io::Error::other("an earlier sync failed"));
        }
        operation(&*self.file).map_err(|error| {
            *self.session.cause.lock() = Some(error.clone());
            self.session.fail();
            let kind = match &error {
                StoreError::NoSpace { .. } => io::ErrorKind::StorageFull,
                StoreError::Corrupt { .. } => io::ErrorKind::UnexpectedEof,
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, error)
        })
    }
}

impl StorageBackend for DeviceBackend {
    fn len(&self) -> io::Result<u64> {
        self.run(|file| file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.run(|file| file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if is_planted(Canary::CommitNotSynced) {
            return Ok(());
        }
        if let Some(verified) = &self.verified {
            self.run(|_| {
                verified.prepare_sync().inspect_err(|error| {
                    // A failed write is repeated; a failed sync is final (invariant I-7).
                    if matches!(error, StoreError::SyncFailed { .. }) {
                        tracing::error!(%error, "sync of the namespace's checksums failed: nothing more is accepted until the next mount");
                        self.health.poison(error.clone());
                    }
                })
            })?;
        }
        self.run(|file| {
            file.sync().inspect_err(|error| {
                tracing::error!(%error, "sync of the namespace failed: nothing more is accepted until the next mount");
                self.health.poison(error.clone());
            })
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.run(|file| file.write_at(data, offset))
    }
}
