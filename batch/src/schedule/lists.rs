//! Lists: no rounds. Each host has some readers, each of which takes the host's next job when it is free. So a snapshot lives only while
//! its own disk is read. Inline detection needs nothing more.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{Cost, Job, Turn, hosts};

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
        Cost::of(&self.turns)
    }
}

/// Who reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Readers {
    /// The number of each host's; one, of hosts beyond the list.
    pub of_hosts: Vec<usize>,
    /// Jobs of all hosts that are worked on at once. At least 1.
    pub at_once: usize,
}

impl Default for Readers {
    /// One at each host, all at once.
    fn default() -> Self {
        Self { of_hosts: Vec::new(), at_once: usize::MAX }
    }
}

/// Returns a timetable. `secs` gives the time of a job.
///
/// A reader takes a job, and begins it when fewer than the limit of all hosts are worked on. Those that wait begin in the order in which they
/// came. Of a host whose jobs would miss deadlines with the policy, those that have one come first, the earliest first. If a job misses its
/// deadline all the same, it is named.
pub fn timetable(jobs: &[Job], readers: &Readers, policy: Policy, secs: &dyn Fn(&Job) -> f64) -> Timetable {
    let mut deadlines_first = vec![false; hosts(jobs)];
    let mut turns = run(jobs, readers, policy, &deadlines_first, secs);
    let misses: Vec<usize> = late(jobs, &turns).collect();
    if !misses.is_empty() {
        for job in misses.iter().filter_map(|job| jobs.get(*job)) {
            deadlines_first.get_mut(job.host).into_iter().for_each(|first| *first = true);
        }
        turns = run(jobs, readers, policy, &deadlines_first, secs);
    }
    turns.sort_by_key(|turn| turn.job);
    let late = late(jobs, &turns).collect();
    Timetable { turns, deadlines_first, late }
}

fn late<'a>(jobs: &'a [Job], turns: &'a [Turn]) -> impl Iterator<Item = usize> + 'a {
    let is_late = |turn: &&Turn| {
        let deadline = jobs.get(turn.job).and_then(|job| job.deadline_secs);
        deadline.is_some_and(|deadline| turn.end_secs > deadline as f64)
    };
    turns.iter().filter(is_late).map(|turn| turn.job)
}

/// A reader that is free, and so a host's next job may begin.
struct Free {
    at_secs: f64,
    host: usize,
    reader: usize,
}

/// Lets the readers work through all jobs.
fn run(
    jobs: &[Job],
    readers: &Readers,
    policy: Policy,
    deadlines_first: &[bool],
    secs: &dyn Fn(&Job) -> f64,
) -> Vec<Turn> {
    let mut waiting: Vec<Vec<(usize, Job)>> = vec![Vec::new(); hosts(jobs)];
    for (number, job) in jobs.iter().enumerate() {
        waiting.get_mut(job.host).into_iter().for_each(|waiting| waiting.push((number, *job)));
    }
    let mut free: Vec<Free> = Vec::new();
    for (host, waiting) in waiting.iter().enumerate() {
        let own = readers.of_hosts.get(host).copied().unwrap_or(1).max(1);
        free.extend((0..own.min(waiting.len())).map(|reader| Free { at_secs: 0.0, host, reader }));
    }
    let mut places_secs = vec![0.0_f64; readers.at_once.clamp(1, free.len().max(1))];
    let mut turns = Vec::with_capacity(jobs.len());
    let first = |free: &[Free]| {
        let first = free.iter().enumerate().min_by(|(_, one), (_, other)| one.at_secs.total_cmp(&other.at_secs));
        first.map(|(place, _)| place)
    };
    while let Some(place) = first(&free) {
        let Some(Free { at_secs, host, reader }) = free.get_mut(place) else { break };
        let job = waiting.get_mut(*host).and_then(|waiting| {
            let deadlines_first = deadlines_first.get(*host).copied().unwrap_or(false);
            Some(waiting.swap_remove(next(waiting, *reader, policy, deadlines_first)?))
        });
        let Some((number, job)) = job else {
            free.remove(place);
            continue;
        };
        let Some(place_secs) = places_secs.iter_mut().min_by(|one, other| one.total_cmp(other)) else { break };
        let begin_secs = at_secs.max(*place_secs);
        let end_secs = begin_secs + secs(&job);
        turns.push(Turn { job: number, reader: *reader, begin_secs, end_secs });
        (*at_secs, *place_secs) = (end_secs, end_secs);
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
