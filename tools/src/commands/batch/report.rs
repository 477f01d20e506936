//! Reports: the outcome of each disk, and the times that a plan would have.

use std::fmt::Write as _;
use std::time::Duration;

use dedupfs_batch::plan::{AtEnd, Plan};
use dedupfs_batch::schedule::lists::Policy;
use serde::Serialize;

use super::disk::State;
use super::order::{self, Order};
use crate::duration;
use crate::size::show;
use crate::staged::rule::Choice;

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

/// A disk of a plan that is not run.
#[derive(Serialize)]
struct PlannedDisk {
    name: String,
    host: String,
    source: String,
    base: Option<String>,
    token: Option<String>,
    problem: Option<String>,
    full_because: Option<String>,
    verifies_all: bool,
    estimated_bytes: u64,
    size_is_known: bool,
    /// Whether its duplicates are detected in stages, and why.
    staged: bool,
    staged_because: String,
    begin_secs: u64,
    end_secs: u64,
    misses_deadline: bool,
    misses_window: bool,
}

/// A plan that is not run.
#[derive(Serialize)]
pub(super) struct Planned {
    disks: Vec<PlannedDisk>,
    order: Policy,
    /// The time from which seconds count.
    begins: String,
    span_secs: u64,
    /// The times at which disks are begun.
    window: Option<String>,
}

impl Planned {
    pub(super) fn new(plan: &Plan, states: &[State], (order, staged): (&Order, &Choice), ignores_window: bool) -> Self {
        let mut disks = Vec::new();
        let window = plan.window.as_ref().filter(|_| !ignores_window);
        let window_secs = window.map(|window| order::secs_until(order.begins, window.end));
        let must_end = window.is_some_and(|window| window.at_end == AtEnd::Stop);
        for (number, unit) in order.units.iter().enumerate() {
            let turn = order.timetable.turns.iter().find(|turn| turn.job == number);
            for state in unit.disks.iter().filter_map(|place| states.get(*place)) {
                let Some(disk) = state.disk(plan) else { continue };
                let estimate = order::estimate(plan, state, disk);
                let (staged, staged_because) = staged.of(estimate.bytes);
                let (begin_secs, end_secs) = turn.map_or((0, 0), |turn| (turn.begin_secs as u64, turn.end_secs as u64));
                disks.push(PlannedDisk {
                    name: disk.name.clone(),
                    host: disk.host.clone(),
                    source: disk.source.to_string(),
                    base: state.newest.as_ref().map(|newest| newest.name.clone()),
                    token: state.newest.as_ref().and_then(|newest| newest.image.token.clone()),
                    problem: state.problem.clone(),
                    full_because: state.full_because.clone(),
                    verifies_all: state.needs_full_verify(plan),
                    estimated_bytes: estimate.bytes,
                    size_is_known: estimate.is_size_known,
                    staged,
                    staged_because,
                    begin_secs,
                    end_secs,
                    misses_deadline: order.timetable.late.contains(&number),
                    misses_window: window_secs.is_some_and(|secs| begin_secs >= secs || (must_end && end_secs > secs)),
                });
            }
        }
        disks.sort_by(|one, other| (one.begin_secs, &one.name).cmp(&(other.begin_secs, &other.name)));
        let span_secs = order.timetable.cost().span_secs as u64;
        let window = window.map(ToString::to_string);
        Self { disks, order: plan.order, begins: order.begins.strftime("%H:%M").to_string(), span_secs, window }
    }

    /// Whether each disk would be stored.
    pub(super) fn is_complete(&self) -> bool {
        self.disks.iter().all(|disk| disk.problem.is_none() && !disk.misses_window)
    }
}

pub(super) fn planned(planned: &Planned) -> String {
    let mut text = String::new();
    let time = |secs: u64| duration::show(secs.saturating_mul(1000));
    for disk in &planned.disks {
        let base = match disk {
            PlannedDisk { problem: Some(problem), .. } => format!("NOT TO BE BEGUN: {problem}"),
            PlannedDisk { full_because: Some(why), .. } => format!("{why}: all of it is read"),
            PlannedDisk { base: None, .. } => "no version yet: all of it is read".to_owned(),
            PlannedDisk { base: Some(base), token: None, .. } => format!("base {base}, which has no token"),
            PlannedDisk { base: Some(base), token: Some(token), .. } => format!("base {base}, token {token}"),
        };
        let _ = writeln!(
            text,
            "{} on {} from {}: {base}{}; {} from {} to {}{}{}",
            disk.name,
            disk.host,
            disk.source,
            if disk.verifies_all { ", compared as a whole" } else { "" },
            if disk.size_is_known {
                format!("some {}", show(disk.estimated_bytes))
            } else {
                "of unknown size,".to_owned()
            },
            time(disk.begin_secs),
            time(disk.end_secs),
            if disk.misses_deadline { ", MISSES ITS DEADLINE" } else { "" },
            if disk.misses_window { ", MISSES THE WINDOW" } else { "" }
        );
        let how = if disk.staged { "in stages" } else { "while it is read" };
        let _ = writeln!(text, "  duplicates are detected {how}: {}", disk.staged_because);
    }
    let span = time(planned.span_secs);
    let _ = writeln!(text, "the night takes some {span}, at the rates that the plan assumes");
    if let Some(window) = &planned.window {
        let _ = writeln!(text, "disks are begun {window} only; times count from {}", planned.begins);
    }
    text
}
