//! A span of the calendar, such as `1y5m7d2h`.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::StoreError;

/// Largest number of each unit. So no span is out of range for the calendar, which has 20,000 years.
const PART_MAX: u16 = 9999;

/// Years, months, days and hours; at least one is not 0, and none is above 9999.
///
/// Months are those of the calendar: `1m` before March 31 is the last day of February. Days may have 23 or 25 hours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    years: u16,
    months: u16,
    days: u16,
    hours: u16,
}

impl Span {
    /// Makes a span of years, months, days and hours, unless all are 0 or one is above 9999.
    pub fn new([years, months, days, hours]: [u16; 4]) -> Option<Self> {
        let parts = [years, months, days, hours];
        let is_span = parts.iter().all(|part| *part <= PART_MAX) && parts.iter().any(|part| *part > 0);
        is_span.then_some(Self { years, months, days, hours })
    }

    /// Returns years, months, days and hours.
    pub const fn parts(self) -> [u16; 4] {
        [self.years, self.months, self.days, self.hours]
    }

    /// Returns the moment that lies this span before another, or none if the calendar does not reach so far.
    pub(super) fn before(self, moment: &jiff::Zoned) -> Option<jiff::Timestamp> {
        let span = jiff::Span::new().try_years(self.years).ok()?.try_months(self.months).ok()?;
        let span = span.try_days(self.days).ok()?.try_hours(self.hours).ok()?;
        moment.checked_sub(span).ok().map(|moment| moment.timestamp())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, unit) in self.parts().into_iter().zip(['y', 'm', 'd', 'h']).filter(|(number, _)| *number > 0) {
            write!(formatter, "{number}{unit}")?;
        }
        Ok(())
    }
}

impl FromStr for Span {
    type Err = StoreError;

    /// Reads numbers with `y`, `m` (months), `d` and `h`, each unit at most once, in any order.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let wrong = |reason: &str| {
            StoreError::Usage(format!(
                "`{text}` is no span of time: {reason}. Write numbers with y, m, d and h for years, months, days and \
                 hours, such as 30d or 1y5m7d2h"
            ))
        };
        let (mut years, mut months, mut days, mut hours) = (None, None, None, None);
        let mut rest = text;
        while let Some(end) = rest.find(|letter: char| !letter.is_ascii_digit()) {
            let (digits, unit) = rest.split_at(end);
            let part = match unit.chars().next() {
                Some('y') => &mut years,
                Some('m') => &mut months,
                Some('d') => &mut days,
                Some('h') => &mut hours,
                other => return Err(wrong(&format!("{} is no unit", other.map(String::from).unwrap_or_default()))),
            };
            if digits.is_empty() {
                return Err(wrong("a unit has no number"));
            }
            let number = digits.parse().ok().filter(|number| *number <= PART_MAX);
            let number =
                number.ok_or_else(|| wrong(&format!("{digits} is more than {PART_MAX}, take a larger unit")))?;
            if part.replace(number).is_some() {
                return Err(wrong("a unit stands twice"));
            }
            rest = unit.get(1..).unwrap_or_default();
        }
        if !rest.is_empty() {
            return Err(wrong("the last number has no unit"));
        }
        let parts = [years, months, days, hours].map(Option::unwrap_or_default);
        Self::new(parts).ok_or_else(|| wrong("it has no length"))
    }
}
