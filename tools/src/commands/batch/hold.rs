//! One attempt at a unit: its disks are brought to a point in time, all or none.
//!
//! What takes long comes before that moment, and behind it: guests may hold their changes meanwhile.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use dedupfs_batch::plan::Plan;
use dedupfs_batch::source::{Agent, Driven, Driver, Frozen, Point, Tell, Verdict, Wanted, drivers};

use super::disk::State;
use super::night::Limits;
use super::report::{DiskReport, Outcome};
use crate::exit;

/// Time for which a guest holds its changes at most.
const HELD_MAX: Duration = Duration::from_secs(60);

/// An attempt at the disks of a unit.
pub(super) struct Attempt<'a> {
    plan: &'a Plan,
    states: &'a [&'a State],
    limits: &'a Limits<'a>,
    number: u32,
    /// In the order of the states.
    pub(super) reports: Vec<DiskReport>,
}

/// Disks that stand still.
pub(super) struct Held {
    /// Each driver, and where its disks are read.
    pub(super) disks: Vec<(Driven, Vec<Point>)>,
    /// The moment.
    pub(super) begun: Instant,
}

/// A step of a driver, with the places of its disks in the unit.
type Step<'a> = dyn FnMut(&mut dyn Driver, &[usize]) -> Result<(), String> + 'a;

impl<'a> Attempt<'a> {
    pub(super) fn new(plan: &'a Plan, states: &'a [&'a State], limits: &'a Limits<'a>, number: u32) -> Self {
        let reports = states.iter().map(|state| DiskReport::new(plan, state, Outcome::Failed, None)).collect();
        Self { plan, states, limits, number, reports }
    }

    /// Brings all disks to a point in time. Behind a failure all are let go.
    pub(super) fn hold(&mut self) -> Option<Held> {
        let (plan, states, limits) = (self.plan, self.states, self.limits);
        let disks = states.iter().filter_map(|state| {
            let disk = state.disk(plan)?;
            let name = disk.name.clone();
            let tell = Tell::new(move |line| exit::tell(&format!("{name}: {line}\n")));
            Some(Wanted { source: &disk.source, identity: state.directory.display().to_string(), tell })
        });
        let mut driven = drivers(disks.collect());
        let last_of = |places: &[usize]| {
            let newest = |place: &usize| states.get(*place).and_then(|state| state.newest.as_ref());
            places.iter().map(|place| newest(place).and_then(|newest| newest.image.token.clone())).collect::<Vec<_>>()
        };
        let gives_up = || limits.gives_up();
        let mut are_whole = self.step(&mut driven, &mut |driver, places| driver.prepare(&last_of(places), &gives_up));
        let begun = Instant::now();
        let frozen = if are_whole { self.freeze() } else { Vec::new() };
        // A guest may not wait for a program that hangs.
        let takes_too_long = || gives_up() || (!frozen.is_empty() && begun.elapsed() > HELD_MAX);
        are_whole = are_whole && self.step(&mut driven, &mut |driver, _| driver.begin(&takes_too_long));
        self.thaw(frozen);
        let mut points = Vec::new();
        are_whole = are_whole
            && self.step(&mut driven, &mut |driver, _| driver.points(&gives_up).map(|told| points.push(told)));
        if are_whole {
            return Some(Held { disks: driven.into_iter().zip(points).collect(), begun });
        }
        for (mut driver, places) in driven {
            for disk in 0..places.len() {
                // Its first error is told; what is left the next attempt removes.
                let _ = driver.end(disk, Verdict::Failed);
            }
        }
        None
    }

    /// Takes a step with each driver. Returns whether none failed.
    fn step(&mut self, driven: &mut [Driven], step: &mut Step<'_>) -> bool {
        let mut failed: HashSet<usize> = HashSet::new();
        for (driver, places) in driven {
            if let Err(why) = step(&mut **driver, places) {
                self.fail(places, &why);
                failed.extend(places.iter());
            }
        }
        if !failed.is_empty() {
            let others: Vec<usize> = (0..self.reports.len()).filter(|place| !failed.contains(place)).collect();
            self.fail(&others, "another disk of its group cannot begin");
        }
        failed.is_empty()
    }

    /// Tells and notes a problem with disks.
    pub(super) fn fail(&mut self, places: &[usize], why: &str) {
        let attempts = self.plan.retries.saturating_add(1);
        for place in places {
            if let Some(report) = self.reports.get_mut(*place) {
                exit::tell(&format!("{}: attempt {} of {attempts}: {why}\n", report.name, self.number));
                report.problems.push(why.to_owned());
            }
        }
    }

    /// Lets the guests hold their changes. A guest that does not is as after a power cut, which is told.
    fn freeze(&mut self) -> Vec<(&'a Agent, Frozen)> {
        let (plan, states) = (self.plan, self.states);
        let agents: BTreeSet<&Agent> = states.iter().filter_map(|state| state.disk(plan)?.quiesce.as_ref()).collect();
        let mut frozen = Vec::new();
        for agent in agents {
            match agent.freeze() {
                Ok(guest) => frozen.push((agent, guest)),
                Err(why) => {
                    let why = format!("not quiesced, so it is as after a power cut: {why}");
                    let places = self.places_of(agent);
                    self.fail(&places, &why);
                }
            }
        }
        frozen
    }

    fn thaw(&mut self, frozen: Vec<(&Agent, Frozen)>) {
        for (agent, guest) in frozen {
            let Err(why) = guest.thaw() else { continue };
            let places = self.places_of(agent);
            self.fail(&places, &why);
            for place in places {
                self.reports.get_mut(place).into_iter().for_each(|report| report.left.push(why.clone()));
            }
        }
    }

    /// The disks of a guest.
    fn places_of(&self, agent: &Agent) -> Vec<usize> {
        let is_of = |state: &State| state.disk(self.plan).is_some_and(|disk| disk.quiesce.as_ref() == Some(agent));
        (0..self.states.len()).filter(|place| self.states.get(*place).is_some_and(|state| is_of(state))).collect()
    }
}
