//! Properties that hold for all versions and all rules.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::super::{Candidate, RelativeTo, Rules, State, decide, removable_for_space};
use super::any_rules::rules;
use super::{berlin, kept, reference, secs};

/// A moment in a few years around a change of clocks, at its minutes and hours, or far out.
fn moment() -> impl Strategy<Value = i64> {
    let change = secs("2026-10-25T01:00");
    prop_oneof![
        4 => (-1200_i64..1200, 0_i64..24, 0_i64..4)
            .prop_map(move |(days, hours, quarters)| change + days * 86_400 + hours * 3600 + quarters * 900),
        4 => (-20_i64..20, 0_i64..6).prop_map(move |(quarters, days)| change + quarters * 900 + days * 86_400),
        1 => prop_oneof![Just(0), Just(-1), Just(secs("2099-01-01T00:00"))],
    ]
}

fn candidate(number: u64) -> impl Strategy<Value = Candidate> {
    let state = prop_oneof![
        6 => Just(State::Complete), 1 => Just(State::Incomplete), 1 => Just(State::BeingWritten), 1 => Just(State::Damaged),
    ];
    let locked = prop_oneof![5 => Just(None), 1 => moment().prop_map(Some)];
    (moment(), state, locked, prop::bool::weighted(0.3)).prop_map(
        move |(completed_secs, state, locked_until_secs, has_problems)| Candidate {
            number,
            completed_secs,
            state,
            locked_until_secs,
            has_problems,
        },
    )
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    (0_u64..24).prop_flat_map(|len| (0..len).map(|number| candidate(number * 3 + 1)).collect::<Vec<_>>())
}

fn zone() -> impl Strategy<Value = TimeZone> {
    // The last two change by half an hour, and live far from UTC.
    let lord_howe = TimeZone::posix("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0").unwrap();
    let far = TimeZone::posix("<-11>11").unwrap();
    prop_oneof![Just(TimeZone::UTC), Just(berlin()), Just(lord_howe), Just(far)]
}

/// Joins two sets of rules: each count is the greater one.
fn joined(rules: Rules, more: Rules) -> Rules {
    Rules {
        keep_last: rules.keep_last.max(more.keep_last),
        keep_hourly: rules.keep_hourly.max(more.keep_hourly),
        keep_daily: rules.keep_daily.max(more.keep_daily),
        keep_weekly: rules.keep_weekly.max(more.keep_weekly),
        keep_monthly: rules.keep_monthly.max(more.keep_monthly),
        keep_yearly: rules.keep_yearly.max(more.keep_yearly),
        keep_within: rules.keep_within.or(more.keep_within),
        ..rules
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_the_definitions(all in candidates(), rules in rules(), now in moment(), zone in zone()) {
        let decisions = decide(&all, &rules, now, &zone);
        let numbers: Vec<u64> = decisions.iter().map(|decision| decision.number).collect();
        prop_assert_eq!(numbers, all.iter().map(|version| version.number).collect::<Vec<_>>(), "all, the newest last");
        let expected = all.iter().filter(|version| reference::keeps(version, &all, &rules, now, &zone));
        prop_assert_eq!(kept(&decisions), expected.map(|version| version.number).collect::<Vec<_>>());
        for decision in &decisions {
            prop_assert!(!decision.reasons.is_empty());
            prop_assert!(decision.reasons.iter().all(|reason| reason.keeps() == decision.keep));
        }
    }

    #[test]
    fn good_rising_versions_are_kept_as_restic_keeps_them(
        steps in prop::collection::vec(prop_oneof![1_i64..90_000, 1_i64..3_000_000], 0..40), rules in rules()
    ) {
        prop_assume!(!rules.is_empty());
        // The clocks of this zone never change.
        let zone = TimeZone::posix("<+0545>-5:45").unwrap();
        let mut time = secs("2023-12-20T00:00");
        let all: Vec<Candidate> = (1..).zip(steps).map(|(number, step)| {
            time += step;
            super::version(number, time)
        }).collect();
        let rules = Rules { relative_to: RelativeTo::Newest, ..rules };
        let mut expected = reference::of_restic(&all, &rules, &zone);
        // restic has no protection of the last good version.
        expected.extend(all.last().map(|version| version.number));
        expected.dedup();
        prop_assert_eq!(kept(&decide(&all, &rules, i64::MAX, &zone)), expected);
    }

    #[test]
    fn neither_rules_nor_space_remove_a_protected_version(all in candidates(), rules in rules(), now in moment(), zone in zone()) {
        let decisions = decide(&all, &rules, now, &zone);
        let kept = kept(&decisions);
        let for_space: Vec<u64> = removable_for_space(&decisions).collect();
        prop_assert!(for_space.is_sorted() && for_space.iter().all(|number| kept.contains(number)));
        let stays = |version: &Candidate| kept.contains(&version.number) && !for_space.contains(&version.number);
        let complete = || all.iter().filter(|version| version.state == State::Complete);
        if let Some(good) = complete().rfind(|version| !version.has_problems) {
            prop_assert!(stays(good), "the last good version");
        }
        prop_assert!(complete().next().is_none() || complete().any(stays), "some complete version");
        for version in &all {
            let is_locked = version.locked_until_secs.is_some_and(|until| until > now);
            let may_be_resumed = version.state == State::Incomplete && complete().all(|other| other.number < version.number);
            if is_locked || may_be_resumed || matches!(version.state, State::BeingWritten | State::Damaged) {
                prop_assert!(stays(version), "{:?}", version);
            }
        }
    }

    #[test]
    fn a_rule_more_removes_no_more(all in candidates(), rules in rules(), more in rules(), now in moment(), zone in zone()) {
        prop_assume!(!rules.is_empty() || rules.keep_none);
        let before: BTreeSet<u64> = kept(&decide(&all, &rules, now, &zone)).into_iter().collect();
        let after: BTreeSet<u64> = kept(&decide(&all, &joined(rules, more), now, &zone)).into_iter().collect();
        prop_assert!(before.is_subset(&after), "{:?} and {:?}", before, after);
    }

    #[test]
    fn deciding_again_keeps_all_that_was_kept(all in candidates(), rules in rules(), now in moment(), zone in zone()) {
        let first = kept(&decide(&all, &rules, now, &zone));
        let rest: Vec<Candidate> = all.into_iter().filter(|version| first.contains(&version.number)).collect();
        prop_assert_eq!(kept(&decide(&rest, &rules, now, &zone)), first);
    }

    #[test]
    fn the_order_of_the_input_means_nothing(
        (all, shuffled) in candidates().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        rules in rules(), now in moment(), zone in zone()
    ) {
        prop_assert_eq!(decide(&all, &rules, now, &zone), decide(&shuffled, &rules, now, &zone));
    }

    #[test]
    fn nothing_panics(
        fields in prop::collection::vec((any::<u64>(), any::<i64>(), any::<Option<i64>>(), 0_usize..4), 0..12),
        rules in rules(), now: i64, zone in zone()
    ) {
        let all: Vec<Candidate> = fields.into_iter().map(|(number, completed_secs, locked_until_secs, state)| Candidate {
            number: number % 8,
            completed_secs,
            state: [State::Complete, State::Incomplete, State::BeingWritten, State::Damaged][state],
            locked_until_secs,
            has_problems: number % 3 == 0,
        }).collect();
        let decisions = decide(&all, &rules, now, &zone);
        prop_assert_eq!(decisions.len(), all.len());
        decisions.iter().flat_map(|decision| &decision.reasons).for_each(|reason| assert!(!reason.to_string().is_empty()));
    }
}
