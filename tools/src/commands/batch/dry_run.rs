//! `dedupfs batch --dry-run`: the base of each disk, and the times that a plan would have.

use std::fmt::Write as _;

use dedupfs_batch::plan::Plan;
use dedupfs_batch::schedule::lists::Policy;
use serde::Serialize;

use super::disk::State;
use super::estimate::estimate;
use super::order::Order;
use crate::duration;
use crate::size;
use crate::staged::rule::Choice;

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
        for (number, unit) in order.units.iter().enumerate() {
            let turn = order.timetable.turns.iter().find(|turn| turn.job == number);
            for state in unit.disks.iter().filter_map(|place| states.get(*place)) {
                let Some(disk) = state.disk(plan) else { continue };
                let estimate = estimate(plan, state, disk);
                let (staged, staged_because) = staged.of(estimate.bytes);
                let (begin_secs, end_secs) = turn.map_or((0, 0), |turn| (turn.begin_secs as u64, turn.end_secs as u64));
                disks.push(PlannedDisk {
                    name: disk.name.clone(),
                    host: disk.host.clone(),
                    source: disk.source.to_string(),
                    base: state.newest.as_ref().map(|newest| newest.name.clone()),
                    token: state.newest.as_ref().and_then(|newest| newest.image.token.clone()),
                    problem: estimate.problem,
                    full_because: state.full_because.clone(),
                    verifies_all: state.needs_full_verify(plan),
                    estimated_bytes: estimate.bytes,
                    size_is_known: estimate.is_size_known,
                    staged,
                    staged_because,
                    begin_secs,
                    end_secs,
                    misses_deadline: order.timetable.late.contains(&number),
                    misses_window: turn.is_some_and(|turn| order.misses_window(turn)),
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

pub(super) fn show(planned: &Planned) -> String {
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
                format!("some {}", size::show(disk.estimated_bytes))
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
