//! `dedupfs batch --dry-run`: the base of each disk, and the times that a plan would have.

use std::fmt::Write as _;

use dedupfs_batch::plan::{Disk, Plan};
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
            for (place, state) in unit.disks.iter().filter_map(|place| Some((*place, states.get(*place)?))) {
                let Some(disk) = state.disk(plan) else { continue };
                let estimate = estimate(plan, state, disk);
                let (staged, staged_because) = staged.of(estimate.bytes);
                let secs = |secs: f64| secs.round() as u64;
                let (begin_secs, end_secs) = turn.map_or((0, 0), |turn| (secs(turn.begin_secs), secs(turn.end_secs)));
                let of_group = unit.problem.as_ref().filter(|(other, _)| *other != place);
                let of_group = of_group.map(|_| "another disk of its group cannot begin".to_owned());
                disks.push(PlannedDisk {
                    name: disk.name.clone(),
                    host: disk.host.clone(),
                    source: disk.source.to_string(),
                    base: state.newest.as_ref().map(|newest| newest.name.clone()),
                    token: state.newest.as_ref().and_then(|newest| newest.image.token.clone()),
                    problem: estimate.problem.or(of_group),
                    full_because: full_because(state, disk),
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
        let span_secs = order.timetable.cost().span_secs.round() as u64;
        let window = window.map(ToString::to_string);
        Self { disks, order: plan.order, begins: order.begins.strftime("%H:%M").to_string(), span_secs, window }
    }

    /// Whether each disk would be stored.
    pub(super) fn is_complete(&self) -> bool {
        self.disks.iter().all(|disk| disk.problem.is_none() && !disk.misses_window)
    }
}

/// Returns why all of a disk is read that has a version.
fn full_because(state: &State, disk: &Disk) -> Option<String> {
    let newest = state.newest.as_ref();
    let tells_none = newest.is_some() && !disk.source.tells_changes();
    let told = tells_none.then(|| "a source of this kind tells no changes".to_owned());
    let has_no_token = newest.is_some_and(|newest| newest.image.token.is_none());
    let without_token = has_no_token.then(|| "the newest version has no token".to_owned());
    state.full_because.clone().or(told).or(without_token)
}

pub(super) fn show(planned: &Planned) -> String {
    let mut text = String::new();
    let time = |secs: u64| duration::show(secs.saturating_mul(1000));
    for disk in &planned.disks {
        if let Some(problem) = &disk.problem {
            let _ = writeln!(text, "{} on {} from {}: NOT TO BE BEGUN: {problem}", disk.name, disk.host, disk.source);
            continue;
        }
        let base = match disk {
            PlannedDisk { full_because: Some(why), .. } => format!("{why}: all of it is read"),
            PlannedDisk { base: None, .. } => "no version yet: all of it is read".to_owned(),
            PlannedDisk { base: Some(base), token, .. } => {
                format!("base {base}, token {}", token.as_deref().unwrap_or("unknown"))
            }
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
