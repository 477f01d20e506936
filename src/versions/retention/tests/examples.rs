//! Examples of restic's documents, and one for each promise that restic does not make.

use jiff::tz::TimeZone;

use super::super::{Candidate, Count, Percent, RelativeTo, Rules, State, decide, removable_for_space};
use super::{count, kept, kept_by, reasons, secs, version, versions};

/// Ten Sundays at noon, the last one on 2026-11-29.
fn sundays() -> Vec<Candidate> {
    let last = secs("2026-11-29T12:00");
    (1..=10).map(|number| version(number, last - (10 - number as i64) * 7 * 86_400)).collect()
}

#[test]
fn four_days_of_ten_sundays_are_the_last_four_sundays() {
    assert_eq!(kept_by(&sundays(), &Rules { keep_daily: count(4), ..Rules::default() }), [7, 8, 9, 10]);
    assert_eq!(kept_by(&sundays(), &Rules { keep_weekly: count(4), ..Rules::default() }), [7, 8, 9, 10]);
    assert_eq!(kept_by(&sundays(), &Rules { keep_hourly: count(4), ..Rules::default() }), [7, 8, 9, 10]);
}

#[test]
fn rules_are_joined_and_each_version_has_all_its_reasons() {
    let rules = Rules {
        keep_last: count(1),
        keep_daily: count(2),
        keep_weekly: count(1),
        keep_monthly: count(3),
        keep_within: Some("8d".parse().unwrap()),
        ..Rules::default()
    };
    let decisions = decide(&sundays(), &rules, secs("2026-12-01T00:00"), &TimeZone::UTC);
    assert_eq!(kept(&decisions), [1, 5, 9, 10]);
    let newest = [
        "last 1 of 1",
        "daily 1 of 2 (2026-11-29)",
        "weekly 1 of 1 (2026-W48)",
        "monthly 1 of 3 (2026-11)",
        "within 8d of the newest",
        "the last good version",
    ];
    assert_eq!(reasons(&decisions, 10), newest);
    assert_eq!(reasons(&decisions, 9), ["daily 2 of 2 (2026-11-22)", "within 8d of the newest"]);
    assert_eq!(reasons(&decisions, 5), ["monthly 2 of 3 (2026-10)"]);
    assert_eq!(reasons(&decisions, 8), ["no rule keeps it"]);
}

#[test]
fn the_newest_of_a_period_is_kept() {
    let day = versions(&["2026-11-23T01:00", "2026-11-23T09:00", "2026-11-23T17:00", "2026-11-24T01:00"]);
    assert_eq!(kept_by(&day, &Rules { keep_daily: count(2), ..Rules::default() }), [3, 4]);
}

#[test]
fn the_oldest_is_kept_while_a_rule_has_places_left() {
    let days = versions(&["2026-11-23T01:00", "2026-11-23T09:00", "2026-11-24T01:00"]);
    let rules = Rules { keep_daily: count(3), ..Rules::default() };
    let decisions = decide(&days, &rules, secs("2027-01-01T00:00"), &TimeZone::UTC);
    assert_eq!(reasons(&decisions, 1), ["the oldest, as places of daily 3 are left"]);
    assert_eq!(kept_by(&days, &Rules { keep_daily: count(2), ..Rules::default() }), [2, 3]);
    assert_eq!(kept_by(&days, &Rules { keep_daily: Some(Count::ALL), ..Rules::default() }), [1, 2, 3]);
    let both = decide(&days, &Rules { keep_hourly: count(3), ..rules }, i64::MAX, &TimeZone::UTC);
    let expected = ["hourly 3 of 3 (2026-11-23 01:00+00)", "the oldest, as places of daily 3 are left"];
    assert_eq!(reasons(&both, 1), expected, "one rule does not answer for another");
    let alone = decide(&days[..1], &rules, secs("2027-01-01T00:00"), &TimeZone::UTC);
    assert_eq!(reasons(&alone, 1), ["daily 1 of 3 (2026-11-23)", "the last good version"], "not twice");
}

#[test]
fn the_span_counts_from_the_newest_or_from_now_and_its_begin_is_outside() {
    let days = versions(&["2026-10-20T00:00", "2026-10-31T00:00", "2026-10-31T00:01", "2026-11-30T00:00"]);
    let within = |relative_to| Rules { keep_within: Some("30d".parse().unwrap()), relative_to, ..Rules::default() };
    let decided = |relative_to, now| kept(&decide(&days, &within(relative_to), secs(now), &TimeZone::UTC));
    assert_eq!(decided(RelativeTo::Newest, "2027-06-01T00:00"), [3, 4]);
    assert_eq!(decided(RelativeTo::Now, "2027-06-01T00:00"), [4], "the last good one");
    assert_eq!(decided(RelativeTo::Now, "2026-11-30T00:00"), [3, 4]);
    assert_eq!(decided(RelativeTo::Now, "2026-11-29T23:59"), [2, 3, 4], "4 is from the future");
}

#[test]
fn rules_that_say_nothing_keep_everything_unless_nothing_is_to_be_kept() {
    let zero = Rules { keep_last: count(0), keep_yearly: count(0), ..Rules::default() };
    for rules in [Rules::default(), zero, Rules { free_until: Percent::new(80), ..Rules::default() }] {
        assert!(rules.is_empty());
        assert_eq!(kept_by(&sundays(), &rules).len(), 10);
        assert_eq!(kept_by(&sundays(), &Rules { keep_none: true, ..rules }), [10], "the last good version");
    }
    let decisions = decide(&sundays(), &Rules::default(), i64::MAX, &TimeZone::UTC);
    assert_eq!(reasons(&decisions, 1), ["no rules are given"]);
    assert!(decide(&[], &Rules { keep_last: count(3), ..Rules::default() }, 0, &TimeZone::UTC).is_empty());
}

#[test]
fn the_last_good_version_stays_also_behind_others_with_problems() {
    let mut all = sundays();
    all[4..].iter_mut().for_each(|version| version.has_problems = true);
    let rules = Rules { keep_last: count(2), ..Rules::default() };
    let decisions = decide(&all, &rules, i64::MAX, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [4, 9, 10]);
    assert_eq!(reasons(&decisions, 4), ["the last good version"]);
    assert_eq!(removable_for_space(&decisions).collect::<Vec<_>>(), [9, 10]);
}

#[test]
fn without_a_good_version_the_last_complete_one_stays() {
    let mut all = sundays();
    all.iter_mut().for_each(|version| version.has_problems = true);
    all[9].state = State::Incomplete;
    let decisions = decide(&all, &Rules { keep_none: true, ..Rules::default() }, i64::MAX, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [9, 10]);
    assert_eq!(reasons(&decisions, 9), ["the last complete version, as none is without problems"]);
}

#[test]
fn versions_that_are_locked_or_being_written_stay() {
    let mut all = sundays();
    let now = secs("2026-12-01T00:00");
    all[0].locked_until_secs = Some(secs("2026-12-24T18:00"));
    all[1].locked_until_secs = Some(now);
    all[2].state = State::BeingWritten;
    let decisions = decide(&all, &Rules { keep_none: true, ..Rules::default() }, now, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [1, 3, 10]);
    assert_eq!(reasons(&decisions, 1), ["locked until 2026-12-24 18:00:00 UTC"]);
    assert_eq!(reasons(&decisions, 2), ["no rule keeps it"]);
    assert_eq!(reasons(&decisions, 3), ["being written"]);
    assert_eq!(removable_for_space(&decisions).count(), 0);
}

/// Found by review: such a version has no problems and no lock, so it was taken for the last good one, and good ones went.
#[test]
fn regression_a_damaged_version_stays_and_is_not_the_last_good_one() {
    let mut all = sundays();
    all[9].state = State::Damaged;
    let decisions = decide(&all, &Rules { keep_none: true, ..Rules::default() }, i64::MAX, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [9, 10]);
    assert_eq!(reasons(&decisions, 9), ["the last good version"]);
    assert_eq!(reasons(&decisions, 10), ["damaged: nobody knows whether it may go; `dedupfs forget` removes it"]);
    assert_eq!(removable_for_space(&decisions).count(), 0);
}

#[test]
fn an_incomplete_version_takes_no_place_and_goes_when_a_later_one_is_complete() {
    let mut all = sundays();
    all[7].state = State::Incomplete;
    all[9].state = State::Incomplete;
    let decisions = decide(&all, &Rules { keep_last: count(2), ..Rules::default() }, i64::MAX, &TimeZone::UTC);
    assert_eq!(kept(&decisions), [7, 9, 10]);
    assert_eq!(reasons(&decisions, 8), ["incomplete, and version 9 is complete"]);
    assert_eq!(reasons(&decisions, 10), ["incomplete, and no later version is complete"]);
}

#[test]
fn for_space_the_oldest_kept_versions_go_first() {
    let mut all = sundays();
    all[7].locked_until_secs = Some(i64::MAX);
    let decisions = decide(&all, &Rules { keep_last: count(5), ..Rules::default() }, 0, &TimeZone::UTC);
    assert_eq!(removable_for_space(&decisions).collect::<Vec<_>>(), [6, 7, 9]);
    assert!(Percent::new(80).unwrap().covers(80, 100) && !Percent::new(80).unwrap().covers(81, 100));
    assert!(Percent::new(100).unwrap().covers(u64::MAX, u64::MAX));
}
