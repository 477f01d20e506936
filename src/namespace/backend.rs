//! The namespace store's bytes on our own device, and what is remembered of failures.
//!
//! redb latches: after one failed read or write it refuses everything until it is opened anew. So one opened
//! database is one [`Session`]; when it has failed, the namespace opens a new session over the same file. What
//! outlives sessions is [`Health`]: after a failed *sync* nobody knows what is on disk, and nothing is written until the
//! pool is mounted anew (invariant I-7); what was committed before can be read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_store::StoreError;
use dedupfs_store::device::DeviceFile;
use parking_lot::Mutex;
use redb::StorageBackend;

use super::verified::VerifiedFile;
use crate::error::{EngineError, Result};

/// Remembers the failure after which nothing may be believed durable any more.
#[derive(Debug, Default)]
pub(super) struct Health {
    poisoned: AtomicBool,
    cause: Mutex<Option<StoreError>>,
}

impl Health {
    /// The first failure stays.
    pub(super) fn poison(&self, cause: StoreError) {
        self.cause.lock().get_or_insert(cause);
        self.poisoned.store(true, Ordering::Release);
    }

    /// Fails for ever after [`poison`](Self::poison).
    pub(super) fn check(&self) -> Result<()> {
        if !self.poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.cause.lock().clone().map_or_else(|| EngineError::Database("it failed before".into()), Into::into))
    }
}

/// What one opened database has met.
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

    /// Marks it failed for a reason other than the device's (a panic on damaged pages).
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Cuts the old database off from the file before a new one is opened over it.
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    /// The typed error behind what redb reports as text.
    pub(super) fn explain(&self, error: &dyn std::fmt::Display) -> EngineError {
        self.cause.lock().clone().map_or_else(|| EngineError::Database(error.to_string()), EngineError::Store)
    }
}

/// redb's storage on a file of a device.
#[derive(Debug)]
pub(super) struct DeviceBackend {
    file: Arc<dyn DeviceFile>,
    /// Its checksums have to be written before it is synced.
    verified: Option<Arc<VerifiedFile>>,
    session: Arc<Session>,
    health: Arc<Health>,
}

impl DeviceBackend {
    pub(super) fn new(file: Arc<VerifiedFile>, session: Arc<Session>, health: Arc<Health>) -> Self {
        Self { file: file.clone(), verified: Some(file), session, health }
    }

    /// On a file that is never to reach a disk.
    pub(super) fn in_memory(file: Arc<dyn DeviceFile>, session: Arc<Session>) -> Self {
        Self { file, verified: None, session, health: Arc::default() }
    }

    fn run<T>(&self, operation: impl FnOnce(&dyn DeviceFile) -> dedupfs_store::Result<T>) -> io::Result<T> {
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
        if let Some(verified) = &self.verified {
            self.run(|_| {
                verified.prepare_sync().inspect_err(|error| {
                    // What could not be written is written again; what could not be synced is final (invariant I-7).
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
