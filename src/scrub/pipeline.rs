//! Containers read one after another by one thread, and judged by the workers meanwhile; what is found comes back in order.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use super::judge;
use crate::containers::{ContainerStore, Inspection, WholeContainer, WorkerPool};
use crate::error::{EngineError, Result};
use crate::fingerprint::Fingerprinter;
use crate::namespace::ContainerRecord;

/// What was found in a container.
pub struct Judged {
    /// Which, as of when it was read.
    pub record: ContainerRecord,
    /// The device did not give all of it.
    pub device_failed: bool,
    /// What was found. Means nothing if the container is gone by now.
    pub inspection: Inspection,
}

/// A container that is being judged, or waits for it.
struct Ahead {
    record: ContainerRecord,
    device_failed: bool,
    outcome: Receiver<(Inspection, WholeContainer)>,
}

/// Containers on their way. Memory: one container for each worker and one more.
pub struct Pipeline {
    workers: Arc<WorkerPool>,
    fingerprinter: Fingerprinter,
    ahead: VecDeque<Ahead>,
    buffers: Vec<WholeContainer>,
}

impl Pipeline {
    /// An empty one.
    #[must_use]
    pub fn new(workers: Arc<WorkerPool>, fingerprinter: Fingerprinter) -> Self {
        Self { workers, fingerprinter, ahead: VecDeque::new(), buffers: Vec::new() }
    }

    /// Whether one is to be taken before the next is read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ahead.len() > self.workers.threads()
    }

    /// Reads a container and has it judged; nothing happens if it is gone.
    pub fn push(&mut self, store: &Arc<ContainerStore>, record: ContainerRecord) {
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
            // Nobody waits for it any more: the run has failed.
            let _abandoned = sender.send((inspection, whole));
        }));
        self.ahead.push_back(Ahead { record, device_failed, outcome });
    }

    /// What was found in the next container; `None` if none is on its way.
    ///
    /// # Errors
    /// Judging it panicked.
    pub fn pop(&mut self) -> Result<Option<Judged>> {
        let Some(Ahead { record, device_failed, outcome }) = self.ahead.pop_front() else { return Ok(None) };
        let (inspection, whole) = outcome.recv().map_err(|_| EngineError::Internal("judging a container panicked"))?;
        self.buffers.push(whole);
        Ok(Some(Judged { record, device_failed, inspection }))
    }
}
