//! Checkpoints of the indexes while nothing happens.
//!
//! dedupv1 replays its log and moves chunks to the persistent index in idle time, too (tech report, sections 3.4 and 3.6). The next backup
//! finds room in memory then, and a mount behind a crash has little to count.

use std::time::Duration;

use dedupfs_sync::clock::Instant;

use crate::engine::Core;

/// Time without requests of clients, and without counting, before a checkpoint is asked for.
const QUIET: Duration = Duration::from_secs(30);
/// Fewest changes for which one is asked: a mount behind a crash counts fewer in a fraction of a second.
const CHANGES_MIN: u64 = 1 << 16;
/// Most bytes that a checkpoint may write for each change: a few changes in many tankers wait for more.
const BYTES_PER_CHANGE: u64 = 1024;
/// Least time from one closer look to the next: it goes through all patches, and a full disk may refuse the checkpoint.
const BETWEEN: Duration = Duration::from_secs(600);

/// The limits of a quiet checkpoint; tests set others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) quiet: Duration,
    pub(crate) changes_min: u64,
    pub(crate) between: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { quiet: QUIET, changes_min: CHANGES_MIN, between: BETWEEN }
    }
}

/// The changes that no checkpoint holds, as of the last looks.
#[derive(Debug)]
pub(crate) struct Quiet {
    limits: Limits,
    changes: u64,
    /// When `changes` became so many.
    since: Instant,
    looked_closely: Option<Instant>,
}

impl Quiet {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, changes: 0, since: Instant::now(), looked_closely: None }
    }

    /// Looks at the pool, and asks for a checkpoint if it is quiet and has enough changes for the bytes that one would write. Waits for
    /// nothing.
    pub(crate) fn look(&mut self, core: &Core) {
        let changes = core.committer.uncheckpointed();
        if changes != self.changes {
            (self.changes, self.since) = (changes, Instant::now());
        }
        let is_quiet = core.activity.idle_for().min(self.since.elapsed()) >= self.limits.quiet;
        let is_early = self.looked_closely.is_some_and(|looked| looked.elapsed() < self.limits.between);
        if !is_quiet || is_early || changes < self.limits.changes_min.max(1) {
            return;
        }
        self.looked_closely = Some(Instant::now());
        let bytes = core.indexes.chunks.written_next_bytes() + core.indexes.nodes.written_next_bytes();
        // A pass, so that a pool that is being closed or is read-only is left alone.
        let Ok(_pass) = core.gate.enter() else { return };
        let has_room = core.check_failure().is_ok() && core.space.has_room(bytes).unwrap_or(false);
        if has_room && bytes <= changes.saturating_mul(BYTES_PER_CHANGE) {
            tracing::debug!(changes, bytes, "a checkpoint of the indexes, as nothing else happens");
            core.committer.ask_for_checkpoint();
        }
    }
}
