//! `dedupfs batch --simulate`: the night of a plan by each schedule.

use std::fmt::Write as _;

use dedupfs_batch::plan::Plan;
use dedupfs_batch::schedule::lists::Policy;
use dedupfs_batch::schedule::simulate::{Schedule, Simulated, Times, simulate};
use dedupfs_batch::schedule::{Job, Weight, late};
use serde::Serialize;

use super::disk::State;
use super::order::{self, Order};
use crate::duration;
use crate::report::table::Table;
use crate::staged::rule::Choice;

/// In the number of rounds, the length of the night counts as much as the life of a snapshot.
const ALPHA: f64 = 0.5;
/// Detection in stages reads a disk once for its fingerprints, and what is new of it again: all of it at worst.
const READS_IN_ROUNDS: f64 = 2.0;
/// The unit of loads.
const LOADS_A_SEC: f64 = 1e6;

/// A night by one schedule.
#[derive(Serialize)]
struct Night {
    /// `shortest`, `longest`, `mixed`, `dbp2` or `bpl`.
    schedule: String,
    is_of_plan: bool,
    rounds: Option<usize>,
    span_secs: u64,
    mean_life_secs: u64,
    longest_life_secs: u64,
    /// Units, as in what follows.
    miss_deadline: usize,
    miss_window: usize,
}

/// The nights of a plan.
#[derive(Serialize)]
pub(super) struct Simulation {
    nights: Vec<Night>,
    /// Those that would be begun.
    disks: usize,
    units: usize,
    /// The time from which deadlines and the window count.
    begins: String,
    /// The times at which disks are begun.
    window: Option<String>,
    problems: Vec<Problem>,
}

/// A disk that would not be begun, and the others of its group with it.
#[derive(Serialize)]
struct Problem {
    name: String,
    problem: String,
}

impl Simulation {
    pub(super) fn new(plan: &Plan, states: &[State], (order, staged): (&Order, &Choice), ignores_window: bool) -> Self {
        let problems = order.units.iter().filter_map(|unit| {
            let (place, problem) = unit.problem.as_ref()?;
            Some(Problem { name: states.get(*place)?.disk(plan)?.name.clone(), problem: problem.clone() })
        });
        let jobs: Vec<Job> = order.begun().map(|unit| unit.job).collect();
        let sharing = order::sharing(plan, &jobs);
        let of_job = |job: &Job| order::secs_of_reader(plan, &sharing, job);
        let load = |job: &Job| (order::secs_at_whole_rate(plan, job) * LOADS_A_SEC) as u64;
        let of_round = |load: u64| READS_IN_ROUNDS * load as f64 / LOADS_A_SEC + staged.facts.index_pass_secs();
        let times = Times { of_job: &of_job, load: &load, of_round: &of_round };
        let simulated = Weight::new(ALPHA).map(|weight| simulate(&jobs, &order::readers(plan), &times, weight));
        let nights = simulated.iter().flatten().map(|simulated| night(plan, order, &jobs, simulated)).collect();
        Self {
            nights,
            disks: order.begun().map(|unit| unit.disks.len()).sum(),
            units: jobs.len(),
            begins: order.begins.strftime("%H:%M").to_string(),
            window: plan.window.as_ref().filter(|_| !ignores_window).map(ToString::to_string),
            problems: problems.collect(),
        }
    }

    /// Whether each disk would be stored.
    pub(super) fn is_complete(&self) -> bool {
        self.problems.is_empty() && !self.nights.iter().any(|night| night.is_of_plan && night.miss_window > 0)
    }
}

fn night(plan: &Plan, order: &Order, jobs: &[Job], simulated: &Simulated) -> Night {
    let turns = &simulated.turns;
    let schedule = match simulated.schedule {
        Schedule::List(Policy::Shortest) => "shortest",
        Schedule::List(Policy::Longest) => "longest",
        Schedule::List(Policy::Mixed) => "mixed",
        Schedule::Dbp2 => "dbp2",
        Schedule::Bpl => "bpl",
    };
    Night {
        schedule: schedule.to_owned(),
        is_of_plan: simulated.schedule == Schedule::List(plan.order),
        rounds: simulated.rounds,
        span_secs: simulated.cost.span_secs.round() as u64,
        mean_life_secs: simulated.cost.mean_secs.round() as u64,
        longest_life_secs: turns.iter().map(|turn| turn.end_secs - turn.begin_secs).fold(0.0, f64::max).round() as u64,
        miss_deadline: late(jobs, turns).len(),
        miss_window: turns.iter().filter(|turn| order.misses_window(turn)).count(),
    }
}

pub(super) fn show(simulation: &Simulation) -> String {
    let time = |secs: u64| duration::show(secs.saturating_mul(1000));
    let titles = ["order", "the night", "a snapshot lives", "at most", "miss their deadline", "miss the window"];
    let has_window = simulation.window.is_some();
    let mut table = Table::new(&titles);
    for night in &simulation.nights {
        let schedule = match (night.rounds, night.is_of_plan) {
            (Some(1), _) => format!("{}, 1 round", night.schedule),
            (Some(rounds), _) => format!("{}, {rounds} rounds", night.schedule),
            (None, true) => format!("{} (the plan's)", night.schedule),
            (None, false) => night.schedule.clone(),
        };
        let times = [night.span_secs, night.mean_life_secs, night.longest_life_secs].map(time);
        let misses = if has_window { night.miss_window.to_string() } else { "-".to_owned() };
        table.row([schedule].into_iter().chain(times).chain([night.miss_deadline.to_string(), misses]));
    }
    let mut text = table.show(&[1, 2, 3, 4, 5]);
    // Writing to a String cannot fail.
    let Simulation { disks, units, begins, .. } = simulation;
    let _ = writeln!(text, "disks: {disks}, in units that begin together: {units}; at the rates that the plan assumes");
    text.push_str("rounds are those of `dedupfs cluster`: they read each disk twice at worst, and the index once\n");
    if let Some(window) = &simulation.window {
        let _ = writeln!(
            text,
            "disks are begun {window} only; times count from {begins}; --dry-run names those that miss it"
        );
    }
    for Problem { name, problem } in &simulation.problems {
        let _ = writeln!(text, "{name} NOT TO BE BEGUN: {problem}");
    }
    text
}
