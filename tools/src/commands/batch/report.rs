//! The report of a night: the outcome of each disk.

use std::fmt::Write as _;
use std::time::Duration;

use dedupfs_batch::plan::Plan;
use serde::Serialize;

use super::disk::State;
use crate::duration;
use crate::size::show;

/// The outcome of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Stored,
    Failed,
    NotBegun,
}

/// One disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct DiskReport {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) source: String,
    pub(super) outcome: Outcome,
    /// The exit code of `dedupfs put`.
    pub(super) exit_code: Option<u8>,
    pub(super) attempts: u32,
    /// Name of its new version.
    pub(super) version: Option<String>,
    pub(super) token: Option<String>,
    pub(super) size_bytes: u64,
    /// Bytes that its map calls changed, if that is known before they are read.
    pub(super) dirty_bytes: Option<u64>,
    pub(super) read_bytes: u64,
    pub(super) verified_bytes: u64,
    pub(super) new_bytes: u64,
    pub(super) full_because: Option<String>,
    /// How long it was held at its point in time.
    pub(super) held_ms: u64,
    /// Names of the old versions that the rules of the plan removed.
    pub(super) pruned: Vec<String>,
    pub(super) problems: Vec<String>,
    /// Those of them that an attempt that succeeds does not mend: somebody must look.
    #[serde(skip)]
    pub(super) left: Vec<String>,
}

impl DiskReport {
    pub(super) fn new(plan: &Plan, state: &State, outcome: Outcome, problem: Option<String>) -> Self {
        let disk = state.disk(plan);
        let text = |of: &dyn Fn(&dedupfs_batch::plan::Disk) -> String| disk.map(of).unwrap_or_default();
        Self {
            name: text(&|disk| disk.name.clone()),
            host: text(&|disk| disk.host.clone()),
            source: text(&|disk| disk.source.to_string()),
            outcome,
            exit_code: None,
            attempts: 0,
            version: None,
            token: None,
            size_bytes: 0,
            dirty_bytes: None,
            read_bytes: 0,
            verified_bytes: 0,
            new_bytes: 0,
            full_because: None,
            held_ms: 0,
            pruned: Vec::new(),
            problems: problem.into_iter().collect(),
            left: Vec::new(),
        }
    }
}

/// All disks.
#[derive(Serialize)]
pub(super) struct BatchReport {
    disks: Vec<DiskReport>,
    stored: usize,
    failed: usize,
    not_begun: usize,
    size_bytes: u64,
    read_bytes: u64,
    new_bytes: u64,
    elapsed_ms: u64,
}

impl BatchReport {
    pub(super) fn new(disks: Vec<DiskReport>, elapsed: Duration) -> Self {
        let count = |outcome: Outcome| disks.iter().filter(|disk| disk.outcome == outcome).count();
        let sum = |of: fn(&DiskReport) -> u64| disks.iter().map(of).sum();
        Self {
            stored: count(Outcome::Stored),
            failed: count(Outcome::Failed),
            not_begun: count(Outcome::NotBegun),
            size_bytes: sum(|disk| disk.size_bytes),
            read_bytes: sum(|disk| disk.read_bytes),
            new_bytes: sum(|disk| disk.new_bytes),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            disks,
        }
    }

    /// Whether each disk is stored, without any problem.
    pub(super) fn is_complete(&self) -> bool {
        self.disks.iter().all(|disk| disk.outcome == Outcome::Stored && disk.problems.is_empty())
    }
}

pub(super) fn batch(report: &BatchReport) -> String {
    let mut text = String::new();
    for disk in &report.disks {
        // Writing to a String cannot fail.
        let _ = match (disk.outcome, &disk.version) {
            (Outcome::Stored, Some(version)) => writeln!(
                text,
                "{}: {version}, read {} of {}, compared {}, new {}, held for {}{}{}",
                disk.name,
                show(disk.read_bytes),
                show(disk.size_bytes),
                show(disk.verified_bytes),
                show(disk.new_bytes),
                duration::show(disk.held_ms),
                match disk.pruned.len() {
                    0 => String::new(),
                    count => format!(", {count} old version{} removed", plural(count as u64)),
                },
                disk.full_because.as_ref().map_or_else(String::new, |why| format!("; read everything: {why}"))
            ),
            (Outcome::NotBegun, _) => writeln!(text, "{}: NOT BEGUN", disk.name),
            _ => {
                writeln!(text, "{}: FAILED after {} attempt{}", disk.name, disk.attempts, plural(disk.attempts.into()))
            }
        };
        for problem in &disk.problems {
            let _ = writeln!(text, "  {problem}");
        }
    }
    let BatchReport { stored, failed, not_begun, size_bytes, read_bytes, new_bytes, elapsed_ms, .. } = report;
    let _ = writeln!(
        text,
        "{stored} disk{} stored, {failed} failed, {not_begun} not begun; read {} of {}, new {}, in {}",
        plural(*stored as u64),
        show(*read_bytes),
        show(*size_bytes),
        show(*new_bytes),
        duration::show(*elapsed_ms)
    );
    text
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
