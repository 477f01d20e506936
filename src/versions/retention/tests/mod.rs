//! Worked examples, properties, and comparisons with plain references.

#![expect(clippy::unwrap_used, reason = "tests")]

mod any_rules;
mod dates;
mod examples;
mod properties;
mod reference;
mod text_and_bytes;

use jiff::tz::TimeZone;

use super::{Candidate, Count, Decision, Rules, State, decide};

/// Central Europe, without the tables of the system: clocks go forward on the last Sunday of March at 02:00, and back on the
/// last Sunday of October at 03:00.
pub(super) fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

/// Converts a date and time of UTC, such as `2026-11-23T02:00`.
pub(super) fn secs(text: &str) -> i64 {
    format!("{text}:00Z").parse::<jiff::Timestamp>().unwrap().as_second()
}

/// Makes a complete version.
pub(super) fn version(number: u64, completed_secs: i64) -> Candidate {
    Candidate { number, completed_secs, state: State::Complete, locked_until_secs: None, has_problems: false }
}

/// Makes complete versions of these moments in UTC, numbered from 1.
pub(super) fn versions(moments: &[&str]) -> Vec<Candidate> {
    (1..).zip(moments).map(|(number, moment)| version(number, secs(moment))).collect()
}

pub(super) const fn count(number: u32) -> Option<Count> {
    Some(Count::new(number))
}

pub(super) fn kept(decisions: &[Decision]) -> Vec<u64> {
    decisions.iter().filter(|decision| decision.keep).map(|decision| decision.number).collect()
}

/// Returns the kept numbers, decided long after all of this century, in UTC.
pub(super) fn kept_by(candidates: &[Candidate], rules: &Rules) -> Vec<u64> {
    kept(&decide(candidates, rules, secs("2100-01-01T00:00"), &TimeZone::UTC))
}

/// Returns the reasons of a version as text.
pub(super) fn reasons(decisions: &[Decision], number: u64) -> Vec<String> {
    let decision = decisions.iter().find(|decision| decision.number == number).unwrap();
    decision.reasons.iter().map(ToString::to_string).collect()
}
