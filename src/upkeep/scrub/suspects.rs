//! Background inspection: when a reader meets damage, the container is inspected in the background and its bad copies
//! are quarantined.
//!
//! One thread inspects one container at a time. A container that does not fit in the queue is met again by a reader, or
//! found by a scrub. Content that the device does not return is left to a scrub, which can tell whether the device
//! returns other content.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_content::{Suspect, WholeContainer};
use dedupfs_store::ContainerKind;
use dedupfs_sync::channel::{Either, Receiver, bounded, recv_either};
use dedupfs_sync::clock::Instant;

use super::quarantine::BadCopy;
use crate::engine::Core;
use crate::upkeep::beside::Beside;
use crate::upkeep::inspect::judge;

/// Number of containers in the queue.
const QUEUED_MAX: usize = 64;
/// Shortest time between two inspections of a container, for any number of readers that meet its damage.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Number of containers whose last inspection is remembered.
const REMEMBERED_MAX: usize = 1024;

/// Starts the thread for a pool that is open for writing.
pub(crate) fn start(core: &Arc<Core>) -> Result<Beside> {
    let (suspects, to_look_at) = bounded(QUEUED_MAX);
    core.stores.data.report_suspects(suspects.clone());
    core.stores.recipes.report_suspects(suspects);
    let core = Arc::downgrade(core);
    Beside::start("quarantine", move |stopped| look_at_suspects(&core, &to_look_at, stopped))
}

fn look_at_suspects(core: &Weak<Core>, to_look_at: &Receiver<Suspect>, stopped: &Receiver<()>) {
    let mut looked_at: HashMap<Suspect, Instant> = HashMap::new();
    while let Ok(Either::Other(suspect)) = recv_either(stopped, to_look_at) {
        let Some(core) = core.upgrade() else { return };
        if looked_at.get(&suspect).is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            continue;
        }
        if looked_at.len() >= REMEMBERED_MAX {
            looked_at.clear();
        }
        looked_at.insert(suspect, Instant::now());
        match core.look_through(suspect) {
            Ok(0) => {}
            Ok(bad) => tracing::error!(
                container = %suspect.container, bad,
                "quarantined after a read failed: back the same data up again; `dedupfs scrub` names the files"
            ),
            Err(error) => tracing::warn!(container = %suspect.container, %error, "cannot be quarantined"),
        }
    }
}

impl Core {
    /// Inspects a closed container and repairs or quarantines its bad copies; returns the number of those that are lost.
    pub(crate) fn look_through(&self, suspect: Suspect) -> Result<usize> {
        let Suspect { kind, container } = suspect;
        let store = if kind == ContainerKind::Data { &self.stores.data } else { &self.stores.recipes };
        let Some(record) = store.closed_record(container) else { return Ok(0) };
        let mut whole = WholeContainer::default();
        if !store.read_whole(&record, &mut whole) || whole.device_failed() {
            return Ok(0);
        }
        let fingerprinter = self.dedup.fingerprinter();
        let inspection = store.inspect(&record, &whole, &|entries, raw| judge(kind, fingerprinter, entries, raw));
        if !store.is_known(container) {
            return Ok(0);
        }
        let mut bad: Vec<BadCopy> =
            inspection.bad.iter().map(|entry| BadCopy { kind, container, fingerprint: entry.fingerprint }).collect();
        if let Some(sound) = inspection.sound_of_unknown {
            bad.extend(self.misplaced(&HashMap::from([(container, sound)]))?);
        }
        Ok(self.quarantine(&bad)?.lost.len())
    }
}
