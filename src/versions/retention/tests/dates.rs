//! Time zones, clocks that are put forward, back or wrong, and the ends of the calendar.

use jiff::tz::TimeZone;

use super::super::{Candidate, RelativeTo, Rules, decide};
use super::{berlin, count, kept, kept_by, reasons, secs, version, versions};

#[test]
fn periods_are_those_of_the_time_zone() {
    // In Berlin the second one is on the 24th, in 2027, and in the week of the third one.
    let days = versions(&["2026-11-23T12:00", "2026-11-23T23:30", "2026-11-24T12:00"]);
    let rules = Rules { keep_daily: count(2), ..Rules::default() };
    let now = secs("2030-01-01T00:00");
    assert_eq!(kept(&decide(&days, &rules, now, &TimeZone::UTC)), [2, 3]);
    assert_eq!(kept(&decide(&days, &rules, now, &berlin())), [1, 3]);
    let years = versions(&["2026-12-31T12:00", "2026-12-31T23:30"]);
    let rules = Rules { keep_yearly: count(2), keep_monthly: count(2), ..Rules::default() };
    let decisions = decide(&years, &rules, now, &berlin());
    assert_eq!(reasons(&decisions, 1), ["monthly 2 of 2 (2026-12)", "yearly 2 of 2 (2026)"]);
}

#[test]
fn weeks_belong_to_the_year_of_their_thursday() {
    let days = versions(&["2024-12-29T12:00", "2024-12-30T12:00", "2025-01-01T12:00", "2027-01-03T12:00"]);
    let decisions = decide(&days, &Rules { keep_weekly: count(3), ..Rules::default() }, i64::MAX, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [1, 3, 4]);
    assert_eq!(reasons(&decisions, 1), ["weekly 3 of 3 (2024-W52)"]);
    assert_eq!(reasons(&decisions, 3), ["weekly 2 of 3 (2025-W01)"]);
    assert_eq!(reasons(&decisions, 4), ["weekly 1 of 3 (2026-W53)", "the last good version"]);
}

#[test]
fn an_hour_that_the_clock_shows_twice_is_two_hours() {
    let hours = versions(&["2026-10-24T23:30", "2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"]);
    let decisions = decide(&hours, &Rules { keep_hourly: count(4), ..Rules::default() }, i64::MAX, &berlin());
    assert_eq!(reasons(&decisions, 1), ["hourly 4 of 4 (2026-10-25 01:00+02)"]);
    assert_eq!(reasons(&decisions, 2), ["hourly 3 of 4 (2026-10-25 02:00+02)"]);
    assert_eq!(reasons(&decisions, 3), ["hourly 2 of 4 (2026-10-25 02:00+01)"]);
}

#[test]
fn days_of_the_change_of_clocks_have_23_and_25_hours() {
    let within = |span: &str| Rules { keep_within: Some(span.parse().unwrap()), ..Rules::default() };
    let decided = |days: &[Candidate], span| kept(&decide(days, &within(span), i64::MAX, &berlin()));
    // Noon to noon in Berlin: 23 hours in March, 25 in October.
    let spring = versions(&["2026-03-28T11:00", "2026-03-28T11:01", "2026-03-29T10:00"]);
    assert_eq!(decided(&spring, "1d"), [2, 3]);
    assert_eq!(decided(&spring, "23h"), [2, 3]);
    assert_eq!(decided(&spring, "24h"), [1, 2, 3]);
    let autumn = versions(&["2026-10-24T10:00", "2026-10-24T10:01", "2026-10-25T11:00"]);
    assert_eq!(decided(&autumn, "1d"), [2, 3]);
    assert_eq!(decided(&autumn, "24h"), [3]);
    assert_eq!(decided(&autumn, "25h"), [2, 3]);
}

#[test]
fn a_month_before_a_day_that_it_lacks_is_its_last_day() {
    let days = versions(&["2026-02-27T12:00", "2026-02-28T12:00", "2026-02-28T13:00", "2026-03-31T12:00"]);
    assert_eq!(kept_by(&days, &Rules { keep_within: Some("1m".parse().unwrap()), ..Rules::default() }), [3, 4]);
}

#[test]
fn equal_times_are_ordered_by_number() {
    let all = [version(7, 100), version(5, 100), version(6, 100)];
    assert_eq!(kept_by(&all, &Rules { keep_daily: count(1), ..Rules::default() }), [7]);
    assert_eq!(kept_by(&all, &Rules { keep_last: count(2), ..Rules::default() }), [6, 7]);
}

#[test]
fn a_clock_set_back_loses_neither_the_days_by_number_nor_those_by_the_calendar() {
    let moments = [
        "2026-11-20T01:00",
        "2026-11-21T01:00",
        "2026-11-22T01:00",
        "1970-01-01T01:00",
        "1970-01-02T01:00",
        "1970-01-02T02:00",
    ];
    let rules = Rules { keep_daily: count(2), ..Rules::default() };
    let decisions = decide(&versions(&moments), &rules, secs("2026-12-01T00:00"), &TimeZone::UTC);
    assert_eq!(kept(&decisions), [2, 3, 4, 6]);
    assert_eq!(reasons(&decisions, 3), ["daily 1 of 2 (2026-11-22)"]);
    assert_eq!(reasons(&decisions, 6), ["daily 1 of 2 (1970-01-02)", "the last good version"]);
}

#[test]
fn the_span_before_a_newest_version_with_an_old_date_keeps_everything() {
    let days = versions(&["2026-11-20T01:00", "2026-11-21T01:00", "1970-01-01T01:00"]);
    assert_eq!(kept_by(&days, &Rules { keep_within: Some("1d".parse().unwrap()), ..Rules::default() }), [1, 2, 3]);
}

#[test]
fn a_version_from_the_future_stays_and_takes_no_place_from_others() {
    let days = versions(&["2026-11-20T01:00", "2026-11-21T01:00", "2099-01-01T00:00", "2026-11-22T01:00"]);
    let now = secs("2026-12-01T00:00");
    for rules in [
        Rules { keep_daily: count(2), ..Rules::default() },
        Rules { keep_within: Some("1d1h".parse().unwrap()), ..Rules::default() },
    ] {
        let decisions = decide(&days, &rules, now, &TimeZone::UTC);
        assert_eq!(kept(&decisions), [2, 3, 4]);
        assert_eq!(reasons(&decisions, 3), ["its date is in the future, so rules by date cannot judge it"]);
    }
    let last = Rules { keep_last: count(2), ..Rules::default() };
    assert_eq!(kept(&decide(&days, &last, now, &TimeZone::UTC)), [3, 4]);
    let last = Rules { keep_last: count(1), ..Rules::default() };
    assert_eq!(kept(&decide(&days, &last, now, &TimeZone::UTC)), [4], "no rule by date");
}

#[test]
fn a_decision_under_a_clock_that_went_back_removes_nothing_by_date() {
    let days = versions(&["2026-11-20T01:00", "2026-11-21T01:00", "2026-11-21T02:00"]);
    let rules = Rules { keep_daily: count(1), ..Rules::default() };
    assert_eq!(kept(&decide(&days, &rules, 0, &TimeZone::UTC)), [1, 2, 3]);
}

#[test]
fn times_out_of_the_calendar_count_as_its_ends() {
    let all = [version(1, i64::MIN), version(2, -400_000_000_000), version(3, 0), version(4, i64::MAX)];
    let rules = Rules {
        keep_hourly: count(9),
        keep_daily: count(9),
        keep_weekly: count(9),
        keep_monthly: count(9),
        keep_yearly: count(9),
        keep_within: Some("9999y9999m9999d9999h".parse().unwrap()),
        ..Rules::default()
    };
    for zone in [TimeZone::UTC, berlin(), TimeZone::posix("<+24>-24").unwrap(), TimeZone::posix("<-24>24").unwrap()] {
        for now in [i64::MIN, -1, 0, i64::MAX] {
            for relative_to in [RelativeTo::Newest, RelativeTo::Now] {
                let decisions = decide(&all, &Rules { relative_to, ..rules }, now, &zone);
                assert!(decisions.iter().all(|decision| !decision.reasons.is_empty()));
                assert!(
                    decisions
                        .iter()
                        .flat_map(|decision| &decision.reasons)
                        .all(|reason| !reason.to_string().is_empty())
                );
            }
        }
    }
    let mut locked = version(1, 0);
    locked.locked_until_secs = Some(i64::MAX);
    let decisions = decide(&[locked], &rules, 0, &TimeZone::UTC);
    assert!(reasons(&decisions, 1).last().unwrap().starts_with("locked until 9999-"));
}
