//! Lists: no rounds. Each host has some readers, each of which takes the host's next job when it is free. So a snapshot lives only while
//! its own disk is read. Inline detection needs nothing more.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{Cost, Job, Turn, hosts, late};

/// Timetables that are tried so that jobs meet their deadlines, behind the first one.
const DEADLINE_TRIES_MAX: usize = 8;

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

/// The readers of all hosts.
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
    // Hosts wait for each other: what one gains another may lose.
    for _ in 0..DEADLINE_TRIES_MAX {
        let before = deadlines_first.clone();
        for job in late(jobs, &turns).into_iter().filter_map(|job| jobs.get(job)) {
            deadlines_first.get_mut(job.host).into_iter().for_each(|first| *first = true);
        }
        if deadlines_first == before {
            break;
        }
        turns = run(jobs, readers, policy, &deadlines_first, secs);
    }
    turns.sort_by_key(|turn| turn.job);
    let late = late(jobs, &turns);
    Timetable { turns, deadlines_first, late }
}

/// A reader, and the time at which it takes its host's next job.
struct Reader {
    free_secs: f64,
    host: usize,
    number: usize,
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
    let mut all: Vec<Reader> = Vec::new();
    for (host, waiting) in waiting.iter().enumerate() {
        let own = readers.of_hosts.get(host).copied().unwrap_or(1).max(1);
        all.extend((0..own.min(waiting.len())).map(|number| Reader { free_secs: 0.0, host, number }));
    }
    let mut places_free_secs = vec![0.0_f64; readers.at_once.clamp(1, all.len().max(1))];
    let mut turns = Vec::with_capacity(jobs.len());
    let first = |all: &[Reader]| {
        let first = all.iter().enumerate().min_by(|(_, one), (_, other)| one.free_secs.total_cmp(&other.free_secs));
        first.map(|(place, _)| place)
    };
    while let Some(place) = first(&all) {
        let Some(reader) = all.get_mut(place) else { break };
        let job = waiting.get_mut(reader.host).and_then(|waiting| {
            let deadlines_first = deadlines_first.get(reader.host).copied().unwrap_or(false);
            Some(waiting.swap_remove(next(waiting, reader.number, policy, deadlines_first)?))
        });
        let Some((number, job)) = job else {
            all.remove(place);
            continue;
        };
        let first_place = places_free_secs.iter_mut().min_by(|one, other| one.total_cmp(other));
        let Some(place_free_secs) = first_place else { break };
        let begin_secs = reader.free_secs.max(*place_free_secs);
        let end_secs = begin_secs + secs(&job);
        turns.push(Turn { job: number, reader: reader.number, begin_secs, end_secs });
        (reader.free_secs, *place_free_secs) = (end_secs, end_secs);
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
