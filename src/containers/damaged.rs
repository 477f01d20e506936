//! Containers in which something was found bad, and suspicions of readers.
//!
//! What lies in a damaged container is believed only where the index places it there: a chunk of it may have a sound frame
//! and other bytes than its name says, and old recipes go on naming the container.

use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use dedupfs_store::{ContainerId, ContainerKind};

use super::ContainerStore;
use super::shared::Known;

/// A container in which a reader met damage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Suspect {
    /// What it holds.
    pub kind: ContainerKind,
    /// Which.
    pub container: ContainerId,
}

impl ContainerStore {
    /// From here on these containers are damaged; those that are gone, or not closed, are passed over.
    pub fn set_damaged(&self, containers: &[ContainerId]) {
        let mut directory = self.shared.directory.write();
        for container in containers {
            if let Some(Known::Closed(record)) = directory.get_mut(container) {
                record.damaged = true;
                self.shared.any_damaged.store(true, Ordering::Release);
            }
        }
    }

    /// Whether something in the container was found bad.
    #[must_use]
    pub fn is_damaged(&self, container: ContainerId) -> bool {
        self.shared.any_damaged.load(Ordering::Acquire)
            && matches!(self.shared.known(container), Some(Known::Closed(record)) if record.damaged)
    }

    /// Where suspicions go, from the first call on. The sender must not block for long: readers send.
    pub fn report_suspects(&self, to: Sender<Suspect>) {
        // A second receiver would be a second quarantine.
        let _first_counts = self.shared.suspects.set(to);
    }

    /// A reader met damage in the container. One that cannot be queued is met again, or found by a scrub.
    pub fn suspect(&self, container: ContainerId) {
        if let Some(suspects) = self.shared.suspects.get() {
            let _full = suspects.try_send(Suspect { kind: self.shared.options.kind, container });
        }
    }
}
