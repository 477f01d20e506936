//! Rounds: all jobs of a round begin together, and end together, because the stages of detection in stages are in step on all hosts. A round
//! takes as long as its most loaded host.

use std::collections::BinaryHeap;

use super::{Cost, Job, Turn, Weight, hosts};

/// The rounds of some jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rounds {
    /// The round of each job, from 0.
    pub round_of: Vec<usize>,
    /// Their number; the last ones may be empty.
    pub count: usize,
}

impl Rounds {
    /// Returns the cost. `secs` gives the time of a host that reads so many bytes in a round.
    pub fn cost(&self, jobs: &[Job], secs: &dyn Fn(u64) -> f64) -> Cost {
        Cost::of(&self.turns(jobs, secs))
    }

    /// Returns when each job begins and ends: with its round, one of which follows the other.
    pub fn turns(&self, jobs: &[Job], secs: &dyn Fn(u64) -> f64) -> Vec<Turn> {
        let mut loads = Loads::new(hosts(jobs), self.count);
        for (job, round) in jobs.iter().zip(&self.round_of) {
            loads.add(job, *round);
        }
        let mut begins_secs = vec![0.0];
        for peak in &loads.peaks {
            let begin_secs = begins_secs.last().copied().unwrap_or(0.0);
            begins_secs.push(begin_secs + if *peak == 0 { 0.0 } else { secs(*peak) });
        }
        let time = |round: usize| begins_secs.get(round).copied().unwrap_or(0.0);
        let turn = |(job, round): (usize, &usize)| {
            let (begin_secs, end_secs) = (time(*round), time(round + 1));
            Turn { job, reader: 0, begin_secs, end_secs }
        };
        self.round_of.iter().enumerate().map(turn).collect()
    }
}

/// Bytes of each host in each round: the paper's *Load(m, r)*.
struct Loads {
    of: Vec<Vec<u64>>,
    /// The greatest of each round.
    peaks: Vec<u64>,
}

impl Loads {
    fn new(hosts: usize, rounds: usize) -> Self {
        Self { of: vec![vec![0; rounds]; hosts], peaks: vec![0; rounds] }
    }

    fn add(&mut self, job: &Job, round: usize) {
        if let Some(load) = self.of.get_mut(job.host).and_then(|loads| loads.get_mut(round)) {
            *load = load.saturating_add(job.bytes);
            if let Some(peak) = self.peaks.get_mut(round) {
                *peak = (*peak).max(*load);
            }
        }
    }

    /// The round in which the job's host has least; of several, the first or the shortest.
    fn least(&self, job: &Job, ties: Ties) -> usize {
        let loads = self.of.get(job.host).into_iter().flatten().zip(&self.peaks).enumerate();
        let rank = |load: u64, peak: u64| (load, if ties == Ties::Shortest { peak } else { 0 });
        loads.min_by_key(|(_, (load, peak))| rank(**load, **peak)).map_or(0, |(round, _)| round)
    }

    /// The round that becomes longer by the least; of several, the one in which the job's host has least.
    fn least_increase(&self, job: &Job) -> usize {
        let loads = self.of.get(job.host).into_iter().flatten().zip(&self.peaks).enumerate();
        let increase = |load: u64, peak: u64| load.saturating_add(job.bytes).saturating_sub(peak);
        loads.min_by_key(|(_, (load, peak))| (increase(**load, **peak), **load)).map_or(0, |(round, _)| round)
    }
}

/// A heuristic for a given number of rounds.
type Heuristic = fn(&[Job], usize) -> Rounds;

/// The choice among rounds in which a host has the same, mostly nothing. The paper does not tell it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ties {
    First,
    Shortest,
}

/// Jobs in descending order of size, each into the first round in which its host has least (the paper's DBP2, algorithm 1).
///
/// The largest jobs of all hosts meet in the first round, so rounds are few and full. But the paper's claim that the mean is at most twice
/// the least possible one does not hold: see [`dbp2_spread`].
#[must_use]
pub fn dbp2(jobs: &[Job], count: usize) -> Rounds {
    dbp2_with(jobs, count, Ties::First)
}

/// The same, but of several such rounds into the shortest. The largest jobs spread over the rounds. With many rounds the claim holds.
#[must_use]
pub fn dbp2_spread(jobs: &[Job], count: usize) -> Rounds {
    dbp2_with(jobs, count, Ties::Shortest)
}

fn dbp2_with(jobs: &[Job], count: usize, ties: Ties) -> Rounds {
    let mut loads = Loads::new(hosts(jobs), count);
    let mut rounds = Rounds { round_of: vec![0; jobs.len()], count };
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|number| std::cmp::Reverse(jobs.get(*number).map_or(0, |job| job.bytes)));
    for number in order {
        if let (Some(job), Some(round)) = (jobs.get(number), rounds.round_of.get_mut(number)) {
            *round = loads.least(job, ties);
            loads.add(job, *round);
        }
    }
    rounds
}

/// The largest job of the host with most unscheduled work, into the round that becomes longer by the least (the paper's BPL, algorithm 2).
///
/// The listing of algorithm 2 says "round with smallest load". With *Load(m, r)* that would be DBP2 again, since the order among hosts
/// decides nothing then; section 4.2 names the least increase as the other option, and figures 10 to 12 show two results.
#[must_use]
pub fn bpl(jobs: &[Job], count: usize) -> Rounds {
    let mut loads = Loads::new(hosts(jobs), count);
    let mut rounds = Rounds { round_of: vec![0; jobs.len()], count };
    // Of each host: its jobs, the largest at the end.
    let mut waiting: Vec<Vec<(u64, usize)>> = vec![Vec::new(); hosts(jobs)];
    for (number, job) in jobs.iter().enumerate() {
        if let Some(waiting) = waiting.get_mut(job.host) {
            waiting.push((job.bytes, number));
        }
    }
    waiting.iter_mut().for_each(|jobs| jobs.sort_unstable());
    let work = |jobs: &[(u64, usize)]| -> u64 { jobs.iter().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes)) };
    let mut busiest: BinaryHeap<(u64, usize)> =
        waiting.iter().enumerate().map(|(host, jobs)| (work(jobs), host)).collect();
    while let Some((unscheduled, host)) = busiest.pop() {
        let Some((bytes, number)) = waiting.get_mut(host).and_then(Vec::pop) else { continue };
        if let (Some(job), Some(round)) = (jobs.get(number), rounds.round_of.get_mut(number)) {
            *round = loads.least_increase(job);
            loads.add(job, *round);
        }
        busiest.push((unscheduled.saturating_sub(bytes), host));
    }
    rounds
}

/// Numbers of rounds that are all tried. Of greater ones, those are tried that differ by an eighth.
const COUNTS: usize = 64;

/// Loads of hosts in rounds at most: 8 bytes each.
const LOADS_MAX: usize = 4_000_000;

/// Tries numbers of rounds up to that of the jobs, and returns the schedule that costs least.
pub fn best(jobs: &[Job], heuristic: Heuristic, weight: Weight, secs: &dyn Fn(u64) -> f64) -> (Rounds, Cost) {
    let next = |count: &usize| Some(count + if *count < COUNTS { 1 } else { count / 8 });
    let most = jobs.len().min(LOADS_MAX / hosts(jobs).max(1)).max(1);
    let counts = std::iter::successors(Some(1), next).take_while(|count| *count <= most);
    let tried = counts.map(|count| {
        let rounds = heuristic(jobs, count);
        let cost = rounds.cost(jobs, secs);
        (rounds, cost)
    });
    let least = tried.min_by(|(_, one), (_, other)| weight.of(*one).total_cmp(&weight.of(*other)));
    least.unwrap_or((Rounds { round_of: Vec::new(), count: 1 }, Cost::default()))
}
