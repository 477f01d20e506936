//! `dedupfs prune`: removes the versions of a directory that no rule keeps.
//!
//! 1. The daemon tells the versions, and the rules of the series if the command line has none.
//! 2. The tool decides, because days are those of its time zone, and tells its decisions.
//! 3. It forgets the versions one by one, as `dedupfs forget` does.
//! 4. With `--free-until`: while the disk is too full, it reclaims, and forgets the oldest version that may go. It stops
//!    while a version that it removed is read: the space of that one comes later.

mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use dedupfs::retention::{Candidate, Decision, Percent, Rules, State, decide, removable_for_space};
use dedupfs::{Progress as _, VersionInfo, WouldFree};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::Dir;

use crate::args::versions::PruneArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::Bars;
use crate::report::versions::{Pruned, PrunedVersion};
use crate::versions::{Directory, check_rules};
use crate::{exit, hidden, interrupt, report};

/// Most versions whose bytes a plan counts: a request is bounded.
const COUNTED_MAX: usize = 2000;
/// Time within which the kernel forgets a removed version that is not read.
const KERNEL_FORGETS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &PruneArgs) -> Result<u8, Failure> {
    let rules = args.rules.rules().map(check_rules).transpose()?;
    let directory = Directory::open(&args.directory)?;
    let mut daemon = directory.daemon()?;
    let rules = match rules {
        Some(rules) => rules,
        None => check_rules(of_series(args, &directory, &mut daemon)?)?,
    };
    let versions = daemon.versions(Some(directory.place.ino))?;
    let candidates: Vec<Candidate> = (0..).zip(&versions).map(|(number, version)| candidate(number, version)).collect();
    let decisions = decide(&candidates, &rules, Timestamp::now().as_second(), &TimeZone::system());
    let mut result = Pruned {
        directory: report::shown_path(&args.directory),
        rules: rules.to_string(),
        dry_run: args.dry_run,
        versions: versions
            .iter()
            .zip(&decisions)
            .map(|(version, decision)| PrunedVersion::new(version, decision))
            .collect(),
        for_space: rules.free_until.map(|_| for_space(&versions, &decisions)).unwrap_or_default(),
        ..Pruned::default()
    };
    if args.dry_run {
        result.would_free = would_free(&versions, &decisions, &mut daemon)?;
    } else {
        // Told before anything is removed.
        if !args.json {
            exit::print(&report::versions::decisions(&result))?;
        }
        let mut pruning =
            Pruning { args, directory: &directory, daemon: &mut daemon, names: names(&directory)?, versions };
        let outcome = pruning.remove(&decisions, rules.free_until, &mut result);
        hidden::remove_abandoned(&directory.file);
        let outcome = outcome.and(directory.sync(&args.directory));
        // A program has to know which versions are gone.
        if outcome.is_err() && args.json && result.versions.iter().any(|version| version.removed) {
            exit::print_message(true, "prune", &result, |_| String::new())?;
        }
        outcome?;
    }
    exit::print_message(args.json, "prune", &result, |result| match args.dry_run {
        true => report::versions::decisions(result) + &report::versions::pruned(result),
        false => report::versions::pruned(result),
    })?;
    Ok(if result.is_whole() { exit::OK } else { exit::PARTLY })
}

fn of_series(args: &PruneArgs, directory: &Directory, daemon: &mut ControlClient) -> Result<Rules, Failure> {
    daemon.series(directory.place.ino)?.map(|record| record.rules).ok_or_else(|| {
        let shown = args.directory.display();
        FailureKind::Usage.because(format!(
            "no rules: give some, such as `--keep-last 3 --keep-daily 7`, or give {shown} its own: `dedupfs series set {shown} \
             --keep-daily 7`"
        ))
    })
}

/// Returns what the versions that go would free together. A plan counts also without that.
fn would_free(
    versions: &[VersionInfo],
    decisions: &[Decision],
    daemon: &mut ControlClient,
) -> Result<Option<WouldFree>, Failure> {
    let both = versions.iter().zip(decisions);
    let going: Vec<u64> = both.filter(|(_, decision)| !decision.keep).map(|(version, _)| version.ino).collect();
    if going.is_empty() || going.len() > COUNTED_MAX {
        return Ok(None);
    }
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let told = daemon.would_free(going, &progress);
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    bars.finish();
    Ok(told.inspect_err(|failure| exit::tell(&format!("dedupfs: cannot tell what that would free: {failure}\n"))).ok())
}

/// The number is the place in the list.
fn candidate(number: u64, version: &VersionInfo) -> Candidate {
    Candidate {
        number,
        completed_secs: version.completed_secs,
        state: match (version.is_unknown, version.incomplete) {
            (true, _) => State::Damaged,
            (false, true) => State::Incomplete,
            (false, false) => State::Complete,
        },
        locked_until_secs: (version.locked_until_secs > 0).then_some(version.locked_until_secs),
        has_problems: version.problems > 0,
    }
}

/// Names the kept versions that may go if the disk is too full, the oldest first.
fn for_space(versions: &[VersionInfo], decisions: &[Decision]) -> Vec<String> {
    let name = |number| versions.get(usize::try_from(number).ok()?).map(|version| version.name.clone());
    removable_for_space(decisions).filter_map(name).collect()
}

/// Returns the names in a directory by their inode numbers. The daemon tells names as text, from which not all bytes can be
/// had back.
fn names(directory: &Directory) -> Result<BTreeMap<u64, OsString>, Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    let failed = |errno| Failure::failed(format!("cannot list the directory: {errno}"));
    let mut names = BTreeMap::new();
    for entry in Dir::read_from(&directory.file).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        names.insert(entry.ino(), OsString::from_vec(entry.file_name().to_bytes().to_vec()));
    }
    Ok(names)
}

struct Pruning<'a> {
    args: &'a PruneArgs,
    directory: &'a Directory,
    daemon: &'a mut ControlClient,
    names: BTreeMap<u64, OsString>,
    versions: Vec<VersionInfo>,
}

impl Pruning<'_> {
    fn remove(
        &mut self,
        decisions: &[Decision],
        free_until: Option<Percent>,
        result: &mut Pruned,
    ) -> Result<(), Failure> {
        for decision in decisions.iter().filter(|decision| !decision.keep) {
            self.forget(decision.number, result);
        }
        // Made durable first: reclaiming frees nothing that a name may come back for.
        self.directory.sync(&self.args.directory)?;
        match free_until {
            Some(level) => self.make_room(decisions, level, result),
            None => Ok(()),
        }
    }

    fn make_room(&mut self, decisions: &[Decision], level: Percent, result: &mut Pruned) -> Result<(), Failure> {
        let bars = Bars::default();
        let progress = interrupt::ended_by_signals(&bars)?;
        let mut removable = removable_for_space(decisions);
        let mut room = room::Room::of(&self.directory.place.pool, self.daemon)?;
        let mut is_read = false;
        if !room.is_enough(level) {
            // One that was removed before, and whose reader has just ended, gives space back to this run.
            self.held_of(&|_| true)?;
        }
        while !room.is_enough(level) {
            let held = self.held(result)?;
            room = room::reclaim(&self.directory.place.pool, self.daemon, &progress)?;
            if progress.is_cancelled() {
                return Err(FailureKind::Ended.because("interrupted: nothing more is removed"));
            }
            if room.is_enough(level) || room.others_fill(level) {
                break;
            }
            // The space of a removed version that is read comes later: removing more would remove too many.
            if held > 0 {
                is_read = self.held(result)? >= held;
                if is_read {
                    break;
                }
                continue;
            }
            let Some(number) = removable.next() else { break };
            self.forget(number, result);
            self.directory.sync(&self.args.directory)?;
        }
        bars.finish();
        result.used_percent = Some(room.used_percent());
        result.room = Some(match (room.is_enough(level), room.others_fill(level), is_read) {
            (true, ..) => "enough",
            (false, true, _) => "others",
            (false, false, true) => "read",
            (false, false, false) => "full",
        });
        Ok(())
    }

    /// Returns the number of versions that this run removed and that are read still. The kernel takes a moment to forget one
    /// that is not.
    fn held(&mut self, result: &Pruned) -> Result<usize, Failure> {
        let both = self.versions.iter().zip(&result.versions);
        let removed: BTreeSet<u64> = both.filter(|(_, told)| told.removed).map(|(version, _)| version.ino).collect();
        self.held_of(&|ino| removed.contains(&ino))
    }

    /// Returns the number of those removed versions that are read still.
    fn held_of(&mut self, is_meant: &dyn Fn(u64) -> bool) -> Result<usize, Failure> {
        let deadline = Instant::now() + KERNEL_FORGETS_WITHIN;
        loop {
            let held = self.daemon.held_versions()?.into_iter().filter(|ino| is_meant(*ino)).count();
            if held == 0 || Instant::now() > deadline {
                return Ok(held);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Forgets a version, and notes how that went. A version that is gone already is no failure.
    fn forget(&mut self, number: u64, result: &mut Pruned) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let (Some(version), Some(told)) = (self.versions.get(at), result.versions.get_mut(at)) else { return };
        let forgotten = match self.names.get(&version.ino) {
            Some(name) => {
                let path = self.args.directory.join(name);
                self.directory.forget(self.daemon, name, Some(version.ino), &path)
            }
            None => Err(Failure::failed(format!("{} was removed or renamed meanwhile", told.name))),
        };
        match forgotten {
            Ok(()) => told.removed = true,
            Err(failure) => {
                eprintln!("dedupfs: {failure}");
                told.error = Some(failure.message);
            }
        }
    }
}
