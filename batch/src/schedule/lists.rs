//! Lists: no rounds. Each host has some readers, each of which takes the host's next job when it is free. So a snapshot lives only while
//! its own disk is read. Inline detection needs nothing more.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{Cost, Job, hosts};

/// The order in which the readers of a host take its jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The shortest first.
    Shortest,
    /// The longest first.
    Longest,
    /// The first reader takes the longest, the others the shortest: neither large nor small disks wait for all of the others.
    #[default]
    Mixed,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Shortest, Self::Longest, Self::Mixed];
}

/// When a job is worked on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Turn {
    /// The job's number.
    pub job: usize,
    /// The reader of its host.
    pub reader: usize,
    /// Seconds from the beginning of the night.
    pub begin_secs: f64,
    /// The same.
    pub end_secs: f64,
}

/// The times of all jobs, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timetable {
    /// One for each job.
    pub turns: Vec<Turn>,
    /// Of each host: its jobs with deadlines come first, because one would be late otherwise.
    pub deadlines_first: Vec<bool>,
    /// Jobs that miss their deadlines all the same.
    pub late: Vec<usize>,
}

impl Timetable {
    /// Returns the cost.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let lives: f64 = self.turns.iter().map(|turn| turn.end_secs - turn.begin_secs).sum();
        let span_secs = self.turns.iter().map(|turn| turn.end_secs).fold(0.0, f64::max);
        Cost { mean_secs: lives / self.turns.len().max(1) as f64, span_secs }
    }
}

/// Returns a timetable. `readers` has the number of each host's; `secs` gives the time of a job.
///
/// Of a host whose jobs would miss deadlines with the policy, those that have one come first, the earliest first. If a job misses its
/// deadline all the same, it is named.
pub fn timetable(jobs: &[Job], readers: &[usize], policy: Policy, secs: &dyn Fn(&Job) -> f64) -> Timetable {
    let mut table = Timetable::default();
    for host in 0..hosts(jobs) {
        let readers = readers.get(host).copied().unwrap_or(1);
        let own: Vec<usize> =
            (0..jobs.len()).filter(|number| jobs.get(*number).is_some_and(|job| job.host == host)).collect();
        let mut turns = run(jobs, &own, readers, policy, false, secs);
        let is_late = late(jobs, &turns).next().is_some();
        if is_late {
            turns = run(jobs, &own, readers, policy, true, secs);
        }
        table.deadlines_first.push(is_late);
        table.late.extend(late(jobs, &turns));
        table.turns.extend(turns);
    }
    table.turns.sort_by_key(|turn| turn.job);
    table.late.sort_unstable();
    table
}

fn late<'a>(jobs: &'a [Job], turns: &'a [Turn]) -> impl Iterator<Item = usize> + 'a {
    let is_late = |turn: &&Turn| {
        let deadline = jobs.get(turn.job).and_then(|job| job.deadline_secs);
        deadline.is_some_and(|deadline| turn.end_secs > deadline as f64)
    };
    turns.iter().filter(is_late).map(|turn| turn.job)
}

/// Lets the readers of one host work through its jobs.
fn run(
    jobs: &[Job],
    own: &[usize],
    readers: usize,
    policy: Policy,
    deadlines_first: bool,
    secs: &dyn Fn(&Job) -> f64,
) -> Vec<Turn> {
    let mut waiting: Vec<(usize, Job)> = own.iter().filter_map(|number| Some((*number, *jobs.get(*number)?))).collect();
    let mut free_secs = vec![0.0_f64; readers.max(1)];
    let mut turns = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let first_free = free_secs.iter().enumerate().min_by(|one, other| one.1.total_cmp(other.1));
        let reader = first_free.map_or(0, |(reader, _)| reader);
        let Some(place) = next(&waiting, reader, policy, deadlines_first) else { break };
        let (number, job) = waiting.swap_remove(place);
        let Some(free) = free_secs.get_mut(reader) else { break };
        let begin_secs = *free;
        *free += secs(&job);
        turns.push(Turn { job: number, reader, begin_secs, end_secs: *free });
    }
    turns
}

/// Returns the place of the job that a reader takes next, of those that wait.
#[must_use]
pub fn next(waiting: &[(usize, Job)], reader: usize, policy: Policy, deadlines_first: bool) -> Option<usize> {
    let takes_longest = policy == Policy::Longest || (policy == Policy::Mixed && reader == 0);
    let rank = |(number, job): &(usize, Job)| {
        let deadline = job.deadline_secs.filter(|_| deadlines_first).unwrap_or(u64::MAX);
        let size = if takes_longest { u64::MAX - job.bytes } else { job.bytes };
        (deadline, Reverse(job.priority), size, *number)
    };
    (0..waiting.len()).min_by_key(|place| waiting.get(*place).map(rank))
}
