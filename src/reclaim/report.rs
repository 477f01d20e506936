//! What reclaiming did, or would do.

use serde::{Deserialize, Serialize};

/// Why a run ended before everything was done. What it did stays done; the next run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Somebody asked for it, or is gone.
    Asked,
    /// [`max_time_ms`](super::ReclaimOptions::max_time_ms) was over.
    Time,
    /// [`max_io_bytes`](super::ReclaimOptions::max_io_bytes) were read and written.
    Io,
    /// The pool was unmounted.
    Unmounted,
}

/// What was, or would be, done.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Why it ended early, if it did.
    #[serde(default)]
    pub stopped: Option<Stopped>,
    /// Recipe nodes freed.
    pub nodes_freed: u64,
    /// Recipe nodes that nothing refers to and that stay, with all that they name, because they cannot be read.
    pub nodes_unreadable: u64,
    /// Chunks that nothing refers to any more, removed from the index.
    pub chunks_removed: u64,
    /// Chunks and nodes copied forward out of containers that were emptied.
    pub chunks_moved: u64,
    /// Their bytes, uncompressed.
    pub moved_bytes: u64,
    /// Containers freed.
    pub containers_freed: u64,
    /// Of these, freed without reading them: nothing in them was alive.
    #[serde(default)]
    pub containers_dead: u64,
    /// Containers left as they are because something in them cannot be read: `dedupfs fsck --read-data` tells more.
    pub containers_damaged: u64,
    /// Containers left as they are because there is no space to copy what is alive in them.
    #[serde(default)]
    pub containers_without_space: u64,
    /// Uncompressed bytes that something refers to, in closed containers; as of the plan.
    #[serde(default)]
    pub live_bytes: u64,
    /// Uncompressed bytes that nothing refers to and that stay, because so much may, or because more in their containers is alive.
    pub garbage_left_bytes: u64,
    /// Containers that are still written were left as they are: what of them is garbage is for a later run.
    #[serde(default)]
    pub spared_open: bool,
    /// Their uncompressed bytes.
    #[serde(default)]
    pub open_bytes: u64,
    /// Bytes of containers read.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes of containers written, about: copies compress as they did before.
    #[serde(default)]
    pub written_bytes: u64,
    /// Physical bytes that the plan expected to free.
    #[serde(default)]
    pub expected_bytes: u64,
    /// Physical bytes of the pool before.
    pub physical_before_bytes: u64,
    /// Physical bytes after; for a dry run what is expected.
    pub physical_after_bytes: u64,
    /// Time it took, or is estimated to take.
    #[serde(default)]
    pub elapsed_ms: u64,
    /// Of this, time it waited for clients, or was paused.
    #[serde(default)]
    pub waited_ms: u64,
}

impl ReclaimReport {
    /// Whether it found nothing to do, and looked at everything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stopped.is_none() && !self.spared_open && !self.has_done_anything()
    }

    /// Whether it changed anything.
    #[must_use]
    pub fn has_done_anything(&self) -> bool {
        self.nodes_freed + self.chunks_removed + self.chunks_moved + self.containers_freed > 0
    }
}
