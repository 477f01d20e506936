//! The decision on each version of a series.
//!
//! Order is that of numbers, because a version gets its number when it is completed, and clocks may go back: the *newest* is
//! the one with the highest number. Times say only to which periods a version belongs. If times rise with numbers,
//! [`decide`] keeps the same complete versions as restic's `forget`, and those that no rule may remove. If they do not:
//! - The last *n* periods are those of the highest numbers and also those that are last by the calendar. So neither a week of
//!   backups in 1970 nor the good ones before it are lost.
//! - A version that was completed after now counts for no rule by date, and stays as long as there is one. So one backup with
//!   a date in 2099 takes no place from others, and a decision in 1970 removes nothing by date.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;

use super::period::{Local, timestamp};
use super::{Count, Reason, RelativeTo, Rules, Span, Unit};

/// How far a version is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// It is whole and frozen.
    Complete,
    /// Its put ended early.
    Incomplete,
    /// Its put goes on.
    BeingWritten,
    /// Its record, or something else of it, cannot be read. The other fields may be wrong.
    Damaged,
}

/// A version to decide on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Candidate {
    /// Its number in the series; a later version has a higher one, and no two have the same.
    pub number: u64,
    /// Its completion, in seconds since 1970. It counts for complete versions only.
    pub completed_secs: i64,
    /// How far it is.
    pub state: State,
    /// End of its lock, in seconds since 1970.
    pub locked_until_secs: Option<i64>,
    /// Whether its put met errors, such as files that could not be read.
    pub has_problems: bool,
}

/// The decision on a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The number of the version.
    pub number: u64,
    /// Whether it stays.
    pub keep: bool,
    /// All reasons; at least one.
    pub reasons: Vec<Reason>,
}

impl Decision {
    /// Whether the version stays even if the disk is full.
    pub fn is_protected(&self) -> bool {
        self.reasons.iter().any(Reason::protects)
    }
}

/// Decides which versions stay. The result has one decision for each version, in the order of numbers, the newest last.
///
/// `now_secs` is the time of the decision in seconds since 1970; days and other periods are those of `zone`. Seconds out of
/// the calendar's range count as its first or last moment. Only complete versions count for rules, so that no incomplete one
/// takes the place of a whole one; versions with problems count as others do.
pub fn decide(candidates: &[Candidate], rules: &Rules, now_secs: i64, zone: &TimeZone) -> Vec<Decision> {
    let mut ordered = candidates.to_vec();
    ordered.sort_unstable();
    let mut places: Vec<Place> = ordered.into_iter().map(|candidate| Place::new(candidate, now_secs, zone)).collect();
    if rules.is_empty() && !rules.keep_none {
        places.iter_mut().for_each(|place| place.reasons.push(Reason::NoRules));
    }
    if let Some(count) = rules.keep_last {
        keep_last(&mut places, count);
    }
    rules.by_periods().for_each(|(unit, count)| keep_by_periods(&mut places, unit, count));
    if let Some(span) = rules.keep_within {
        keep_within(&mut places, span, rules.relative_to, now_secs, zone);
    }
    if rules.keep_within.is_some() || rules.by_periods().next().is_some() {
        let undated = places.iter_mut().filter(|place| place.is_complete() && !place.is_dated);
        undated.for_each(|place| place.reasons.push(Reason::FromTheFuture));
    }
    protect(&mut places, now_secs);
    give_reasons_of_removal(&mut places);
    places.into_iter().map(Place::decision).collect()
}

/// Lists the kept versions that may go too if the disk is too full, the oldest first: see [`Rules::free_until`].
pub fn removable_for_space(decisions: &[Decision]) -> impl Iterator<Item = u64> {
    decisions.iter().filter(|decision| decision.keep && !decision.is_protected()).map(|decision| decision.number)
}

/// A version on its way to a decision.
struct Place {
    version: Candidate,
    /// Whether rules by date count it: it is complete, and not from the future.
    is_dated: bool,
    local: Local,
    reasons: Vec<Reason>,
}

impl Place {
    fn new(version: Candidate, now_secs: i64, zone: &TimeZone) -> Self {
        let is_dated = version.state == State::Complete && version.completed_secs <= now_secs;
        Self { version, is_dated, local: Local::new(version.completed_secs, zone), reasons: Vec::new() }
    }

    fn is_complete(&self) -> bool {
        self.version.state == State::Complete
    }

    fn decision(self) -> Decision {
        let keep = self.reasons.iter().any(Reason::keeps);
        Decision { number: self.version.number, keep, reasons: self.reasons }
    }
}

fn keep_last(places: &mut [Place], of: Count) {
    let complete = places.iter_mut().rev().filter(|place| place.is_complete());
    for (version, place) in complete.zip(1..).take_while(|(_, place)| of.reaches(*place)) {
        version.reasons.push(Reason::Last { place, of });
    }
}

fn keep_by_periods(places: &mut [Place], unit: Unit, of: Count) {
    // The first one that is met of a period is its newest.
    let mut found = BTreeMap::new();
    for version in places.iter().rev().filter(|version| version.is_dated) {
        let by_number = found.len() as u64 + 1;
        found.entry(version.local.period(unit)).or_insert(by_number);
    }
    let has_left = of.reaches(found.len() as u64 + 1);
    for (by_number, by_calendar) in found.values_mut().rev().zip(1..) {
        *by_number = by_calendar.min(*by_number);
    }
    for version in places.iter_mut().rev().filter(|version| version.is_dated) {
        let period = version.local.period(unit);
        if let Some(place) = found.remove(&period).filter(|place| of.reaches(*place)) {
            version.reasons.push(Reason::Newest { place, of, period });
        }
    }
    if let Some(oldest) = places.iter_mut().find(|version| version.is_dated).filter(|_| has_left) {
        let is_kept = |reason: &Reason| matches!(reason, Reason::Newest { period, .. } if period.unit() == unit);
        if !oldest.reasons.iter().any(is_kept) {
            oldest.reasons.push(Reason::Oldest { unit, of });
        }
    }
}

fn keep_within(places: &mut [Place], span: Span, of: RelativeTo, now_secs: i64, zone: &TimeZone) {
    let newest = places.iter().rev().find(|version| version.is_dated).map(|version| version.version.completed_secs);
    let from_secs = match of {
        RelativeTo::Newest => newest.unwrap_or(now_secs),
        RelativeTo::Now => now_secs,
    };
    // A span that begins before the calendar does holds everything.
    let begin = span.before(&timestamp(from_secs).to_zoned(zone.clone()));
    let dated = places.iter_mut().filter(|version| version.is_dated);
    for version in dated.filter(|version| begin.is_none_or(|begin| version.version.completed_secs > begin.as_second()))
    {
        version.reasons.push(Reason::Within { span, of });
    }
}

/// Adds the reasons that no rule can overrule.
fn protect(places: &mut [Place], now_secs: i64) {
    let is_good = |place: &Place| place.is_complete() && !place.version.has_problems;
    let good = places.iter().rposition(is_good).map(|at| (at, Reason::LastGood));
    let complete = || places.iter().rposition(Place::is_complete).map(|at| (at, Reason::LastComplete));
    if let Some((at, reason)) = good.or_else(complete) {
        places.iter_mut().skip(at).take(1).for_each(|place| place.reasons.push(reason));
    }
    for place in places {
        if let Some(until) = place.version.locked_until_secs.filter(|until| *until > now_secs) {
            place.reasons.push(Reason::Locked(until));
        }
        match place.version.state {
            State::BeingWritten => place.reasons.push(Reason::BeingWritten),
            State::Damaged => place.reasons.push(Reason::Damaged),
            State::Complete | State::Incomplete => {}
        }
    }
}

/// Gives the others the reason why they go; or why they stay, if they are incomplete and nothing later is complete.
fn give_reasons_of_removal(places: &mut [Place]) {
    let mut later = None;
    for place in places.iter_mut().rev() {
        if place.version.state == State::Incomplete {
            match later {
                None => place.reasons.push(Reason::Resumable),
                Some(number) if place.reasons.is_empty() => place.reasons.push(Reason::Superseded(number)),
                Some(_) => {}
            }
        }
        if place.reasons.is_empty() {
            place.reasons.push(Reason::NoRule);
        }
        if place.is_complete() {
            later = Some(place.version.number);
        }
    }
}
