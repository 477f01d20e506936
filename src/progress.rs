//! Progress reports of long work.

/// A receiver of steps and their progress; the tools draw bars from it.
pub trait Progress: Sync {
    /// Begins a step; `total` is 0 if it is not known.
    fn start(&self, what: &str, total: u64);
    /// Adds `by` to the work done.
    fn advance(&self, by: u64);
    /// Ends the step.
    fn finish(&self);
    /// Whether the caller has abandoned the work. Work that can be resumed later ends soon.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// Passes on a line that the caller should see at once.
    fn say(&self, line: &str) {
        tracing::info!("{line}");
    }
}

/// A receiver that ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}
