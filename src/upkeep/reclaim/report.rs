//! The report of reclaiming, or of a plan.

use serde::{Deserialize, Serialize};

/// The reason why a run ended before everything was done. Its work stays done; the next run continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// It was stopped by request, or its client is gone.
    Asked,
    /// [`max_time_ms`](super::ReclaimOptions::max_time_ms) was over.
    Time,
    /// [`max_io_bytes`](super::ReclaimOptions::max_io_bytes) were read and written.
    Io,
    /// The pool was unmounted.
    Unmounted,
}

/// The work that was done, or would be done.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Whether this is a plan: nothing was changed.
    pub dry_run: bool,
    /// The reason if it ended early.
    #[serde(default)]
    pub stopped: Option<Stopped>,
    /// Recipe nodes freed.
    pub nodes_freed: u64,
    /// Recipe nodes without references that stay because they cannot be read, with all their children.
    pub nodes_unreadable: u64,
    /// Chunks without references, removed from the index.
    pub chunks_removed: u64,
    /// Chunks and nodes copied forward out of emptied containers.
    pub chunks_moved: u64,
    /// Their bytes, uncompressed, as they were before.
    pub moved_bytes: u64,
    /// Bytes by which moved nodes grew, or shrank, because they name other containers now.
    #[serde(default)]
    pub hints_grown_bytes: i64,
    /// Uncompressed live bytes of the containers that were chosen for the order of the newest versions. A run that ends
    /// early may have moved fewer.
    #[serde(default)]
    pub arranged_bytes: u64,
    /// Containers freed.
    pub containers_freed: u64,
    /// Containers among them in which nothing was alive: freed without reading them.
    #[serde(default)]
    pub containers_dead: u64,
    /// Containers kept because some of their content cannot be read: `dedupfs fsck --read-data` tells more.
    pub containers_damaged: u64,
    /// Containers kept because there is no room to copy their live chunks.
    #[serde(default)]
    pub containers_without_space: u64,
    /// Uncompressed live bytes in closed containers; as of the plan.
    #[serde(default)]
    pub live_bytes: u64,
    /// Uncompressed garbage that stays: as much may stay, or too much in its containers is alive.
    pub garbage_left_bytes: u64,
    /// Whether containers that are still written were left as they are: a later run reclaims their garbage.
    #[serde(default)]
    pub spared_open: bool,
    /// Uncompressed bytes of these containers.
    #[serde(default)]
    pub open_bytes: u64,
    /// Bytes of containers read.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes of containers written; an estimate, since copies compress as before.
    #[serde(default)]
    pub written_bytes: u64,
    /// Physical bytes that the plan expected to free.
    #[serde(default)]
    pub expected_bytes: u64,
    /// Physical bytes of the pool before.
    pub physical_before_bytes: u64,
    /// Physical bytes after; for a dry run the expected bytes.
    pub physical_after_bytes: u64,
    /// Time it took, or is estimated to take.
    #[serde(default)]
    pub elapsed_ms: u64,
    /// The part of this time that it waited for clients or was paused.
    #[serde(default)]
    pub waited_ms: u64,
}

impl ReclaimReport {
    /// Whether it found nothing to do after checking everything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stopped.is_none() && !self.spared_open && !self.has_done_anything()
    }

    /// Whether it changed anything.
    pub(crate) fn has_done_anything(&self) -> bool {
        self.nodes_freed + self.chunks_removed + self.chunks_moved + self.containers_freed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_idle_if_it_has_looked_at_everything_and_changed_nothing() {
        let nothing = ReclaimReport { live_bytes: 7, garbage_left_bytes: 7, read_bytes: 7, ..ReclaimReport::default() };
        assert!(nothing.is_idle());
        let others = [
            ReclaimReport { stopped: Some(Stopped::Time), ..nothing.clone() },
            ReclaimReport { spared_open: true, ..nothing.clone() },
            ReclaimReport { nodes_freed: 1, ..nothing.clone() },
            ReclaimReport { chunks_removed: 1, ..nothing.clone() },
            ReclaimReport { chunks_moved: 1, ..nothing.clone() },
            ReclaimReport { containers_freed: 1, ..nothing },
        ];
        assert!(others.iter().all(|report| !report.is_idle()), "{others:?}");
    }
}
