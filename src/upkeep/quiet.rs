//! Checkpoints of the indexes while nothing happens.
//!
//! dedupv1 replays its log and moves chunks to the persistent index in idle time, too (tech report, sections 3.4 and 3.6). The next backup
//! finds room in memory then, and a mount behind a crash has little to count.

use std::time::Duration;

use dedupfs_sync::clock::Instant;

use crate::engine::Core;

/// Nothing happened for so long: clients asked for nothing, and nothing was counted.
const QUIET: Duration = Duration::from_secs(30);
/// A mount behind a crash counts fewer changes in a fraction of a second.
const CHANGES_MIN: u64 = 1 << 16;
/// Most bytes that a checkpoint may write for each change: a few changes in many tankers wait for more.
const BYTES_PER_CHANGE: u64 = 1024;
/// Least time from one request to the next: a full disk may refuse the checkpoint.
const BETWEEN: Duration = Duration::from_secs(600);

/// The limits, for tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) quiet: Duration,
    pub(crate) changes: u64,
    pub(crate) between: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { quiet: QUIET, changes: CHANGES_MIN, between: BETWEEN }
    }
}

/// The changes that no checkpoint holds, as of the last looks.
#[derive(Debug)]
pub(crate) struct Quiet {
    limits: Limits,
    changes: u64,
    /// They have been so many since then.
    since: Instant,
    asked: Option<Instant>,
}

impl Quiet {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, changes: 0, since: Instant::now(), asked: None }
    }

    /// Looks at the pool, and asks for a checkpoint if it is quiet and has enough changes for the bytes that one would write. Waits for
    /// nothing.
    pub(crate) fn look(&mut self, core: &Core) {
        let changes = core.committer.uncheckpointed();
        if changes != self.changes {
            (self.changes, self.since) = (changes, Instant::now());
        }
        let is_quiet = core.activity.idle_for().min(self.since.elapsed()) >= self.limits.quiet;
        let is_early = self.asked.is_some_and(|asked| asked.elapsed() < self.limits.between);
        if !is_quiet || is_early || changes < self.limits.changes.max(1) {
            return;
        }
        let bytes = core.indexes.chunks.written_next_bytes() + core.indexes.nodes.written_next_bytes();
        // A pass, so that a pool that is being closed or is read-only is left alone.
        let Ok(_pass) = core.gate.enter() else { return };
        let has_room = core.check_failure().is_ok() && core.space.has_room(bytes).unwrap_or(false);
        if has_room && bytes <= changes.saturating_mul(BYTES_PER_CHANGE) {
            tracing::debug!(changes, bytes, "a checkpoint of the indexes, as nothing else happens");
            self.asked = Some(Instant::now());
            core.committer.ask_for_checkpoint();
        }
    }
}
