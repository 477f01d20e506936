//! The same jobs by all schedules.

use super::lists::{Policy, Readers, timetable};
use super::rounds::{best, bpl, dbp2};
use super::{Cost, Job, Turn, Weight};

/// A schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// No rounds: each reader takes the next job of its host.
    List(Policy),
    /// Rounds by [`dbp2`].
    Dbp2,
    /// Rounds by [`bpl`].
    Bpl,
}

/// The times of jobs.
pub struct Times<'a> {
    /// Seconds of a job in a list.
    pub of_job: &'a dyn Fn(&Job) -> f64,
    /// The load that a job puts on its host in a round, in a unit that all hosts share.
    pub load: &'a dyn Fn(&Job) -> u64,
    /// Seconds of a round whose busiest host has this load.
    pub of_round: &'a dyn Fn(u64) -> f64,
}

/// A schedule that was simulated.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulated {
    /// The schedule.
    pub schedule: Schedule,
    /// The number of rounds that costs least. `None` in a list.
    pub rounds: Option<usize>,
    /// When each job is worked on, in the order of the jobs.
    pub turns: Vec<Turn>,
    /// The cost.
    pub cost: Cost,
}

/// Lets all schedules run. Of rounds, `weight` decides how many there are.
#[must_use]
pub fn simulate(jobs: &[Job], readers: &Readers, times: &Times<'_>, weight: Weight) -> Vec<Simulated> {
    let loads: Vec<Job> = jobs.iter().map(|job| Job { bytes: (times.load)(job), ..*job }).collect();
    let list = |policy| (Schedule::List(policy), None, timetable(jobs, readers, policy, times.of_job).turns);
    let rounds = [
        (Schedule::Dbp2, best(&loads, dbp2, weight, times.of_round).0),
        (Schedule::Bpl, best(&loads, bpl, weight, times.of_round).0),
    ];
    let rounds = rounds.into_iter().map(|(schedule, rounds)| {
        let turns = rounds.turns(&loads, times.of_round);
        (schedule, Some(rounds.count), turns)
    });
    let all = Policy::ALL.into_iter().map(list).chain(rounds);
    all.map(|(schedule, rounds, turns)| Simulated { schedule, rounds, cost: Cost::of(&turns), turns }).collect()
}
