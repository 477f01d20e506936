//! How long work tells what it is at.

/// Told of steps and their progress; the tools draw bars from it.
pub trait Progress: Sync {
    /// A step begins; `total` is 0 if it is not known.
    fn start(&self, what: &str, total: u64);
    /// So much more is done.
    fn advance(&self, by: u64);
    /// The step is done.
    fn finish(&self);
    /// Whether whoever started the work does not want it any more: work that can go on later ends soon.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// Something that whoever started the work should know at once.
    fn say(&self, line: &str) {
        tracing::info!("{line}");
    }
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}
