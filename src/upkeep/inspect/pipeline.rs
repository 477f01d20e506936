//! Containers are read one after another by one thread while the workers judge earlier ones. The results come back in
//! order.

use std::collections::VecDeque;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{ContainerStore, Fingerprinter, Inspection, WholeContainer, WorkerPool};
use dedupfs_store::ContainerRecord;
use dedupfs_sync::channel::{Receiver, bounded};

use super::judge;

/// The result for one container.
pub(crate) struct Judged {
    /// The record of the container as of its reading.
    pub record: ContainerRecord,
    /// Whether the device failed to return all of it.
    pub device_failed: bool,
    /// The findings. Meaningless if the container is gone by now.
    pub inspection: Inspection,
}

/// A container that is being judged, or waits for it.
struct Ahead {
    record: ContainerRecord,
    device_failed: bool,
    outcome: Receiver<(Inspection, WholeContainer)>,
}

/// The containers under way. Memory: one container for each worker and one more.
pub(crate) struct Pipeline {
    workers: Arc<WorkerPool>,
    fingerprinter: Fingerprinter,
    ahead: VecDeque<Ahead>,
    buffers: Vec<WholeContainer>,
}

impl Pipeline {
    /// Creates an empty pipeline.
    pub(crate) fn new(workers: Arc<WorkerPool>, fingerprinter: Fingerprinter) -> Self {
        Self { workers, fingerprinter, ahead: VecDeque::new(), buffers: Vec::new() }
    }

    /// Whether a result must be taken before the next container is read.
    pub(crate) fn is_full(&self) -> bool {
        self.ahead.len() > self.workers.threads()
    }

    /// Reads a container and submits it to the workers. Does nothing if it is gone.
    pub(crate) fn push(&mut self, store: &Arc<ContainerStore>, record: ContainerRecord) {
        let mut whole = self.buffers.pop().unwrap_or_default();
        if !store.is_known(record.id) || !store.read_whole(&record, &mut whole) {
            self.buffers.push(whole);
            return;
        }
        let device_failed = whole.device_failed();
        let (sender, outcome) = bounded(1);
        let (store, fingerprinter) = (store.clone(), self.fingerprinter);
        self.workers.submit(Box::new(move || {
            let inspection =
                store.inspect(&record, &whole, &|entries, raw| judge(record.kind, &fingerprinter, entries, raw));
            // The receiver is gone if the run has failed.
            let _abandoned = sender.send((inspection, whole));
        }));
        self.ahead.push_back(Ahead { record, device_failed, outcome });
    }

    /// Returns the result for the next container; `None` if none is under way.
    pub(crate) fn pop(&mut self) -> Result<Option<Judged>> {
        let Some(Ahead { record, device_failed, outcome }) = self.ahead.pop_front() else { return Ok(None) };
        let (inspection, whole) = outcome.recv().map_err(|_| EngineError::Internal("judging a container panicked"))?;
        self.buffers.push(whole);
        Ok(Some(Judged { record, device_failed, inspection }))
    }
}
