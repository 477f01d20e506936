//! Containers with damage, and the suspicions of readers.
//!
//! A chunk in a damaged container is used only where the index places it there: its frame can be sound while its bytes
//! do not fit its fingerprint, and old recipes still name the container.

use std::sync::atomic::Ordering;

use dedupfs_store::{ContainerId, ContainerKind};
use dedupfs_sync::channel::Sender;

use super::ContainerStore;
use super::directory::KnownContainer;

/// A container in which a reader met damage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Suspect {
    /// The container's kind.
    pub kind: ContainerKind,
    /// The container's id.
    pub container: ContainerId,
}

impl ContainerStore {
    /// Marks these containers as damaged; skips those that are gone or not closed.
    pub fn set_damaged(&self, containers: &[ContainerId]) {
        let mut directory = self.shared.directory.write();
        for container in containers {
            if directory.set_damaged(*container) {
                self.shared.any_damaged.store(true, Ordering::Release);
            }
        }
    }

    /// Whether damage was found in the container.
    #[must_use]
    pub fn is_damaged(&self, container: ContainerId) -> bool {
        self.shared.any_damaged.load(Ordering::Acquire)
            && matches!(self.shared.known(container), Some(KnownContainer::Closed(record)) if record.damaged)
    }

    /// Sets the receiver of suspicions; only the first call counts. Readers send, so the channel must not block for
    /// long.
    pub fn report_suspects(&self, to: Sender<Suspect>) {
        // A second receiver would be a second quarantine.
        let _first_counts = self.shared.suspects.set(to);
    }

    /// Reports that a reader met damage in the container. If the queue is full, a later reader or a scrub finds it
    /// again.
    pub(crate) fn suspect(&self, container: ContainerId) {
        if let Some(suspects) = self.shared.suspects.get() {
            let _full = suspects.try_send(Suspect { kind: self.shared.options.kind, container });
        }
    }
}
