//! The order in which disks are read, by estimates of the bytes to read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use dedupfs_batch::plan::{AtEnd, Disk, Host, Plan};
use dedupfs_batch::schedule::lists::{Readers, Timetable, timetable};
use dedupfs_batch::schedule::{Job, Turn};
use dedupfs_batch::source::Kind;
use jiff::civil::Time;

use super::disk::State;
use super::night::AT_ONCE_MAX;

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
    /// Seconds until the window ends, and the fate of the disks that are read then.
    window: Option<(f64, AtEnd)>,
}

impl Order {
    pub(super) fn jobs(&self) -> Vec<Job> {
        self.units.iter().map(|unit| unit.job).collect()
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

/// Seconds of a job for one of its host's readers. They share the rate, also while others are idle.
pub(super) fn secs_of_reader(plan: &Plan, job: &Job) -> f64 {
    secs_at_whole_rate(plan, job) * plan.hosts.get(job.host).map_or(1, |host| host.readers) as f64
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
    let mut order = Order { units, timetable: Timetable::default(), begins, window: None };
    let window = plan.window.as_ref().filter(|_| !ignores_window);
    order.window = window.map(|window| (secs_until(begins, window.end) as f64, window.at_end));
    order.timetable = timetable(&order.jobs(), &readers(plan), plan.order, &|job| secs_of_reader(plan, job));
    order
}

/// What is to be read of a disk.
pub(super) struct Estimate {
    pub(super) bytes: u64,
    /// Whether the size of the disk is known.
    pub(super) is_size_known: bool,
}

pub(super) fn estimate(plan: &Plan, state: &State, disk: &Disk) -> Estimate {
    let of_source = match &disk.source {
        Kind::File { path } => size_of(path).ok(),
        _ => None,
    };
    let known_bytes = of_source.or(state.newest.as_ref().map(|newest| newest.image.size_bytes));
    let size_bytes = known_bytes.unwrap_or(UNKNOWN_BYTES);
    // Changes count from the checkpoint of the newest version.
    let has_token = state.newest.as_ref().is_some_and(|newest| newest.image.token.is_some());
    let reads_part = disk.source.tells_changes() && has_token && !state.needs_full_verify(plan);
    let bytes = if reads_part { size_bytes / 100 * CHANGED_PERCENT } else { size_bytes };
    Estimate { bytes, is_size_known: known_bytes.is_some() }
}

/// Returns why a disk would not be begun, as far as that is known without asking its source.
pub(super) fn problem(state: &State, disk: &Disk) -> Option<String> {
    let of_source = || match &disk.source {
        Kind::File { path } => size_of(path).err().map(|error| format!("cannot read {}: {error}", path.display())),
        _ => None,
    };
    state.problem.clone().or_else(of_source)
}

/// The size of a file or block device.
fn size_of(path: &Path) -> io::Result<u64> {
    let metadata = std::fs::metadata(path)?;
    // Opening anything else may wait.
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    File::open(path)?.seek(SeekFrom::End(0))
}

fn job(plan: &Plan, state: &State, disk: &Disk, begins: Time) -> Job {
    let bytes = estimate(plan, state, disk).bytes;
    let deadline_secs = disk.deadline.map(|deadline| secs_until(begins, deadline));
    Job { host: plan.host(&disk.host).unwrap_or(0), bytes, priority: disk.priority, deadline_secs }
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
