//! The order in which disks are read, by estimates of the bytes to read.

use std::collections::BTreeMap;

use dedupfs_batch::plan::{Disk, Plan};
use dedupfs_batch::schedule::Job;
use dedupfs_batch::schedule::lists::{Timetable, timetable};
use dedupfs_batch::source::Kind;
use jiff::civil::Time;

use super::disk::State;

/// Bytes that a disk is taken to have if neither its file nor a version tells.
const UNKNOWN_BYTES: u64 = 40_000_000_000;
/// Part of a disk that is taken to have changed, if its source tells changes.
const CHANGED_PERCENT: u64 = 5;
const DAY_SECS: u64 = 24 * 3600;

/// A disk, or a group of disks.
pub(super) struct Unit {
    /// Places in the list of states.
    pub(super) disks: Vec<usize>,
    pub(super) job: Job,
}

/// The order of a night.
pub(super) struct Order {
    pub(super) units: Vec<Unit>,
    pub(super) timetable: Timetable,
    /// The time at which the night begins: now, or the start of a window that is yet to come.
    pub(super) begins: Time,
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
        let job = job(plan, state, disk, begins);
        let known = disk.group.as_deref().and_then(|group| groups.get(group)).and_then(|unit| units.get_mut(*unit));
        if let Some(unit) = known {
            unit.disks.push(place);
            unit.job.bytes += job.bytes;
            unit.job.priority = unit.job.priority.max(job.priority);
            unit.job.deadline_secs = [unit.job.deadline_secs, job.deadline_secs].into_iter().flatten().min();
            continue;
        }
        groups.extend(disk.group.as_deref().map(|group| (group, units.len())));
        units.push(Unit { disks: vec![place], job });
    }
    let jobs: Vec<Job> = units.iter().map(|unit| unit.job).collect();
    let readers: Vec<usize> = plan.hosts.iter().map(|host| host.readers).collect();
    let secs = |job: &Job| {
        // Its readers share the rate of a host.
        let rate = plan.hosts.get(job.host).map_or(1.0, |host| host.expected_rate() as f64 / host.readers as f64);
        job.bytes as f64 / rate
    };
    let timetable = timetable(&jobs, &readers, plan.order, &secs);
    Order { units, timetable, begins }
}

/// What is to be read of a disk.
pub(super) struct Estimate {
    pub(super) bytes: u64,
    /// Whether the size of the disk is known.
    pub(super) is_size_known: bool,
}

pub(super) fn estimate(plan: &Plan, state: &State, disk: &Disk) -> Estimate {
    let of_file = || match &disk.source {
        Kind::File { path } => std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len()),
        _ => None,
    };
    let known_bytes = of_file().or(state.newest.as_ref().map(|newest| newest.image.size_bytes));
    let size_bytes = known_bytes.unwrap_or(UNKNOWN_BYTES);
    let reads_part = disk.source.tells_changes() && state.newest.is_some() && !state.needs_full_verify(plan);
    let bytes = if reads_part { size_bytes / 100 * CHANGED_PERCENT } else { size_bytes };
    Estimate { bytes, is_size_known: known_bytes.is_some() }
}

fn job(plan: &Plan, state: &State, disk: &Disk, begins: Time) -> Job {
    let bytes = estimate(plan, state, disk).bytes;
    let deadline_secs = disk.deadline.map(|deadline| secs_until(begins, deadline));
    Job { host: plan.host(&disk.host).unwrap_or(0), bytes, priority: disk.priority, deadline_secs }
}

/// Returns the seconds from one time until the clock shows the other next.
pub(super) fn secs_until(from: Time, then: Time) -> u64 {
    let secs = |time: Time| {
        u64::from(time.hour().unsigned_abs()) * 3600
            + u64::from(time.minute().unsigned_abs()) * 60
            + u64::from(time.second().unsigned_abs())
    };
    (secs(then) + DAY_SECS - secs(from)) % DAY_SECS
}
