//! A unit: disks that are one point in time, mostly one.

use std::fs::File;
use std::time::Duration;

use dedupfs_batch::plan::{Host, Plan};
use dedupfs_batch::source::{Driver, Point, Verdict};
use serde_json::Value;

use super::child;
use super::disk::State;
use super::estimate::estimate;
use super::hold::Attempt;
use super::night::Limits;
use super::report::{DiskReport, Outcome};
use crate::control::FailureKind;
use crate::exit;
use crate::versions::Directory;

/// Backs up the disks of a unit. Those that fail are tried again, as often as the plan says.
pub(super) fn run(plan: &Plan, pool: &Directory, states: &[&State], limits: &Limits<'_>) -> Vec<DiskReport> {
    let mut reports: Vec<Option<DiskReport>> = states.iter().map(|_| None).collect();
    let locks: Result<Vec<File>, String> = states.iter().map(|state| state.lock_directory()).collect();
    let _locks = match locks {
        Ok(locks) => locks,
        Err(why) => {
            exit::tell(&format!("{why}\n"));
            let report = |state: &&State| DiskReport::new(plan, state, Outcome::NotBegun, Some(why.clone()));
            return states.iter().map(report).collect();
        }
    };
    for attempt in 1..=plan.retries.saturating_add(1) {
        let is_open =
            |report: &Option<DiskReport>| report.as_ref().is_none_or(|report| report.outcome == Outcome::Failed);
        let open: Vec<usize> = (0..states.len()).filter(|place| reports.get(*place).is_some_and(is_open)).collect();
        if open.is_empty() || (attempt > 1 && !limits.wait(plan.retry_after())) {
            break;
        }
        // Another batch may have stored a version before these were locked, or the last attempt one whose end nobody saw.
        let own = open.iter().filter_map(|place| states.get(*place));
        let fresh: Vec<State> = match own.map(|state| State::of(plan, state.number, pool)).collect() {
            Ok(fresh) => fresh,
            Err(failure) => {
                exit::tell(&format!("{failure}\n"));
                break;
            }
        };
        let own: Vec<&State> = fresh.iter().collect();
        for (place, mut report) in open.into_iter().zip(attempt_once(plan, pool, &own, limits, attempt)) {
            report.attempts = attempt;
            let Some(slot) = reports.get_mut(place) else { continue };
            let left = slot.take().map(|former| former.left).unwrap_or_default();
            report.problems.extend(left.iter().cloned());
            report.left.extend(left);
            *slot = Some(report);
        }
    }
    let mut reports: Vec<DiskReport> = reports.into_iter().flatten().collect();
    let stored = reports.iter().filter(|report| report.outcome == Outcome::Stored).map(|report| report.attempts);
    if stored.clone().max() != stored.min() {
        let why = "other disks of its group are of another point in time: they were tried again";
        reports.iter_mut().for_each(|report| report.problems.push(why.to_owned()));
    }
    reports
}

fn attempt_once(plan: &Plan, pool: &Directory, states: &[&State], limits: &Limits<'_>, number: u32) -> Vec<DiskReport> {
    let mut attempt = Attempt::new(plan, states, limits, number);
    let Some(held) = attempt.hold() else { return attempt.reports };
    for ((mut driver, places), points) in held.disks {
        for (disk, (place, point)) in places.into_iter().zip(points).enumerate() {
            let (Some(state), Some(report)) = (states.get(place), attempt.reports.get_mut(place)) else { continue };
            let token = point.token.clone();
            let put = put(plan, state, point.with_known_beginning(), report, (&mut *driver, disk), limits);
            let untold = match put {
                Ok(()) => Ok(()),
                Err(NotPut { why, is_told: false }) => Err(why),
                Err(NotPut { why, is_told: true }) => {
                    report.problems.push(why);
                    Ok(())
                }
            };
            let is_stored = report.version.is_some();
            // A put that died may have named its version: then the next one builds on this checkpoint.
            let is_durable = is_stored || (token.is_some() && newest_token(plan, pool, state) == token);
            let verdict = if is_durable { Verdict::Stored } else { Verdict::Failed };
            report.outcome = if is_stored { Outcome::Stored } else { Outcome::Failed };
            report.held_ms = u64::try_from(held.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let ended = driver.end(disk, verdict);
            let pruned = if is_stored { prune(plan, state, &mut report.pruned) } else { Ok(()) };
            report.left.extend(ended.clone().err());
            for why in [untold, ended, pruned].into_iter().filter_map(Result::err) {
                attempt.fail(&[place], &why);
            }
        }
    }
    attempt.reports
}

fn newest_token(plan: &Plan, pool: &Directory, state: &State) -> Option<String> {
    State::of(plan, state.number, pool).ok()?.newest?.image.token
}

/// Why a disk was not put.
struct NotPut {
    why: String,
    /// The command has told it.
    is_told: bool,
}

impl From<String> for NotPut {
    fn from(why: String) -> Self {
        Self { why, is_told: false }
    }
}

/// Puts a disk, and notes the name of its version. It gets that only if the disk stood still.
fn put(
    plan: &Plan,
    state: &State,
    point: Point,
    report: &mut DiskReport,
    (driver, disk): (&mut dyn Driver, usize),
    limits: &Limits<'_>,
) -> Result<(), NotPut> {
    let name = free_name(state);
    let version = state.directory.join(&name).display().to_string();
    let verify = if state.needs_full_verify(plan) { Some("full") } else { plan.verify.as_deref() };
    let host = state.disk(plan).and_then(|disk| plan.hosts.get(plan.host(&disk.host)?));
    let rate = host.and_then(Host::rate_of_reader).map(|rate| rate.to_string());
    let options = [
        ("--rate", rate.as_deref()),
        ("--as", point.file_name.as_deref()),
        ("--verify", verify),
        ("--changed", point.map.as_deref()),
        ("--token-from", point.token_from.as_deref().filter(|_| point.map.is_some())),
        ("--token", point.token.as_deref()),
    ];
    let given = options.into_iter().filter_map(|(option, value)| Some(format!("{option}={}", value?)));
    let mut words: Vec<String> = ["put", "--image", "--asks-before-naming"].map(str::to_owned).to_vec();
    words.extend(given);
    let to_read = state.disk(plan).map_or(0, |disk| estimate(plan, state, disk).bytes);
    if limits.staged.of(to_read).0 {
        words.push("--staged".to_owned());
    }
    let source = point.source.clone();
    words.extend(["--".to_owned(), source.clone(), version.clone()]);
    let mut moved = None;
    let mut check = || {
        moved = driver.check(disk, &|| limits.gives_up()).err();
        moved.is_none()
    };
    let ended = child::run(&report.name, &words, &|| limits.gives_up(), &mut check)?;
    if let Some(why) = moved {
        return Err(why.into());
    }
    if ended.code == Some(exit::code(FailureKind::Usage)) && point.map.is_some() {
        // A map that cannot be used costs time, and no backup.
        let without_map = Some(ended.message());
        let point = Point { map: None, token_from: None, without_map, source, ..point };
        return self::put(plan, state, point, report, (driver, disk), limits);
    }
    let image = &ended.result["image"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    report.size_bytes = number(&image["size_bytes"]);
    report.read_bytes = number(&image["read_bytes"]);
    report.verified_bytes = number(&image["verified_bytes"]);
    report.new_bytes = number(&ended.result["made"]["new_bytes"]);
    let full_because = point.without_map.or_else(|| image["full_because"].as_str().map(str::to_owned));
    // Else nothing tells what was read.
    report.full_because = full_because.filter(|_| !image.is_null());
    report.token = point.token;
    report.dirty_bytes = point.dirty_bytes;
    report.exit_code = ended.code;
    match ended.code {
        Some(exit::OK) => {
            report.version = Some(name);
            Ok(())
        }
        Some(exit::MAP_IS_WRONG) => {
            report.version = Some(name);
            report
                .problems
                .push("its map of changes is wrong: all of it was read, and the version is right".to_owned());
            Ok(())
        }
        Some(exit::PARTLY) => {
            let problem = ended.result["problems"][0]["what"].as_str().unwrap_or("not all of it was stored").to_owned();
            report.version = Some(name);
            report.problems.push(problem);
            Ok(())
        }
        _ if limits.has_stopped() => Err("given up at the end of the window (at_end = \"stop\")".to_owned().into()),
        _ => Err(NotPut { why: ended.message(), is_told: true }),
    }
}

/// Returns the time, once no version has it as its name.
fn free_name(state: &State) -> String {
    loop {
        let name = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S").to_string();
        if state.directory.join(&name).symlink_metadata().is_err() {
            return name;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Removes the versions that no rule keeps, and notes their names.
fn prune(plan: &Plan, state: &State, removed: &mut Vec<String>) -> Result<(), String> {
    let Some(keep) = plan.keep else { return Ok(()) };
    let mut words = vec!["prune".to_owned(), state.directory.display().to_string()];
    words.extend(keep.options());
    let name = state.disk(plan).map_or("", |disk| &disk.name);
    let ended = child::run(name, &words, &|| false, &mut || false)?;
    let versions = ended.result["versions"].as_array().into_iter().flatten();
    let names = versions.filter(|version| version["removed"] == true).filter_map(|version| version["name"].as_str());
    removed.extend(names.map(str::to_owned));
    match ended.code {
        Some(exit::OK) => Ok(()),
        _ => Err(format!("old versions were not removed: {}", ended.message())),
    }
}
