//! Schedules.
//!
//! 1. A [`Job`] is the backup of one disk, on the host that has it.
//! 2. [`rounds`] puts jobs into rounds that begin on all hosts at once, [`lists`] lets each host take its next job as soon as one of its
//!    readers is free, and fewer jobs of all hosts are worked on than the limit.
//! 3. [`simulate`] lets the same jobs run by each of them.
//! 4. [`Cost`] judges them: the mean time that a snapshot lives, and the length of the night. [`Weight`] says which of them counts.

#[cfg(test)]
mod brute;
pub mod lists;
pub mod rounds;
pub mod simulate;
#[cfg(test)]
mod tests;

/// The backup of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The host that has it. Hosts are numbered from 0.
    pub host: usize,
    /// Bytes to be read, or another measure of its size that all jobs share.
    pub bytes: u64,
    /// Higher ones come first, where an order is chosen.
    pub priority: i32,
    /// Seconds from the beginning of the night at which it is to be done.
    pub deadline_secs: Option<u64>,
}

/// When a job is worked on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Turn {
    /// The job's number.
    pub job: usize,
    /// The reader of its host; 0 in rounds.
    pub reader: usize,
    /// Seconds from the beginning of the night.
    pub begin_secs: f64,
    /// The same.
    pub end_secs: f64,
}

/// What a schedule costs, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// How long a snapshot lives, on average: from the moment at which its disk is to stand still until it is stored. The paper's *T*.
    pub mean_secs: f64,
    /// From the beginning until all is done: the paper's *job span J*.
    pub span_secs: f64,
}

impl Cost {
    /// Returns the cost of a schedule.
    #[must_use]
    pub fn of(turns: &[Turn]) -> Self {
        let lives: f64 = turns.iter().map(|turn| turn.end_secs - turn.begin_secs).sum();
        let span_secs = turns.iter().map(|turn| turn.end_secs).fold(0.0, f64::max);
        Self { mean_secs: lives / turns.len().max(1) as f64, span_secs }
    }
}

/// What counts: from 0, the span alone, to 1, the mean alone. The paper's alpha.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Weight(f64);

impl Weight {
    /// Takes a number from 0 to 1.
    #[must_use]
    pub fn new(alpha: f64) -> Option<Self> {
        (0.0..=1.0).contains(&alpha).then_some(Self(alpha))
    }

    /// The number to make small (the paper, section 4.1).
    #[must_use]
    pub fn of(self, cost: Cost) -> f64 {
        self.0 * cost.mean_secs + (1.0 - self.0) * cost.span_secs
    }
}

/// Returns the jobs that end behind their deadlines.
#[must_use]
pub fn late(jobs: &[Job], turns: &[Turn]) -> Vec<usize> {
    let is_late = |turn: &&Turn| {
        let deadline = jobs.get(turn.job).and_then(|job| job.deadline_secs);
        deadline.is_some_and(|deadline| turn.end_secs > deadline as f64)
    };
    turns.iter().filter(is_late).map(|turn| turn.job).collect()
}

/// The number of hosts.
fn hosts(jobs: &[Job]) -> usize {
    jobs.iter().map(|job| job.host + 1).max().unwrap_or(0)
}
