//! Dates in the names of backups: `2026-11-23`, `web1_20261123`, `2026-11-23T02:30:11+01:00`, `daily.2026.11.23-0230`.

use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};

/// Reads digits from the beginning of a text.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Reads a number of exactly so many digits.
    fn number(&mut self, digits: usize) -> Option<i16> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        let value = number.iter().try_fold(0, |sum: i16, digit| {
            digit.is_ascii_digit().then(|| sum * 10 + i16::from(digit - b'0')) // at most four digits
        })?;
        self.0 = rest;
        Some(value)
    }

    /// Takes one of these letters, if there is one.
    fn one_of(&mut self, letters: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        letters.contains(first).then(|| {
            self.0 = rest;
            *first
        })
    }

    fn pair(&mut self) -> Option<i8> {
        self.number(2).and_then(|number| i8::try_from(number).ok())
    }

    fn is_within_number(&self) -> bool {
        self.0.first().is_some_and(u8::is_ascii_digit)
    }

    fn date(&mut self) -> Option<Date> {
        let year = self.number(4).filter(|year| (1970..2200).contains(year))?;
        let separator = self.one_of(b"-._");
        let month = self.pair()?;
        if separator.is_some() && self.one_of(b"-._") != separator {
            return None;
        }
        Date::new(year, month, self.pair()?).ok()
    }

    /// Reads hour and minute, and the second if there is one.
    fn time(&mut self, date: Date) -> Option<DateTime> {
        let hour = self.pair()?;
        let separator = self.one_of(b":-._h");
        let minute = self.pair()?;
        let mut rest = Reader(self.0);
        let has_second = separator.is_none() || rest.one_of(b":-._") == separator;
        let second = if has_second { rest.pair() } else { None };
        if second.is_some() {
            self.0 = rest.0;
        }
        let time = DateTime::new(date.year(), date.month(), date.day(), hour, minute, second.unwrap_or(0), 0).ok()?;
        (!self.is_within_number()).then_some(time)
    }

    /// Reads `Z`, or an offset such as `+01:00`.
    fn zone(&mut self) -> Option<TimeZone> {
        let sign = match self.one_of(b"Z+-")? {
            b'Z' => return Some(TimeZone::UTC),
            b'+' => 1,
            _ => -1,
        };
        let hours = self.pair()?;
        let _colon = self.one_of(b":");
        let minutes = self.pair()?;
        let seconds = (i32::from(hours) * 60 + i32::from(minutes)) * 60;
        Offset::from_seconds(sign * seconds).ok().map(Offset::to_time_zone)
    }
}

/// Returns the first date in a name, with the time behind it if there is one, else its midnight; in seconds since 1970. Without a zone
/// it counts in `zone`.
pub(super) fn date_in(name: &[u8], zone: &TimeZone) -> Option<i64> {
    let begins = |at: &usize| *at == 0 || name.get(at - 1).is_none_or(|before| !before.is_ascii_digit());
    (0..name.len()).filter(begins).find_map(|at| date_at(name.get(at..)?, zone))
}

fn date_at(text: &[u8], zone: &TimeZone) -> Option<i64> {
    let mut reader = Reader(text);
    let date = reader.date()?;
    let mut behind = Reader(reader.0);
    let _separator = behind.one_of(b"T_-. @t");
    let (time, zone) = match behind.time(date) {
        Some(time) => (time, behind.zone().unwrap_or_else(|| zone.clone())),
        None if reader.is_within_number() => return None,
        None => (date.to_datetime(jiff::civil::Time::midnight()), zone.clone()),
    };
    time.to_zoned(zone).ok().map(|time| time.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_found_as_people_and_programs_write_them() {
        let berlin = TimeZone::fixed(Offset::from_hours(1).expect("is an offset"));
        let day = 1_795_388_400; // 2026-11-23T00:00+01:00
        for (name, secs) in [
            ("2026-11-23", Some(day)),
            ("20261123", Some(day)),
            ("web1.2026.11.23.old", Some(day)),
            ("backup_2026_11_23", Some(day)),
            ("2026-11-23T02:30:11", Some(day + 9011)),
            ("2026-11-23_02-30", Some(day + 9000)),
            ("2026-11-23 02h30", Some(day + 9000)),
            ("20261123T023011Z", Some(day + 9011 + 3600)),
            ("2026-11-23T02:30:11+03:00", Some(day + 9011 - 7200)),
            ("20261123-0230-0100", Some(day + 9000 + 7200)),
            ("20261123023011", Some(day + 9011)),
            ("2026-11-23-full", Some(day)),
            ("2026-11-23.1", Some(day)),
            ("v2-2026-11-23", Some(day)),
            ("2026-11-23T99:00", Some(day)),
            ("daily.0", None),
            ("2026-13-01", None),
            ("2026-02-30", None),
            ("1026-11-23", None),
            ("202611231", None),
            ("2026-11.23", None),
            ("12026-11-23", None),
            ("", None),
        ] {
            assert_eq!(date_in(name.as_bytes(), &berlin), secs, "{name}");
        }
    }
}
