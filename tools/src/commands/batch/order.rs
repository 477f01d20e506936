//! The order in which disks are read, by estimates of the bytes to read.

use std::collections::{BTreeMap, HashMap};

use dedupfs_batch::plan::{AtEnd, Disk, Host, Plan};
use dedupfs_batch::schedule::lists::{Readers, Timetable, timetable};
use dedupfs_batch::schedule::{Job, Turn};
use jiff::civil::Time;

use super::disk::State;
use super::estimate::{Estimate, estimate};
use super::night::AT_ONCE_MAX;

const DAY_SECS: u64 = 24 * 3600;

/// A disk, or a group of disks.
pub(super) struct Unit {
    /// Places in the list of states.
    pub(super) disks: Vec<usize>,
    /// Nothing is to be read if it would not be begun.
    pub(super) job: Job,
    /// A disk of it that would not be begun, and the reason: then none of it is.
    pub(super) problem: Option<(usize, String)>,
}

/// The order of a night.
pub(super) struct Order {
    pub(super) units: Vec<Unit>,
    pub(super) timetable: Timetable,
    /// The time at which the night begins: now, or the start of a window that is yet to come.
    pub(super) begins: Time,
    /// Seconds until the window ends, and the fate of the disks that are read then.
    window: Option<(f64, AtEnd)>,
}

impl Order {
    pub(super) fn jobs(&self) -> Vec<Job> {
        self.units.iter().map(|unit| unit.job).collect()
    }

    /// The units that would be begun.
    pub(super) fn begun(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(|unit| unit.problem.is_none())
    }

    /// Whether the window does not suffice for a unit that is read at this time.
    pub(super) fn misses_window(&self, turn: &Turn) -> bool {
        let misses = |(secs, at_end)| turn.begin_secs >= secs || (at_end == AtEnd::Stop && turn.end_secs > secs);
        self.window.is_some_and(misses)
    }
}

/// The readers of a plan's hosts.
pub(super) fn readers(plan: &Plan) -> Readers {
    Readers { of_hosts: plan.hosts.iter().map(|host| host.readers).collect(), at_once: AT_ONCE_MAX }
}

/// Seconds of a job, if it has all of its host's rate.
pub(super) fn secs_at_whole_rate(plan: &Plan, job: &Job) -> f64 {
    let rate = plan.hosts.get(job.host).map_or(1, Host::expected_rate);
    job.bytes as f64 / rate.max(1) as f64
}

/// The readers of each host that share its rate, in a night of these jobs. With a limit all of them do, also while others are idle.
pub(super) fn sharing(plan: &Plan, jobs: &[Job]) -> Vec<usize> {
    let mut units: HashMap<usize, usize> = HashMap::new();
    jobs.iter().for_each(|job| *units.entry(job.host).or_default() += 1);
    let places = (AT_ONCE_MAX / units.len().max(1)).max(1);
    let of_host = |(number, host): (usize, &Host)| match host.rate {
        Some(_) => host.readers,
        None => host.readers.min(places).min(units.get(&number).copied().unwrap_or(1)),
    };
    plan.hosts.iter().enumerate().map(of_host).collect()
}

/// Seconds of a job for one of the readers that share the rate of its host.
pub(super) fn secs_of_reader(plan: &Plan, sharing: &[usize], job: &Job) -> f64 {
    secs_at_whole_rate(plan, job) * sharing.get(job.host).map_or(1, |readers| *readers) as f64
}

/// Groups disks into units, and estimates when each is read.
pub(super) fn of(plan: &Plan, states: &[State], ignores_window: bool) -> Order {
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    let mut units: Vec<Unit> = Vec::new();
    let now = jiff::Zoned::now().time();
    let coming = plan.window.as_ref().filter(|window| !ignores_window && !window.has(now));
    let begins = coming.map_or(now, |window| window.start);
    for (place, state) in states.iter().enumerate() {
        let Some(disk) = state.disk(plan) else { continue };
        let (job, why) = job(plan, state, disk, begins);
        let problem = why.map(|why| (place, why));
        let known = disk.group.as_deref().and_then(|group| groups.get(group)).and_then(|unit| units.get_mut(*unit));
        if let Some(unit) = known {
            unit.disks.push(place);
            unit.job.bytes = unit.job.bytes.saturating_add(job.bytes);
            unit.job.priority = unit.job.priority.max(job.priority);
            unit.job.deadline_secs = [unit.job.deadline_secs, job.deadline_secs].into_iter().flatten().min();
            unit.problem = unit.problem.take().or(problem);
            continue;
        }
        groups.extend(disk.group.as_deref().map(|group| (group, units.len())));
        units.push(Unit { disks: vec![place], job, problem });
    }
    units.iter_mut().filter(|unit| unit.problem.is_some()).for_each(|unit| unit.job.bytes = 0);
    let mut order = Order { units, timetable: Timetable::default(), begins, window: None };
    let window = plan.window.as_ref().filter(|_| !ignores_window);
    order.window = window.map(|window| (secs_until(begins, window.end) as f64, window.at_end));
    let jobs = order.jobs();
    let sharing = sharing(plan, &jobs);
    order.timetable = timetable(&jobs, &readers(plan), plan.order, &|job| secs_of_reader(plan, &sharing, job));
    order
}

/// Returns the job of a disk, and why it would not be begun.
fn job(plan: &Plan, state: &State, disk: &Disk, begins: Time) -> (Job, Option<String>) {
    let Estimate { bytes, problem, .. } = estimate(plan, state, disk);
    let deadline_secs = disk.deadline.map(|deadline| secs_until(begins, deadline));
    (Job { host: plan.host(&disk.host).unwrap_or(0), bytes, priority: disk.priority, deadline_secs }, problem)
}

/// Returns the seconds from one time until the clock shows the other next.
fn secs_until(from: Time, then: Time) -> u64 {
    let secs = |time: Time| {
        u64::from(time.hour().unsigned_abs()) * 3600
            + u64::from(time.minute().unsigned_abs()) * 60
            + u64::from(time.second().unsigned_abs())
    };
    (secs(then) + DAY_SECS - secs(from)) % DAY_SECS
}
