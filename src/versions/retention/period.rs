//! Hours, days, weeks, months and years of a time zone.

use std::cmp::Reverse;
use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};

/// The length of a period.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// An hour of the clock.
    Hour,
    /// A day of the calendar.
    Day,
    /// An ISO week: Monday to Sunday. It belongs to the year that has its Thursday.
    Week,
    /// A month of the calendar.
    Month,
    /// A year of the calendar.
    Year,
}

impl Unit {
    /// All units, in the order of their rules.
    pub(super) const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];
}

impl fmt::Display for Unit {
    /// Writes the word of the rule, such as `daily`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Hour => "hourly",
            Self::Day => "daily",
            Self::Week => "weekly",
            Self::Month => "monthly",
            Self::Year => "yearly",
        })
    }
}

/// A period of the calendar. Periods of one unit are ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Period(Inner);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Inner {
    /// Day, hour, and the clock's distance from UTC: when clocks are put back, the greater distance comes first.
    Hour(Date, i8, Reverse<Offset>),
    Day(Date),
    /// Year of the week, and its number in it.
    Week(i16, i8),
    Month(i16, i8),
    Year(i16),
}

impl Period {
    /// Returns the unit of the period.
    pub const fn unit(self) -> Unit {
        match self.0 {
            Inner::Hour(..) => Unit::Hour,
            Inner::Day(..) => Unit::Day,
            Inner::Week(..) => Unit::Week,
            Inner::Month(..) => Unit::Month,
            Inner::Year(..) => Unit::Year,
        }
    }
}

impl fmt::Display for Period {
    /// Writes `2026-11-23 02:00+01`, `2026-11-23`, `2026-W48`, `2026-11` or `2026`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Inner::Hour(date, hour, Reverse(offset)) => write!(formatter, "{date} {hour:02}:00{offset}"),
            Inner::Day(date) => write!(formatter, "{date}"),
            Inner::Week(year, week) => write!(formatter, "{year:04}-W{week:02}"),
            Inner::Month(year, month) => write!(formatter, "{year:04}-{month:02}"),
            Inner::Year(year) => write!(formatter, "{year:04}"),
        }
    }
}

/// A moment as clocks and calendars of a time zone show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    time: DateTime,
    offset: Offset,
}

impl Local {
    /// Converts seconds since 1970. Seconds out of the calendar's range count as its first or last moment.
    pub(super) fn new(secs: i64, zone: &TimeZone) -> Self {
        let moment = timestamp(secs);
        let offset = zone.to_offset(moment);
        Self { time: offset.to_datetime(moment), offset }
    }

    /// Returns the period of that length that holds the moment.
    pub(super) fn period(self, unit: Unit) -> Period {
        let date = self.time.date();
        Period(match unit {
            Unit::Hour => Inner::Hour(date, self.time.hour(), Reverse(self.offset)),
            Unit::Day => Inner::Day(date),
            Unit::Week => {
                let week = date.iso_week_date();
                Inner::Week(week.year(), week.week())
            }
            Unit::Month => Inner::Month(date.year(), date.month()),
            Unit::Year => Inner::Year(date.year()),
        })
    }
}

/// Converts seconds since 1970. Seconds out of the calendar's range count as its first or last moment.
pub(super) fn timestamp(secs: i64) -> Timestamp {
    let nearest = if secs < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(secs).unwrap_or(nearest)
}
