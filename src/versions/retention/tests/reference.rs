//! Two references: restic's own loop, for times that rise, and the definition in quadratic time, for any times.

use jiff::tz::TimeZone;

use super::super::period::timestamp;
use super::super::{Candidate, Count, RelativeTo, Rules, State};

/// Formats of the periods, in the order of the counts behind `keep_last`. Text orders them as the calendar does.
const FORMATS: [&str; 5] = ["%Y-%m-%d %H", "%Y-%m-%d", "%G-%V", "%Y-%m", "%Y"];

fn text(secs: i64, format: &str, zone: &TimeZone) -> String {
    timestamp(secs).to_zoned(zone.clone()).strftime(format).to_string()
}

fn last_before(span: super::super::Span, from_secs: i64, zone: &TimeZone) -> i64 {
    let [years, months, days, hours] = span.parts().map(i64::from);
    let span = jiff::Span::new().years(years).months(months).days(days).hours(hours);
    timestamp(from_secs)
        .to_zoned(zone.clone())
        .checked_sub(span)
        .map_or(i64::MIN, |begin| begin.timestamp().as_second())
}

/// Returns the numbers that restic's loop over versions keeps, the newest first: one counter and one last period for each
/// rule. All versions are complete and sound, and their times rise with their numbers.
pub(super) fn of_restic(versions: &[Candidate], rules: &Rules, zone: &TimeZone) -> Vec<u64> {
    let mut newest_first = versions.to_vec();
    newest_first.sort_by_key(|version| std::cmp::Reverse(version.completed_secs));
    let mut rest = rules
        .counts()
        .map(|count| count.map_or(0, |count| if count == Count::ALL { -1 } else { i64::from(count.get()) }));
    let mut last: [String; 6] = Default::default();
    let mut kept = Vec::new();
    for (at, version) in newest_first.iter().enumerate() {
        let is_oldest = at + 1 == newest_first.len();
        let mut keep = rules
            .keep_within
            .is_some_and(|span| version.completed_secs > last_before(span, newest_first[0].completed_secs, zone));
        for rule in 0..6 {
            if rest[rule] == 0 {
                continue;
            }
            let period = match rule {
                0 => format!("number {at}"),
                _ => text(version.completed_secs, FORMATS[rule - 1], zone),
            };
            if period != last[rule] || is_oldest {
                keep = true;
                last[rule] = period;
                rest[rule] -= i64::from(rest[rule] > 0);
            }
        }
        if keep {
            kept.push(version.number);
        }
    }
    kept.reverse();
    kept
}

/// Whether the version stays, by the definitions. Numbers are different.
pub(super) fn keeps(version: &Candidate, all: &[Candidate], rules: &Rules, now_secs: i64, zone: &TimeZone) -> bool {
    let complete: Vec<&Candidate> = all.iter().filter(|other| other.state == State::Complete).collect();
    let dated: Vec<&&Candidate> = complete.iter().filter(|other| other.completed_secs <= now_secs).collect();
    let is_last_of =
        |others: &mut dyn Iterator<Item = &Candidate>| others.map(|other| other.number).max() == Some(version.number);
    let has_good = complete.iter().any(|other| !other.has_problems);
    let mut good = complete.iter().copied().filter(|other| !other.has_problems || !has_good);
    let later = complete.iter().filter(|other| other.number > version.number).count() as u64;
    let is_protected = is_last_of(&mut good)
        || matches!(version.state, State::BeingWritten | State::Damaged)
        || version.locked_until_secs.is_some_and(|until| until > now_secs)
        || version.state == State::Incomplete && later == 0;
    let says_nothing = rules.is_empty() && !rules.keep_none;
    if is_protected || says_nothing || version.state != State::Complete {
        return is_protected || says_nothing;
    }
    if rules.keep_last.is_some_and(|count| count.reaches(later + 1)) {
        return true;
    }
    let has_dates = rules.keep_within.is_some() || rules.by_periods().next().is_some();
    if version.completed_secs > now_secs {
        return has_dates;
    }
    let from = match rules.relative_to {
        RelativeTo::Now => now_secs,
        RelativeTo::Newest => dated.iter().max_by_key(|other| other.number).unwrap().completed_secs,
    };
    if rules.keep_within.is_some_and(|span| version.completed_secs > last_before(span, from, zone)) {
        return true;
    }
    let [_, counts @ ..] = rules.counts();
    FORMATS.into_iter().zip(counts).filter_map(|(format, count)| Some((format, count?))).any(|(format, count)| {
        // The offset tells two hours of the same name apart.
        let name = |other: &Candidate| {
            let hour = if format.contains("%H") { text(other.completed_secs, "%z", zone) } else { String::new() };
            (text(other.completed_secs, format, zone), std::cmp::Reverse(hour))
        };
        let own = name(version);
        let count_periods = |is_before: &dyn Fn(&Candidate) -> bool| {
            let names: std::collections::BTreeSet<_> =
                dated.iter().filter(|other| is_before(other)).map(|other| name(other)).collect();
            names.len() as u64
        };
        let is_newest = is_last_of(&mut dated.iter().map(|other| **other).filter(|other| name(other) == own));
        let by_number = count_periods(&|other| other.number > version.number && name(other) != own);
        let by_calendar = count_periods(&|other| name(other) > own);
        let is_oldest = dated.iter().all(|other| other.number >= version.number);
        is_newest && (count.reaches(by_number + 1) || count.reaches(by_calendar + 1))
            || is_oldest && count > Count::new(0) && count.reaches(count_periods(&|_| true) + 1)
    })
}
